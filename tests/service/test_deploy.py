"""A state can be backed up as docs/operations.md says."""

import sqlite3
from pathlib import Path

import pytest

from lastword.service.ledger import Ledger


def test_a_state_file_can_be_backed_up_only_after_the_service_has_ended(tmp_path):
    """Before that it is locked, and new entries are in a separate file."""
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    ledger = Ledger(path, "fingerprint", 10)
    assert (tmp_path / "state.db-wal").stat().st_size > 0
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        _back_up(path, copy)
    ledger.close()
    _back_up(path, copy)
    assert not (tmp_path / "state.db-wal").exists()
    restored = Ledger(copy, "fingerprint", 10)
    assert restored.state("certificate") == "fingerprint"
    restored.close()


def _back_up(path: Path, copy: Path) -> None:
    source, target = sqlite3.connect(path, timeout=0), sqlite3.connect(copy)
    try:
        source.execute("SELECT name FROM state")  # the backup alone would wait for ever
        source.backup(target)
    finally:
        source.close()
        target.close()
