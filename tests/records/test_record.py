"""Forms of an answered item: JSON, rows of Parquet, explanations."""

import json
from dataclasses import fields, replace

import numpy as np
from synthetic import synthetic_cell

from lastword.records.columns import COLUMNS, to_table
from lastword.records.decision import Decision
from lastword.records.frame import to_frame
from lastword.records.item_view import item
from lastword.records.record import Record
from lastword.rule.answer import Answer, Gate, Withheld
from lastword.rule.theta import Theta
from lastword.service.schema import DecisionAnswer

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
    row = Record(prompt="?", candidates=("a", "b", "c"), answer=Decision(**VALUES)).to_row()
    assert sorted(row) == sorted(COLUMNS.names)


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
    answer = DecisionAnswer.model_validate(written).model_dump_json(exclude_unset=True)
    assert json.loads(answer) == json.loads(json.dumps(written))


def test_the_page_lists_the_answer_of_each_reading():
    flat, sure = [-3.0, -3.0, -3.0], [-2.0, -2.25, -4.0]
    S = np.array([[-3.0, -3.0, -2.0], flat, flat, flat, sure]).T
    # Not sharper: b, so A. Sharper with no shift of A: 2 b - t, so B. Shift against A: so A.
    readings = {"floor-anchor": np.array([-2.0, -2.1, -4.0]), "clip-anchor": S[:, 4] - [0, 9, 9]}
    readings["final-anchor"] = np.array([-9.0, -1.0, -4.0])
    scalar = {"regime": "scalar", "operator": "base", "decisive_layer": None, "gates": {}}
    answer = Answer(**VALUES | scalar | {"trajectory": S, "base_scores": S[:, 4]})
    answer = replace(answer, t_readings=readings)
    record = Record(prompt="?", candidates=answer.candidates, answer=answer)
    theta = Theta(tau_dim=9.0)
    assert "disagree" not in item(record, theta)["words"]
    words = item(replace(record, readings_disagree=True), theta)["words"]
    ending = "disagree here: A by floor-anchor, final-anchor; B by clip-anchor."
    assert words.endswith(ending), words
    # With t of one reading, only the branch can differ.
    alone = replace(answer, t_readings={"final-anchor": readings["final-anchor"]})
    words = item(replace(record, answer=alone, readings_disagree=True), theta)["words"]
    assert "both sides of tau_I" in words and "C by early" in words


def test_answers_by_other_scores_have_no_gates():
    whole = Decision(**VALUES)
    peer, base, unchanged = whole.by("dola"), whole.as_base(), whole.withhold("rule")
    assert (peer.index, peer.operator, peer.method) == (2, "dola", "dola")
    assert (base.index, base.operator, base.method, unchanged.method) == (
        0,
        "base",
        "base",
        "trace",
    )
    for answer in (peer, base):
        assert np.isnan(answer.d_eff) and not answer.gates and answer.decisive_layer is None
    assert (
        unchanged.d_eff == 1.25 and unchanged.gates == whole.gates and unchanged.decisive_layer == 2
    )
    override = unchanged.withheld
    assert isinstance(override, Withheld) and (override.index, override.answer) == (1, "b")
    assert base.withheld is None and unchanged.as_base().withheld is None


def test_a_written_record_is_read_back():
    answer = Decision(**VALUES).withhold("rule")
    row = Record(prompt="?", candidates=answer.candidates, answer=answer).to_row()
    row |= {"truthful": [False, True, False], "mc1": 0.5}
    info = {"model": "org/m", "template": {"name": "t"}}
    (frame,) = to_frame(to_table([row]), info).to_dict("records")
    again = Record.read({str(name): value for name, value in frame.items()})
    assert (again.model, again.mc1, again.mc1_base, again.error) == ("org/m", 0.5, None, None)
    for field in fields(Answer):
        if field.name != "truthful":  # the row has it, the answer not
            read, written = (getattr(record, field.name) for record in (again.decision, answer))
            assert str(read) == str(written), field.name


def test_exactly_the_failed_items_have_no_answer():
    rows = synthetic_cell("org/m", "truthfulqa", 12, failed=2).to_dict("records")
    records = [Record.read({str(name): value for name, value in row.items()}) for row in rows]
    assert [record.answer is None for record in records] == [r.error is not None for r in records]
    assert sum(record.answer is None for record in records) == 2
