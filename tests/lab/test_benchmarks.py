"""Benchmarks: content, templates, sources, and invalid data."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from published_sets import (
    PUBLISHED,
    Rows,
    as_on_the_hub,
    qa_rows,
    sum_rows,
    truthfulqa_rows,
    write,
    write_all,
)

from lastword.errors import InputError, ItemError
from lastword.lab.benchmarks import BENCHMARKS, find, templates_for, truthfulqa
from lastword.text.prompt_template import Template


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the layout of the published sets and generated text."""
    folder = tmp_path_factory.mktemp("data")
    write_all(folder)
    return folder


@cache
def whole(data: Path, name: str) -> Any:
    return find(name).load(data)


def plain_template(name: str) -> Template:
    """Return a template of the benchmark that needs no other package."""
    return find(name).template("own6" if name.startswith("truthfulqa") else None)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_contract_of_every_benchmark(name, data):
    loaded = whole(data, name)
    items = loaded.items(plain_template(name))
    assert len({item.id for item in items}) == len(items) > 0
    for item in items:
        assert item.truthful is not None and any(item.truthful) and not all(item.truthful)
        assert all(c == c.strip() for c in item.candidates)
        assert item.blind_prompt is not None and item.blind_prompt != item.prompt
        if item.question is not None:
            assert item.question in item.prompt and item.question not in item.blind_prompt
    recorded = json.loads(json.dumps(loaded.to_dict()))
    assert recorded["licence"] and recorded["citation"] and recorded["source"]
    assert len(recorded["fingerprint"]) == 64
    unblinded = loaded.items(plain_template(name), blind=False)
    assert unblinded == [replace(item, blind_prompt=None) for item in items]


def test_a_truthfulqa_question_is_two_items_with_one_prompt(data):
    loaded = whole(data, "truthfulqa")
    items = loaded.items(plain_template("truthfulqa"))
    assert len(items) == 2 * 817
    assert [i.id for i in items[84:86]] == ["42/mc1", "42/mc2"]
    assert [e.kind for e in loaded.examples[84:86]] == ["mc1", "mc2"]
    assert items[84].prompt == items[85].prompt
    assert items[84].prompt.endswith("Q: Question 42?\nA:")
    assert items[84].truthful == (True, False) and items[85].truthful == (True, False, True)
    assert sum(len(i.candidates) == 2 for i in items[::2]) == 43


