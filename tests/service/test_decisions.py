"""Decisions in the two forms that clients know, by those clients where they are."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import populations
import pytest
from clients import PYTHON, needs_clients
from families import build
from served import Held, Running, running, tracer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lastword import Choice, Item, Multi, Option, Predicate, Score, Tracer
from lastword.decisions import Answers, Questionnaire, write_questions
from lastword.decisions.flips import flips
from lastword.decisions.question import question_digest
from lastword.errors import InputError
from lastword.service.app import create_app
from lastword.service.deciding import Answered
from lastword.service.queue import Queue
from lastword.service.settings import Settings
from lastword.text.tokens import Encoded, count_tokens
from lastword.trust.calibration import Calibration
from lastword.trust.certificate import Certificate
from lastword.trust.policy import OFF, Policy
from lastword.trust.terms import Terms

TEXT = "The folk of Baevwick send clay lamps over the lake."
GOODS = ["green wool combs", "clay lamps"]
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "lake", "instructions": "Baevwick lies on a lake."},
    {
        "type": "choice",
        "instructions": "Which goods?",
        "choices": [{"value": GOODS[0]}, {"value": GOODS[1], "description": "of clay"}],
    },
    {
        "type": "score",
        "name": "far",
        "instructions": "How far?",
        "levels": [{"label": "near"}, {"label": "far"}, {"label": "very far"}],
    },
    {
        "type": "choice",
        "name": "so",
        "instructions": "Is it so?",
        "choices": [{"value": True}, {"value": "true"}, {"value": False}],
    },
]
ASKED = {
    "0": Predicate("Baevwick lies on a lake."),
    "1": Choice("Which goods?", [GOODS[0], Option(GOODS[1], "of clay")]),
    "2": Score("How far?", ["near", "far", "very far"]),
    "3": Choice("Is it so?", [True, "true", False]),
}


@pytest.fixture(scope="module")
def model() -> Tracer:
    return Tracer.demo()


def reader() -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, which reads any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate(["<s>", "</s>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def wide() -> Iterator[Running]:
    """A service whose model reads any text, and much of it."""
    network = build("llama", vocab_size=258, max_position_embeddings=16_384)
    # A byte is a token here, so that 255 described options are many, on a busy machine for minutes.
    with running(Tracer(network, reader(), invariant=2.0), deadline_seconds=240.0) as served:
        yield served


def decide(served: Running, **changes: Any) -> Any:
    name = served.client.get("/v1/models").json()["data"][0]["id"]
    body = {"model": name, "input": TEXT, "questions": QUESTIONS} | changes
    return served.client.post("/v1/decisions", json=body)


def ask(served: Running, **changes: Any) -> Any:
    questions = {"lake": {"type": "noul", "instructions": "Is there a lake?"}}
    body = {"model": "jev-latest", "state": TEXT, "questions": questions} | changes
    return served.client.post("/v1/systemone", json=body)


def deferring(model: Tracer, asked: Questionnaire, threshold: float, **more: Any) -> Certificate:
    """A certificate that defers answers less sure than the threshold."""
    return populations.certificate(
        model.subject,
        OFF,
        Terms(0.1, 0.05, error=0.1),
        0,
        items=300,
        answered=300,
        wrong=0.03,
        threshold=threshold,
        templates=(asked.template_name,),
        **more,
    )


def near(one: Any, other: Any) -> None:
    """Hold the answers of two requests to be the same."""
    for a, b in zip(one.json()["answers"], other.json()["answers"], strict=True):
        assert a.get("probability") == pytest.approx(b.get("probability"), abs=1e-5)
        for p, q in zip(a.get("probabilities", []), b.get("probabilities", []), strict=True):
            assert p == q | {"probability": pytest.approx(q["probability"], abs=1e-5)}


# OpenAI's form


def test_answers_are_those_of_the_library_in_the_order_of_the_questions(plain, model):
    told = decide(plain).json()
    own = model.decide(TEXT, ASKED)
    lake, goods, far, so = told["answers"]
    assert lake["name"] == "lake" and goods["name"] is None
    assert lake["probability"] == pytest.approx(own.predicates["0"].probability, abs=1e-5)
    assert goods["choice"] == own.choices["1"].choice
    assert goods["confidence"] == pytest.approx(own["1"].confidence, abs=1e-5)
    assert [p["value"] for p in goods["probabilities"]] == GOODS
    assert far["score"] == pytest.approx(own.scores["2"].score, abs=1e-5)
    assert [(p["value"], p["label"]) for p in far["probabilities"]][2] == (2, "very far")
    assert [p["value"] for p in so["probabilities"]] == [True, "true", False]
    for answer in (goods, far, so):
        assert sum(p["probability"] for p in answer["probabilities"]) == pytest.approx(1, abs=1e-9)
    assert goods["lastword"]["method"] == "base" and not goods["lastword"]["calibrated"]


def test_usage_counts_what_questions_share(plain):
    usage = decide(plain).json()["usage"]
    details = usage["input_tokens_details"]
    assert 0 < details["cached_tokens"] < usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert decide(plain, questions=QUESTIONS[:1]).json()["usage"]["input_tokens_details"] == {
        "cached_tokens": 0,
        "cache_write_tokens": 0,
    }


def test_what_a_question_shares_is_the_most_of_any_earlier_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompts = [tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist()) for _ in range(12)]
        pairs = [
            max((len(os.path.commonprefix([own, other])) for other in prompts[:place]), default=0)
            for place, own in enumerate(prompts)
        ]
        encoded = [Encoded(Item("p", ("c",)), ((*p, 9),), (len(p),)) for p in prompts]
        assert Answered(Answers(), {}, tuple(encoded)).cached_tokens == sum(pairs)


def test_messages_calls_and_json_are_text(wide):
    said: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "a lake"},
    ]
    text = 'developer: Be kind.\nuser: Hi\nassistant: calls look({"at": 1})\ntool: a lake'
    near(decide(wide, input=said), decide(wide, input=text))
    near(decide(wide, input=[{"role": "user", "content": TEXT}]), decide(wide))


def test_the_trajectory_comes_on_request(plain):
    told = decide(plain, include=["trajectory"]).json()["answers"][1]["lastword"]
    assert len(told["trajectory"]) == 2 and None not in told["trajectory"][0]
    assert "trajectory" not in decide(plain).json()["answers"][1]["lastword"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions": []}, "questions"),
        ({"model": "gpt-6-luna"}, "is not served here; expected 'lastword/demo-organism'"),
        (
            {"questions": [*QUESTIONS[:1], QUESTIONS[1] | {"choices": ["a"]}]},
            "questions.1: 1 choice, expected 2 to 255",
        ),
        ({"questions": [QUESTIONS[1] | {"choices": [{"value": "a"}] * 2}]}, "is twice"),
        ({"questions": QUESTIONS[:1] * 401}, "there are 401 questions, a request takes 400"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "has an image"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "names no call before it"),
        ({"input": []}, "empty list"),
        ({"input": TEXT * 40}, "needs"),
        ({"stream": True}, "no key that is known here"),
    ],
)
def test_what_cannot_be_done_is_told_in_openais_form(plain, changes, said):
    answer = decide(plain, **changes)
    assert answer.status_code == (404 if "model" in changes else 400)
    assert said in answer.json()["error"]["message"]


def test_prompts_of_which_the_certificate_says_nothing_are_refused(model):
    prompts = model.prepare(ASKED).template_name
    certificate = populations.certificate(
        model.subject,
        Policy(("decisive", "early"), 1.0),
        Terms(0.1, 0.05),
        18,
        1,
        120,
        templates=("decide/listed 1 (0)",),
    )
    with running(Tracer.demo(certificate=certificate)) as served:
        for reply in (decide(served), ask(served)):
            assert reply.status_code in (400, 422)
            said = f"for the prompt template 'decide/listed 1 (0)', and this is '{prompts}'"
            assert said in reply.text
    with running(Tracer.demo(certificate=replace(certificate, templates=(prompts,)))) as served:
        assert decide(served).status_code == ask(served).status_code == 200


def test_what_is_deferred_is_a_refusal_where_the_caller_asks_for_it(model):
    asked = model.prepare(ASKED)
    sure = [own.decision.probabilities.max() for own in model.decide(TEXT, asked).values()]
    threshold = float(np.mean(sorted(sure)[1:3]))  # two are surer, and two less sure
    certificate = deferring(model, asked, threshold)
    unsure = [p < threshold for p in sure]
    goods, far = {GOODS[0]: None, GOODS[1]: "of clay"}, ["near", "far", "very far"]
    assert sum(unsure) == 2
    with running(Tracer.demo(certificate=certificate)) as served:
        flagged, refused = (
            decide(served, **more).json()["answers"] for more in ({}, {"on_deferred": "refusal"})
        )
        forms = {
            "0": {"type": "noul", "instructions": "Baevwick lies on a lake."},
            "1": {"type": "choice", "instructions": "Which goods?", "criteria": goods},
            "2": {"type": "score", "instructions": "How far?", "criteria": far},
        }
        states = [ask(served, questions=forms, **more) for more in ({}, {"on_deferred": "refusal"})]
    assert [a["lastword"]["deferred"] for a in flagged] == unsure
    assert [a["lastword"]["deferred"] for a in refused] == unsure
    for one, own, deferred in zip(flagged, refused, unsure, strict=True):
        if deferred:
            assert (own["type"], set(own)) == ("refusal", {"type", "name", "lastword"})
            assert own["name"] == one["name"]
        else:
            assert own["type"] == one["type"] and own.keys() == one.keys()
    told = states[0].json()["answers"]
    assert [told[name]["x_lastword"]["deferred"] for name in forms] == unsure[:3]
    names = ", ".join(f"questions.{name}" for name in forms if unsure[int(name)])
    assert states[1].status_code == 422 and f"{names} is deferred" in states[1].text


def test_a_request_of_too_much_work_is_refused_before_it_is_begun(model):
    goods = [{"value": f"{a} {b}"} for a in GOODS for b in GOODS]
    asked = [{"type": "choice", "instructions": "Which goods?", "choices": goods}] * 9
    parts = ["Question: Which goods?\nAnswer:", *(own["value"] for own in goods)]
    work = count_tokens(TEXT, model.tokenizer)
    work += 9 * sum(count_tokens(part, model.tokenizer) for part in parts)
    with running(model, tokens=(work - 1) // 4) as served:
        answer = decide(served, questions=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(
            f"{work} tokens of work, the input once"
        )
        assert f"a request takes {4 * ((work - 1) // 4)}; send it in parts" in answer.text
        assert served.metric("lastword_batch_items_count") == 0
        assert decide(served, questions=asked[:8]).status_code == 200


@pytest.mark.parametrize(("options", "batch"), [(64, False), (65, True)])
def test_a_request_of_no_more_options_than_an_item_may_have_waits_as_one(
    model, monkeypatch, options, batch
):
    lanes: list[bool] = []
    add = Queue.add

    def noted(queue: Queue, entry: Any) -> None:
        if entry.__class__.__name__ == "Question":
            lanes.append(entry.batch)
        add(queue, entry)

    monkeypatch.setattr(Queue, "add", noted)
    few = {"type": "choice", "instructions": "", "choices": [{"value": v} for v in GOODS[:2]]}
    many = [{"value": f"w{i}"} for i in range(options - 4)]
    asked = [few, few, {"type": "choice", "instructions": "", "choices": many}]
    with running(model) as served:
        assert decide(served, questions=asked).status_code == 200
    assert lanes == [batch] * 3


def test_an_input_that_every_option_repeats_is_refused_by_its_characters(model):
    with running(model, characters=200) as served:
        answer = decide(served)
    assert answer.status_code == 413 and "a request takes 800; send it in parts" in answer.text


# TypeSafe's form


def test_typesafes_answers_are_keyed_by_name_and_counted_from_0(plain, model):
    questions = {
        "lake": {"type": "noul", "instructions": "Baevwick lies on a lake."},
        "goods": {"type": "choice", "criteria": {GOODS[0]: None, GOODS[1]: "of clay"}},
        "far": {"type": "score", "criteria": ["near", {"how": "far"}]},
    }
    told = ask(plain, questions=questions).json()
    own = model.decide(TEXT, {"lake": Predicate("Baevwick lies on a lake.")})
    answers = told["answers"]
    assert answers["lake"]["noul"] == pytest.approx(own.predicates["lake"].probability, abs=1e-5)
    assert set(answers["goods"]["probabilities"]) == set(GOODS)
    assert answers["far"]["legend"] == {"0": "near", "1": {"how": "far"}}
    assert set(answers["far"]["probabilities"]) == {"0", "1"}
    assert all(key.startswith("x_") for key in set(answers["lake"]) - {"type", "noul"})
    assert isinstance(told["usage"]["input_tokens"], int)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions": {}}, "questions"),
        ({"questions": {"b": {"type": "box"}}}, "questions.b: a box needs an image"),
        ({"questions": {"b": {"type": "noul"}}}, "questions.b: a predicate needs instructions"),
        ({"questions": {"b": {"type": "score", "criteria": {"0": "x"}}}}, "a list of levels"),
        ({"assets": {"a": {}}}, "leave images out"),
    ],
)
def test_what_cannot_be_done_is_told_in_typesafes_form(plain, changes, said):
    answer = ask(plain, **changes)
    (detail,) = answer.json()["detail"]
    assert answer.status_code == 422 and detail["loc"] == ["body"] and said in detail["msg"]


def coded(served: Running, content: bytes, coding: str, path: str = "/v1/systemone") -> Any:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return served.client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone"])
@pytest.mark.parametrize("coding", ["gzip", "zstd, gzip", "zstd"])
def test_a_body_in_another_coding_is_refused_by_name(plain, monkeypatch, path, coding):
    for package in ("backports", "compression"):  # that read zstd
        monkeypatch.setitem(sys.modules, package, None)
    answer = coded(plain, b"(\xb5/\xfd", coding, path)
    assert answer.status_code == 415 and f"content-encoding '{coding}'" in answer.text


def test_a_body_in_zstd_is_the_body(plain):
    zstd = pytest.importorskip("backports.zstd")
    noul = {"type": "noul", "instructions": "Baevwick lies on a lake."}
    body = {"model": "jev-latest", "state": TEXT, "questions": {"a": noul}}
    answer = coded(plain, zstd.compress(json.dumps(body).encode()), "ZSTD")
    assert answer.status_code == 200
    own = ask(plain, questions={"a": noul}).json()["answers"]["a"]["noul"]
    assert answer.json()["answers"]["a"]["noul"] == pytest.approx(own, abs=1e-5)


def test_what_is_no_zstd_or_too_large_once_decompressed_is_refused(plain):
    zstd = pytest.importorskip("backports.zstd")
    whole = zstd.compress(b"{}" + b" " * 100)
    limit = Settings().body_bytes
    coder = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    wide = coder.compress(b"{}") + coder.flush()  # of unknown size, so that it has the window
    large = zstd.compress(b" " * (limit + 1))
    for content in (b"{}", whole[:-1], whole + whole, wide, large):
        answer = coded(plain, content, "zstd")
        code = "body_too_large" if content is large else "invalid_body"
        assert answer.headers["x-refusal"] == code


def test_models_answer_both_clients(plain):
    told = plain.client.get("/v1/models").json()
    assert told["data"][0]["id"] == told["models"][0]["name"]
    assert {"description", "release_date"} < set(told["models"][0])


def test_questions_of_the_settings_are_checked_before_the_first_request(model, plain, tmp_path):
    path = tmp_path / "questions.yaml"
    write_questions(path, ASKED)
    expected = flips(model.decide, model.prepare(ASKED))
    with running(model, questions=path) as served:
        (told,) = served.client.get("/v1/models").json()["models"]
        (event,) = served.events("checked")
    assert told["flips"]["answers"] == event["answers"] == expected.answers == 30
    assert told["flips"]["flips"] == event["flips"] == 0 and told["flips"]["largest"] < 1e-5
    assert plain.client.get("/v1/models").json()["models"][0]["flips"] is None
    learning = Tracer.demo(correction="batch-calibrated")
    with pytest.raises(InputError, match="are to move with the requests: add --certificate"):
        create_app(learning, Settings(port=0, questions=path))


def test_a_prompt_of_the_users_own_is_served(model, plain, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("Lamps are of clay.\n{{ input }}\n{{ instructions }}", encoding="utf-8")
    with running(Tracer.demo(), template=str(file)) as served:
        (told,) = decide(served, questions=QUESTIONS[1:2]).json()["answers"]
    own = model.decide(TEXT, {"q": ASKED["1"]}, template=str(file))["q"]
    (before,) = decide(plain, questions=QUESTIONS[1:2]).json()["answers"]
    assert told["confidence"] == pytest.approx(own.confidence, abs=1e-5)
    assert told["confidence"] != pytest.approx(before["confidence"], abs=1e-5)
    with pytest.raises(InputError, match="no template"):
        create_app(Tracer.demo(), Settings(port=0, template="decide/none"))


def test_texts_are_options_and_what_is_none_is_shown_one(plain):
    def asked(**changes: Any) -> Any:
        question = {"type": "choice", "instructions": "Which goods?", "choices": GOODS}
        return decide(plain, questions=[question | changes])

    named = [{"value": value} for value in GOODS]
    assert asked().json()["answers"] == asked(choices=named).json()["answers"]
    far = {"type": "score", "instructions": "How far?"}
    bare, labelled = (
        decide(plain, questions=[far | {"levels": levels}]).json()["answers"]
        for levels in (["near", "far"], [{"label": "near"}, {"label": "far"}])
    )
    assert bare == labelled
    goods = {"type": "choice", "instructions": "Which goods?"}
    told = [
        ask(plain, questions={"q": goods | {"criteria": criteria}}).json()["answers"]
        for criteria in (GOODS, dict.fromkeys(GOODS))
    ]
    assert told[0] == told[1]
    for answer in (asked(choices=[{"label": "a"}, "b"]), asked(choices=[1, 2])):
        assert answer.status_code == 400 and '{"value": "TEXT"' in answer.json()["error"]["message"]
    for question in ({"type": "chioce"}, "Which goods?"):
        answer = decide(plain, questions=[question])
        assert '"choices": [' in answer.json()["error"]["message"]


def test_a_model_is_called_as_its_folder(tmp_path):
    inner = tracer()
    inner.source = {"model": str(tmp_path)}
    with running(inner) as served:
        (told,) = served.client.get("/v1/models").json()["data"]
        assert told["id"] == tmp_path.name
        answer = decide(served, model=str(tmp_path))
        assert answer.status_code == 404 and repr(tmp_path.name) in answer.text


# The clients as they stand

OPENAI = """
import json, os
from openai import OpenAI
client = OpenAI(base_url=os.environ["URL"] + "/v1", api_key="none")
(model,) = client.models.list()
told = client.decisions.create(model=model.id, **json.loads(os.environ["BODY"]))
print(told.model_dump_json())
"""
TYPESAFE = """
import os
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient
with TypeSafeClient(api_key="none", base_url=os.environ["URL"]) as client:
    told = client.system_one(
        state={"text": "Hi " * 400},  # sent compressed
        questions={
            "a": Noul(instructions="Is it kind?"),
            "b": Choice(criteria={"one": None, "two": {"of": "two"}}),
            "c": Score(criteria=["low", "high"], instructions="How high?"),
        },
    )
    print(told.nouls["a"].noul, told.choices["b"].choice, told.scores["c"].score)
    print(client.models.list().models[0].name)
