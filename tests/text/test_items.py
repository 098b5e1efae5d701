"""Files of items: all formats give the same items, and every error is one line with its place."""

import io
import json
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lastword.errors import InputError, ItemError
from lastword.text.items import Item
from lastword.text.reading import read_items, require_items

GOOD = {"prompt": "Q", "candidates": ["a", "b"]}
ASKED = {"role": "user", "content": "w4"}
ROWS: list[dict[str, Any]] = [
    {"id": "q0", "prompt": "Where, and\nwhen?", "candidates": ["a, b", 'c "d"'], "truthful": 1},
    {"id": "q1", "prompt": "naïve 東京", "candidates": ["e", "f", "g"], "truthful": [0, 2]},
]
ITEMS = [Item.from_dict(row) for row in ROWS]


def line(**changes) -> str:
    return json.dumps({k: v for k, v in (GOOD | changes).items() if v != "DROP"})


def talk(*messages: object, **more: object) -> str:
    return line(prompt=[*messages], **more)


def read(tmp_path, *lines: str, name: str = "items.jsonl", **options):
    path = tmp_path / name
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_items(path, **options)


INVALID = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[1]", r"object, got \[1\]"),
    ("null", "object, got null"),
    (line(prompt="DROP"), "prompt is missing"),
    (line(candidates="DROP"), "candidates is missing"),
    (line(prompt=3), "prompt: .*, not 3"),
    (line(candidates="ab"), "candidates: .*, not 'ab'"),
    (line(candidates=["a", 3]), "candidates.1: .*, not 3"),
    (line(candidates=[]), "no candidates"),
    (line(candidates=["a", " \n"]), "candidate 1 is blank"),
    (line(candidates=["a", "b\0"]), "candidates.1 contains a NUL"),
    (line(prompt="x\ud800"), "prompt .* surrogate"),
    (line(truthful=[True]), "truthful has 1 .* 2"),
    (line(truthful=[0, 0, 1]), "looks like labels"),
    (line(truthful=2), "truthful names candidate 2"),
    (line(truthful=[True, 1]), "booleans.*, not .True, 1"),
    (line(truthful="yes"), "booleans.*, not 'yes'"),
    (line(truthful=True), "position, not True"),
    (line(separator=1), "separator: .*, not 1"),
    (line(id=[1]), r"id: .*, not \[1\]"),
    (line(id="q\ud800"), "id .* surrogate"),
    (talk(), "no message"),
    (talk("w4"), "messages.0: .*, not 'w4'"),
    (talk(ASKED, {"role": "user"}), "messages.1.content is missing"),
    (talk({"role": 3, "content": "w4"}), "messages.0.role: .*, not 3"),
    (talk({"role": "user", "content": [{"text": "w4"}]}), "messages.0.content: "),
    (talk(ASKED, {"role": "assistant", "content": "w5"}), "assistant's"),
    (talk(ASKED | {"tool_calls": [1]}), "messages.0.tool_calls is an unknown"),
    (talk({"role": "user", "content": "w4\0"}), "messages.0.content contains a NUL"),
    (talk(ASKED, blind_prompt="w4"), "blind_prompt"),
    (line(prompt="DROP", messages=ASKED), "messages: expected a list"),
]


@pytest.mark.parametrize(("text", "message"), INVALID)
def test_errors_name_the_line(tmp_path, text, message):
    parsed = read(tmp_path, line(), "", text)
    assert isinstance(parsed[0], Item)
    with pytest.raises(ItemError, match=message) as raised:
        raise parsed[1]
    assert str(raised.value).startswith("item line 3: ")
    assert raised.value.item == "line 3"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,candidates\nQ,lamps\n", "row 1: candidates .*JSON"),
        ("prompt,candidates\nQ,[1],2\n", "row 1: more fields"),
        ("prompt\nQ\n", "row 1: candidates is missing"),
        ('prompt,candidates\nQ,"[1]"\n', "row 1: candidates.0"),
    ],
)
def test_errors_name_the_row_of_a_table(tmp_path, text, message):
    (error,) = read(tmp_path, text, name="items.csv")
    assert isinstance(error, ItemError)
    with pytest.raises(ItemError, match=message):
        raise error


