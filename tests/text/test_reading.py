"""Files of items: all formats give the same items, and equal errors are grouped."""

import io
import json
import sys
from typing import Any

import pandas as pd
import pytest

from lastword.errors import InputError, ItemError
from lastword.text.items import Item
from lastword.text.reading import read_items, require_items

ROWS: list[dict[str, Any]] = [
    {"id": "q0", "prompt": "Where, and\nwhen?", "candidates": ["a, b", 'c "d"'], "truthful": 1},
    {"id": "q1", "prompt": "naïve 東京", "candidates": ["e", "f", "g"], "truthful": [0, 2]},
]
ITEMS = [Item.from_dict(row) for row in ROWS]


def lists(rows=ROWS):
    return [r | {"candidates": json.dumps(r["candidates"])} for r in rows]


def write(path, name: str):
    if name == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif name == "json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif name == "parquet":
        frame = pd.DataFrame(ROWS).assign(truthful=[json.dumps(r["truthful"]) for r in ROWS])
        frame.drop(columns="truthful").to_parquet(path)
    else:
        pd.DataFrame(lists()).to_csv(path, sep="\t" if name == "tsv" else ",", index=False)
    return path


@pytest.mark.parametrize("name", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_all_formats_give_the_same_items(tmp_path, name):
    items = require_items(read_items(write(tmp_path / f"items.{name}", name)), "x")
    plain = [(i.id, i.prompt, i.candidates) for i in items]
    assert plain == [(i.id, i.prompt, i.candidates) for i in ITEMS]
    if name != "parquet":  # its columns have one type
        assert [i.truthful for i in items] == [i.truthful for i in ITEMS]


def test_byte_order_marks_blank_lines_and_python_lists_are_accepted(tmp_path):
    for name in ("jsonl", "csv"):
        path = write(tmp_path / f"items.{name}", name)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert require_items(read_items(path), path)[0].id == "q0"
    (tmp_path / "items.json").write_text("\n \n" + json.dumps(ROWS))
    assert require_items(read_items(tmp_path / "items.json"), "x") == ITEMS
    pd.DataFrame(ROWS).to_csv(tmp_path / "items.csv", index=False)
    assert require_items(read_items(tmp_path / "items.csv"), "x") == ITEMS


def test_standard_input(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(json.dumps(ROWS).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert require_items(read_items("-"), "-") == ITEMS


def test_a_table_may_have_one_column_per_candidate(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("prompt,candidate_1,candidate_2,candidate_3,id\nQ,a,b,c,\nR,d,e,,r\n")
    first, second = require_items(read_items(path), path)
    assert (first.candidates, first.id) == (("a", "b", "c"), "row 1")
    assert (second.candidates, second.id) == (("d", "e"), "r")


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
    (tmp_path / "items.csv").write_text(text)
    (error,) = read_items(tmp_path / "items.csv")
    assert isinstance(error, ItemError)
    with pytest.raises(ItemError, match=message):
        raise error


def test_equal_errors_are_grouped_with_their_count_and_first_places(tmp_path):
    bad = [{"prompt": "Q", "candidates": []}] * 230 + [{"candidates": ["a"]}] * 6 + [ROWS[0]]
    (tmp_path / "items.jsonl").write_text("\n".join(json.dumps(row) for row in bad))
    with pytest.raises(InputError) as raised:
        require_items(read_items(tmp_path / "items.jsonl"), "items.jsonl")
    assert str(raised.value) == (
        "items.jsonl: 236 invalid rows: no candidates; give at least one (230 items: line 1, "
        "line 2, line 3, ...); prompt is missing (6 items: line 231, line 232, line 233, ...)"
    )


KINDS: tuple[Any, ...] = (1, 1.5, {}, [])


def test_errors_that_differ_only_in_numbers_are_grouped(tmp_path):
    blank: list[Any] = [{"prompt": "Q", "candidates": ["a"] * n + [" "]} for n in range(1, 5)]
    odd = [{"prompt": "Q", "candidates": ["a"], "id": f"q{n}", "separator": []} for n in range(2)]
    kinds = [{"prompt": "Q", "candidates": ["a"], "separator": kind} for kind in KINDS]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, blank + odd + kinds)))
    with pytest.raises(InputError) as raised:
        require_items(read_items(tmp_path / "items.jsonl"), "x")
    assert "candidate 1 is blank; give it text or drop it (4 items: line 1, line 2," in str(
        raised.value
    )
    assert "(3 items: line 5: item q0, line 6: item q1, line 10)" in str(raised.value)
