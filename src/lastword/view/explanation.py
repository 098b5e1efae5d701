"""A decision told in words: plain sentences from a decision's dictionary or a record.

Reads only a decision's JSON keys (method, section 9), so that the command line, the service and
the report say the same.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lastword.theta import Theta
from lastword.view.shorten import shorten

# What each gate asks, in a few words.
GATE_NAMES = {
    "changes": "ℓ* prefers another answer",
    "log_margin_ratio": "log margin ratio",
    "entropy": "entropy of the last depth",
    "invariant": "I(M)",
    "sharper": "T's margin over the model's, nats",
    "shift": "T on the model's own answer, nats",
    "confidence": "best score, nats a token",
}
_QUOTE_LIMIT = 80


def explain(decision: Mapping[str, Any], theta: Theta | None = None) -> str:
    """Why this answer: the regime, the gates that were asked, the operator and what it changed.

    Args:
        decision: `Decision.to_dict()` or a record; `candidates` and `truthful` are used where
            they are present, and what is null is passed over.
        theta: Constants of the decision; with them d_eff stands beside its threshold.
    """
    if theta is not None:
        decision = {**decision, "tau_dim": theta.tau_dim}
    if _given(decision.get("error")):
        return f"This item failed and counts nowhere: {decision['error']}."
    return " ".join(_sentences(decision))


def _sentences(decision: Mapping[str, Any]) -> Iterator[str]:
    if decision.get("method", "trace") not in (None, "trace"):
        yield f"The scores of {decision['method']} decide."
    elif len(_sequence(decision.get("scores"))) == 1:
        yield "There is one candidate, so there is nothing to choose."
        return
    else:
        wanted = {**decision, "operator": _wanted(decision).get("operator", decision["operator"])}
        spatial = decision["regime"] == "candidate-space"
        yield from (_candidate_space if spatial else _scalar)(wanted)
    yield _outcome(decision)
    if _given(decision.get("deferred")) and decision["deferred"]:
        yield "The answer is too unsure for the certificate: it is deferred, not given."
    if decision.get("tied"):
        yield "The top score is shared by several candidates; the first of them is named."
    if decision.get("truncated"):
        yield f"To fit the model's context, {decision['truncated']:g} prompt tokens were dropped."


def _candidate_space(decision: Mapping[str, Any]) -> Iterator[str]:
    gates = gates_of(decision)
    yield (
        "Across the model's interior the candidates move in more than one direction"
        f"{_dimension(decision)}, so the question is whether one depth"
        " deserves more trust than the last."
    )
    if _given(decision.get("decisive_layer")):
        yield f"The sharpest depth is {decision['decisive_layer']:g}."
    yield from _by_gate(
        gates, "changes", "It prefers another answer.", "It prefers the same answer."
    )
    margin = comparison(gates.get("log_margin_ratio"))
    yield from _by_gate(
        gates,
        "log_margin_ratio",
        f"Inside the model the candidates stood clearly further apart than at its end ({margin}).",
        f"Inside the model they never stood clearly further apart than at its end ({margin}).",
    )
    entropy = comparison(gates.get("entropy"))
    yield from _by_gate(
        gates,
        "entropy",
        f"The last depth is undecided (entropy {entropy} of its maximum).",
        f"The last depth has made up its mind (entropy {entropy} of its maximum).",
    )
    yield (
        "All three gates hold, so that depth's scores decide."
        if decision["operator"] == "decisive"
        else "Not all gates hold, so the model's own scores stand."
    )


def _scalar(decision: Mapping[str, Any]) -> Iterator[str]:
    gates = gates_of(decision)
    d_eff = _dimension(decision)
    yield (
        f"With two candidates only their difference moves{d_eff}: one direction."
        if len(_sequence(decision.get("scores"))) == 2
        else f"Across the model's interior the candidates move along one direction{d_eff}."
    )
    if "confidence" in gates:
        yield from _early(decision, gates)
    elif "invariant" in gates:
        yield from _mix(decision, gates)
    else:
        yield "The model's own scores stand."


def _mix(decision: Mapping[str, Any], gates: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"The model's invariant I(M) is high ({comparison(gates['invariant'])}), so the"
        " trajectory scorer T is asked."
    )
    if decision["operator"] != "mix":
        yield "T parts its two best answers no further than the model does, whose scores stand."
        return
    shift = _value(gates.get("shift", {}).get("value"), " by {} nats a token")
    weight = _value(decision.get("lambda"), " (λ = {})")
    yield "T parts its two best answers further than the model does."
    if float(decision["lambda"]) > 0:
        yield f"It rates the model's own answer higher{shift}, so T is mixed in{weight}."
    else:
        yield f"It rates the model's own answer lower{shift}, so scores move away from T{weight}."


def _early(decision: Mapping[str, Any], gates: Mapping[str, Any]) -> Iterator[str]:
    yield f"The model's invariant I(M) is low ({comparison(gates['invariant'])})."
    best = comparison(gates["confidence"])
    if decision["operator"] != "early":
        yield f"Its best score is confident enough ({best} nats a token): the model's scores stand."
        return
    yield f"Its best score is not confident ({best} nats a token)."
    yield (
        "So each candidate is scored at depth 0, before any block has run: that rates its own"
        " wording, without having read the question."
    )


def _outcome(decision: Mapping[str, Any]) -> str:
    base, index = int(decision["base_index"]), int(decision["index"])
    if wanted := _wanted(decision):
        other = int(wanted["index"])
        named = _named({**decision, "base_index": other, "base_answer": wanted["answer"]}, other)
        return (
            f"That would make it {named}, which the certificate withholds ({wanted['rule']}): "
            f"the answer stays {_named(decision, base)}."
        )
    if base == index:
        return f"The answer stays {_named(decision, index)}."
    return f"The answer changes from {_named(decision, base)} to {_named(decision, index)}."


def _named(decision: Mapping[str, Any], index: int) -> str:
    candidates = _sequence(decision.get("candidates"))
    if candidates:
        text = str(candidates[index])
    elif index == decision["index"]:
        text = str(decision.get("answer", f"candidate {index + 1}"))
    else:
        text = str(decision.get("base_answer", f"candidate {index + 1}"))
    truthful = _sequence(decision.get("truthful"))
    verdict = "" if not truthful else " (true)" if truthful[index] else " (false)"
    return f"“{shorten(text, _QUOTE_LIMIT)}”{verdict}"


def _wanted(decision: Mapping[str, Any]) -> Mapping[str, Any]:
    """The override that a certificate withholds; nothing where none is."""
    withheld = decision.get("withheld")
    return withheld if isinstance(withheld, Mapping) else {}


def _by_gate(gates: Mapping[str, Any], name: str, held: str, failed: str) -> Iterator[str]:
    holds = gates.get(name, {}).get("holds")
    if holds is not None:
        yield held if holds else failed


def comparison(gate: Mapping[str, Any] | None, digits: int = 3) -> str:
    """`2.57 > 1`: a gate's value beside its threshold, in the order that they have.

    Args:
        gate: Its `value` and `threshold`.
        digits: How many there are at least; more where it takes them to tell the two apart.
    """
    if gate is None or not _given(gate.get("value")):
        return "not read"
    value, threshold = float(gate["value"]), float(gate["threshold"])
    if value == threshold:
        return f"{_number(value)} = {_number(threshold)}"
    digits = next((n for n in (digits, 6, 9) if f"{value:.{n}g}" != f"{threshold:.{n}g}"), 17)
    sign = ">" if value > threshold else "<"
    return f"{_number(value, digits)} {sign} {_number(threshold, digits)}"


def _dimension(decision: Mapping[str, Any]) -> str:
    """` (d_eff = 1.0163 > 1.0015)`, its threshold where that is known."""
    value, threshold = decision.get("d_eff"), decision.get("tau_dim")
    if threshold is None or not _given(value):
        return _value(value, " (d_eff = {})")
    return f" (d_eff = {comparison({'value': value, 'threshold': threshold}, 5)})"


def _value(value: Any, template: str) -> str:
    return template.format(_number(float(value))) if _given(value) else ""


def _number(value: float, digits: int = 5) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−")


def gate_lines(decision: Mapping[str, Any]) -> list[tuple[str, bool | None]]:
    """Every gate with its value beside its threshold, and whether it holds."""
    return [
        (name if key == "changes" else f"{name}: {comparison(gate)}", gate["holds"])
        for key, gate in gates_of(decision).items()
        for name in [GATE_NAMES.get(key, key)]
    ]


def gates_of(decision: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Gates by name, of a decision or of a record, which may keep them as a JSON string."""
    gates = decision.get("gates") or {}
    loaded: dict[str, dict[str, Any]] = json.loads(gates) if isinstance(gates, str) else dict(gates)
    return {name: gate for name, gate in loaded.items() if gate is not None}


def _sequence(value: Any) -> Sequence[Any]:
    return () if value is None else list(value)


def _given(value: Any) -> bool:
    """Whether a value is there: neither null nor the nan that a data frame has for it."""
    return value is not None and bool(value == value)
