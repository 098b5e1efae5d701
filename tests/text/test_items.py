"""Every input error is one line that names its place (method, section 2)."""

import json

import numpy as np
import pandas as pd
import pytest

from lastword.errors import InputError, ItemError
from lastword.text.items import Item
from lastword.text.reading import read_items, require_items

GOOD = {"prompt": "Q", "candidates": ["a", "b"]}


def line(**changes) -> str:
    return json.dumps({k: v for k, v in (GOOD | changes).items() if v != "DROP"})


def read(tmp_path, *lines: str, **options):
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_items(path, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", r"object, got \[1\]"),
        ("null", "object, got null"),
        (line(prompt="DROP"), "prompt is missing"),
        (line(candidates="DROP"), "candidates is missing"),
        (line(prompt=3), "prompt: .*, not 3"),
        (line(prompt=None), "prompt is missing"),
        (line(candidates="ab"), "candidates: .*, not 'ab'"),
        (line(candidates=["a", 3]), "candidates.1: .*, not 3"),
        (line(candidates=[]), "no candidates"),
        (line(candidates=["a", " \n"]), "candidate 1 is blank"),
        (line(candidates=["a", "b\0"]), "candidates.1 contains a NUL"),
        (line(prompt="x\0"), "prompt contains a NUL"),
        (line(prompt="x\ud800"), "prompt .* surrogate"),
        (line(truthful=[True]), "truthful has 1 .* 2"),
        (line(truthful=[1, 0]), r"truthful \[1, 0\]"),
        (line(truthful=[0, 0, 1]), "looks like labels"),
        (line(truthful=2), "truthful names candidate 2"),
        (line(truthful=[-1]), "truthful names candidate -1"),
        (line(truthful=[True, 1]), "booleans.*, not .True, 1"),
        (line(truthful="yes"), "booleans.*, not 'yes'"),
        (line(truthful=True), "position, not True"),
        (line(separator=1), "separator: .*, not 1"),
        (line(id=[1]), r"id: .*, not \[1\]"),
        (line(id=True), "id: .*, not True"),
        (line(id="q\ud800"), "id .* surrogate"),
        (line(question="q\0"), "question contains a NUL"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    parsed = read(tmp_path, line(), "", text)
    assert isinstance(parsed[0], Item)
    with pytest.raises(ItemError, match=message) as raised:
        raise parsed[1]
    assert str(raised.value).startswith("item line 3: ")
    assert raised.value.item == "line 3"
    assert "\n" not in str(raised.value)


def test_valid_lines(tmp_path):
    parsed = read(
        tmp_path, line(id=7, truthful=[True, False]), line(separator=""), line(extra=1), ""
    )
    items = require_items(parsed, "x.jsonl")
    assert items[0] == Item("Q", ("a", "b"), id="7", truthful=(True, False))
    assert items[1].separator == ""
    assert [item.id for item in items] == ["7", "line 2", "line 3"]


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


def test_the_separator_argument_applies_to_items_without_one(tmp_path):
    items = require_items(read(tmp_path, line(), line(separator="-"), separator="\n"), "x")
    assert [item.separator for item in items] == ["\n", "-"]


def test_only_newlines_end_a_line(tmp_path):
    text = json.dumps(GOOD | {"prompt": "a\u2028b\x85c"}, ensure_ascii=False)
    (item,) = read(tmp_path, text)
    assert item.prompt == "a\u2028b\x85c"
    (tmp_path / "dos.jsonl").write_bytes(f"{line()}\r\n{line()}\r\n".encode())
    assert len(require_items(read_items(tmp_path / "dos.jsonl"), "x")) == 2


def test_missing_undecodable_and_empty_files(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_items(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match=r"line 1: byte 13 \(0xE9\) is not valid UTF-8"):
        read_items(tmp_path / "latin.jsonl")
    with pytest.raises(InputError, match="no items"):
        require_items(read(tmp_path, "", " "), "x.jsonl")
