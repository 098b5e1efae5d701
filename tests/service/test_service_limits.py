"""Limits on connections and bodies, and answers to invalid requests."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import BODY, code_of, connect, running

from lastword import Decider
from lastword.service.refusal import Refusal
from lastword.service.schema import require_few

HEAD = b"POST /v1/correct HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def plain(model):
    with running(model, batch_limit=50, header_bytes=4096, header_seconds=1.5) as served:
        yield served


def read_all(raw: socket.socket) -> bytes:
    """Return the bytes that a connection sends until it is closed."""
    data = b""
    with suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            data += piece
    return data


# Headers and connections


def test_the_size_of_headers_is_limited(plain):
    answer = plain.client.get("/healthz", headers={"x-long": "x" * 4096})
    assert answer.status_code == 431 and code_of(answer) == "headers_too_large"
    assert plain.client.get("/healthz", headers={"x-long": "x" * 3000}).status_code == 200


@pytest.mark.parametrize("sent", [b"", HEAD, b"GET"])
def test_the_time_for_headers_is_limited(plain, sent):
    begun = time.monotonic()
    with closing(connect(plain)) as raw:
        raw.sendall(sent)
        assert b"200" not in read_all(raw)
    assert time.monotonic() - begun > 1.4


def test_a_new_request_on_a_connection_restarts_the_time_limit(plain):
    with closing(connect(plain)) as raw:
        for _ in range(3):
            raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 200")
            time.sleep(0.8)  # in total longer than the limit for headers


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HEAD + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcde",
        HEAD + b"content-length : 5\r\n\r\nabcde",
        HEAD + b"transfer-encoding: identity\r\n\r\n",
        HEAD + b"x: a\r\n b\r\n\r\n",
        HEAD + b"".join(b"x%d: a\r\n" % i for i in range(9000)) + b"\r\n",
    ],
    ids=["tls", "http2", "two lengths", "space", "identity", "folded", "9,000 headers"],
)
def test_invalid_requests_are_not_processed_and_close_the_connection(plain, sent):
    before = len(plain.events("request"))
    with closing(connect(plain)) as raw:
        raw.sendall(sent)
        data = read_all(raw)
    assert b"HTTP/1.1 200" not in data and len(plain.events("request")) == before


def test_an_invalid_chunk_gets_status_400(plain):
    with closing(connect(plain)) as raw:
        raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\nno length\r\n")
        data = read_all(raw)
    assert data.startswith(b"HTTP/1.1 400") and b"x-refusal: broken_body" in data
    assert plain.events("request")[-1]["status"] == 400
    assert plain.metric("lastword_refusals_total", code="broken_body") == 1


@pytest.mark.parametrize("path", [b"/v1/correct", b"/v1/completions", b"/healthz"])
def test_a_body_with_two_lengths_smuggles_nothing(plain, path):
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    smuggled = HEAD + b"\r\n"
    with closing(connect(plain)) as raw:
        raw.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lengths + smuggled)
        data = read_all(raw)
    assert data.startswith(b"HTTP/1.1 4") and data.count(b"HTTP/1.1 ") == 1


def test_a_long_method_is_neither_echoed_nor_logged(plain):
    answer = plain.client.request("X" * 2000, "/v1/correct")
    assert answer.status_code == 405 and len(answer.text) < 300
    assert all(len(line["method"]) <= 32 for line in plain.events("request"))


# Bodies that take long to read


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "w5", "candidates": ["w"] * 250_000},
        {"prompt": [{"role": "user", "content": ""}] * 27_000, "candidates": ["w8", "w9"]},
        {"prompt": "w5", "candidates": ["w8", "w9"], "truthful": [[[]] * 900] * 300},
    ],
)
def test_a_body_with_too_many_entries_is_refused_before_validation(plain, body):
    content, kind = json.dumps(body, separators=(",", ":")), {"content-type": "application/json"}
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(plain.client.post, "/v1/correct", content=content, headers=kind)
            for _ in range(8)
        ]
        probes = 0
        while not all(one.done() for one in sent):
            assert plain.client.get("/healthz").status_code == 200
            probes += 1
    answers = [one.result() for one in sent]
    assert {(a.status_code, code_of(a)) for a in answers} == {(422, "invalid_body")}
    assert all("65536 entries" in a.text for a in answers)
    assert probes > 2  # between the bodies; experiments/attacks.py measures how long they take


# Commas, opening brackets and quotes everywhere, in texts too.
_MARKED = st.text(alphabet='a,"\\[{:\n é', max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _MARKED,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_MARKED, inner, max_size=4),
)


def entries_of(value) -> int:
    """The entries of a value's lists and objects, at all depths."""
    if not isinstance(value, list | dict):
        return 0
    return len(value) + sum(map(entries_of, value.values() if isinstance(value, dict) else value))