def replace_hub(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """Replace `datasets.load_dataset`."""
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


def test_the_hub_and_a_file_have_the_same_fingerprint(tmp_path, monkeypatch):
    rows = truthfulqa_rows()
    there = {("truthfulqa/truthful_qa", "multiple_choice"): rows}
    replace_hub(monkeypatch, lambda *name: {"validation": as_on_the_hub(there[name])})
    published = find("truthfulqa").load()
    local = find("truthfulqa").load(write(tmp_path / "mc.json", rows))
    assert published.source == "hf:truthfulqa/truthful_qa:multiple_choice"
    assert (local.source, local.version) == ("mc.json", "v0")
    assert published.fingerprint == local.fingerprint
    newer = write(tmp_path / "v1.json", truthfulqa_rows(40))
    assert find("truthfulqa").load(newer).version == "v1"
    rows[500]["mc2_targets"]["another"] = 0
    assert find("truthfulqa").load().fingerprint != local.fingerprint


def test_formats_and_further_rows_do_not_change_the_fingerprint(tmp_path):
    paths = [write(tmp_path / f"{count}.json", qa_rows(count)) for count in (500, 777)]
    paths += [write(tmp_path / "qa.jsonl", qa_rows(), lines=True), tmp_path / "qa.parquet"]
    pd.DataFrame(qa_rows()).to_parquet(paths[-1])
    assert len({find("halueval-qa").load(path).fingerprint for path in paths}) == 1


CLOSED = ("Question: Question 7?\nAnswer:", "Question: \nAnswer:")
SEVENS = ("So it is 7.", *(f"So it is not 7, {j}." for j in range(3)))
# The eighth item: prompt, blind prompt, candidates.
EIGHTH = {
    "halueval-qa/knowledge": (*(f"Knowledge: Fact 7.\n{p}" for p in CLOSED), "right 7", "wrong 7"),
    "halueval-qa-closed/closed": (*CLOSED, "right 7", "wrong 7"),
    "fib/document": ("Document: Text 7.\nSummary:", "Document: \nSummary:", "so 7", "no 7"),
    "factor/truncated": ("Text 7.\n", "\n", *SEVENS),
    "factor/full": ("Before.\nText 7.\n", "\n", *SEVENS),
}


@pytest.mark.parametrize("name", EIGHTH)
def test_fields_are_stripped_and_the_blind_prompt_lacks_the_question(data, name):
    benchmark, _, variant = name.partition("/")
    item = whole(data, benchmark).items(find(benchmark).template(variant))[7]
    assert (item.prompt, item.blind_prompt, *item.candidates) == EIGHTH[name]
    assert item.truthful == (True, *[False] * (len(item.candidates) - 1))


def test_fib_needs_a_file_with_its_name(data):
    with pytest.raises(InputError, match="read from a file"):
        find("fib").load()
    only = data / "only"
    write(only / "fib" / "summarization_data.json", sum_rows(300))
    with pytest.raises(InputError, match="holds none of"):
        find("halueval-sum").load(only)
    for folder in (only, only / "fib"):
        assert find("fib").load(folder).version == "300 items"


def _spoil(field: str, value: Any) -> Callable[[Rows], None]:
    return lambda rows: rows[5].update({field: value})


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("truthfulqa", lambda rows: rows.pop(), "expected 817 rows, got 816"),
        ("truthfulqa", lambda rows: rows[0]["mc1_targets"].update(x=0), "42 two-candidate items"),
        ("truthfulqa", _spoil("mc1_targets", {"a": 1, "b": 1}), "row 5: .* 2 truths"),
        ("truthfulqa", _spoil("mc2_targets", {"a": "yes", "b": 0}), "row 5: .* labels 0 or 1"),
        ("truthfulqa", _spoil("mc2_targets", {"choices": ["a"], "labels": []}), "one label per"),
        ("truthfulqa", _spoil("mc2_targets", None), 'expected an object "mc2_targets"'),
        ("truthfulqa", _spoil("question", 3), 'row 5: .* "question", the row is int'),
        ("halueval-qa", lambda rows: rows.pop(), "expected 500 rows, got 499"),
        ("halueval-qa", lambda rows: rows[5].pop("knowledge"), 'row 5: .* "knowledge", the row h'),
        ("halueval-qa", _spoil("right_answer", " \n"), "row 5: .* need text"),
        ("fib", _spoil("document", None), 'row 5: .* "document"'),
        ("factor", _spoil("turncated_prefixes", "\n"), "row 5: .* need text"),
        ("factor", _spoil("contradiction_1", None), 'row 5: .* "contradiction_1"'),
    ],
)
def test_invalid_rows_of_a_benchmark_are_refused(tmp_path, name, spoil, message):
    rows = PUBLISHED[name][1]()
    spoil(rows)
    with pytest.raises(InputError, match=message):
        find(name).load(write(tmp_path / "x.json", rows))


@pytest.mark.parametrize("text", ["", "[]", "[1]", "[" * 100_000])
def test_a_file_without_rows_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=re.escape("x.json")):
        find("halueval-qa").load(tmp_path / "x.json")


def test_missing_data_is_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no file or folder"):
        find("truthfulqa").load(tmp_path / "none")
    with pytest.raises(InputError, match="no benchmark 'trivia'; known: truthfulqa"):
        find("trivia")

    def offline(*_: str) -> None:
        raise ConnectionError("no\nnetwork")

    replace_hub(monkeypatch, offline)
    with pytest.raises(InputError, match="cannot load .*: no network; .* --data a local file"):
        find("truthfulqa").load()


def test_limit_and_seed_select_whole_questions(data):
    benchmark = find("truthfulqa")
    assert [e.id for e in benchmark.load(data, limit=1).examples] == ["0/mc1", "0/mc2"]
    drawn, again, other = (
        [e.id for e in benchmark.load(data, limit=30, seed=seed).examples] for seed in (1, 1, 2)
    )
    places = [int(i.split("/")[0]) for i in drawn]
    assert drawn == again != other
    assert len(drawn) == 60 and places == sorted(places) and max(places) > 30
    assert drawn[::2] == [f"{p}/mc1" for p in places[::2]]
    everything = whole(data, "truthfulqa")
    assert benchmark.load(data, limit=5).fingerprint == everything.fingerprint
    assert benchmark.load(data, limit=10_000).examples == everything.examples
    for wrong, message in ({"seed": 1}, "give its size with limit"), ({"limit": 0}, "at least 1"):
        with pytest.raises(InputError, match=message):
            benchmark.load(data, **wrong)