def test_valid_lines(tmp_path):
    parsed = read(
        tmp_path, line(id=7, truthful=[True, False]), line(separator=""), line(extra=1), ""
    )
    items = require_items(parsed, "x.jsonl")
    assert items[0] == Item("Q", ("a", "b"), id="7", truthful=(True, False))
    assert items[1].separator == ""
    assert [item.id for item in items] == ["7", "line 2", "line 3"]
    with pytest.raises(InputError, match="no items"):
        require_items(read(tmp_path, "", " "), "x.jsonl")


@pytest.mark.parametrize(
    ("truthful", "labels"),
    [
        ([False, True, True], (False, True, True)),
        ([1, 2], (False, True, True)),
        (0, (True, False, False)),
    ],
)
def test_truthful_may_be_labels_positions_or_one_position(truthful, labels):
    item = Item.from_dict({"prompt": "Q", "candidates": ["a", "b", "c"], "truthful": truthful})
    assert item.truthful == labels


def test_missing_values_are_ignored():
    row = GOOD | {"id": float("nan"), "truthful": None, "separator": pd.NA, "question": np.nan}
    assert Item.from_dict(row) == Item.from_dict(GOOD)
    arrays = GOOD | {"candidates": np.array(["a", "b"], dtype=object), "id": np.int64(7)}
    arrays["truthful"] = np.array([True, False])
    assert Item.from_dict(arrays) == Item("Q", ("a", "b"), id="7", truthful=(True, False))


def test_only_newlines_end_a_line(tmp_path):
    text = json.dumps(GOOD | {"prompt": "a\u2028b\x85c"}, ensure_ascii=False)
    (item,) = read(tmp_path, text)
    assert item.prompt == "a\u2028b\x85c"
    (tmp_path / "dos.jsonl").write_bytes(f"{line()}\r\n{line()}\r\n".encode())
    assert len(require_items(read_items(tmp_path / "dos.jsonl"), "x")) == 2


def table(separator: str, mark: str = "") -> bytes:
    frame = pd.DataFrame([r | {"candidates": json.dumps(r["candidates"])} for r in ROWS])
    return (mark + frame.to_csv(sep=separator, index=False)).encode()


LINES = "\n".join(map(json.dumps, ROWS)).encode()
FORMATS = {
    "items.jsonl": LINES,
    "marked.jsonl": b"\xef\xbb\xbf" + LINES,
    "items.json": json.dumps(ROWS, indent=1).encode(),
    "after_blank_lines.json": b"\n \n" + json.dumps(ROWS).encode(),
    "items.csv": table(","),
    "marked.csv": table(",", "\ufeff"),
    "items.tsv": table("\t"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_give_the_same_items(tmp_path, name):
    (path := tmp_path / name).write_bytes(FORMATS[name])
    assert require_items(read_items(path), path) == ITEMS


def test_parquet_and_standard_input(tmp_path, monkeypatch):
    frame = pd.DataFrame(ROWS).drop(columns="truthful")  # its columns have one type
    frame.to_parquet(path := tmp_path / "items.parquet")
    items = require_items(read_items(path), path)
    assert [(i.id, i.prompt, i.candidates) for i in items] == [
        (i.id, i.prompt, i.candidates) for i in ITEMS
    ]

    class Stdin:
        buffer = io.BytesIO(json.dumps(ROWS).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert require_items(read_items("-"), "-") == ITEMS


def test_a_table_may_have_one_column_per_candidate(tmp_path):
    text = "prompt,candidate_1,candidate_2,candidate_3,id\nQ,a,b,c,\nR,d,e,,r\n"
    first, second = require_items(read(tmp_path, text, name="items.csv"), "x")
    assert (first.candidates, first.id) == (("a", "b", "c"), "row 1")
    assert (second.candidates, second.id) == (("d", "e"), "r")


def test_a_summary_has_the_first_errors(tmp_path):
    bad = [line(candidates=[]), line(id="q", separator=[]), *[line(candidates="DROP")] * 7]
    with pytest.raises(InputError) as raised:
        require_items(read(tmp_path, *bad), "items.jsonl")
    assert str(raised.value).startswith(
        "items.jsonl: 9 invalid rows: item line 1: no candidates; give at least one; item line 2: "
        "item q: separator: expected a valid string, not []; item line 3: candidates is missing; "
    )
    assert str(raised.value).endswith("; item line 6: candidates is missing; and 3 more")
