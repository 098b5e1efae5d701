"""What a service bears before there is a request, and what it says to one that is none."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import PATIENCE_SECONDS, running

from lastword import Tracer
from lastword.service.refusal import Refusal
from lastword.service.schema import require_few, require_few_marks
from lastword.service.server import probes

BODY = {"prompt": "w5 w6 w7", "candidates": ["w8 w9", "w10", "w11 w12 w13"]}
HEAD = b"POST /v1/correct HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def plain(model):
    with running(model, batch_limit=50, header_bytes=4096, header_seconds=1.5) as served:
        yield served


def code_of(answer) -> str:
    assert answer.json()["schema"] == 1
    return answer.json()["error"]["code"]


def connect(served) -> socket.socket:
    port = int(served.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def told(raw: socket.socket) -> tuple[int, str]:
    """Status and code of what a connection says before it is closed."""
    data = b""
    while piece := raw.recv(65536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


# Headers and connections


def test_headers_that_come_whole_have_a_limit(plain):
    answer = plain.client.get("/healthz", headers={"x-long": "x" * 4096})
    assert answer.status_code == 431 and code_of(answer) == "headers_too_large"
    assert "4096 bytes" in answer.text
    assert plain.client.get("/healthz", headers={"x-long": "x" * 3000}).status_code == 200


def test_headers_that_never_end_have_a_limit(plain):
    with closing(connect(plain)) as raw:
        raw.sendall(HEAD + b"x-long: " + b"x" * 5000)
        assert told(raw) == (431, "headers_too_large")


@pytest.mark.parametrize("sent", [b"", HEAD, b"GET"])
def test_headers_have_their_time(plain, sent):
    begun = time.monotonic()
    with closing(connect(plain)) as raw:
        raw.sendall(sent)
        assert told(raw) == (408, "header_timeout")
    assert 1.4 < time.monotonic() - begun < 15


def test_headers_that_trickle_have_no_more_time(plain):
    with closing(connect(plain)) as raw:
        raw.sendall(HEAD)
        for _ in range(4):
            time.sleep(0.1)
            raw.sendall(b"x: y\r\n")
        assert told(raw) == (408, "header_timeout")


def test_a_connection_that_is_kept_has_its_time_anew(plain):
    for _ in range(3):
        assert plain.client.get("/healthz").status_code == 200
        time.sleep(0.8)  # longer in all than headers may take


def test_what_is_no_http_is_told_so(plain):
    with closing(connect(plain)) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert told(raw) == (400, "invalid_request")
    assert plain.metric("lastword_refusals_total", code="invalid_request") >= 1


@pytest.mark.parametrize("path", [b"/v1/correct", b"/v1/completions", b"/healthz"])
def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(plain, path):
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    smuggled = HEAD + b"\r\n"
    with closing(connect(plain)) as raw:
        raw.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + lengths + smuggled)
        data = b"".join(iter(lambda: raw.recv(65536), b""))
    assert data.startswith(b"HTTP/1.1 400 ") and b"x-refusal: invalid_request" in data
    assert data.count(b"HTTP/1.1 ") == 1  # what came behind it is no request


def test_a_long_method_is_neither_echoed_nor_logged(plain):
    answer = plain.client.request("X" * 2000, "/v1/correct")
    assert answer.status_code == 405 and len(answer.text) < 300
    assert all(len(line["method"]) <= 32 for line in plain.events("request"))


def test_a_new_connection_takes_the_place_of_one_that_asks_nothing(model):
    with running(model, connections=4, header_seconds=20.0) as served:
        assert served.client.get("/healthz").status_code == 200  # and stays open
        others = [connect(served) for _ in range(3)]
        served.wait_for(lambda: len(served.server.server_state.connections) == 4)
        with closing(connect(served)) as raw:
            assert told(others[0]) == (503, "too_many_connections")  # the oldest of them
            raw.sendall(b"GET /v1/model HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        for other in others:
            other.close()
        served.wait_for(lambda: len(served.server.server_state.connections) == 1)
        with closing(connect(served)) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 200")


def fresh(method: str, url: str, **more) -> httpx.Response:
    """The answer on a connection of its own."""
    with httpx.Client(timeout=30.0, trust_env=False, verify=False) as client:
        return client.request(method, url, **more)


def test_where_all_connections_are_busy_probes_are_answered_and_others_told_so(held):
    with running(held, connections=3) as served, ThreadPoolExecutor(3) as pool:
        held.go.clear()
        busy = [pool.submit(fresh, "POST", f"{served.url}/v1/correct", json=BODY) for _ in range(3)]
        served.wait_for(lambda: served.service.traffic.inside == 3)
        for _ in range(20):  # more than the reserve has places
            assert fresh("GET", f"{served.url}/healthz").status_code == 200
        raws = [connect(served) for _ in range(40)]  # asking nothing, on the reserve too
        for path in ("/healthz", "/readyz"):
            assert fresh("GET", served.url + path).status_code == 200
        refused = fresh("POST", f"{served.url}/v1/correct", json=BODY)
        assert refused.status_code == 503 and code_of(refused) == "too_many_connections"
        assert refused.headers["connection"] == "close" and refused.headers["retry-after"] == "1"
        assert len(served.server.server_state.connections) < 25
        held.go.set()
        assert [b.result().status_code for b in busy] == [200] * 3
        for raw in raws:
            raw.close()


def test_probes_on_a_port_of_their_own_do_not_wait_for_those_who_take_requests(model):
    with running(model, probe_port=0) as served, probes(served.service) as port:
        own = f"http://127.0.0.1:{port}"
        assert {fresh("GET", own + path).status_code for path in ("/healthz", "/readyz")} == {200}
        assert fresh("POST", f"{own}/v1/correct", json=BODY).status_code == 404
        loop = served.server.servers[0].get_loop()
        held, go = threading.Event(), threading.Event()
        loop.call_soon_threadsafe(held.set)
        loop.call_soon_threadsafe(lambda: go.wait(PATIENCE_SECONDS))
        assert held.wait(PATIENCE_SECONDS)
        assert fresh("GET", f"{own}/healthz").status_code == 200
        go.set()
        served.service.traffic.draining = True
        assert fresh("GET", f"{own}/readyz").status_code == 503
        assert fresh("GET", f"{own}/healthz").status_code == 200  # it is only stopping


def test_a_service_that_takes_no_requests_any_more_is_said_to_be_dead(model):
    with (
        running(model, probe_port=0, deadline_seconds=0.5) as served,
        probes(served.service) as port,
    ):
        go = threading.Event()
        loop = served.server.servers[0].get_loop()
        loop.call_soon_threadsafe(lambda: go.wait(PATIENCE_SECONDS))
        served.wait_for(lambda: served.service.stuck)
        answer = fresh("GET", f"http://127.0.0.1:{port}/healthz")
        assert answer.status_code == 500 and "restart the service" in answer.text
        go.set()
        served.wait_for(lambda: not served.service.stuck)
        assert fresh("GET", f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_a_crowd_that_asks_nothing_leaves_those_who_have_asked_their_connections(model):
    with running(model, connections=32) as served:
        assert served.client.get("/healthz").status_code == 200
        raws = [connect(served) for _ in range(300)]
        before = served.server.server_state.total_requests
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert served.server.server_state.total_requests == before + 1
        served.wait_for(lambda: len(served.server.server_state.connections) <= 32)
        for raw in raws:
            raw.close()


# Bodies that are large to read


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "w5", "candidates": ["w"] * 250_000},
        {"prompt": [{"role": "user", "content": ""}] * 27_000, "candidates": ["w8", "w9"]},
        {"prompt": "w5", "candidates": ["w8", "w9"], "truthful": [[[]] * 900] * 300},
    ],
)
def test_a_body_of_too_many_entries_is_counted_before_it_is_validated(plain, body):
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
    lines = plain.client.post("/v1/correct/batch", json={"items": [BODY, body]}).text
    first, second = map(json.loads, lines.splitlines())
    assert "answer" in first and "65536 entries" in second["error"]["message"]
    assert probes > 2  # between the bodies; experiments/attacks.py measures how long they take


# Commas, brackets and quotes everywhere, in texts too.
_MARKED = st.text(alphabet='a,"\\[]{}:\n é', max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _MARKED,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_MARKED, inner, max_size=4),
)


@given(_JSON, st.integers(1, 20), st.sampled_from([None, 1]), st.booleans())
def test_no_body_is_refused_at_sight_that_has_few_enough_entries(value, limit, indent, ascii_only):
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    try:
        require_few_marks(body, limit)
    except Refusal:
        with pytest.raises(Refusal, match="entries"):
            require_few(value, limit)


@pytest.mark.parametrize(
    "value",
    [["w"] * 90, [{"role": "user", "content": ""}] * 40, {"a": [[1], ["b, "]] * 60}, ['\\"'] * 90],
)
def test_a_body_of_many_entries_is_refused_at_sight(value):
    with pytest.raises(Refusal, match="more than 80 entries"):
        require_few_marks(json.dumps(value).encode(), 80)


def test_a_client_that_reads_nothing_is_let_go(model):
    # 16 MB of answers that cost nothing: more than the buffers between them hold.
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


def test_a_batch_has_most_items_and_is_refused_at_once(plain):
    lines = {"content-type": "application/x-ndjson"}
    for body, headers in (
        (b"0\n" * 500_000, lines),
        (b'{"items": [' + b"0," * 400_000 + b"0]}", {"content-type": "application/json"}),
    ):
        answer = plain.client.post("/v1/correct/batch", content=body, headers=headers)
        assert answer.status_code == 413 and code_of(answer) == "batch_too_large"
        assert "50 items" in answer.text and "--batch-limit" in answer.text
    items = {"items": [BODY] * 50}
    assert plain.client.post("/v1/correct/batch", json=items).text.count("\n") == 50


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("3", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ("{", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ('{"id": ' + "9" * 5000 + "}", "not JSON: "),
        (json.dumps(BODY | {"prmpt": ""}), "prmpt: no key that is known here"),
        (json.dumps(BODY | {"candidates": [0] * 50_000}), "candidates.0: "),
    ],
    ids=lambda text: text[:20],
)
def test_an_item_that_is_none_is_told_in_a_clients_words(plain, line, words):
    headers = {"content-type": "application/x-ndjson"}
    body = f"{json.dumps(BODY)}\n{line}"
    answer = plain.client.post("/v1/correct/batch", content=body, headers=headers)
    told = json.loads(answer.text.splitlines()[1])
    assert told["error"]["code"] == "item" and words in told["error"]["message"]
    for name in ("ItemBody", "Error", "dict", "sys.", "instance"):
        assert name not in told["error"]["message"]
    assert len(told["error"]["message"]) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"3",
        b"\xff",
        b"{",
        b'{"items": 3}',
        b'{"items": [], "more": 1}',
        b"[" * 100_000,
        b"9" * 5000,
    ],
    ids=lambda body: body[:12],
)
def test_a_batch_that_is_none_is_told_what_one_is(plain, body):
    headers = {"content-type": "application/json"}
    answer = plain.client.post("/v1/correct/batch", content=body, headers=headers)
    assert answer.status_code == 422 and code_of(answer) == "invalid_body"
    assert answer.json()["error"]["message"].startswith('expected {"items": [...]}')
    assert "Error" not in answer.text and len(answer.text) < 400


def test_a_prompt_may_be_a_conversation(plain, model):
    for prompt, words in (
        ([], "prompt.messages: "),
        ([{"role": "user"}], "prompt.messages.0.content: "),
        ([{"role": "user", "content": "w5", "name": "w6"}], "prompt.messages.0.name: no key"),
        (3, "prompt.text: "),
    ):
        answer = plain.client.post("/v1/correct", json=BODY | {"prompt": prompt})
        assert answer.status_code == 422 and words in answer.text
        assert answer.json()["error"]["message"].count(": ") == 1
    said = [{"role": "user", "content": "w5"}]
    model.tokenizer.chat_template = "{% for m in messages %}w9 {{ m.content }} w8{% endfor %}"
    try:
        told = plain.client.post("/v1/correct", json=BODY | {"prompt": said}).json()
        known = model.correct(said, BODY["candidates"])
    finally:
        model.tokenizer.chat_template = None
    assert told == known.to_dict()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([{"role": "user", "content": "w5 " * 2000}], "too_many_characters"),
        ([{"role": "user", "content": ""}] * 3000, "too_many_characters"),
        ([{"role": "user", "content": "w5 " * 40_000}], "body_too_large"),
        ([{"role": "user", "content": ""}] * 3, "item"),  # short enough: the template is asked
    ],
)
def test_a_long_conversation_is_refused_before_a_template_sees_it(model, said, code):
    with running(model, characters=10_000, body_bytes=100_000) as service:
        model.tokenizer.chat_template = "{{ raise_exception('the template was asked') }}"
        try:
            answer = service.client.post("/v1/correct", json=BODY | {"prompt": said})
        finally:
            model.tokenizer.chat_template = None
    assert answer.headers["x-refusal"] == code_of(answer) == code
    assert ("the template was asked" in answer.text) == (code == "item")


def test_keys_that_no_body_has_are_refused_by_name(plain):
    for path, body in (
        ("/v1/correct", BODY | {"candidats": []}),
        ("/v1/ask", {"question": "w5", "samples": 3}),
        ("/v1/feedback", {"id": "a", "right": 1, "wrong": 2}),
    ):
        answer = plain.client.post(path, json=body)
        unknown = [key for key in body if key in ("candidats", "samples", "wrong")]
        assert answer.status_code == 422 and f"{unknown[0]}: no key" in answer.text
    # What lines for the command line may have is no mistake.
    known = BODY | {"question": "?", "truthful": [True, False, False], "blind_prompt": "w5"}
    known["group"] = "g"
    assert plain.client.post("/v1/correct", json=known).status_code == 200


def test_content_free_prompts_are_read_where_the_correction_needs_them():
    tracer = Tracer.demo(correction="contextual")
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
        # They count as text that is read, and there are few of them.
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
        ("/v2/rerank", '{"query": "w5", "documents": [{"text": "w6", "text": "w7"}]}'),
        ("/v1/completions", '{"prompt": "w5", "guided_choice": ["w6"], "prompt": "w8"}'),
    ],
)
def test_a_key_that_stands_twice_is_refused(plain, path, body):
    answer = plain.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.headers["x-refusal"] == "invalid_body" and answer.status_code in (400, 422)
    assert "stands twice" in answer.text


def test_a_line_whose_key_stands_twice_fails_alone(plain):
    lines = "\n".join([TWICE, '{"prompt": "w5", "candidates": ["w6", "w7"]}'])
    kind = {"content-type": "application/x-ndjson"}
    answer = plain.client.post("/v1/correct/batch", content=lines, headers=kind)
    first, second = map(json.loads, answer.text.splitlines())
    assert "stands twice" in first["error"]["message"] and "answer" in second


@pytest.mark.parametrize("path", ["/v1/correct", "/v1/ask", "/v1/correct/batch", "/v1/feedback"])
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_says_what_it_is(plain, path, kind):
    headers = {} if kind is None else {"content-type": kind}
    answer = plain.client.post(path, content=json.dumps(BODY), headers=headers)
    assert answer.status_code == 415 and code_of(answer) == "unsupported_media_type"
    assert "content-type: application/json" in answer.text


# Manners


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//[", "["])
def test_an_origin_that_is_no_address_is_another_site(plain, origin):
    answer = plain.client.post("/v1/correct", json=BODY, headers={"origin": origin})
    assert answer.status_code == 403 and code_of(answer) == "forbidden"
    assert plain.events("failure") == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/model", "/openapi.json"])
def test_what_can_be_got_has_a_head(plain, path):
    head, got = plain.client.head(path), plain.client.get(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b"" and head.headers["content-type"] == got.headers["content-type"]
    assert plain.client.head("/v1/correct").status_code == 405
    refused = plain.client.post(path, json={})
    assert refused.status_code == 405 and "HEAD" in refused.headers["allow"]
