"""Items as dictionaries, pairs, and rows of frames and datasets."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from families import build, random_items, tokenizer

from lastword import Item, Tracer, to_frame
from lastword.errors import InputError, ItemError

ITEMS = random_items(81, 5)
ROWS = [{"id": f"q{i.id}", "prompt": i.prompt, "candidates": list(i.candidates)} for i in ITEMS]


@cache
def tracer() -> Tracer:
    return Tracer(build("llama"), tokenizer(), invariant=2.0)


@cache
def expected_scores() -> list[float]:
    return [score for item in ITEMS for score in next(tracer().correct_many([item])).scores]


def scores(source: Any) -> list[float]:
    return [score for decision in tracer().correct_many(source) for score in decision.scores]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS,
        lambda: iter(ROWS),
        lambda: [(i.prompt, list(i.candidates)) for i in ITEMS],
        lambda: pd.DataFrame([r | {"candidates": np.array(r["candidates"])} for r in ROWS]),
        lambda: to_frame(tracer().correct_many(ITEMS)).assign(prompt=[i.prompt for i in ITEMS]),
        lambda: Dataset.from_list(ROWS),
        lambda: Dataset.from_list(ROWS).to_iterable_dataset(),
        lambda: (row for row in Dataset.from_list(ROWS)),
    ],
    ids="dicts stream pairs arrays frame dataset iterable rows".split(),
)
def test_every_kind_of_row_is_read_as_its_item(make):
    assert scores(make()) == pytest.approx(expected_scores(), abs=1e-5)


def test_a_missing_id_in_a_frame_is_none_and_items_are_unchanged():
    mixed = pd.DataFrame([ROWS[0], {k: v for k, v in ROWS[1].items() if k != "id"}])
    assert [d.id for d in tracer().correct_many(mixed)] == ["q0", None]
    assert [d.id for d in tracer().correct_many([Item("w4", ("w5", "w6"), id="x")])] == ["x"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["where is it?"], "item 0: expected an Item, a dictionary, a row or .*, got 'where"),
        ([ROWS[0], {"prompt": "w4"}], "item 1: candidates is missing"),
        (iter([ROWS[0], ("w4", "w5")]), "item 1: candidates: .*, not 'w5'"),
        (pd.DataFrame([{"id": "q9", "prompt": "w4"}]), "item q9: candidates is missing"),
        ("where", "item 0: expected an Item"),
    ],
)
def test_an_invalid_item_is_named_by_its_place(source, message):
    with pytest.raises(ItemError, match=message):
        list(tracer().correct_many(source))


def test_one_dictionary_or_one_text_is_not_a_list():
    with pytest.raises(InputError, match="expected many items, got a dictionary"):
        next(tracer().correct_many(ROWS[0]))
    with pytest.raises(InputError, match="columns 1 and 2 are both named 'prompt'"):
        next(tracer().correct_many(pd.DataFrame([["w4", "w5"]], columns=["prompt", "prompt"])))
    with pytest.raises(ItemError, match="candidates: expected a list, not 'lamps'"):
        tracer().correct("w4 w9", "lamps")
    with pytest.raises(ItemError, match="content_free: .*, not"):
        tracer().correct("w4 w9", ["w5", "w6"], content_free="N/A")


def test_a_frame_has_a_row_per_decision_and_a_column_per_number():
    decisions = list(tracer().correct_many(ITEMS))
    frame = to_frame(decisions)
    assert len(frame) == len(ITEMS) and frame.answer.tolist() == [d.answer for d in decisions]
    assert frame.candidates.tolist() == [list(i.candidates) for i in ITEMS]
    for row, decision in zip(frame.to_dict("records"), decisions, strict=True):
        assert row["scores"] == decision.scores.tolist()
        for name, gate in decision.gates.items():
            assert row[f"gates.{name}.threshold"] == gate.threshold
            assert row[f"gates.{name}.holds"] == gate.holds or gate.holds is None
    assert len(to_frame([])) == 0
