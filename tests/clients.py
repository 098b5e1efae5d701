"""Clients of others, each in an environment of its own below the folder LASTWORD_CLIENTS."""

import os
from pathlib import Path

import pytest


def python_of(client: str) -> str:
    """The Python of a client's own environment; the test is skipped where it is not there."""
    python = Path(os.environ.get("LASTWORD_CLIENTS", "")) / client / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"LASTWORD_CLIENTS is no folder with an environment called {client}")
    return str(python)
