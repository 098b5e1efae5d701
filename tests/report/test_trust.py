"""What the report says of trust: a row a cell, a curve, and the lines of the command."""

import numpy as np
from synthetic import synthetic_cell

from lastword.records.cells import cells
from lastword.report.figure_parts import Line
from lastword.report.trust import TERMS, risk_coverage, trust, trust_table
from lastword.theta import Theta
from lastword.trust.certification import labelled
from lastword.trust.certify import certify


def cell(items, **changes):
    return cells(synthetic_cell(benchmark="halueval-qa", items=items).assign(**changes))[0]


def test_a_cell_says_what_the_command_would():
    found = trust(cell(400), Theta())
    finding = certify(labelled([found.cell.mc1_items]), "mix", TERMS)
    assert found.finding is not None and found.finding.policy == finding.policy
    assert len(found.lines) == 5 and "400 labelled items of halueval-qa" in found.lines[0]
    (row,) = trust_table([found]).rows
    assert row[2] == 400 and row[6] == finding.needed > 400
    assert row[9:] == (finding.deferral.before.area, finding.deferral.after.area)


def test_no_number_of_items_would_do_where_nothing_is_fixed():
    found = trust(cell(400, mc1=0.0), Theta())
    (row,) = trust_table([found]).rows
    assert found.finding.needed is None and np.isnan(row[6])


def test_too_few_items_and_what_a_certificate_hid_certify_nothing():
    few, hidden = trust(cell(50), Theta()), cell(400)
    hidden.items["withheld"] = [{"rule": "x"}] * 400
    for found in (few, trust(hidden, Theta())):
        assert found.finding is None and len(found.lines) == 1
        (row,) = trust_table([found]).rows
        assert row[6] == TERMS.least and np.isnan(row[9])


def test_the_curve_ends_at_the_share_of_wrong_answers():
    found = trust(cell(400), Theta())
    lines = [
        mark for mark in risk_coverage(found.finding).panels[0].marks if isinstance(mark, Line)
    ]
    before, after, asked = lines
    assert before.x[-1] == after.x[-1] == 1
    assert before.y[-1] == np.mean(found.cell.mc1_items["mc1_base"] < 1)
    assert set(asked.y) == {TERMS.error}
    assert len(before.x) <= 200
