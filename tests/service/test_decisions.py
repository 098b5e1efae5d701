"""The same questions through every form that clients know, by those clients where they are."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
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

from lastword import Choice, Decider, Item, Multi, Option, Predicate, Score, Tracer
from lastword.decide import decider as decider_module
from lastword.decide.answer import Answers
from lastword.decide.questionnaire import Questionnaire
from lastword.errors import InputError
from lastword.probes import Probe
from lastword.service import content_coding
from lastword.service import questions as questions_module
from lastword.service.app import create_app
from lastword.service.questions import Answered
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.branch import Branch
from lastword.text.prompt_template import Template
from lastword.text.question import question_digest
from lastword.text.tokens import Encoded, EncodedItem, count_tokens
from lastword.trust.calibration import Calibration
from lastword.trust.certificate import Certificate
from lastword.trust.policy import OFF, Policy
from lastword.trust.terms import Terms

TEXT = "The folk of Baevwick send clay lamps over the lake."
GOODS = ["green wool combs", "clay lamps"]
FAR = ["near", "far", "very far"]
# One questionnaire of the library, and as the clients send it: a probe answers the last.
ASKED = {
    "lake": Predicate("Baevwick lies on a lake."),
    "goods": Choice("Which goods?", [GOODS[0], Option(GOODS[1], "of clay")]),
    "far": Score("How far?", FAR),
    "topic": Choice("What is it about?", ["animal", "money"]),
}
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "Baevwick lies on a lake."},
    {
        "type": "choice",
        "instructions": "Which goods?",
        "choices": [{"value": GOODS[0]}, {"value": GOODS[1], "description": "of clay"}],
    },
    {"type": "score", "instructions": "How far?", "levels": FAR},
    {"type": "choice", "instructions": "What is it about?", "choices": ["animal", "money"]},
]
CRITERIA = [{}, {GOODS[0]: None, GOODS[1]: "of clay"}, FAR, {"animal": None, "money": None}]
BY_NAME: dict[str, dict[str, Any]] = {
    name: {"type": kind, "instructions": own["instructions"], "criteria": criteria}
    for name, kind, own, criteria in zip(
        ASKED, ("noul", "choice", "score", "choice"), QUESTIONS, CRITERIA, strict=True
    )
}
TO_GOOGLE = json.loads(json.dumps(BY_NAME).replace("null", '""'))  # its client sends no null


@pytest.fixture(scope="module")
def model(topic: Probe) -> Decider:
    return Decider.demo(probes=[topic])


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
    """Ask in OpenAI's form."""
    body = {"model": served.service.name, "input": TEXT, "questions": QUESTIONS}
    return served.client.post("/v1/decisions", json=body | changes)


def ask(served: Running, **changes: Any) -> Any:
    """Ask in TypeSafe's form."""
    body = {"model": "jev-latest", "state": TEXT, "questions": BY_NAME}
    return served.client.post("/v1/systemone", json=body | changes)


def google(served: Running) -> Any:
    """Ask in Google's form."""
    body = {"model": f"models/{served.service.name}", "input": TEXT}
    headers = {"x-goog-api-key": "any"}
    asked = body | {"questions": TO_GOOGLE}
    return served.client.post("/v1/decisions", json=asked, headers=headers)


def deferring(model: Decider, asked: Questionnaire, threshold: float, **more: Any) -> Certificate:
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


# Every form, by HTTP and by its clients as they stand

CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI(base_url=URL + "/v1", api_key="none")
(model,) = client.models.list()
told = client.decisions.create(model=model.id, input=TEXT, questions=QUESTIONS).model_dump()
""",
    "typesafe": """
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient
kinds = {"noul": Noul, "choice": Choice, "score": Score}
asked = {name: kinds[own.pop("type")](**own) for name, own in BY_NAME.items()}
with TypeSafeClient(api_key="none", base_url=URL) as client:
    told = client.system_one(state=TEXT, questions=asked).model_dump()
    assert client.models.list().models[0].name
