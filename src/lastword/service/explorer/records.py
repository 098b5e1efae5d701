"""A run's records for the explorer: an index of all items, and any one of them."""

from typing import Any

import numpy as np

from lastword.files.folder import Folder
from lastword.records.info import read_runs
from lastword.records.provenance import thetas
from lastword.records.record import Record
from lastword.records.stored import read_cells
from lastword.report.page_data import Index, at_once
from lastword.service.explorer.explained import explained
from lastword.service.refusal import Refusal


class Records:
    """Records of `lastword eval`, cell by cell, whatever their template.

    Args:
        runs: The folder.

    Raises:
        RecordError: The folder has no records.
    """

    def __init__(self, runs: Folder) -> None:
        self._cells = read_cells(runs)
        theta = thetas(read_runs(runs).values())
        self._thetas = [theta[cell.model, cell.benchmark] for cell in self._cells]
        index = Index()
        for place, cell in enumerate(self._cells):
            for rows in at_once(cell, np.arange(len(cell.records))):
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
            RecordError: It can no longer be read.
        """
        if not (cell < len(self._cells) and item < len(self._cells[cell].records)):
            raise Refusal("not_found", "no such record; the page's list has those that are")
        (record,) = Record.of(self._cells[cell].whole(np.array([item])))
        return explained(record, self._thetas[cell], thresholds)
