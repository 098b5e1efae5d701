"""Matrices of tests: some rows run on every change, all of them every night."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_RECORDS = Path(__file__).parents[1] / "experiments" / "results" / "evidence"
needs_evidence = pytest.mark.skipif(
    not _RECORDS.is_dir(), reason="a source distribution leaves out the records of the evidence"
)


def by_night(rows: Iterable[Any], always: Iterable[Any]) -> list[Any]:
    """Return rows as parameters of a test, most of them marked to run only at night.

    Args:
        rows: The matrix; a row is a value or a tuple of them.
        always: The rows that run on every change.
    """
    rows, always = list(rows), list(always)
    assert always and all(row in rows for row in always), "not a row of the matrix"
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=() if row in always else pytest.mark.nightly,
        )
        for row in rows
    ]
