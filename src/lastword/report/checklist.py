"""The sceptic's checklist as a table of the report."""

from collections.abc import Sequence

from lastword.evaluation.checklist import Point
from lastword.report.table import Column, Table

NOTES = (
    "Computed from the records alone. A point is met where every cell that it can be asked of "
    "meets it; the cell that is named is the one that comes closest to failing, or fails most.",
)


def checklist_table(points: Sequence[Point]) -> Table:
    """A row a point: what is asked, whether it is met, and why."""
    rows = tuple((p.name, p.status, p.why) for p in points)
    columns = (Column("Asked"), Column("Status"), Column("Why"))
    return Table("checklist", "The sceptic's checklist", columns, rows, NOTES)
