"""Strict JSON: no bare NaN or Infinity, which Python writes and few others read."""

import json
import math
from collections.abc import Mapping
from typing import Any


def strict(value: Any) -> Any:
    """A value as strict JSON has it: arrays as lists, nan as null, infinities as strings."""
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
    """One line of strict JSON; text stays readable."""
    return json.dumps(strict(value), ensure_ascii=False, allow_nan=False)
