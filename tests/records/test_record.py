"""One definition of an answered item: each of its forms has each of its facts, or says so."""

import json
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa
import pytest
from synthetic import synthetic_cell

from lastword.records.decision import Decision
from lastword.records.explanation import UNTOLD, explain
from lastword.records.frame import to_frame
from lastword.records.record import Record
from lastword.records.schema import COLUMNS, columns, to_table
from lastword.rule.answer import Answer, Gate, Withheld
from lastword.rule.fact import fact, facts
from lastword.service.schema import DecisionAnswer, wire_fields, wire_type

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


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Wider(Decision):
    """A decision with one field more: the line that a new field takes."""

    tempo: float = field(default=0.0, metadata=fact("How fast.", reason=True))


@dataclass(frozen=True, kw_only=True)
class Odd:
    where: complex = field(default=0j, metadata=fact("Nowhere."))


@dataclass(frozen=True)
class Bare:
    bare: int = 0


def test_a_new_field_is_a_key_a_column_a_part_of_the_schema_and_a_reason():
    wide = Wider(**VALUES, tempo=3.5)
    assert wide.to_dict()["tempo"] == 3.5
    assert wide.as_base().tempo == 0.0 and wide.withhold("rule").tempo == 3.5
    schema = columns(Record, Wider)
    assert schema.names == [*COLUMNS.names, "tempo"] and schema.field("tempo").type == pa.float64()
    kind, told = wire_fields(Wider, "always")["tempo"]
    assert kind == float | None and told.description == "How fast." and told.is_required()
    row = Record(prompt="?", candidates=wide.candidates, answer=wide).to_row()
    assert pa.Table.from_pylist([row], schema=schema)["tempo"].to_pylist() == [3.5]


def test_a_field_that_has_no_form_is_refused():
    (odd,) = facts(Odd)
    with pytest.raises(TypeError, match="no column has a form"):
        columns(Record, Answer, Odd)
    with pytest.raises(TypeError, match="JSON has no form"):
        wire_type(odd)
    with pytest.raises(TypeError, match="Bare.bare has no fact"):
        facts(Bare)


def test_an_explanation_reads_every_fact_or_says_that_it_does_not():
    read = set()

    class Watched(Answer):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    spatial = Watched(**VALUES)
    mixed = {"regime": "scalar", "operator": "mix", "mixing": 1.0, "decisive_layer": None}
    gates = {"invariant": Gate(2.5, 1.0, True), "shift": Gate(0.5, 0.0, True)}
    answers = (spatial, Watched(**VALUES | mixed | {"gates": gates}), spatial.withhold("rule"))
    read.clear()
    for answer in answers:
        explain(answer)
    names = {own.name for own in fields(Answer)}
    assert read & names & UNTOLD == set(), "in words: take them out of UNTOLD"
    assert names - read - UNTOLD == set(), "view/explanation.py says them, or UNTOLD has them"
    assert UNTOLD <= names


def test_json_has_the_keys_that_it_had():
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
    said = whole.withhold("rule").to_dict(full=True)
    answer = DecisionAnswer.model_validate(said).model_dump_json(exclude_unset=True)
    assert json.loads(answer) == json.loads(json.dumps(said))


def test_other_scores_decide_without_the_reasons_of_the_rule():
    whole = Decision(**VALUES)
    peer, base, kept = whole.by("dola"), whole.as_base(), whole.withhold("rule")
    assert (peer.index, peer.operator, peer.method) == (2, "dola", "dola")
    assert (base.index, base.operator, base.method, kept.method) == (0, "base", "base", "trace")
    for answer in (peer, base):
        assert np.isnan(answer.d_eff) and not answer.gates and answer.decisive_layer is None
    assert kept.d_eff == 1.25 and kept.gates == whole.gates and kept.decisive_layer == 2
    wanted = kept.withheld
    assert isinstance(wanted, Withheld) and (wanted.index, wanted.answer) == (1, "b")
    assert base.withheld is None and kept.as_base().withheld is None


def test_what_is_written_is_read_again():
    answer = Decision(**VALUES).withhold("rule")
    row = Record(prompt="?", candidates=answer.candidates, answer=answer).to_row()
    row |= {"truthful": [False, True, False], "mc1": 0.5}
    info = {"model": "org/m", "template": {"name": "t"}}
    (frame,) = to_frame(to_table([row]), info).to_dict("records")
    again = Record.read({str(name): value for name, value in frame.items()})
    assert (again.model, again.mc1, again.mc1_base, again.error) == ("org/m", 0.5, None, None)
    for own in facts(Answer):
        if own.column:
            assert str(own.of(again.decision)) == str(own.of(answer)), own.name
    assert again.decision.candidates == answer.candidates


def test_a_failed_item_has_no_answer_and_every_other_one_has():
    rows = synthetic_cell("org/m", "truthfulqa", 12, failed=2).to_dict("records")
    records = [Record.read({str(name): value for name, value in row.items()}) for row in rows]
    assert [record.answer is None for record in records] == [r.error is not None for r in records]
    assert sum(record.answer is None for record in records) == 2
