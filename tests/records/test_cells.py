"""Columnar computations against the same numbers record by record, in memory and from disk."""

import shutil
from dataclasses import asdict
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import answered, cell_of, cells, synthetic_cell, synthetic_grid, write_cells

from lastword.errors import RecordError
from lastword.lab.evaluation.controls import controls
from lastword.lab.report.ablation import necessity
from lastword.lab.report.dependence import dependence
from lastword.lab.report.figures import representative
from lastword.records import cells as stored
from lastword.records.cells import load_records, read_cells, summarise
from lastword.records.info import find_cells
from lastword.records.metrics import mc1, mc1_rows, mc2, mc2_rows, mc3, mc3_rows, of_items
from lastword.records.readings import read
from lastword.records.store import part_files
from lastword.rule.theta import Theta

SCORES = st.floats(-50, 0) | st.sampled_from([-1.0, -2.0])  # includes ties
ITEM = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(st.lists(ITEM, min_size=1, max_size=30))
def test_metrics_of_many_items_equal_those_of_each(items):
    rows = [
        {"truthful": [true for _, true in item], "base_scores": [u for u, _ in item]}
        for item in items
    ]
    cell = cell_of(pd.DataFrame([row | {"id": "i", "error": None} for row in rows]))
    for one, many in {mc1: mc1_rows, mc2: mc2_rows, mc3: mc3_rows}.items():
        fast = of_items(many, cell.scores["base_scores"], cell.truthful)
        slow = np.array([one(row["base_scores"], row["truthful"]) for row in rows])
        defined = ~np.isnan(slow)
        np.testing.assert_array_equal(fast[defined], slow[defined])
    assert np.isnan(of_items(mc1_rows, cell.scores["scores"], cell.truthful)).all()


def test_an_item_with_other_numbers_of_scores_and_candidates_is_refused():
    records = synthetic_cell(items=6)
    records["t_scores"] = [t[1:] if n == 2 else t for n, t in enumerate(records["t_scores"])]
    with pytest.raises(RecordError, match="item 1/mc1: it has other numbers of scores"):
        cells(records)


def test_readings_equal_those_of_each_record():
    (cell,) = cells(synthetic_cell(items=80, failed=2))
    columns, scalar = read(cell, Theta()), Theta(tau_dim=99.0)
    for place, item in enumerate(answered(cell).to_dict("records")):
        S, t, count = item["trajectory"], item["t_scores"], len(item["t_scores"])
        spatial = reference.decide(S, t, Theta(tau_dim=0.5), 2.0)
        gates = spatial.gates
        for invariant in (2.0, 0.5):  # mix, early
            gates |= reference.decide(S, t, scalar, invariant).gates
        names = {"log_ratio": "log_margin_ratio"}
        for name in ("changes", "log_ratio", "sharper", "shift", "confidence"):
            value, _ = gates[names.get(name, name)]
            assert getattr(columns, name)[place] == pytest.approx(value, rel=1e-9), name
        assert columns.d_eff[place] == pytest.approx(spatial.d_eff, rel=1e-9)
        layer = spatial.decisive_layer
        q = reference.log_softmax(S[:, layer])
        np.testing.assert_allclose(columns.decisive[place, :count], q, atol=1e-12)
        assert columns.present[place].sum() == count


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return cells with unordered parts, and some records in two of them."""
    folder = tmp_path_factory.mktemp("runs")
    records = synthetic_grid(2, 48, failed=2, blind="all")
    write_cells(records.sample(frac=1, random_state=0), folder)
    for cell in find_cells(folder):
        parts = part_files(cell)
        shutil.copy(str(parts[0]), str(cell / "part-99999.parquet"))
    return folder


@pytest.fixture
def both(runs, monkeypatch):
    """Return pairs of cells: on disk, and in memory from `load_records`."""
    monkeypatch.setattr(stored, "_AT_ONCE", 70)  # many pieces
    return list(zip(read_cells(runs), cells(load_records(runs)), strict=True))


def test_cells_on_disk_and_in_memory_give_the_same_statistics(both):
    for stored_cell, memory_cell in both:
        assert stored_cell.model == memory_cell.model
        assert stored_cell.benchmark == memory_cell.benchmark
        assert memory_cell.wordings["shortest"] > 0
        for statistic in (
            lambda cell: vars(summarise(cell)),
            lambda cell: cell.scores | {"truthful": cell.truthful},
            lambda cell: dict(cell.wordings),
            lambda cell: attrgetter("oracle", "blind_oracle")(controls(cell)),
            lambda cell: vars(read(cell, Theta())),
            lambda cell: vars(read(cell, Theta(), blind=True)),
            lambda cell: vars(dependence(cell, Theta())),
        ):
            np.testing.assert_equal(statistic(stored_cell), statistic(memory_cell))


def test_cells_on_disk_and_in_memory_give_the_same_ablations_and_figures(both):
    sides = [*zip(*both, strict=True)]  # on disk, in memory
    tables = [necessity([read(c, Theta()) for c in side], Theta()) for side in sides]
    np.testing.assert_equal(*([vars(row) for row in rows] for rows in tables))
    for operator in ("mix", "early", "decisive"):
        records = [representative(side, operator) for side in sides]
        np.testing.assert_equal(*(record and asdict(record) for record in records))
