"""The Python with vLLM, for tests that need it: `make vllm`, or LASTWORD_VLLM_PYTHON."""

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
PYTHON = Path(os.environ.get("LASTWORD_VLLM_PYTHON", _DEFAULT))

needs_vllm = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"no vLLM at {PYTHON}: `make vllm`, or set LASTWORD_VLLM_PYTHON"
)
