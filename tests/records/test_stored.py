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
from synthetic import cells, synthetic_cell, synthetic_grid, write_cells

from lastword.errors import InputError
from lastword.lab.evaluation.controls import controls
from lastword.lab.report.ablation import necessity
from lastword.lab.report.dependence import dependence
from lastword.lab.report.figures import hardest, representative
from lastword.records import metrics, ragged, stored
from lastword.records.cells import COUNT_COLUMNS, summarise
from lastword.records.columns import to_table
from lastword.records.frame import load_records, to_columns
from lastword.records.info import find_cells
from lastword.records.metrics import mc1, mc2, mc3
from lastword.records.ragged import Lists
from lastword.records.readings import read
from lastword.records.store import part_files
from lastword.records.stored import read_cells
from lastword.rule.theta import Theta

SCORES = st.floats(-50, 0) | st.sampled_from([-1.0, -2.0])  # includes ties
ITEM = st.none() | st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(st.lists(ITEM, min_size=1, max_size=30), st.integers(1, 50))
def test_metrics_of_many_items_equal_those_of_each(items, at_once):
    scores = [None if item is None else np.array([u for u, _ in item]) for item in items]
    truths = [None if item is None else [true for _, true in item] for item in items]
    table = to_table([{"scores": u, "truthful": t} for u, t in zip(scores, truths, strict=True)])
    in_arrow = to_columns(table.select(["scores", "truthful"]))
    in_python = pd.DataFrame({"scores": pd.Series(scores, dtype=object), "truthful": truths})
    rows = {mc1: metrics.mc1_rows, mc2: metrics.mc2_rows, mc3: metrics.mc3_rows}
    for frame in (in_arrow, in_python):
        for one, many in rows.items():
            slow = [np.nan if u is None else one(u, t) for u, t in zip(scores, truths, strict=True)]
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(ragged, "_STACKED", at_once)
                fast = metrics.of_items(
                    many, Lists.of(frame["scores"]), Lists.of(frame["truthful"])
                )
            np.testing.assert_array_equal(fast, slow)


@pytest.mark.parametrize("scores", [[[1.0, np.nan]], [[-np.inf, -np.inf]], [[1.0, 2.0, 3.0]]])
def test_invalid_scores_are_refused(scores):
    truthful = Lists.of(pd.Series([[True, False]]))
    with pytest.raises(InputError, match="score"):
        metrics.of_items(metrics.mc1_rows, Lists.of(pd.Series(scores)), truthful)


@pytest.mark.parametrize("blind", ["base", "all"])
def test_readings_equal_those_of_each_record(blind):
    (cell,) = cells(synthetic_cell(items=80, blind=blind, failed=2))
    columns, scalar = read(cell, Theta()), Theta(tau_dim=99.0)
    for place, item in enumerate(cell.items.to_dict("records")):
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
        for operator, depth in zip(columns.moved, (layer, -1, 0), strict=True):
            moved = columns.moved[operator][place, :count]
            blind_S = item.get("blind_trajectory") if blind == "all" else S * np.nan
            np.testing.assert_allclose(moved, (S - blind_S)[:, depth])


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
    monkeypatch.setattr(stored, "SLICE", 10)  # many slices
    return list(zip(read_cells(runs), cells(load_records(runs)), strict=True))


def test_cells_on_disk_and_in_memory_give_the_same_statistics(both):
    for stored_cell, memory_cell in both:
        assert stored_cell.model == memory_cell.model
        assert stored_cell.benchmark == memory_cell.benchmark
        assert memory_cell.wordings["shortest"] > 0
        for statistic in (
            lambda cell: vars(summarise(cell)),
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
    np.testing.assert_equal(*([asdict(record) for record in hardest(side)] for side in sides))


def test_only_the_columns_for_counting_are_in_memory(both):
    for stored_cell, memory_cell in both:
        assert set(stored_cell.records) == set(COUNT_COLUMNS)
        places = np.array([7, 3, 3, len(memory_cell.records) - 1])
        pd.testing.assert_frame_equal(
            stored_cell.whole(places).reset_index(drop=True),
            memory_cell.records.iloc[places].drop(columns="run").reset_index(drop=True),
            check_dtype=False,
        )
