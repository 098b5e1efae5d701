"""Tables: numbers from hand-made summaries, and untrusted text in all formats."""

import csv
import io
import re
from dataclasses import replace
from math import inf, isnan, nan
from types import MappingProxyType

import pytest

from lastword.lab.report.published import against_paper
from lastword.lab.report.table import Heading, ReportTable, number, to_csv, to_markdown
from lastword.lab.report.tables import cells_table, model_means, per_model
from lastword.records.cells import CellCounts, Summary
from lastword.rule.theta import Theta

HOSTILE = '=cmd|"/c"!A1 <script>&x</script> a_b$%#{}~^\\ *b* [l](u) `c`\x1b[31m\n| end'


def summary(model, benchmark, **values):
    zero = MappingProxyType({"decisive": 0.0, "mix": 0.0, "early": 0.0})
    return replace(
        Summary(model, benchmark, CellCounts(10), 2.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1,
                0, 0, 1.0, zero, nan, nan),
        **values,
    )  # fmt: skip


def column(table, name):
    place = [c.name for c in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_hostile_text_is_escaped_in_all_formats():
    columns = Heading(HOSTILE), Heading("n", ".1f")
    table = ReportTable("t", HOSTILE, columns, ((HOSTILE, -1.0),), (HOSTILE,))
    markdown = to_markdown(table)
    assert "<script" not in markdown and "\x1b" not in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}
    assert not re.search(r"(?<!\\)[*_`\[]", lines[2])
    [head, row] = csv.reader(io.StringIO(to_csv(table)))
    assert head[0].startswith("'=") and row[0].startswith("'=") and row[1] == "-1.0"


def test_numbers_have_the_format_of_their_column():
    shown = {nan: "–", inf: "∞", -inf: "-∞", -0.001: "+0.00", 12.345: "+12.35", -3.0: "-3.00"}
    for value, text in shown.items():
        assert number(value, "+.2f") == text
    assert number(2.0**-45, ".3g") == "2.84e-14"
    table = ReportTable.of("t", "t", "a | x .2", [("m", nan), ("m", 1.0)])
    assert "–" in to_markdown(table) and to_csv(table) == "a,x\nm,nan\nm,1.0\n"


def test_cells_and_shares_are_in_points():
    share = MappingProxyType({"decisive": 0.3, "mix": 0.0, "early": 0.0})
    none = MappingProxyType({"decisive": 0.0, "mix": 0.6, "early": 0.0})
    counts = CellCounts(817, failed=3)
    summaries = [
        summary("m", "truthfulqa", scalar=43 / 817, fired=share, mc1=0.7, counts=counts),
        summary("m", "halueval-qa", fired=none, mc1=0.6),
        summary("m", "halueval-sum", fired=none, mc1=0.4, mc2=0.25),
    ]
    cells = cells_table(summaries)
    assert column(cells, "ΔMC1") == pytest.approx([20, 10, -10])
    assert column(cells, "ΔMC2")[2] == -25.0 and column(cells, "Chance")[0] == 25.0
    assert column(cells, "Failed") == [3, 0, 0]
    table = per_model(model_means(summaries), Theta())
    assert round(column(table, "% scalar")[0], 1) == 68.4
    assert column(table, "% decisive")[0] == pytest.approx(10)
    assert column(table, "% mix")[0] == pytest.approx(40)
    assert column(table, "ΔMC1")[0] == pytest.approx(20 / 3)


def test_published_numbers_are_shown_next_to_the_runs():
    table = against_paper(
        [summary("google/gemma-3-1b-it", "halueval-qa", mc1=0.75), summary("x", "mine")]
    )
    assert column(table, "ΔMC1")[0] == 25.0 and column(table, "ΔMC1 paper")[0] == 43.60
    assert column(table, "MC2 base paper")[0] == 39.13 and column(table, "I(M) paper")[0] == 6.54
    assert isnan(column(table, "MC1 base paper")[1])
