"""Matrices that repeat one road: some of their rows run on every change, all of them by night."""

from collections.abc import Iterable
from typing import Any

import pytest


def by_night(rows: Iterable[Any], always: Iterable[Any]) -> list[Any]:
    """Rows as parameters of a test, those that do not run always marked as the night's.

    Args:
        rows: The matrix; a row is a value or a tuple of them.
        always: The rows that run on every change.
    """
    rows, always = list(rows), list(always)
    assert always and all(row in rows for row in always), "a row that is none"
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=() if row in always else pytest.mark.nightly,
        )
        for row in rows
    ]
