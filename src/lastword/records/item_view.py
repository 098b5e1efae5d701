"""The data of an answered item for pages: its text, explanation, gates and depths.

Scores are stored as integers: differences between depths in thousandths, the finest step that a
plot can show.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lastword.records.explanation import GATE_NAMES, explain, gist
from lastword.records.portrait import Portrait, letter, portrait
from lastword.records.record import Record
from lastword.rule.answer import Gate
from lastword.rule.router import answers_by_reading
from lastword.rule.theta import Theta

_UNIT = 1000

Block = dict[str, Any]


def text(record: Record) -> Block:
    """Return the item's text, with the truth of its candidates if it is labelled."""
    return {"prompt": record.prompt, "candidates": record.candidates, "truthful": record.truthful}


def item(record: Record, theta: Theta) -> Block:
    """Return the fields of one item that the page shows, without its text."""
    if record.answer is None:
        words = f"This item failed and counts nowhere: {record.error}."
        return {"words": words, "error": True}
    answer = record.answer
    picture = portrait(answer, theta)
    letters = tuple(candidate.letter for candidate in picture.candidates)
    return {
        "gist": gist(answer),
        "words": " ".join([explain(answer, theta), *_disagreement(record, theta)]),
        "decider": "TRACE" if answer.method == "trace" else answer.method,
        "letters": letters,
        "roles": [candidate.role for candidate in picture.candidates],
        "index": picture.index,
        "base_index": picture.base_index,
        "base_probabilities": [round(candidate.before, 4) for candidate in picture.candidates],
        "probabilities": [round(candidate.after, 4) for candidate in picture.candidates],
        "gates": [_gate(name, gate) for name, gate in answer.gates.items()],
        **_depths(picture, answer.operator),
    }


def _disagreement(record: Record, theta: Theta) -> list[str]:
    """Return sentences about the answers of the paper's readings, if they differ."""
    answer = record.decision
    if not record.readings_disagree or answer.invariant is None:
        return []
    answers = answers_by_reading(answer.trajectory, answer.t_readings, [answer.invariant], theta)
    what = "The readings of T that the paper leaves open"
    if len(set(answers.values())) == 1:  # then they disagree only about the branch
        # I(M) of infinity and 0 takes each branch once.
        answers = answers_by_reading(answer.trajectory, answer.t_readings, [math.inf, 0.0], theta)
        what = "The readings of I(M) lie on both sides of tau_I, and its branches"
    by_answer: dict[int, list[str]] = {}
    for name, index in answers.items():
        by_answer.setdefault(index, []).append(name)
    parts = [f"{letter(index)} by {', '.join(names)}" for index, names in sorted(by_answer.items())]
    return [f"{what} disagree here: {'; '.join(parts)}."]


def _depths(picture: Portrait, operator: str) -> Block:
    candidates = picture.candidates
    S = [candidate.scores for candidate in candidates]
    if len(picture.depths) <= picture.depth or not np.isfinite(S).all():
        return {"panels": [], "marks": [], "depth_note": ""}
    assert picture.window is not None
    start, end = picture.window
    rules = [{"kind": "rule", "at": depth, "role": "chosen"} for depth in picture.deciding_depths]
    marks = [{"kind": "band", "start": start, "end": end, "role": "window"}, *rules]
    shares = _panel([c.shares for c in candidates], [c.blind_shares for c in candidates])
    scores = _panel(S, [c.blind_scores for c in candidates])
    panels = [
        {"short": "Probability", "y_label": "probability among candidates", "y_range": [0, 1]}
        | shares,
        {"short": "Score", "y_label": "mean log-probability a token, nats", "y_range": None}
        | scores,
    ]
    note = _note(operator, blind=bool(candidates[0].blind_shares))
    return {"panels": panels, "marks": marks, "depth_note": note}


def _panel(values: Sequence[Sequence[float]], blind: Sequence[Sequence[float]]) -> Block:
    unread = not blind[0]
    return {"unit": _UNIT, "steps": _steps(values), "blind": [] if unread else _steps(blind)}


def _note(operator: str, *, blind: bool) -> str:
    reason = {
        "decisive": "Dotted: the decisive depth ℓ*, whose scores decide.",
        "early": "Dotted: depth 0, whose scores decide; it has read nothing of the question.",
        "mix": "Dotted: the anchor depths of the scorer T, whose scores are mixed in.",
        "base": "The last depth, the model’s scores, decides.",
    }.get(operator, f"The scores of {operator} decide, and no depth alone.")
    faint = " Faint: the same candidates with the question left out." if blind else ""
    return f"{reason} Shaded: the interior window in which d_eff is measured.{faint}"


def _steps(values: Sequence[Sequence[float]]) -> list[list[int]]:
    whole = np.rint(np.array(values) * _UNIT).astype(int)
    whole[:, 1:] -= whole[:, :-1].copy()
    steps: list[list[int]] = whole.tolist()
    return steps


def _gate(name: str, gate: Gate) -> tuple[str, str, str, bool | None]:
    title, threshold = GATE_NAMES.get(name, name), gate.threshold
    if isinstance(threshold, bool):
        words: dict[Any, str] = {True: "yes", False: "no", None: "–"}
        return title, words[gate.value], words[threshold], gate.holds
    sign = "<" if name == "confidence" else ">"
    value = "–" if gate.value is None else f"{float(gate.value):.4g}"
    return title, value, f"{sign} {threshold:g}", gate.holds
