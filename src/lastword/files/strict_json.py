"""Strict JSON, without NaN and Infinity, which Python writes but most other readers reject."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def strict(value: Any) -> Any:
    """Return a value for strict JSON: arrays as lists, nan as None, infinities as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else f"{value:+}"
    if isinstance(value, list | tuple):
        return [strict(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): strict(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # an array of numpy or torch
        return strict(value.tolist())
    return value


def to_json(value: Any) -> str:
    """Return one line of strict JSON; text stays readable."""
    return json.dumps(strict(value), ensure_ascii=False, allow_nan=False)


def rows_digest(rows: Iterable[Any]) -> str:
    """Return the SHA-256 of rows in canonical JSON, one per line."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def from_json(text: str | bytes) -> Any:
    """Return the value of a JSON text in which no object has a key twice.

    Raises:
        ValueError: It is not JSON (a `json.JSONDecodeError`), or a number is too long or too large.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_float=_finite)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; readers differ on which of two equal keys counts."""
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise json.JSONDecodeError(f"the key {key!r:.40} occurs twice in an object", "", 0)
        keys.add(key)
    return dict(pairs)


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise json.JSONDecodeError(f"the number {digits:.40} is too large", "", 0)
    return value
