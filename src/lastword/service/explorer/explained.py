"""What the explorer shows of an answered item, as plain JSON values; nothing is decided here."""

import math
from collections.abc import Mapping
from typing import Any

from lastword.files.strict_json import strict
from lastword.records.record import Record
from lastword.report.page_data import item, text
from lastword.rule.answer import Answer
from lastword.rule.what_if import THRESHOLDS, measures, trajectory_of, what_if, with_thresholds
from lastword.theta import Theta
from lastword.view.explanation import GATE_NAMES, explain
from lastword.view.portrait import short

# What each threshold is held against, the sign under which something happens, and how far a slider
# reaches at least on either side.
_ASKED = {
    "tau_dim": ("d_eff", "above: more than one direction, so a depth may be trusted", 0.002),
    "tau_logr": (
        GATE_NAMES["log_margin_ratio"],
        "above: inside they stand further apart",
        1.0,
    ),
    "tau_H": (GATE_NAMES["entropy"], "above: the last depth is undecided", 0.15),
    "tau_I": (GATE_NAMES["invariant"], "above: the scorer T is mixed in, else depth 0", 0.5),
    "gamma": (GATE_NAMES["confidence"], "below: the model is not confident", 0.5),
}


def explained(record: Record, theta: Theta, thresholds: Mapping[str, float]) -> dict[str, Any]:
    """The whole view of an item.

    Args:
        record: Of an item answered here, or one of `lastword eval`.
        theta: Constants of the decision.
        thresholds: Those that are moved, by name.

    Raises:
        InputError: A threshold that is none.
    """
    view: dict[str, Any] = {"text": text(record), "item": item(record, theta)}
    answer = record.answer
    if answer is None or not _whole(answer):
        return view | {"thresholds": [], "what_if": None}
    values = measures(answer, theta)
    rows = [_row(name, values[name], getattr(theta, name)) for name in THRESHOLDS]
    return view | {
        "thresholds": rows,
        "what_if": _what_if(answer, with_thresholds(theta, thresholds)),
    }


def _whole(answer: Answer) -> bool:
    """Whether the rule can be asked again: every depth and T were read, and there is a choice."""
    trajectory = trajectory_of(answer)
    every = trajectory.has(range(trajectory.depth + 1))
    return len(trajectory.scores) > 1 and every and trajectory.t is not None


def _row(name: str, value: float, frozen: float) -> dict[str, Any]:
    """A threshold with what the item has to hold against it, and how far its slider reaches."""
    quantity, meaning, least = _ASKED[name]
    ends = (value, frozen) if math.isfinite(value) else (frozen,)
    room = max(least, 0.5 * (max(ends) - min(ends)))
    return {
        "name": name,
        "asked": quantity,
        "meaning": meaning,
        "value": strict(value),
        "frozen": frozen,
        "low": min(ends) - room,
        "high": max(ends) + room,
    }


def _what_if(answer: Answer, theta: Theta) -> dict[str, Any]:
    """What the rule does under a Theta, in words."""
    other = what_if(answer, theta)
    return {
        "words": explain(other, theta),
        "operator": other.operator,
        "answer": short(other.answer),
        "differs": other.index != answer.index,
    }