"""


LANGCHAIN = """
import os
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
GOODS = {"green wool combs": None, "clay lamps": "of clay"}
asked = {
    "lake": Predicate(instructions="Baevwick lies on a lake."),
    "goods": Choice(instructions="Which goods?", choices=GOODS),
    "far": Score(instructions="How far?", levels=["near", "far", "very far"]),
}
url = os.environ["URL"] + "/v1"
decisions = OpenAIDecisions(model=os.environ["MODEL"], base_url=url, api_key="none")
told = decisions.invoke({"input": os.environ["TEXT"], "questions": asked})
print(told.model_dump_json())
"""

GOOGLE = """
import json, os
from google import genai
from google.genai import types
options = types.HttpOptions(base_url=os.environ["URL"])
client = genai.Client(api_key=os.environ["KEY"], http_options=options)
ask = dict(model="models/" + os.environ["MODEL"], input=os.environ["TEXT"])
told = client.decisions.create(
    **ask,
    questions={
        "lake": {"type": "noul", "instructions": "Baevwick lies on a lake."},
        "goods": {
            "type": "choice",
            "instructions": [{"type": "text", "text": "Which goods?"}],
            "criteria": {"green wool combs": "", "clay lamps": "of clay"},
        },
        "far": {
            "type": "score",
            "instructions": "How far?",
            "criteria": ["near", "far", "very far", *map(str, range(9))],
        },
    },
)
print(json.dumps({name: own.model_dump() for name, own in told.answers.items()}))
for wrong in ({"a": {"type": "choice", "instructions": "?", "criteria": {"one": ""}}},):
    try:
        client.decisions.create(**ask, questions=wrong)
    except Exception as error:
        print(error.status_code, type(error).__name__)
