"""View: everything that a page, a notebook, a terminal or a figure shows of a decision.

They all show a view and compute nothing, so that their numbers agree.
"""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from lastword.files.strict_json import strict
from lastword.files.wording import shorten
from lastword.records.decision import Decision
from lastword.records.explanation import GATE_NAMES, explain, gist
from lastword.records.marks import Role
from lastword.rule.answer import Gate
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
    without the question, with no depths unless all were read [candidates, depths]. `window` has
    the first and last depth of the interior window, and `deciding` the depths whose scores
    decided; without Theta, the window is None and a mix has no deciding depths.
    """
    S = decision.trajectory
    depth = S.shape[1] - 1
    depths = np.flatnonzero(~np.isnan(S).any(axis=0))
    without = decision.blind_trajectory
    # Runs may read only the last depth without the question; a curve needs all of them.
    whole = without is not None and np.isfinite(without[:, depths]).all()
    blind = without[:, depths] if without is not None and whole else S[:, :0]
    window = None if theta is None else theta.window(depth)
    deciding = _deciding_depths(decision, theta)
    truths = decision.truthful or [None] * len(S)
    return {
        "gist": gist(decision),
        "words": explain(decision, theta),
        "decider": "TRACE" if decision.method == "trace" else decision.method,
        "letters": [letter(place) for place in range(len(S))],
        "roles": [_role(decision, place, true) for place, true in enumerate(truths)],
        "index": decision.index,
        "base_index": decision.base_index,
        "base_probabilities": decision.base_probabilities.tolist(),
        "probabilities": decision.probabilities.tolist(),
        "gates": [_gate(name, gate) for name, gate in decision.gates.items()],
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
    """Return the view of a decision as pages read it, with packed depths instead of arrays."""
    shown = view(decision, theta)
    arrays = {name: shown.pop(name) for name in ("scores", "shares")}
    blind = {name: shown.pop(f"blind_{name}") for name in arrays}
    depths, window, deciding = (shown.pop(name) for name in ("depths", "window", "deciding"))
    shown |= {"panels": [], "marks": [], "depth_note": ""}
    for name in ("base_probabilities", "probabilities"):
        shown[name] = [round(share, 4) for share in shown[name]]
    if len(depths) < decision.trajectory.shape[1] or not np.isfinite(arrays["scores"]).all():
        return shown
    labels = {
        "shares": ("Probability", "probability among candidates", [0, 1]),
        "scores": ("Score", "mean log-probability a token, nats", None),
    }
    panels = [
        {"short": short, "y_label": label, "y_range": y_range, "unit": _UNIT}
        | {"steps": _steps(arrays[name]), "blind": _steps(blind[name])}
        for name, (short, label, y_range) in labels.items()
    ]
    marks = [{"kind": "band", "start": float(window[0]), "end": float(window[1])}]
    marks += [{"kind": "rule", "at": float(depth)} for depth in deciding]
    note = _note(decision.operator, blind=blind["shares"].size > 0)
    return shown | {"panels": panels, "marks": marks, "depth_note": note}


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
    """Return the depths whose scores decided: l*, depth 0, or the anchors of T."""
    if decision.operator == "decisive":
        assert decision.decisive_layer is not None
        return [decision.decisive_layer]
    if decision.operator == "early":
        return [0]
    depth = decision.trajectory.shape[1] - 1
    return list(theta.anchor_depths(depth)) if theta and decision.operator == "mix" else []


def _gate(name: str, gate: Gate) -> tuple[str, str, str, bool | None]:
    title, threshold = GATE_NAMES.get(name, name), gate.threshold
    if isinstance(threshold, bool):
        words: dict[Any, str] = {True: "yes", False: "no", None: "–"}
        return title, words[gate.value], words[threshold], gate.holds
    sign = "<" if name == "confidence" else ">"
    value = "–" if gate.value is None else f"{float(gate.value):.4g}"
    return title, value, f"{sign} {threshold:g}", gate.holds


def _note(operator: str, *, blind: bool) -> str:
    reason = {
        "decisive": "Dotted: the decisive depth ℓ*, whose scores decide.",
        "early": "Dotted: depth 0, whose scores decide; it has read nothing of the question.",
        "mix": "Dotted: the anchor depths of the scorer T, whose scores are mixed in.",
        "base": "The last depth, the model’s scores, decides.",
    }.get(operator, f"The scores of {operator} decide, and no depth alone.")
    faint = " Faint: the same candidates with the question left out." if blind else ""
    return f"{reason} Shaded: the interior window in which d_eff is measured.{faint}"


def _steps(values: np.ndarray) -> list[list[int]]:
    """Return differences between depths in thousandths; they compress well."""
    if not values.shape[1]:
        return []
    whole = np.rint(values * _UNIT).astype(int)
    whole[:, 1:] -= whole[:, :-1].copy()
    steps: list[list[int]] = whole.tolist()
    return steps


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


def notebook(decision: Decision) -> str:
    """Return the HTML of a decision for notebooks: its candidates and its reasons.

    The answer is bold, and a corrected one is struck out.
    """
    shown, left = view(decision), "style='text-align:left'"
    heads = f"<th></th><th {left}>candidate</th><th>base</th><th>corrected</th>"
    rows = ""
    columns = ("letters", "base_probabilities", "probabilities")
    values = zip(*(shown[name] for name in columns), decision.candidates, strict=True)
    for place, (name, before, after, candidate) in enumerate(values):
        text = escape(candidate)
        if place == decision.index:
            text = f"<strong>{text}</strong>"
        elif place == decision.base_index:
            text = f"<s>{text}</s>"
        rows += f"<tr><td>{name}</td><td {left}>{text}</td>"
        rows += f"<td>{before:.3f}</td><td>{after:.3f}</td></tr>"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div>{table}<p>{escape(shown['words'])}</p></div>"
