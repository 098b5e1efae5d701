"""Trust: in each cell, what could be allowed, and which answers could be given."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lastword.records.cells import Cell
from lastword.report.figure_parts import Figure, Line, Numbers, Panel
from lastword.report.table import Table, Value, columns
from lastword.rule.operators import OPERATORS
from lastword.theta import Theta
from lastword.trust.certification import labelled
from lastword.trust.certify import Finding, certify
from lastword.trust.deferral import Curve
from lastword.trust.grouping import groups
from lastword.trust.policy import scalar_operator
from lastword.trust.summary import ASSUMPTION, in_words, summary
from lastword.trust.terms import Terms

TERMS = Terms(error=0.1)
_POINTS = 200  # of a curve that is drawn


@dataclass(frozen=True, eq=False)
class CellTrust:
    """The certificate that the labels of one cell would give under the report's terms.

    Attributes:
        cell: The cell.
        finding: What is certified; None where there are too few items, or none of TRACE's own.
        hidden: True if the records do not say what TRACE wanted.
    """

    cell: Cell
    finding: Finding | None
    hidden: bool = False

    @property
    def lines(self) -> list[str]:
        """The finding in words; what is missing where there is none."""
        if self.hidden:
            return ["Nothing is certified: what TRACE wanted is not in these records."]
        if self.finding is None:
            few = f"there are too few labelled items, {TERMS.least} are needed"
            return [f"Nothing is certified: {few}."]
        cell = self.cell
        return summary(self.finding, cell.model, [cell.benchmark], cell.failed)


def trust(cell: Cell, theta: Theta) -> CellTrust:
    """Find what the labels of a cell certify.

    Args:
        cell: The cell; run under a certificate, or decided by another correction, it hides what
            TRACE wanted, and certifies nothing.
        theta: Theta of the run.
    """
    items = cell.mc1_items
    hidden = "withheld" in items and bool(items["withheld"].notna().any())
    hidden |= not bool(items["operator"].isin(list(OPERATORS)).all())
    if hidden:
        return CellTrust(cell, None, hidden=True)
    labels = labelled([items], groups([cell]))
    if labels.group_count < TERMS.least:
        return CellTrust(cell, None)
    scalar = scalar_operator(float(items["invariant"].iloc[0]), theta.tau_I)
    return CellTrust(cell, certify(labels, scalar, TERMS))


def trust_table(cells: Sequence[CellTrust]) -> Table:
    """The chosen policy and the certified threshold of every cell."""
    heads = columns(
        "Model | Benchmark | Items | Let through | Fixed | Broken | Items needed | Given from .2"
        " | Answered .2 | Area before .4 | Area after .4"
    )
    sure = f"{1 - TERMS.delta:.0%}"
    notes = (
        "Let through: the policy of `lastword certify` that breaks at most "
        f"{TERMS.alpha:.0%} of the answers and gains, at {sure}; items needed: about the number "
        "with which one would pass if the rates stay. Given from: the probability from which on at "
        f"most {TERMS.error:.0%} of the answers given are wrong, at {sure} by itself; answered is "
        "their share in percent. Area: mean risk over coverage, less is better.",
        f"A line is what `lastword certify --error {TERMS.error:g}` finds of its cell alone, and "
        "no certificate: the command makes one, of another share or without a gain where it is "
        "asked (`--alpha`, `--no-gain`), of several benchmarks together, of finished runs only.",
        f"Provided that {ASSUMPTION}.",
    )
    return Table("trust", "What could be allowed", heads, tuple(map(_row, cells)), notes)


def _row(row: CellTrust) -> tuple[Value, ...]:
    cell, finding = row.cell, row.finding
    names: tuple[Value, ...] = (cell.model, cell.benchmark, len(cell.mc1_items))
    unknown = float("nan")
    if finding is None:
        why = "nothing of TRACE" if row.hidden else "too few items"
        return (*names, why, *[unknown] * 2, TERMS.least, *[unknown] * 4)
    trial, deferral = finding.chosen, finding.deferral
    assert deferral is not None
    has_threshold = deferral.threshold is not None
    return (
        *names,
        in_words(finding.policy),
        0 if trial is None else trial.fixed,
        0 if trial is None else trial.broken,
        unknown if finding.needed is None else finding.needed,
        unknown if deferral.threshold is None else deferral.threshold,
        100 * deferral.answered / finding.items if has_threshold else unknown,
        deferral.before.area,
        deferral.after.area,
    )


def risk_coverage(finding: Finding) -> Figure:
    """Share of wrong answers against the share of items answered, before and after."""
    deferral = finding.deferral
    assert deferral is not None
    before, after = deferral.before, deferral.after
    lines = (
        Line(*_line_of(before), "base", "before", above=True),
        Line(*_line_of(after), "corrected", "after"),
        Line((0.0, 1.0), (deferral.error, deferral.error), "other"),
    )
    panel = Panel("Risk over coverage", lines, "share answered", "share wrong", x_range=(0.0, 1.15))
    caption = (
        "Answers in the order of their probability, the surest first; the area is "
        f"{before.area:.4f} before and {after.area:.4f} after. Dashed: {deferral.error:.0%} wrong."
    )
    return Figure("trust", "Risk over coverage", caption, (panel,), columns=1)


def _line_of(curve: Curve) -> tuple[Numbers, Numbers]:
    """Coverage and risk at as many points as the eye can tell apart."""
    places = np.unique(np.linspace(0, len(curve.risk) - 1, _POINTS).astype(int))
    return tuple(curve.coverage[places].tolist()), tuple(curve.risk[places].tolist())