def test_both_items_of_a_pair_have_the_same_blind_prompt_and_are_drawn_together():
    benchmark = find("everyday")
    for variant in benchmark.templates:
        items = benchmark.load().items(benchmark.template(variant))
        pairs = [item for item in items if str(item.id).startswith("pair")]
        for a, b in zip(pairs[::2], pairs[1::2], strict=True):
            assert (a.blind_prompt, a.candidates) == (b.blind_prompt, b.candidates)
            assert a.prompt != b.prompt
    ids = [e.id for e in benchmark.load(limit=40, seed=3).examples]
    drawn = {i[:-2] for i in ids if i.startswith("pair")}
    assert drawn and all({f"{p}/a", f"{p}/b"} <= set(ids) for p in drawn)


def test_items_from_a_jsonl_file(tmp_path):
    rows = [
        {"prompt": "Context. Who? A:", "question": "Who?", "candidates": ["a", "b"], "id": 7},
        {"prompt": "P", "candidates": ["a", "b"], "truthful": [True, False], "separator": ""},
        {"prompt": "P", "candidates": ["a", "c"], "blind_prompt": "B", "question": "P"},
        {"prompt": "who who", "candidates": ["a", "c"], "question": "who"},
    ]
    benchmark = find(f"jsonl:{write(tmp_path / 'mine.jsonl', rows, lines=True)}")
    items = benchmark.load(tmp_path).items(benchmark.template())
    assert benchmark.name == "jsonl:mine"
    assert [i.id for i in items] == ["7", "line 2", "line 3", "line 4"]
    assert [i.blind_prompt for i in items] == ["Context.  A:", None, "B", None]
    assert [i.separator for i in items] == [" ", "", " ", " "]
    assert items[0].truthful is None and items[1].truthful == (True, False)
    twice = write(tmp_path / "twice.jsonl", rows[:1] * 2, lines=True)
    with pytest.raises(InputError, match="two items have the id 7"):
        find(f"jsonl:{twice}").load()


def test_qa6_is_the_text_of_the_installed_task_file(tmp_path, monkeypatch):
    file = write(tmp_path / "lm_eval" / truthfulqa._TASK_FILE, [])
    file.write_text('doc_to_text: "Six.\\n\\nQ: {{question}}\\nA:"\nmetadata:\n  version: 9.5\n')
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "lm_eval")])
    monkeypatch.setattr(truthfulqa, "find_spec", lambda name: spec)
    template = find("truthfulqa").template()
    assert (template.name, template.version) == ("truthfulqa/qa6", "lm_eval 9.5")
    assert template.render({"question": "Why?"}) == "Six.\n\nQ: Why?\nA:"
    file.write_text("task: other")
    with pytest.raises(InputError, match=r'not readable here .*pip install "lastword\[lab\]"'):
        find("truthfulqa").template()


def test_templates_by_name_and_by_file(data, tmp_path):
    chosen = [find("truthfulqa"), find("halueval-qa")]
    for folder in ("a", "b"):
        write(tmp_path / folder / "short.jinja", []).write_text("{{ question }} ->\n")
    files = [str(tmp_path / folder / "short.jinja") for folder in ("a", "b")]
    named = templates_for(chosen, ["truthfulqa/own6", "truthfulqa/zero-shot", files[0]])
    names = {benchmark: [t.name for t in each] for benchmark, each in named.items()}
    assert names["truthfulqa"] == ["truthfulqa/own6", "truthfulqa/zero-shot", "user/short"]
    assert names["halueval-qa"] == ["user/short"]
    assert named["halueval-qa"][0].render({"question": "Why?"}) == "Why? ->"
    (usual,) = templates_for(chosen, ["truthfulqa/own6"])["halueval-qa"]
    assert usual.name == "halueval-qa/knowledge"
    for wrong in ("truthfulqa/qa7", "halueval-sum/document", "missing.jinja"):
        with pytest.raises(InputError, match="known: .*truthfulqa/own6"):
            templates_for(chosen, [wrong])
    with pytest.raises(InputError, match="rename one"):
        templates_for(chosen, files)
    for text, message in (("{{ '\\0' }}", "NUL"), ("{{ nothing }}", "does not render")):
        with pytest.raises(ItemError, match=f"item 0:.*{message}"):
            whole(data, "halueval-qa").items(Template("user/x", "1", text))