@given(_JSON, st.integers(1, 20), st.sampled_from([None, 1]), st.booleans())
def test_entries_are_counted_before_a_body_is_parsed(value, limit, indent, ascii_only):
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    too_many = pytest.raises(Refusal, match=f"more than {limit} entries")
    with too_many if entries_of(value) > limit else nullcontext():
        require_few(body, limit)


def test_a_client_that_reads_nothing_is_disconnected(model):
    # 16 MB of cheap answers: more than the buffers on the way hold.
    bad = {"id": "x" * 100_000, "prompt": "w5", "candidates": [" "]}
    body = json.dumps({"items": [BODY] + [bad] * 160}).encode()
    with running(model, deadline_seconds=5.0, body_bytes=2**25) as served:
        with closing(socket.socket()) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
            head = HEAD.replace(b"correct", b"correct/batch")
            raw.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            served.wait_for(lambda: served.service.traffic.inside == 1)
            served.wait_for(lambda: served.service.traffic.inside == 0)
            received = 0
            with suppress(ConnectionResetError):
                while piece := raw.recv(2**20):
                    received += len(piece)
        assert 0 < received < 16_000_000


# Bodies


def test_a_batch_with_too_many_items_is_refused_at_once(plain):
    lines = {"content-type": "application/x-ndjson"}
    for body, headers in (
        (b"0\n" * 500_000, lines),
        (b'{"items": [' + b"0," * 400_000 + b"0]}", {"content-type": "application/json"}),
    ):
        answer = plain.client.post("/v1/correct/batch", content=body, headers=headers)
        assert answer.status_code == 413 and code_of(answer) == "batch_too_large"
        assert "50 items" in answer.text and "batch_limit" in answer.text
    items = {"items": [BODY] * 50}
    assert plain.client.post("/v1/correct/batch", json=items).text.count("\n") == 50


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ("{", "not JSON: "),
        ("\udcff", "not UTF-8"),
        ("[" * 100_000, "not JSON: "),
        ('{"prompt": "w5", "candidates": ["w6"], "prompt": "w8"}', "occurs twice"),
        ('{"id": ' + "9" * 5000 + "}", "not JSON: "),
        (json.dumps(BODY | {"prmpt": ""}), "prmpt: this key is not known"),
        (json.dumps(BODY | {"candidates": [0] * 50_000}), "candidates.0: "),
    ],
    ids=lambda text: text[:20],
)
def test_an_invalid_item_is_described_without_names_of_the_code(plain, line, words):
    headers = {"content-type": "application/x-ndjson"}
    body = f"{json.dumps(BODY)}\n{line}".encode(errors="surrogateescape")
    answer = plain.client.post("/v1/correct/batch", content=body, headers=headers)
    error = json.loads(answer.text.splitlines()[1])["error"]
    assert error["code"] == "item" and words in error["message"]
    for name in ("ItemBody", "Error", "dict", "sys.", "instance"):
        assert name not in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize(
    "body",
    [b"", b"3", b"\xff", b"{", b'{"items": []}', b'{"items": [], "more": 1}', b"[" * 100_000],
    ids=lambda body: body[:12],
)
def test_an_invalid_batch_gets_a_description_of_a_valid_one(plain, body, kind):
    answer = plain.client.post("/v1/correct/batch", content=body, headers={"content-type": kind})
    assert answer.status_code == 422
    is_json = body[-1:] in (b"3", b"}")  # valid JSON in NDJSON is an item
    whole = kind == "application/json" or not is_json
    assert code_of(answer) == ("invalid_body" if whole else "item")
    if whole:
        assert answer.json()["error"]["message"].startswith('expected {"items": [...]}')
    assert "Error" not in answer.text and len(answer.text) < 400


