"""Decisions from scores, for tests without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lastword.records.decision import Decision


def decided(scores: Sequence[float], base: Sequence[float], **more: Any) -> Decision:
    """Return the decision of these scores; other fields have arbitrary defaults."""
    u, b = np.array(scores), np.array(base)
    values: dict[str, Any] = {
        "candidates": tuple("abcdefgh"[: len(u)]),
        "index": int(u.argmax()),
        "base_index": int(b.argmax()),
        "scores": u,
        "base_scores": b,
        "regime": "candidate-space",
        "operator": "decisive",
        "d_eff": 1.2,
        "invariant": 2.0,
        "decisive_layer": 3,
        "trajectory": np.full((len(u), 5), np.nan),
    }
    return Decision(**values | more)