"""


CHATS = """
import json, os
from typing import Literal
import instructor
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field
class About(BaseModel):
    topic: Literal["money", "animal"] = Field(description="What is it about?")
url, user = os.environ["URL"] + "/v1", {"role": "user", "content": os.environ["TEXT"]}
client = OpenAI(base_url=url, api_key="none")
ask = {"model": os.environ["MODEL"], "messages": [user]}
parsed = client.chat.completions.parse(**ask, response_format=About)
patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
model, whole = patched.chat.completions.create_with_completion(**ask, response_model=About)
chat = ChatOpenAI(model=ask["model"], base_url=url, api_key="none")
chain = chat.with_structured_output(About, include_raw=True).invoke([user])
system = {"role": "system", "content": "What is it about?"}
plain = patched.chat.completions.create(
    model=ask["model"], messages=[system, user], response_model=Literal["money", "animal"]
)
print(json.dumps({
    "parse": [parsed.choices[0].message.parsed.topic, parsed.lastword],
    "instructor": [model.topic, whole.lastword],
    "langchain": [chain["parsed"].topic, chain["raw"].content],
    "literal": plain,
}))
told = client.chat.completions.parse(
    **ask, response_format=About, extra_body={"on_deferred": "refusal"}
)
print(json.dumps([told.choices[0].message.parsed, told.choices[0].message.refusal]))
"""


def run(*command: str, url: str, **environment: str) -> str:
    done = subprocess.run(
        [str(PYTHON), *command],
        env={"URL": url, "NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_clients
def test_openais_client(plain):
    body = json.dumps({"input": TEXT, "questions": QUESTIONS})
    told = json.loads(run("-c", OPENAI, url=plain.url, BODY=body))
    assert [a["type"] for a in told["answers"]] == ["predicate", "choice", "score", "choice"]
    assert told["answers"][3]["probabilities"][0]["value"] is True
    assert told["answers"][1]["choice"] == decide(plain).json()["answers"][1]["choice"]


PATIENT = """
import os
from openai import APITimeoutError, OpenAI
client = OpenAI(base_url=os.environ["URL"] + "/v1", api_key="none", max_retries=2)
lake = {"type": "predicate", "instructions": "It is about a lake."}
ask = {"model": os.environ["MODEL"], "input": "Clay lamps.", "questions": [lake]}
if os.environ.get("TIMEOUT"):
    try:
        client.with_options(timeout=0.5, max_retries=0).decisions.create(**ask)
    except APITimeoutError:
        print("timeout")
