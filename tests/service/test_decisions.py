"""The same questions in every client's form, by HTTP and by the clients if they are installed."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import populations
import pytest
from clients import PYTHON, needs_clients
from families import build
from served import Running, running
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lastword import Choice, Decider, Item, Multi, Option, Predicate, Score, Tracer
from lastword.decide.answer import Answers
from lastword.decide.questionnaire import Questionnaire
from lastword.errors import InputError
from lastword.probes import Probe
from lastword.service.app import create_app
from lastword.service.questions import Usage
from lastword.service.settings import Settings
from lastword.text.forest import Branch
from lastword.text.tokens import Encoded, EncodedItem
from lastword.trust.certificate import Certificate
from lastword.trust.policy import OFF
from lastword.trust.terms import Terms

TEXT = "The folk of Baevwick send clay lamps over the lake."
GOODS = ["green wool combs", "clay lamps"]
FAR = ["near", "far", "very far"]
# One questionnaire, as the library and as the clients write it. A probe answers the last question.
QUESTIONNAIRE = {
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
    name: {"type": kind, "instructions": question["instructions"], "criteria": criteria}
    for name, kind, question, criteria in zip(
        QUESTIONNAIRE, ("noul", "choice", "score", "choice"), QUESTIONS, CRITERIA, strict=True
    )
}
TO_GOOGLE = json.loads(json.dumps(BY_NAME).replace("null", '""'))  # its client sends no null


@pytest.fixture(scope="module")
def model(topic: Probe) -> Decider:
    return Decider.demo(probes=[topic])


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, which reads any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate(["<s>", "</s>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def wide() -> Iterator[Running]:
    """A service whose model reads any text, also a long one."""
    network = build("llama", vocab_size=258, max_position_embeddings=16_384)
    # A byte is a token here: 255 options with descriptions may take minutes on a busy machine.
    with running(
        Tracer(network, byte_tokenizer(), invariant=2.0), deadline_seconds=240.0
    ) as served:
        yield served


def ask_openai(served: Running, **changes: Any) -> Any:
    """Ask in OpenAI's form."""
    body = {"model": served.service.name, "input": TEXT, "questions": QUESTIONS}
    return served.client.post("/v1/decisions", json=body | changes)


def ask_typesafe(served: Running, **changes: Any) -> Any:
    """Ask in TypeSafe's form."""
    body = {"model": "jev-latest", "state": TEXT, "questions": BY_NAME}
    return served.client.post("/v1/systemone", json=body | changes)


def ask_google(served: Running) -> Any:
    """Ask in Google's form."""
    name = f"models/{served.service.name}"
    body = {"model": name, "input": TEXT, "questions": TO_GOOGLE}
    return served.client.post("/v1/decisions", json=body, headers={"x-goog-api-key": "any"})


def deferring(
    model: Decider, questionnaire: Questionnaire, threshold: float, **more: Any
) -> Certificate:
    """Return a certificate that defers answers below a threshold of confidence."""
    return populations.certificate(
        model.subject,
        OFF,
        Terms(0.1, 0.05, error=0.1),
        0,
        items=300,
        automation=populations.above(threshold),
        templates=(questionnaire.template_name,),
        **more,
    )


# Every form, by HTTP and by unchanged clients

CLIENTS = {
    "openai": """
from openai import OpenAI
client = OpenAI(base_url=URL + "/v1", api_key="none")
(model,) = client.models.list()
response = client.decisions.create(model=model.id, input=TEXT, questions=QUESTIONS).model_dump()
""",
    "typesafe": """
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient
kinds = {"noul": Noul, "choice": Choice, "score": Score}
questions = {name: kinds[each.pop("type")](**each) for name, each in BY_NAME.items()}
with TypeSafeClient(api_key="none", base_url=URL) as client:
    response = client.system_one(state=TEXT, questions=questions).model_dump()
    assert client.models.list().models[0].name
""",
    "google": """
from google import genai
options = genai.types.HttpOptions(base_url=URL)
client = genai.Client(api_key="any", http_options=options)
typed = client.decisions.create(model="models/" + MODEL, input=TEXT, questions=BY_NAME)
response = {"answers": {name: answer.model_dump() for name, answer in typed.answers.items()}}
""",
}
BEGIN = "import json, os\nglobals().update(json.loads(os.environ['ALL']))\n"


