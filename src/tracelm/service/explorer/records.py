"""A run's records for the explorer: an index of all items, and any one of them."""

from typing import Any

from tracelm.evaluation.settings import thetas
from tracelm.evaluation.store import load_records, read_runs
from tracelm.files.folder import Folder
from tracelm.report.figures import rows_of
from tracelm.report.page_data import Index
from tracelm.service.explorer.explained import explained
from tracelm.service.refusal import Refusal


class Records:
    """Records of `tracelm eval`, cell by cell, whatever their template.

    Args:
        runs: The folder.

    Raises:
        RecordError: The folder has no records.
    """

    def __init__(self, runs: Folder) -> None:
        groups = load_records(runs).groupby(["model", "benchmark"], sort=False)
        self._cells = [rows_of(cell) for _, cell in groups]
        theta = thetas(read_runs(runs).values())
        self._thetas = [theta[rows[0]["model"], rows[0]["benchmark"]] for rows in self._cells]
        index = Index()
        for place, rows in enumerate(self._cells):
            index.add(place, rows)
        self.index = index.block

    def view(self, cell: int, item: int, thresholds: dict[str, float]) -> dict[str, Any]:
        """What the page shows of one record.

        Args:
            cell: Place of its cell in the index.
            item: Its place in the cell.
            thresholds: Those that are moved, by name.

        Raises:
            Refusal: There is no such record.
        """
        if not (cell < len(self._cells) and item < len(self._cells[cell])):
            raise Refusal("not_found", "no such record; the page's list has those that are")
        return explained(self._cells[cell][item], self._thetas[cell], thresholds)
