"""View: everything that a page, a terminal or a figure shows of a decision.

They all show a view and compute nothing, so that their numbers agree.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from lastword.files.strict_json import strict
from lastword.files.wording import shorten
from lastword.records.decision import Decision
from lastword.records.explanation import GATE_NAMES, comparison, explain
from lastword.records.marks import Role
from lastword.rule.theta import Theta

if TYPE_CHECKING:
    from rich.text import Text

_UNIT = 1000  # the finest step that a plot can show is a thousandth
_DECIDING = {"decisive": "ℓ* = {}", "early": "depth {}"}

View = dict[str, Any]


def view(decision: Decision, theta: Theta | None = None) -> View:
    """Return what is shown of a decision.

    Its keys are those that pages read, and, as arrays, at the depths that were read (`depths`):
    `scores`, S in nats per token; `shares`, pi_l of Eq. 6; `blind_scores` and `blind_shares`
    without the question, with no depths unless all were read [candidates, depths]. Without Theta,
    `window` is None and a mix has no `deciding` depths.
    """
    S = decision.trajectory
    depths = np.flatnonzero(~np.isnan(S).any(axis=0))
    without = decision.blind_trajectory
    # Runs may read only the last depth without the question; a curve needs all of them.
    whole = without is not None and np.isfinite(without[:, depths]).all()
    blind = without[:, depths] if without is not None and whole else S[:, :0]
    window = None if theta is None else theta.window(S.shape[1] - 1)
    deciding = _deciding_depths(decision, theta)
    truths = decision.truthful or [None] * len(S)
    return {
        "words": explain(decision, theta),
        "decider": "TRACE" if decision.method == "trace" else decision.method,
        "letters": [letter(place) for place in range(len(S))],
        "roles": [_role(decision, place, true) for place, true in enumerate(truths)],
        "index": decision.index,
        "base_index": decision.base_index,
        "base_probabilities": decision.base_probabilities.tolist(),
        "probabilities": decision.probabilities.tolist(),
        "gates": [
            (GATE_NAMES.get(name, name), comparison(gate), gate.holds)
            for name, gate in decision.gates.items()
        ],
        "depths": depths.tolist(),
        "window": None if window is None else [window[0], window[-1]],
        "deciding": deciding,
        "deciding_name": _DECIDING.get(decision.operator, "").format(*deciding),
        "scores": S[:, depths],
        "shares": softmax(S[:, depths], axis=0),  # over the candidates, at every depth
        "blind_scores": blind,
        "blind_shares": softmax(blind, axis=0),
    }


def item_text(row: Mapping[Any, Any] | Decision) -> View:
    """Return an item's text, with the truth of its candidates if it is labelled."""
    values = vars(row) if isinstance(row, Decision) else row
    return {name: strict(values[name]) for name in ("prompt", "candidates", "truthful")}


def page_item(decision: Decision, theta: Theta) -> View:
    """Return the view of a decision as pages read it: packed `panels` instead of arrays.

    The panels are shares and scores; there are none unless every depth was read.
    """
    shown = view(decision, theta)
    arrays = [(shown.pop(name), shown.pop(f"blind_{name}")) for name in ("shares", "scores")]
    whole = len(shown.pop("depths")) == decision.trajectory.shape[1]
    for name in ("base_probabilities", "probabilities"):
        shown[name] = [round(share, 4) for share in shown[name]]
    panels = [{"unit": _UNIT, "steps": _steps(a), "blind": _steps(b)} for a, b in arrays]
    return shown | {"panels": panels if whole else []}


def _role(decision: Decision, place: int, true: bool | None) -> Role:
    """Return a candidate's role: truth, the model's error or other; or, unlabelled, its answers."""
    if true:
        return "truthful"
    if true is False and place == decision.base_index:
        return "winner"
    if place == decision.index:
        return "corrected"
    return "mix" if place == decision.base_index else "other"


def _deciding_depths(decision: Decision, theta: Theta | None) -> list[int]:
    if decision.operator == "decisive":
        assert decision.decisive_layer is not None
        return [decision.decisive_layer]
    if decision.operator == "early":
        return [0]
    depth = decision.trajectory.shape[1] - 1
    return list(theta.anchor_depths(depth)) if theta and decision.operator == "mix" else []


def _steps(values: np.ndarray) -> list[list[int]]:
    """Return differences between depths in thousandths; they compress well."""
    whole = np.rint(values * _UNIT).astype(int)
    steps: list[list[int]] = np.diff(whole, axis=1, prepend=0).tolist()
    return steps if values.shape[1] else []


def letter(place: int) -> str:
    """Return the short name of a candidate: A to Z, then A1 to Z1 and so on."""
    turn, index = divmod(place, 26)
    return chr(ord("A") + index) + (str(turn) if turn else "")


def short(text: str, limit: int = 60) -> str:
    """Return a text as one line of at most `limit` characters, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shorten(line, limit)


def correction(base: str, answer: str) -> "Text":
    """Return the correction as text: the model's answer struck out, then the new answer."""
    from rich.text import Text

    if base == answer:
        return Text(f"{answer}  (unchanged)")
    return Text.assemble((base, "strike dim"), " → ", (answer, "bold"))
