"""Where vLLM is, for tests that need it: `.venv-vllm` of `make vllm`, or LASTWORD_VLLM_PYTHON."""

import os
from pathlib import Path

import pytest

_OWN = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
PYTHON = Path(os.environ.get("LASTWORD_VLLM_PYTHON", _OWN))

needs_vllm = pytest.mark.skipif(
    not PYTHON.is_file(), reason=f"no vLLM at {PYTHON}: `make vllm`, or set LASTWORD_VLLM_PYTHON"
)