else:
    answer = client.decisions.with_raw_response.create(**ask)
    print(answer.http_request.headers["x-stainless-retry-count"])
"""


@needs_clients
def test_a_client_comes_again_when_it_is_told_to():
    held = Held(Tracer.demo())
    held.go.clear()
    with running(held, requests=1) as served, ThreadPoolExecutor() as pool:
        environment = {"url": served.url, "MODEL": served.service.corrector.name}
        item = {"prompt": TEXT, "candidates": GOODS}
        first = pool.submit(served.client.post, "/v1/correct", json=item)
        served.wait_for(lambda: held.busy)
        second = pool.submit(run, "-c", PATIENT, **environment)
        refused = {"route": "/v1/decisions", "status": "429"}
        served.wait_for(lambda: served.metric("lastword_requests_total", **refused) == 1)
        held.go.set()
        assert first.result().status_code == 200 and second.result() == "1\n"


@needs_clients
def test_a_client_that_gives_up_leaves_nothing_behind():
    held = Held(Tracer.demo())
    held.go.clear()
    with running(held) as served:
        environment = {"url": served.url, "MODEL": served.service.corrector.name}
        assert run("-c", PATIENT, TIMEOUT="yes", **environment) == "timeout\n"
        left = {"route": "/v1/decisions", "status": "499"}
        served.wait_for(lambda: served.metric("lastword_requests_total", **left) == 1)
        assert served.metric("lastword_in_flight") == 0 and served.service.corrector.alive
        held.go.set()


@needs_clients
def test_typesafes_client(wide):
    (noul, choice, score), (name,) = map(str.split, run("-c", TYPESAFE, url=wide.url).splitlines())
    assert 0 < float(noul) < 1 and choice in ("one", "two") and 0 < float(score) < 1 and name


@needs_clients
def test_langchains_runnable(plain):
    name = plain.client.get("/v1/models").json()["data"][0]["id"]
    told = json.loads(run("-c", LANGCHAIN, url=plain.url, MODEL=name, TEXT=TEXT))
    lake, goods, far, _ = decide(plain).json()["answers"]
    assert told["answers"]["lake"]["probability"] == pytest.approx(lake["probability"], abs=1e-5)
    assert told["answers"]["goods"]["choice"] == goods["choice"]
    assert told["answers"]["far"]["score"] == pytest.approx(far["score"], abs=1e-5)
    assert told["answers"]["far"]["legend"] == {"0": "near", "1": "far", "2": "very far"}


@needs_clients
@pytest.mark.parametrize("key", ["letmein", "another"])
def test_googles_client(model, key):
    with running(model, token="letmein") as served:
        environment = {"KEY": key, "MODEL": served.service.corrector.name, "TEXT": TEXT}
        if key == "another":
            with pytest.raises(AssertionError, match="Unauthorized|UNAUTHENTICATED|401"):
                run("-c", GOOGLE, url=served.url, **environment)
            return
        answers, refused = run("-c", GOOGLE, url=served.url, **environment).splitlines()
    told, goods = json.loads(answers), {GOODS[0]: None, GOODS[1]: "of clay"}
    options = [Option(*pair) for pair in goods.items()]
    asked = {
        "lake": Predicate("Baevwick lies on a lake."),
        "goods": Choice("Which goods?", options),
    }
    own = model.decide(TEXT, asked)
    lake = own.predicates["lake"].probability
    assert told["lake"]["noul"] == pytest.approx(min(max(lake, 0.01), 0.99), abs=1e-5)
    assert told["lake"]["confidence"] == pytest.approx(max(lake, 1 - lake), abs=0.01)
    assert told["goods"]["choice"] == own.choices["goods"].choice
    assert told["goods"]["confidence"] == max(told["goods"]["probabilities"].values())
    assert set(told["goods"]["probabilities"]) == set(goods)
    shares = told["far"]["probabilities"]
    mean = sum(int(level) * share for level, share in shares.items())
    assert len(shares) == 12 and told["far"]["score"] == pytest.approx(mean, abs=1e-6)
    assert told["far"]["confidence"] == max(shares.values()) and told["far"]["legend"]["1"] == "far"
    assert refused == "400 BadRequestError"


@pytest.mark.parametrize(
    "criteria", [{" a": "", "b": ""}, {"a\n": "", "b": ""}, ["a", "b"], {"a": ""}, None]
)
def test_what_googles_choice_cannot_be_is_told_in_its_form(plain, criteria):
    question = {"type": "choice", "instructions": "?", "criteria": criteria}
    name = f"models/{plain.service.corrector.name}"
    body = {"model": name, "input": TEXT, "questions": {"goods": question}}
    headers = {"x-goog-api-key": "any"}
    answer = plain.client.post("/v1/decisions", json=body, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == 400 and error["status"] == "INVALID_ARGUMENT"
    assert "questions.goods" in error["message"]


def test_each_dialect_holds_its_own_limits(plain):
    name, levels = plain.service.corrector.name, [f"level {i}" for i in range(11)]
    google = {"q": {"type": "score", "instructions": "?", "criteria": levels}}
    own = [{"type": "score", "instructions": "?", "levels": [{"label": v} for v in levels]}]
    states = {"q": {"type": "score", "criteria": levels}}
    bodies = [
        ("/v1/decisions", {"model": name, "input": TEXT, "questions": google}, 200),
        ("/v1/decisions", {"model": name, "input": TEXT, "questions": own}, 400),
        ("/v1/systemone", {"model": name, "state": TEXT, "questions": states}, 422),
    ]
    for path, body, status in bodies:
        assert plain.client.post(path, json=body).status_code == status


@needs_clients
def test_the_conformance_suite(wide):
    told = run("-m", "jevcompat.cli", "test", wide.url, "--timeout", "240", url=wide.url)
    assert "CONFORMANT" in told.upper() and "NOT CONFORMANT" not in told.upper()


# A probe, and a certificate


def chat(served: Running, question: Choice, **changes: Any) -> dict[str, Any]:
    """Ask a question as a conversation; the message with the decision behind it."""
    body = {
        "messages": [
            {"role": "system", "content": question.instructions},
            {"role": "user", "content": TEXT},
        ],
        "guided_choice": [option.value for option in question.options],
    }
    answer = served.client.post("/v1/chat/completions", json=body | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"] | {"lastword": answer.json()["lastword"]}


@needs_clients
def test_a_literal_is_the_same_question_for_its_probe(topic):
    tracer = Tracer.demo(probes=[topic], unlike=0.5)  # its likeness is below
    own = tracer.decide(TEXT, {"topic": topic.question})["topic"]
    with running(tracer) as served:
        name = served.service.corrector.name
        told, deferred = run("-c", CHATS, url=served.url, MODEL=name, TEXT=TEXT).splitlines()
    answers = json.loads(told)
    for client in ("parse", "instructor"):
        topic, decision = answers[client]
        assert topic == own.choice and decision["method"] == own.method
        assert decision["probability"] == own.probability and decision["calibrated"]
    assert answers["langchain"] == [own.choice, json.dumps({"topic": own.choice})]
    assert answers["literal"] == own.choice
    parsed, refusal = json.loads(deferred)
    assert own.deferred and parsed is None and "person" in refusal


def test_an_array_of_a_chat_holds_what_applies(model):
    schema = {"type": "array", "items": {"enum": [*GOODS, "salt"]}, "description": "Which goods?"}
    format = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": [{"role": "user", "content": TEXT}], "response_format": format}
    own = model.decide(TEXT, {"a": Multi("Which goods?", [*GOODS, "salt"])}).multis["a"]
    with running(model) as served:
        told = served.client.post("/v1/chat/completions", json=body).json()
    assert tuple(json.loads(told["choices"][0]["message"]["content"])) == own.choices
    shares = {each["value"]: each["probability"] for each in told["lastword"]["probabilities"]}
    assert shares == pytest.approx(dict(zip(own.values, own.probabilities.tolist(), strict=True)))


def test_a_chat_obeys_the_certificate_of_its_question():
    asked, other = Choice("Which goods?", GOODS), Choice("Who is angry?", GOODS)
    bare = Tracer.demo()
    certificate = deferring(
        bare,
        bare.prepare({"q": asked}),
        0.9999,
        questions=(question_digest(asked),),
        calibration=Calibration(2.5, 100, 0.1, 0.05, 0.2, 0.1),
    )
    tracer = Tracer.demo(certificate=certificate)
    own = tracer.decide(TEXT, {"q": asked})["q"]
    with running(tracer) as served:
        one, unknown = chat(served, asked), chat(served, other)
        refused = chat(served, asked, on_deferred="refusal")
    assert one["lastword"]["deferred"] and one["lastword"]["calibrated"]
    assert one["lastword"]["probability"] == pytest.approx(own.probability, abs=1e-6)
    assert one["content"] == own.choice and one["refusal"] is None
    assert refused["content"] is None and "person" in refused["refusal"]
    assert not unknown["lastword"]["deferred"] and not unknown["lastword"]["calibrated"]


def test_a_probe_answers_its_question_in_every_form(topic):
    tracer, probe = Tracer.demo(probes=[topic]), topic
    question = probe.question
    own = tracer.decide(TEXT, {"topic": question})["topic"]
    expected = dict(zip(own.values, own.probabilities.tolist(), strict=True))
    choices = [{"value": value} for value in own.values]
    topic = {"type": "choice", "name": "topic", "instructions": question.instructions}
    criteria = dict.fromkeys(own.values)
    theirs = {"type": "choice", "instructions": question.instructions, "criteria": criteria}
    with running(tracer) as served:
        mixed = decide(served, questions=[QUESTIONS[0], topic | {"choices": choices}]).json()
        lake, answer = mixed["answers"]
        assert {p["value"]: p["probability"] for p in answer["probabilities"]} == expected
        assert answer["lastword"]["method"] == probe.name and answer["lastword"]["calibrated"]
        assert 0 < answer["lastword"]["likeness"] <= 1 and lake["lastword"]["method"] == "base"
        assert mixed["usage"]["input_tokens"] > 0
        (alone,) = decide(served, questions=[topic | {"choices": choices[::-1]}]).json()["answers"]
        assert {p["value"]: p["probability"] for p in alone["probabilities"]} == expected
        told = ask(served, questions={"topic": theirs}).json()["answers"]["topic"]
        assert told["probabilities"] == pytest.approx(expected) and told["choice"] == own.choice
        body = {"model": f"models/{served.service.corrector.name}", "input": TEXT}
        asked = body | {"questions": {"topic": theirs | {"criteria": dict.fromkeys(criteria, "")}}}
        google = served.client.post("/v1/decisions", json=asked, headers={"x-goog-api-key": "a"})
        assert google.json()["answers"]["topic"]["probabilities"] == pytest.approx(expected)
        said = chat(served, question)
        shares = {p["value"]: p["probability"] for p in said["lastword"]["probabilities"]}
        assert shares == expected and said["content"] == own.choice
