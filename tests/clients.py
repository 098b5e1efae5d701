"""The Python with other services' clients: `make clients`, or LASTWORD_CLIENTS_PYTHON."""

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).parents[1] / ".venv-clients" / "bin" / "python"
PYTHON = Path(os.environ.get("LASTWORD_CLIENTS_PYTHON", _DEFAULT))

needs_clients = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"no clients at {PYTHON}: `make clients` installs them"
)
