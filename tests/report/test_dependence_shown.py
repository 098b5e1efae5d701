"""The table and the figure of what needs the question, against the statistics that they show."""

from typing import Any

import numpy as np
import pytest
from synthetic import synthetic_cell, synthetic_grid, write_cells

from lastword.records.cells import cells
from lastword.report import draw
from lastword.report.build import report
from lastword.report.dependence import dependence, dependence_figure, dependence_table
from lastword.report.figure_parts import Bars, Line
from lastword.report.table import to_markdown
from lastword.theta import Theta

THETA = Theta()


@pytest.fixture(scope="module")
def found():
    records = synthetic_grid(2, 40, blind="all")
    return [dependence(cell, THETA) for cell in cells(records)]


def test_every_gain_stands_beside_its_blind_one_in_points(found):
    table = dependence_table(found)
    names = [column.name for column in table.columns]
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in table.rows]
    gains = [(one, gain) for one in found for gain in one.gains]
    for row, (one, gain) in zip(rows, gains, strict=True):
        named = one.model, one.benchmark, gain.name
        assert (row["Model"], row["Benchmark"], row["Gain of"]) == named
        assert row["MC1 base"] == pytest.approx(100 * one.sighted[-1])
        assert row["MC1 base, blind"] == pytest.approx(100 * one.blind[-1])
        assert row["Needs the question"] == pytest.approx(row["ΔMC1"] - row["ΔMC1, blind"])
        assert row["95% low"] <= row["Needs the question"] <= row["95% high"]
    assert {"TRACE", "mix", "early", "decisive"} == {row["Gain of"] for row in rows}
    assert not any("--blind all" in note for note in table.notes)


def test_cells_that_were_not_read_blind_are_counted_and_not_drawn(found):
    table = dependence_table([found[0], None, None])
    assert "2 of 3 cells" in table.notes[-1] and "--blind all" in table.notes[-1]
    assert {row[1] for row in table.rows} == {found[0].benchmark}
    assert len(dependence_figure([found[0], None, None]).panels) == 2
    assert dependence_figure([None]) is None
    assert "1 of 1 cells" in to_markdown(dependence_table([None]))


def test_the_figure_shows_both_curves_and_both_gains(found, tmp_path):
    figure = dependence_figure(found)
    for one, depths, gains in zip(found, figure.panels[::2], figure.panels[1::2], strict=True):
        curves = {m.label: m for m in depths.marks if isinstance(m, Line)}
        np.testing.assert_allclose(curves["read"].y, 100 * one.sighted)
        np.testing.assert_allclose(curves["blind"].y, 100 * one.blind)
        read, left_out = (m for m in gains.marks if isinstance(m, Bars))
        assert read.names == left_out.names == tuple(gain.name for gain in one.gains)
        assert read.values == pytest.approx([100 * gain.sighted for gain in one.gains])
        assert left_out.values == pytest.approx([100 * gain.blind for gain in one.gains])
        assert f"{100 * one.gains[0].needs:+.1f}" in gains.title
    assert all(path.stat().st_size > 1000 for path in draw.save(figure, tmp_path))


def test_many_cells_are_left_to_the_table(found):
    figure = dependence_figure(found * 3)
    assert len(figure.panels) == 24 and "The table has 6 more cells." in figure.caption


@pytest.mark.slow
@pytest.mark.parametrize("blind", ["base", "all"])
def test_a_report_has_both_where_the_records_do(tmp_path, blind, monkeypatch):
    monkeypatch.setattr(draw, "FORMATS", ("svg",))
    write_cells(synthetic_cell(items=30, blind=blind), tmp_path / "runs")
    written = {path.name for path in report(tmp_path / "runs", tmp_path / "out").paths}
    assert ("dependence.svg" in written) == (blind == "all")
    text = (tmp_path / "out" / "tables" / "dependence.md").read_text()
    assert ("--blind all" in text) == (blind == "base")