""",
    "langchain": """
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
kinds = {"noul": (Predicate, ""), "choice": (Choice, "choices"), "score": (Score, "levels")}
asked = {}
for name, own in BY_NAME.items():
    kind, key = kinds[own["type"]]
    more = {key: own["criteria"]} if key else {}
    asked[name] = kind(instructions=own["instructions"], **more)
decisions = OpenAIDecisions(model=MODEL, base_url=URL + "/v1", api_key="none")
told = decisions.invoke({"input": TEXT, "questions": asked}).model_dump()
""",
    "google": """
from google import genai
options = genai.types.HttpOptions(base_url=URL)
client = genai.Client(api_key="any", http_options=options)
told = client.decisions.create(model="models/" + MODEL, input=TEXT, questions=BY_NAME)
told = {"answers": {name: own.model_dump() for name, own in told.answers.items()}}
""",
}
BEGIN = "import json, os\nglobals().update(json.loads(os.environ['ALL']))\n"


def run(program: str, served: Running, **more: Any) -> str:
    """What a program prints in the clients' environment."""
    given = {"URL": served.url, "MODEL": served.service.name, "TEXT": TEXT} | more
    done = subprocess.run(
        [str(PYTHON), "-c", BEGIN + program],
        env={"ALL": json.dumps(given), "NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_own(told: Mapping[str, Any], own: Answers, *, sure: float = 1.0) -> None:
    """Hold a client's answers to the library's; `sure` is how much a noul may be."""
    answers = told["answers"]
    if isinstance(answers, list):
        answers = dict(zip(own, answers, strict=True))
    lake, p = answers["lake"], own.predicates["lake"].probability
    said = min(max(p, 1 - sure), sure)
    assert lake.get("probability", lake.get("noul")) == pytest.approx(said, abs=1e-5)
    assert answers["goods"]["choice"] == own.choices["goods"].choice
    assert answers["topic"]["choice"] == own.choices["topic"].choice
    assert answers["far"]["score"] == pytest.approx(own.scores["far"].score, abs=1e-5)
    for name in ("goods", "far", "topic"):
        shares = answers[name]["probabilities"]
        if isinstance(shares, list):
            shares = {share["value"]: share["probability"] for share in shares}
        names = [*map(str, range(3))] if name == "far" else [str(v) for v in own[name].values]
        expected = dict(zip(names, own[name].probabilities.tolist(), strict=True))
        assert {str(value): p for value, p in shares.items()} == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("form", [decide, ask, google])
def test_answers_are_those_of_the_library(plain, model, topic, form):
    own, told = model.decide(TEXT, ASKED), form(plain).json()
    assert_own(told, own, sure=0.99 if form is google else 1.0)
    answers = told["answers"]
    goods, far, about = [*(answers if form is decide else answers.values())][1:]
    key = "lastword" if form is decide else "x_lastword"
    assert goods[key]["method"] == "model" and not goods[key]["calibrated"]
    assert about[key]["method"] == topic.name and about[key]["calibrated"]
    assert 0 < about[key]["likeness"] <= 1
    shares = own["goods"].probabilities
    confidence = max(shares) if form is google else own["goods"].confidence
    assert goods["confidence"] == pytest.approx(confidence, abs=1e-5)
    legend = dict(zip("012", FAR, strict=True))
    assert far.get("legend", legend) == legend
    assert all(isinstance(count, int | dict) and count for count in told["usage"].values())


@needs_clients
@pytest.mark.parametrize("client", CLIENTS)
def test_answers_reach_the_client(plain, model, client):
    end = "print(json.dumps(told, default=str))"
    by_name = TO_GOOGLE if client == "google" else BY_NAME
    told = run(CLIENTS[client] + end, plain, QUESTIONS=QUESTIONS, BY_NAME=by_name)
    assert_own(json.loads(told), model.decide(TEXT, ASKED), sure=0.99 if client == "google" else 1)


# OpenAI's form


def test_usage_counts_what_questions_share(plain):
    usage = decide(plain).json()["usage"]
    details = usage["input_tokens_details"]
    assert 0 < details["cached_tokens"] < usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    alone = decide(plain, questions=QUESTIONS[:1]).json()["usage"]["input_tokens_details"]
    assert alone == {"cached_tokens": 0, "cache_write_tokens": 0}


def test_what_a_question_shares_is_the_most_of_any_earlier_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompts = [tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist()) for _ in range(12)]
        pairs = [
            max((len(os.path.commonprefix([own, other])) for other in prompts[:place]), default=0)
            for place, own in enumerate(prompts)
        ]
        item = Item("p", ("c",))
        encoded = [EncodedItem(item, Encoded((Branch((*p, 9), len(p)),))) for p in prompts]
        assert Answered(Answers(), {}, tuple(encoded)).cached_tokens == sum(pairs)


def near(one: Any, other: Any) -> None:
    """Hold the answers of two requests to be the same."""
    for a, b in zip(one.json()["answers"], other.json()["answers"], strict=True):
        assert a.get("probability") == pytest.approx(b.get("probability"), abs=1e-5)
        for p, q in zip(a.get("probabilities", []), b.get("probabilities", []), strict=True):
            assert p == q | {"probability": pytest.approx(q["probability"], abs=1e-5)}


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


def test_texts_are_options_and_values_come_back_as_they_came(plain):
    goods, far = ({k: v for k, v in own.items() if k != "choices"} for own in QUESTIONS[1:3])
    described = [{"value": value} for value in GOODS], [{"label": label} for label in FAR]
    texts = [goods | {"choices": GOODS}, far]
    values = [goods | {"choices": described[0]}, far | {"levels": described[1]}]
    near(decide(plain, questions=texts), decide(plain, questions=values))
    so = goods | {"choices": [{"value": True}, {"value": "true"}, {"value": False}]}
    more = {"questions": [so | {"name": "so"}], "include": ["trajectory"]}
    (told,) = decide(plain, **more).json()["answers"]
    assert [p["value"] for p in told["probabilities"]] == [True, "true", False]
    assert told["name"] == "so"
    trajectory = told["lastword"]["trajectory"]
    assert len(trajectory) == 2 and None not in trajectory[0]


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
    with running(Decider.demo(certificate=certificate)) as served:
        assert [form(served).status_code for form in (decide, ask)] == [400, 422]
        assert repr(prompts) in decide(served).text
    with running(Decider.demo(certificate=replace(certificate, templates=(prompts,)))) as served:
        assert decide(served).status_code == ask(served).status_code == 200


def test_what_is_deferred_is_a_refusal_where_the_caller_asks_for_it():
    bare = Decider.demo()
    tracer = Decider.demo(certificate=deferring(bare, bare.prepare(ASKED), 0.8))
    unsure = [own.deferred for own in tracer.decide(TEXT, ASKED).values()]
    assert {*unsure} == {False, True}
    with running(tracer) as served:
        ways: list[dict[str, str]] = [{}, {"on_deferred": "refusal"}]
        flagged, refused = (decide(served, **more).json()["answers"] for more in ways)
        told, state = (ask(served, **more) for more in ways)
    assert [own["lastword"]["deferred"] for own in flagged] == unsure
    for one, own, deferred in zip(flagged, refused, unsure, strict=True):
        assert own["lastword"]["deferred"] == deferred and own["name"] == one["name"]
        assert (
            (own["type"] == "refusal" and len(own) == 3) if deferred else own.keys() == one.keys()
        )
    assert [own["x_lastword"]["deferred"] for own in told.json()["answers"].values()] == unsure
    names = [f"questions.{name}" for name, own in zip(ASKED, unsure, strict=True) if own]
    assert state.status_code == 422 and ", ".join(names) in state.text


def test_a_request_of_too_much_work_is_refused_before_it_is_begun(model):
    goods = [f"{a} {b}" for a in GOODS for b in GOODS]
    asked = [QUESTIONS[1] | {"choices": goods}] * 9
    parts = [TEXT] + 9 * [QUESTIONS[1]["instructions"], *goods]
    work = sum(count_tokens(part, model.tracer.tokenizer) for part in parts)
    with running(model, tokens=(work - 1) // 4) as served:
        answer = decide(served, questions=asked)
        assert answer.headers["x-refusal"] == "too_many_tokens"
        assert f"{work} tokens" in answer.text and f"{4 * ((work - 1) // 4)};" in answer.text
        assert served.metric("lastword_batch_items_count") == 0
        assert decide(served, questions=asked[:8]).status_code == 200
    with running(model, characters=100) as served:  # an input is repeated for every option
        answer = decide(served)
        assert answer.headers["x-refusal"] == "too_many_characters" and " 400;" in answer.text


# TypeSafe's form


def test_a_level_may_be_an_object(plain):
    levels = ["near", {"how": "far"}]
    told = ask(plain, questions={"far": {"type": "score", "criteria": levels}}).json()["answers"]
    assert told["far"]["legend"] == dict(zip("01", levels, strict=True))


def test_a_body_in_zstd_is_the_body(plain):
    zstd = pytest.importorskip("backports.zstd")
    body = {"model": "jev-latest", "state": TEXT, "questions": BY_NAME}
    coded = {"content-type": "application/json", "content-encoding": "ZSTD"}
    content = zstd.compress(json.dumps(body).encode())
    answer = plain.client.post("/v1/systemone", content=content, headers=coded)
    assert answer.json()["answers"].keys() == ASKED.keys()
    coded["content-encoding"] = "gzip"
    answer = plain.client.post("/v1/systemone", content=content, headers=coded)
    assert (answer.status_code, answer.headers["x-refusal"]) == (415, "unsupported_media_type")


def test_what_is_no_zstd_or_too_large_once_decompressed_is_refused(monkeypatch):
    zstd = pytest.importorskip("backports.zstd")
    whole, limit = zstd.compress(b"{}" + b" " * 100), 2**20
    coder = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    wide = coder.compress(b"{}") + coder.flush()  # of unknown size, so that it has the window
    large = zstd.compress(b" " * (limit + 1))
    for content in (b"{}", whole[:-1], whole + whole, wide, large):
        with pytest.raises(Refusal) as refused:
            content_coding.decoded(content, "zstd", limit)
        code = "body_too_large" if content is large else "invalid_body"
        assert refused.value.code == code
    for package in ("backports", "compression"):  # that read zstd
        monkeypatch.setitem(sys.modules, package, None)
    for name in ("zstd", "zstd, gzip"):
        with pytest.raises(Refusal, match=f"'{name}'"):
            content_coding.decoded(whole, name, limit)


CONFORMANCE = (
    "import runpy, sys\n"
    "sys.argv = ['jevcompat', 'test', URL, '--timeout', '240']\n"
    "try:\n    runpy.run_module('jevcompat.cli', run_name='__main__')\n"
    "except SystemExit:\n    pass\n"
)


@needs_clients
def test_the_conformance_suite(wide):
    told = run(CONFORMANCE, wide).upper()
    assert "CONFORMANT" in told and "NOT CONFORMANT" not in told


# What is served


def test_the_models_are_listed_for_either_client(plain):
    models = plain.client.get("/v1/models").json()
    (one,), (other,) = models["data"], models["models"]  # OpenAI's and TypeSafe's
    assert one["id"] == other["name"] and one["object"] == "model"
    assert {"description", "release_date"} < set(other)


def test_questions_of_the_settings_are_refused_before_the_first_request(tmp_path):
    path = tmp_path / "questions.yaml"
    path.write_text("goods: {choices: [one]}")
    with pytest.raises(InputError, match="goods"):
        create_app(Decider.demo(), Settings(port=0, questions=path))


def test_a_prompt_of_the_users_own_is_served(model, plain, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("Lamps are of clay.\n{{ input }}\n{{ instructions }}", encoding="utf-8")
    with running(Decider.demo(), template=str(file)) as served:
        told = decide(served).json()["answers"][1]["confidence"]
    own = model.decide(TEXT, {"q": ASKED["goods"]}, template=str(file))["q"]
    assert told == pytest.approx(own.confidence, abs=1e-5)
    before = decide(plain).json()["answers"][1]["confidence"]
    assert told != pytest.approx(before, abs=1e-5)
    with pytest.raises(InputError, match="no template"):
        create_app(Decider.demo(), Settings(port=0, template="decide/none"))


def test_a_model_is_called_as_its_folder(tmp_path):
    inner = tracer()
    inner.source = {"model": str(tmp_path)}
    with running(inner) as served:
        (told,) = served.client.get("/v1/models").json()["data"]
        assert told["id"] == tmp_path.name
        assert decide(served, model=str(tmp_path)).status_code == 404


PATIENT = """
from openai import OpenAI
client = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=2)
lake = {"type": "predicate", "instructions": "It is about a lake."}
answer = client.decisions.with_raw_response.create(model=MODEL, input=TEXT, questions=[lake])
print(answer.http_request.headers["x-stainless-retry-count"])
"""


@needs_clients
def test_a_client_comes_again_when_it_is_told_to():
    held = Held(Tracer.demo())
    held.go.clear()
    with running(held, requests=1) as served, ThreadPoolExecutor() as pool:
        item = {"prompt": TEXT, "candidates": GOODS}
        first = pool.submit(served.client.post, "/v1/correct", json=item)
        served.wait_for(lambda: held.busy)
        second = pool.submit(run, PATIENT, served)
        refused = {"route": "/v1/decisions", "status": "429"}
        served.wait_for(lambda: served.metric("lastword_requests_total", **refused) == 1)
        held.go.set()
        assert first.result().status_code == 200 and second.result() == "1\n"


# A chat is the same question


CHATS = """
from typing import Literal
import instructor
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, Field
class About(BaseModel):
    topic: Literal["money", "animal"] = Field(description="What is it about?")
url, user = URL + "/v1", {"role": "user", "content": TEXT}
client = OpenAI(base_url=url, api_key="none")
ask = {"model": MODEL, "messages": [user]}
parsed = client.chat.completions.parse(**ask, response_format=About)
patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
model, whole = patched.chat.completions.create_with_completion(**ask, response_model=About)
chat = ChatOpenAI(model=MODEL, base_url=url, api_key="none")
chain = chat.with_structured_output(About, include_raw=True).invoke([user])
system = {"role": "system", "content": "What is it about?"}
plain = patched.chat.completions.create(
    model=MODEL, messages=[system, user], response_model=Literal["money", "animal"]
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


@needs_clients
def test_a_literal_is_the_same_question_for_its_probe(topic):
    tracer = Decider.demo(probes=[topic], unlike=0.5)  # its likeness is below
    own = tracer.decide(TEXT, {"topic": topic.question})["topic"]
    with running(tracer) as served:
        told, deferred = run(CHATS, served).splitlines()
    answers = json.loads(told)
    for client in ("parse", "instructor"):
        topic, decision = answers[client]
        assert topic == own.choice and decision["method"] == own.method
        assert decision["probability"] == own.probability and decision["calibrated"]
    assert answers["langchain"] == [own.choice, json.dumps({"topic": own.choice})]
    assert answers["literal"] == own.choice
    parsed, refusal = json.loads(deferred)
    assert own.deferred and parsed is None and refusal


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
    assert answer.status_code == 200, (answer.text, served.events("failure"))
    return answer.json()["choices"][0]["message"] | {"lastword": answer.json()["lastword"]}


def test_a_probe_knows_its_question_whatever_the_order_of_its_options(plain, model, topic):
    own = model.decide(TEXT, {"topic": topic.question})["topic"]
    expected = dict(zip(own.values, own.probabilities.tolist(), strict=True))
    turned = QUESTIONS[3] | {"choices": QUESTIONS[3]["choices"][::-1]}
    (alone,) = decide(plain, questions=[turned]).json()["answers"]
    said = chat(plain, topic.question)
    for told in (alone, said["lastword"]):
        assert {p["value"]: p["probability"] for p in told["probabilities"]} == expected
    assert said["content"] == own.choice


def test_an_array_of_a_chat_holds_what_applies(plain, model):
    schema = {"type": "array", "items": {"enum": [*GOODS, "salt"]}, "description": "Which goods?"}
    format = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": [{"role": "user", "content": TEXT}], "response_format": format}
    own = model.decide(TEXT, {"a": Multi("Which goods?", [*GOODS, "salt"])}).multis["a"]
    told = plain.client.post("/v1/chat/completions", json=body).json()
    assert tuple(json.loads(told["choices"][0]["message"]["content"])) == own.choices
    shares = {each["value"]: each["probability"] for each in told["lastword"]["probabilities"]}
    assert shares == pytest.approx(dict(zip(own.values, own.probabilities.tolist(), strict=True)))


def test_a_chat_obeys_the_certificate_of_its_question():
    asked, other = Choice("Which goods?", GOODS), Choice("Who is angry?", GOODS)
    bare = Decider.demo()
    certificate = deferring(
        bare,
        bare.prepare({"q": asked}),
        0.9999,
        questions=(question_digest(asked),),
        calibration=Calibration(2.5, 100, 0.1, 0.05, 0.2, 0.1),
    )
    tracer = Decider.demo(certificate=certificate)
    own = tracer.decide(TEXT, {"q": asked})["q"]
    with running(tracer) as served:
        one, unknown = chat(served, asked), chat(served, other)
        turned = chat(served, Choice("Which goods?", GOODS[::-1]))
        refused = chat(served, asked, on_deferred="refusal")
    for told in (one, turned):
        assert told["lastword"]["deferred"] and told["lastword"]["calibrated"]
    assert one["lastword"]["probability"] == pytest.approx(own.probability, abs=1e-6)
    assert one["content"] == own.choice and one["refusal"] is None
    assert refused["content"] is None and refused["refusal"]
    assert not unknown["lastword"]["deferred"] and not unknown["lastword"]["calibrated"]


def test_each_prompt_of_a_request_is_written_once(monkeypatch):
    """Eight questions about a text: eight prompts, eight items, one text, and no relatives."""
    calls: Counter[str] = Counter()
    bare = Decider.demo()
    asked = [{"type": "choice", "instructions": f"{i}?", "choices": GOODS} for i in range(8)]
    with running(bare) as served:
        for owner, name in (
            (Template, "render"),
            (Item, "__post_init__"),
            (decider_module, "text_of"),
            (decider_module, "prepare"),
            (questions_module, "text_of"),
        ):
            made = getattr(owner, name)

            def counted(*given: Any, made: Any = made, name: str = name, **more: Any) -> Any:
                calls[name] += 1
                return made(*given, **more)

            monkeypatch.setattr(owner, name, counted)
        assert decide(served, questions=asked).status_code == 200
    assert calls == {"render": 8, "__post_init__": 8, "text_of": 1, "prepare": 1}
    (encoded,) = bare.encode([Item("Question: Which goods? Answer:", ("a", "b", "c"))])
    assert len(encoded.prompts) == 1 and len(encoded.prompt.branches) == 3
