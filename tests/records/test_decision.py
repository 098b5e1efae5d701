"""Forms of an answered item: JSON, rows of Parquet, explanations."""

import json
from dataclasses import fields

import numpy as np
import pytest
from synthetic import synthetic_cell

from lastword.errors import RecordError
from lastword.records.columns import COLUMNS, failure, read, row_of, to_frame, to_table, without_nan
from lastword.records.decision import Decision, Withheld
from lastword.rule.operators import Gate
from lastword.text.items import Item

VALUES = dict(
    candidates=("a", "b", "c"),
    truthful=(False, True, False),
    index=1,
    base_index=0,
    regime="candidate-space",
    operator="decisive",
    scores=np.array([-2.0, -1.0, -3.0]),
    base_scores=np.array([-1.0, -1.25, -4.0]),
    d_eff=1.25,
    invariant=2.5,
    gates={"changes": Gate(True, True, True), "log_margin_ratio": Gate(-np.inf, 1.0, False)},
    decisive_layer=2,
    trajectory=np.arange(9.0).reshape(3, 3) - 9,
    t_scores=np.array([-1.0, -2.0, -3.0]),
    blind_scores=np.array([-1.0, -1.0, -2.0]),
    methods={"dola": np.array([0.1, 0.2, 0.3]), "blind": None},
)


def test_a_row_has_every_column():
    assert sorted([*row_of(Decision(**VALUES)), "error"]) == sorted(COLUMNS.names)
    row = failure(Item("?", ("a", "b")), "too long", benchmark="b", kind=None, place=3)
    assert {*row} < {*COLUMNS.names}


def test_json_has_the_documented_keys():
    plain = (
        "schema index answer base_index base_answer corrected tied regime method operator d_eff"
        " invariant scores probabilities base_scores gates decisive_layer lambda truncated withheld"
        " deferred"
    ).split()
    whole = Decision(**VALUES)
    assert list(whole.to_dict()) == plain
    assert list(whole.to_dict(full=True)) == [*plain, "trajectory", "t_scores"]
    blind = {"blind_trajectory": whole.trajectory, "blind_t_scores": whole.t_scores, "id": "one"}
    keys = ["id", *plain, "trajectory", "t_scores", "blind_trajectory", "blind_t_scores"]
    assert list(Decision(**VALUES | blind).to_dict(full=True)) == keys
    written = whole.withhold("rule").to_dict(full=True)
    assert json.loads(json.dumps(written))["withheld"]


def test_answers_by_other_scores_have_no_gates():
    whole = Decision(**VALUES)
    peer, base, unchanged = whole.by("dola"), whole.as_base(), whole.withhold("rule")
    assert (peer.index, peer.operator, peer.method) == (2, "dola", "dola")
    assert (base.index, base.operator, base.method) == (0, "base", "base")
    for answer in (peer, base):
        assert np.isnan(answer.d_eff) and not answer.gates and answer.decisive_layer is None
    assert (unchanged.method, unchanged.d_eff, unchanged.decisive_layer) == ("trace", 1.25, 2)
    assert unchanged.gates == whole.gates
    override = unchanged.withheld
    assert isinstance(override, Withheld) and (override.index, override.answer) == (1, "b")
    assert base.withheld is None and unchanged.as_base().withheld is None


def test_a_written_record_is_read_back():
    context = {"prompt": "?", "benchmark": "b", "kind": "mc1", "place": 7, "seconds": 0.5}
    tokens = {"prompt_tokens": 3, "candidate_tokens": (1, 2, 1), "blind_tokens": (1, 2, 1)}
    answer = Decision(**VALUES, **context, **tokens, boundary_moved=True, id="x").withhold("rule")
    info = {"model": "org/m", "template": {"name": "t"}}
    (frame,) = to_frame(to_table([row_of(answer)]), info).to_dict("records")
    metrics = ("mc1", "mc1_base", "mc2", "error")
    shown = without_nan(frame)
    assert [shown[name] for name in metrics] == [0.0, 0.0, None, None]  # the item is for MC1
    again = read(frame)
    for field in fields(Decision):
        value, written = (getattr(record, field.name) for record in (again, answer))
        expected = "org/m" if field.name == "model" else str(written)
        assert str(value) == expected, field.name


def test_exactly_the_failed_items_have_no_answer():
    rows = synthetic_cell("org/m", "truthfulqa", 12, failed=2).to_dict("records")
    for row in rows[2:]:
        decision = read(row)
        assert decision.share("mc1") == (None if decision.kind == "mc2" else row["mc1"])
    for row in rows[:2]:
        with pytest.raises(RecordError, match="not complete"):
            read(row)
