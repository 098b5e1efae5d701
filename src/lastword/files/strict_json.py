"""Strict JSON: no bare NaN or Infinity, which Python writes and most other readers reject."""

import json
import math
from collections.abc import Mapping
from typing import Any


def strict(value: Any) -> Any:
    """Return a value as strict JSON has it: arrays as lists, nan as null, infinities as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else f"{value:+}"
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): strict(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # of numpy or torch, which nobody needs to import for this
        return strict(value.tolist())
    return value


def to_json(value: Any) -> str:
    """Return one line of strict JSON; text stays readable."""
    return json.dumps(strict(value), ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return JSON's value; no key of an object stands twice, as readers differ on which counts.

    Raises:
        ValueError: It is not JSON (a `json.JSONDecodeError`), or a number is too long.
        RecursionError: Its brackets are too deep.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise json.JSONDecodeError(f"the key {twice!r:.40} stands twice in an object", "", 0)
        return value

    return json.loads(text, object_pairs_hook=once)
