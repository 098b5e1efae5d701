"""I(M) of remote checkpoints, kept by content: a commit, and the constants that choose tensors.

A commit names content, on every hub and mirror; a model's name does not, and is no part of a key.
Without a commit nothing is kept.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from lastword.theta import Theta

# Part of every key: raise it whenever the same checkpoint may read differently.
_READING = 1


def folder() -> Path:
    """Return where values are kept: `LASTWORD_CACHE`, else the user's cache folder."""
    variable = os.environ.get("LASTWORD_CACHE")
    if variable:
        return Path(variable)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"


def load(commit: str, theta: Theta) -> dict[str, Any] | None:
    """The factors kept for a commit, in JSON form; None where none are, or not whole."""
    try:
        values = json.loads(_path(commit, theta).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def save(commit: str, theta: Theta, values: dict[str, Any]) -> None:
    """Keep the factors of a commit; the file appears whole or not at all.

    A folder that cannot be written leaves nothing kept, and the value is read again next time.
    """
    from lastword.files.writing import open_whole

    path = _path(commit, theta)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_whole(path) as file:
            file.write(json.dumps(values, indent=1).encode())


def _path(commit: str, theta: Theta) -> Path:
    key = {
        "reading": _READING,
        "rho_e": theta.rho_e,
        "rho_m": theta.rho_m,
        "invariant": theta.to_dict()["invariant"],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return folder() / "invariant" / f"{commit}-{digest}.json"
