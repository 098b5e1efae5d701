"""The conversation in a run's record."""

import json

import pytest
from families import build, talker, tokenizer

import lastword
import lastword.cli
from lastword import Item, Tracer
from lastword.errors import ItemError
from lastword.text.chat import Chat, describe_chat

SWITCH = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant "
    "{% if enable_thinking %}<think>{% else %}<think></think> {% endif %}"
)
NO_SWITCH = "{% for m in messages %}{{ m.content }} {% endfor %}<think>\n"
TALK = [
    {"role": "user", "content": "w4 w9"},
    {"role": "assistant", "content": "w5"},
    {"role": "user", "content": "w6"},
]
PLAIN = "{% for m in messages %}{{ m.content }} {% endfor %}"


@pytest.mark.parametrize(
    ("template", "thinking"), [(SWITCH, "off"), (NO_SWITCH, "open"), (PLAIN, None)]
)
def test_the_record_states_if_the_answer_begins_inside_a_thought(template, thinking):
    chat = describe_chat(talker(template), Chat("Be brief."))
    assert (chat["thinking"], chat["system"]) == (thinking, "Be brief.")
    other = describe_chat(talker(template + "w3"), Chat("Be brief."))
    assert other["template"] != chat["template"]


def test_a_tracer_describes_its_conversation():
    tracer = Tracer(build("llama"), talker(SWITCH), invariant=1.5, chat=Chat("s"))
    assert tracer.describe()["chat"] == describe_chat(tracer.tokenizer, Chat("s"))
    assert Tracer(build("llama"), tokenizer(), invariant=1.5).describe()["chat"] is None


def test_a_file_of_conversations_is_a_benchmark(run, tmp_path):
    build("llama").save_pretrained(tmp_path / "model")
    talker(SWITCH).save_pretrained(tmp_path / "model")
    answers = {"candidates": ["w7", "w9 w5"], "truthful": [True, False]}
    rows = [{key: TALK} | answers for key in ("messages", "prompt")]
    (tmp_path / "talks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = (
        "eval",
        "--model",
        tmp_path / "model",
        "--benchmark",
        f"jsonl:{tmp_path}/talks.jsonl",
    )
    code, out, err = run(*command, "--out", tmp_path / "runs", "--json")
    assert code == 0, err
    records = lastword.load_records(tmp_path / "runs")
    tracer = Tracer(build("llama"), talker(SWITCH))
    expected = tracer.correct(TALK, ["w7", "w9 w5"]).base_scores
    assert records["error"].isna().all() and records["blind_scores"].isna().all()
    for scores in records["base_scores"]:
        assert scores == pytest.approx(expected, abs=1e-5)
    written = json.loads(next((tmp_path / "runs").rglob("run.json")).read_text())
    assert written["chat"] == describe_chat(tracer.tokenizer, Chat())
    (tmp_path / "qa.jinja").write_text("Question: {{ prompt }}")
    code, _, err = run(*command, "--template", tmp_path / "qa.jinja")
    assert code == 1 and "user/qa goes with prompts of text" in err
    with pytest.raises(ItemError, match="prompt and messages are both given"):
        Item.from_dict({"prompt": "p", "messages": TALK, "candidates": ["a"]})
