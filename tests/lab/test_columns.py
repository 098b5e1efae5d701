"""`hf:NAME`: sets read by `datasets`, with columns named by the user."""

import json
from typing import Any

import datasets
import pytest

from lastword.errors import InputError
from lastword.lab.benchmarks import find

PLAIN = "prompt=question,candidates=choices,truthful=answer"
MMLU: list[dict[str, Any]] = [
    {"question": "Who?", "choices": ["a", "b", "c"], "answer": 2, "subject": "x"},
    {"question": "Where?", "choices": ["d", "e"], "answer": 1, "subject": "y"},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a function that writes a split as a file and returns the set's name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def write(rows: list[dict[str, Any]], name: str = "quiz", split: str = "test") -> str:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        lines = "\n".join(json.dumps(row) for row in rows)
        (place / f"{split}.jsonl").write_text(lines)
        return f"hf:{place}"

    return write


def test_a_set_is_read_by_its_columns(folder):
    loaded = find(folder(MMLU), PLAIN).load()
    first, second = loaded.items(loaded.benchmark.template())
    assert (first.prompt, first.candidates) == ("Who?", ("a", "b", "c"))
    assert first.truthful == (False, False, True) and second.truthful == (False, True)
    assert (first.id, first.blind_prompt, loaded.version) == ("0", "", "2 items")
    assert loaded.benchmark.name == "hf:quiz"
    question = loaded.items(loaded.benchmark.template("qa"))[1]
    assert question.prompt == "Question: Where?\nAnswer:"
    assert question.blind_prompt == "Question: \nAnswer:"


@pytest.mark.parametrize(
    ("answer", "right"), [(1, "b"), ("b", "b"), ([False, True, True], "bc"), ([0, 2], "ac")]
)
def test_the_right_answer_may_be_a_position_a_text_or_labels(folder, answer, right):
    name = folder([MMLU[0] | {"answer": answer}])
    (example,) = find(name, PLAIN).load().examples
    assert example.truthful == tuple(c in right for c in "abc")


def test_a_missing_set_and_an_unnamed_split_are_refused(folder):
    folder(MMLU[:1], split="train")
    name = folder(MMLU)
    with pytest.raises(InputError, match="has splits .*train.*: choose one"):
        find(name, PLAIN).load()
    assert len(find(f"{name}@train", PLAIN).load().examples) == 1
    with pytest.raises(InputError, match="cannot load no/such-set: "):
        find("hf:no/such-set", PLAIN).load()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "it has none"),
        ("prompt=question,candidates=choices", "it has prompt=question,candidates=choices"),
        (PLAIN + ",answer=x", "takes prompt=..., candidates=..., truthful=..."),
        (PLAIN.replace("choices", "options"), "no column options; the row has question, choices"),
        (PLAIN.replace("answer", "subject"), "the right answer 'x' is not one of the candidates"),
    ],
)
def test_missing_columns_are_refused(folder, columns, message):
    with pytest.raises(InputError, match=message):
        find(folder(MMLU), columns).load()


def test_columns_belong_to_sets_of_the_hub(run, tmp_path):
    command = ("eval", "--model", "lastword/demo-organism", "--out", tmp_path / "runs")
    assert run(*command, "--benchmark", "demo", "--columns", PLAIN)[0] == 2