def run(program: str, served: Running, **more: Any) -> str:
    """Return the output of a program in the clients' environment."""
    variables = {"URL": served.url, "MODEL": served.service.name, "TEXT": TEXT} | more
    process = subprocess.run(
        [str(PYTHON), "-c", BEGIN + program],
        env={"ALL": json.dumps(variables), "NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def assert_same_answers(
    response: Mapping[str, Any], expected: Answers, *, limit: float = 1.0
) -> None:
    """Assert that a client's answers equal the library's; `limit` bounds a noul's probability."""
    answers = response["answers"]
    if isinstance(answers, list):
        answers = dict(zip(expected, answers, strict=True))
    lake, p = answers["lake"], expected["lake"].probability
    clipped = min(max(p, 1 - limit), limit)
    assert lake.get("probability", lake.get("noul")) == pytest.approx(clipped, abs=1e-5)
    assert answers["goods"]["choice"] == expected["goods"].choice
    assert answers["topic"]["choice"] == expected["topic"].choice
    assert answers["far"]["score"] == pytest.approx(expected["far"].score, abs=1e-5)
    for name in ("goods", "far", "topic"):
        shares = answers[name]["probabilities"]
        if isinstance(shares, list):
            shares = {share["value"]: share["probability"] for share in shares}
        names = [*map(str, range(3))] if name == "far" else [str(v) for v in expected[name].values]
        probabilities = dict(zip(names, expected[name].probabilities.tolist(), strict=True))
        assert {str(value): p for value, p in shares.items()} == pytest.approx(
            probabilities, abs=1e-5
        )


@pytest.mark.parametrize("form", [ask_openai, ask_typesafe, ask_google])
def test_answers_are_those_of_the_library(plain, model, topic, form):
    expected, response = model.decide(TEXT, QUESTIONNAIRE), form(plain).json()
    assert_same_answers(response, expected, limit=0.99 if form is ask_google else 1.0)
    answers = response["answers"]
    goods, far, about = [*(answers if form is ask_openai else answers.values())][1:]
    key = "lastword" if form is ask_openai else "x_lastword"
    assert goods[key]["method"] == "model" and not goods[key]["calibrated"]
    assert about[key]["method"] == topic.name and about[key]["calibrated"]
    assert 0 < about[key]["likeness"] <= 1
    probed = {"regime": "probe", "operator": "probe", "changed": "no"}
    assert plain.metric("lastword_decisions_total", **probed) > 0
    shares = expected["goods"].probabilities
    confidence = max(shares) if form is ask_google else expected["goods"].confidence
    assert goods["confidence"] == pytest.approx(confidence, abs=1e-5)
    legend = dict(zip("012", FAR, strict=True))
    assert far.get("legend", legend) == legend
    assert all(isinstance(count, int | dict) and count for count in response["usage"].values())


@needs_clients
@pytest.mark.parametrize("client", CLIENTS)
def test_answers_reach_the_client(plain, model, client):
    end = "print(json.dumps(response, default=str))"
    by_name = TO_GOOGLE if client == "google" else BY_NAME
    output = run(CLIENTS[client] + end, plain, QUESTIONS=QUESTIONS, BY_NAME=by_name)
    assert_same_answers(
        json.loads(output),
        model.decide(TEXT, QUESTIONNAIRE),
        limit=0.99 if client == "google" else 1,
    )


# OpenAI's form


def test_cached_tokens_are_the_longest_prefix_of_an_earlier_prompt():
    rng = np.random.default_rng(0)
    for _ in range(200):
        prompts = [tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist()) for _ in range(12)]
        pairs = [
            max(
                (len(os.path.commonprefix([prompt, other])) for other in prompts[:place]), default=0
            )
            for place, prompt in enumerate(prompts)
        ]
        item = Item("p", ("c",))
        encoded = [EncodedItem(item, Encoded((Branch((*p, 9), len(p)),))) for p in prompts]
        assert Usage.of(encoded, 0).cached == sum(pairs)