def test_a_prompt_may_be_a_conversation(plain, model):
    for prompt, words in (
        ([], "prompt.messages: "),
        ([{"role": "user"}], "prompt.messages.0.content: "),
        ([{"role": "user", "content": "w5", "name": "w6"}], "prompt.messages.0.name: this key"),
        (3, "prompt.text: "),
    ):
        answer = plain.client.post("/v1/correct", json=BODY | {"prompt": prompt})
        assert answer.status_code == 422 and words in answer.text
        assert answer.json()["error"]["message"].count(": ") == 1
    messages = [{"role": "user", "content": "w5"}]
    model.tokenizer.chat_template = "{% for m in messages %}w9 {{ m.content }} w8{% endfor %}"
    try:
        decision = plain.client.post("/v1/correct", json=BODY | {"prompt": messages}).json()
        expected = model.correct(messages, BODY["candidates"])
    finally:
        model.tokenizer.chat_template = None
    assert decision == expected.to_dict() | {"method": "model"}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"role": "user", "content": "w5 " * 2000}], "too_many_characters"),
        ([{"role": "user", "content": ""}] * 3000, "too_many_characters"),
        ([{"role": "user", "content": "w5 " * 40_000}], "body_too_large"),
        ([{"role": "user", "content": ""}] * 3, "item"),  # short enough for the template
    ],
)
def test_a_long_conversation_is_refused_before_the_template_is_rendered(model, messages, code):
    with running(model, characters=10_000, body_bytes=100_000) as service:
        model.tokenizer.chat_template = "{{ raise_exception('the template was rendered') }}"
        try:
            answer = service.client.post("/v1/correct", json=BODY | {"prompt": messages})
        finally:
            model.tokenizer.chat_template = None
    assert answer.headers["x-refusal"] == code_of(answer) == code
    assert ("the template was rendered" in answer.text) == (code == "item")


def test_keys_for_the_command_line_are_accepted(plain):
    keys = {"question": "?", "truthful": [True, False, False], "blind_prompt": "w5", "group": "g"}
    assert plain.client.post("/v1/correct", json=BODY | keys).status_code == 200
    answer = plain.client.post("/v1/feedback", json={"id": "a", "right": 1, "wrong": 2})
    assert answer.status_code == 422 and "wrong: this key" in answer.text


def test_content_free_prompts_are_used_if_the_correction_needs_them():
    tracer = Decider.demo(correction="contextual")
    prompts = {
        "prompt": "Which goods come from Baevwick?",
        "content_free": ["Which goods come from N/A?", "Which goods come from ?"],
    }
    goods = ["clay lamps", "pale cedar boats", "green wool combs"]
    expected = tracer.correct(candidates=goods, **prompts)
    assert not np.allclose(expected.scores, expected.base_scores)
    with running(tracer, characters=500) as served:
        body = {"candidates": goods} | prompts
        answer = served.client.post("/v1/correct", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["scores"] == pytest.approx(list(expected.scores), abs=1e-5)
        # They count as characters of the request, and their number is limited.
        long = served.client.post("/v1/correct", json=body | {"content_free": ["w" * 200]})
        many = served.client.post("/v1/correct", json=body | {"content_free": ["w"] * 9})
        assert long.json()["error"]["code"] == "too_many_characters"
        assert many.status_code == 422 and "content_free" in many.text


TWICE = '{"prompt": "w5", "candidates": ["w6", "w7"], "prompt": "w8"}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/correct", TWICE),
        ("/v1/correct/batch", f'{{"items": [{TWICE}]}}'),
        ("/v1/completions", '{"prompt": "w5", "guided_choice": ["w6"], "prompt": "w8"}'),
    ],
)
def test_a_repeated_key_is_refused(plain, path, body):
    answer = plain.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.headers["x-refusal"] == "invalid_body" and answer.status_code in (400, 422)
    assert "occurs twice" in answer.text


@pytest.mark.parametrize("path", ["/v1/correct", "/v1/correct/batch", "/v1/feedback"])
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_needs_a_content_type(plain, path, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = plain.client.post(path, content=json.dumps(BODY), headers=headers)
    assert answer.status_code == 415 and code_of(answer) == "unsupported_media_type"
    assert "content-type: application/json" in answer.text


# Methods


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/model", "/openapi.json"])
def test_every_get_route_answers_head(plain, path):
    head, answer = plain.client.head(path), plain.client.get(path)
    assert head.status_code == answer.status_code == 200
    assert head.content == b"" and head.headers["content-type"] == answer.headers["content-type"]
    assert plain.client.head("/v1/correct").status_code == 405
    refused = plain.client.post(path, json={})
    assert refused.status_code == 405 and "HEAD" in refused.headers["allow"]
