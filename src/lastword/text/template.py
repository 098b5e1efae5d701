"""Chat templates are programs that a checkpoint brings: tried before use, stopped while in use.

jinja's sandbox keeps them from everything but time and memory. A template that takes too much of
these on a few short messages is refused when its model loads (`require_bounded`). Later ones are
written in a process of their own, which is ended where one takes too long (`renderer.py`).
"""

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from lastword.errors import ModelError

_TRIAL = Path(__file__).with_name("trial.py")
_CPU_SECONDS, _MEMORY_BYTES = 2, 2**30
_CHARACTERS = 2**20  # written around a few short messages
_PATIENCE_SECONDS = 60.0  # for a trial on a busy machine


def require_bounded(template: Any, name: str) -> None:
    """Refuse a chat template without bounds.

    Args:
        template: What a tokenizer has: a text, texts by name, or none.
        name: The model, for the error.

    Raises:
        ModelError: A trial took too much time or memory, or wrote too much.
    """
    texts = template.values() if isinstance(template, dict) else [template]
    for text in texts:
        if isinstance(text, str) and (why := _overrun(text)) is not None:
            raise ModelError(
                f"{name} has a chat template that {why}: take another copy of the model, or mend "
                "its chat_template"
            )


@lru_cache(maxsize=64)
def _overrun(template: str) -> str | None:
    """Try a template in a process of its own; return what speaks against it, or None."""
    # -I: nothing beside the script and nothing of the surroundings is imported.
    limits = map(str, (_CPU_SECONDS, _MEMORY_BYTES, _CHARACTERS))
    command, text = [sys.executable, "-I", str(_TRIAL), *limits], template.encode(errors="replace")
    try:
        outcome = subprocess.run(
            command, input=text, capture_output=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "does not come to an end"
    if outcome.returncode == 0:
        return None
    if outcome.returncode == 1 and outcome.stdout:
        return " ".join(outcome.stdout.decode(errors="replace").split())[:200]
    return f"takes more than {_CPU_SECONDS} s or {_MEMORY_BYTES // 2**20} MiB"