def assert_close(one: Any, other: Any) -> None:
    """Assert that the answers of two requests are equal."""
    for a, b in zip(one.json()["answers"], other.json()["answers"], strict=True):
        assert a.get("probability") == pytest.approx(b.get("probability"), abs=1e-5)
        for p, q in zip(a.get("probabilities", []), b.get("probabilities", []), strict=True):
            assert p == q | {"probability": pytest.approx(q["probability"], abs=1e-5)}


def test_messages_and_json_are_text(wide):
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    ]
    text = "developer: Be kind.\nuser: Hi"
    assert_close(ask_openai(wide, input=messages), ask_openai(wide, input=text))
    assert_close(ask_openai(wide, input=[{"role": "user", "content": TEXT}]), ask_openai(wide))


def test_options_may_be_texts_and_values_are_returned_unchanged(plain):
    goods, far = (
        {k: v for k, v in question.items() if k != "choices"} for question in QUESTIONS[1:3]
    )
    described = [{"value": value} for value in GOODS], [{"label": label} for label in FAR]
    texts = [goods | {"choices": GOODS}, far]
    values = [goods | {"choices": described[0]}, far | {"levels": described[1]}]
    assert_close(ask_openai(plain, questions=texts), ask_openai(plain, questions=values))
    mixed = goods | {"choices": [{"value": True}, {"value": "true"}, {"value": False}]}
    changes = {"questions": [mixed | {"name": "so"}], "include": ["trajectory"]}
    (answer,) = ask_openai(plain, **changes).json()["answers"]
    assert [p["value"] for p in answer["probabilities"]] == [True, "true", False]
    assert answer["name"] == "so"
    trajectory = answer["lastword"]["trajectory"]
    assert len(trajectory) == 2 and None not in trajectory[0]


def test_a_deferred_answer_is_a_refusal_if_the_caller_wants_one():
    bare = Decider.demo()
    decider = Decider.demo(certificate=deferring(bare, bare.prepare(QUESTIONNAIRE), 0.8))
    unsure = [answer.deferred for answer in decider.decide(TEXT, QUESTIONNAIRE).values()]
    assert {*unsure} == {False, True}
    with running(decider) as served:
        ways: list[dict[str, str]] = [{}, {"on_deferred": "refusal"}]
        flagged, refused = (ask_openai(served, **more).json()["answers"] for more in ways)
        by_name = ask_typesafe(served).json()["answers"].values()
    assert [answer["lastword"]["deferred"] for answer in flagged] == unsure
    for flag, other, deferred in zip(flagged, refused, unsure, strict=True):
        assert other["lastword"]["deferred"] == deferred and other["name"] == flag["name"]
        if deferred:
            assert other["type"] == "refusal" and len(other) == 3
        else:
            assert other.keys() == flag.keys()
    assert [answer["x_lastword"]["deferred"] for answer in by_name] == unsure


def test_a_request_with_too_much_work_is_refused_before_it_starts(model):
    goods = [f"{a} {b}" for a in GOODS for b in GOODS]
    questions = [QUESTIONS[1] | {"choices": goods}] * 9
    with running(model, tokens=40) as served:
        answer = ask_openai(served, questions=questions)
        assert answer.headers["x-refusal"] == "too_many_tokens" and "takes 160" in answer.text
        assert served.metric("lastword_batch_items_count") == 0
        assert ask_openai(served, questions=questions[:1]).status_code == 200
    with running(model, characters=100) as served:  # an input is repeated for every option
        answer = ask_openai(served)
        assert answer.headers["x-refusal"] == "too_many_characters" and " 400;" in answer.text


# TypeSafe's form


def test_a_level_may_be_an_object(plain):
    levels = ["near", {"how": "far"}]
    questions = {"far": {"type": "score", "criteria": levels}}
    answers = ask_typesafe(plain, questions=questions).json()["answers"]
    assert answers["far"]["legend"] == dict(zip("01", levels, strict=True))


