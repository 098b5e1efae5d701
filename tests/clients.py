"""Where clients of others are: `.venv-clients` of `make clients`, or LASTWORD_CLIENTS_PYTHON."""

import os
from pathlib import Path

import pytest

_OWN = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"
PYTHON = Path(os.environ.get("LASTWORD_CLIENTS_PYTHON", _OWN))

needs_clients = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"no clients at {PYTHON}: `make clients` installs them"
)