@pytest.mark.parametrize("coding", ["ZSTD", "gzip", "cut", "twice", "wide", "large"])
def test_a_body_may_be_one_zstd_frame_of_limited_size(plain, coding):
    zstd = pytest.importorskip("backports.zstd")
    body = {"model": "jev-latest", "state": TEXT, "questions": BY_NAME}
    plain_body = json.dumps(body).encode()
    whole = zstd.compress(plain_body)
    coder = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    content = {
        "cut": whole[:-1],
        "twice": whole + whole,
        # Without a size, so that the window counts.
        "wide": coder.compress(plain_body) + coder.flush(),
        "large": zstd.compress(plain_body + b" " * plain.service.settings.body_bytes),
    }.get(coding, whole)
    name = coding if coding in ("ZSTD", "gzip") else "zstd"
    headers = {"content-type": "application/json", "content-encoding": name}
    answer = plain.client.post("/v1/systemone", content=content, headers=headers)
    codes = {"ZSTD": None, "gzip": "unsupported_media_type", "large": "body_too_large"}
    assert answer.headers.get("x-refusal") == codes.get(coding, "invalid_body")
    assert coding != "ZSTD" or answer.json()["answers"].keys() == QUESTIONNAIRE.keys()


CONFORMANCE = (
    "import runpy, sys\n"
    "sys.argv = ['jevcompat', 'test', URL, '--timeout', '240']\n"
    "try:\n    runpy.run_module('jevcompat.cli', run_name='__main__')\n"
    "except SystemExit:\n    pass\n"
)


@needs_clients
def test_the_conformance_suite(wide):
    report = run(CONFORMANCE, wide).upper()
    assert "CONFORMANT" in report and "NOT CONFORMANT" not in report


# What is served


def test_a_prompt_template_of_the_user_is_served(model, plain, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("Lamps are of clay.\n{{ input }}\n{{ instructions }}", encoding="utf-8")
    with running(Decider.demo(), template=str(file)) as served:
        confidence = ask_openai(served).json()["answers"][1]["confidence"]
    expected = model.decide(TEXT, {"q": QUESTIONNAIRE["goods"]}, template=str(file))["q"]
    assert confidence == pytest.approx(expected.confidence, abs=1e-5)
    before = ask_openai(plain).json()["answers"][1]["confidence"]
    assert confidence != pytest.approx(before, abs=1e-5)
    with pytest.raises(InputError, match="no template"):
        create_app(Decider.demo(), Settings(port=0, template="decide/none"))


# A question as a chat


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
message = client.chat.completions.parse(
    **ask, response_format=About, extra_body={"on_deferred": "refusal"}
).choices[0].message
print(json.dumps([message.parsed, message.refusal]))
"""


@needs_clients
def test_a_probe_answers_a_literal_with_its_question(topic):
    decider = Decider.demo(probes=[topic], novelty=0.5)  # its likeness is lower
    expected = decider.decide(TEXT, {"topic": topic.question})["topic"]
    with running(decider) as served:
        first, second = run(CHATS, served).splitlines()
    answers = json.loads(first)
    for client in ("parse", "instructor"):
        topic, decision = answers[client]
        assert topic == expected.choice and decision["method"] == expected.method
        assert decision["probability"] == expected.probability and decision["calibrated"]
    assert answers["langchain"] == [expected.choice, json.dumps({"topic": expected.choice})]
    assert answers["literal"] == expected.choice
    parsed, refusal = json.loads(second)
    assert expected.deferred and parsed is None and refusal


def test_an_array_in_a_chat_holds_the_options_that_apply(plain, model):
    schema = {"type": "array", "items": {"enum": [*GOODS, "salt"]}, "description": "Which goods?"}
    format = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": [{"role": "user", "content": TEXT}], "response_format": format}
    expected = model.decide(TEXT, {"a": Multi("Which goods?", [*GOODS, "salt"])})["a"]
    response = plain.client.post("/v1/chat/completions", json=body).json()
    assert tuple(json.loads(response["choices"][0]["message"]["content"])) == expected.choices
    shares = {each["value"]: each["probability"] for each in response["lastword"]["probabilities"]}
    pairs = zip(expected.values, expected.probabilities.tolist(), strict=True)
    assert shares == pytest.approx(dict(pairs))
