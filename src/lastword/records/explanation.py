"""Explains an answer in words, for the terminal, every page and the report."""

import math
from collections.abc import Iterator

from lastword.files.wording import counted, shorten
from lastword.records.decision import Decision
from lastword.rule.operators import Gate
from lastword.rule.theta import Theta

# The quantity that each gate tests, in a few words.
GATE_NAMES = {
    "changes": "ℓ* prefers another answer",
    "log_margin_ratio": "log margin ratio",
    "entropy": "entropy of the last depth",
    "invariant": "I(M)",
    "sharper": "T's margin over the model's, nats",
    "shift": "T on the model's answer, nats",
    "confidence": "best score, nats a token",
    "question": "what the question moved, nats",
}
_QUOTE_LIMIT = 80
_BY_THE_RULE = ("trace", "trace-gated")

# What a gate says if it holds, and if it does not, in the order of the rule.
_GATES = {
    "changes": ("It prefers another answer.", "It prefers the same answer."),
    "log_margin_ratio": (
        "Inside the model the candidates stood clearly further apart than at its end ({compared}).",
        "Inside the model they never stood clearly further apart than at its end ({compared}).",
    ),
    "entropy": (
        "The last depth is undecided (entropy {compared} of its maximum).",
        "The last depth has made up its mind (entropy {compared} of its maximum).",
    ),
    "invariant": (
        "The model's invariant I(M) is high ({compared}), so the trajectory scorer T is asked.",
        "The model's invariant I(M) is low ({compared}).",
    ),
    "sharper": (
        "T separates its two best answers further than the model does.",
        "T separates its two best answers no further than the model does.",
    ),
    "shift": (
        "It rates the model's answer higher by {value} nats a token, so T is mixed in{mixing}.",
        "It rates the model's answer lower by {value} nats a token, so scores move away from"
        " T{mixing}.",
    ),
    "confidence": (
        "Its best score is not confident ({compared} nats a token).",
        "Its best score is confident enough ({compared} nats a token).",
    ),
}
_QUESTION = (
    "The question moved the two apart by enough ({compared} nats a token), so this stands.",
    "But the question did not move them apart by enough ({compared} nats a token), so the model's"
    " scores stand.",
)
_CONCLUSIONS = {
    "decisive": ["All three gates hold, so that depth's scores decide."],
    "mix": [],
    "early": [
        "So each candidate is scored at depth 0, before any block has run: that rates its own"
        " wording, without having read the question."
    ],
}


def explain(decision: Decision, theta: Theta | None = None) -> str:
    """Explain an answer: its regime, the gates that were checked, the operator, the change.

    With Theta the threshold of d_eff is shown.
    """
    return " ".join(_sentences(decision, theta))


def _sentences(decision: Decision, theta: Theta | None) -> Iterator[str]:
    if decision.method not in _BY_THE_RULE:
        seen = decision.gates.get("seen")
        if seen is not None and not seen.holds:
            yield f"The mean of {decision.method} is over {seen.value:.0f} items so far."
            yield f"It is used from {seen.threshold:.0f} on, so the model's scores stand."
        else:
            yield f"The scores of {decision.method} decide."
    elif len(decision.candidates) == 1:
        yield "There is one candidate, so there is nothing to choose."
        return
    else:
        yield from _by_the_rule(decision, theta)
    yield _outcome(decision)
    if decision.deferred:
        yield "The answer is too unsure for the certificate: it is deferred, not given."
    if decision.tied:
        yield "The top score is shared by several candidates; the first of them is named."
    if decision.truncated:
        tokens = counted(decision.truncated, "token")
        yield f"To fit the model's context, the prompt was cut by {tokens}."


def _by_the_rule(decision: Decision, theta: Theta | None) -> Iterator[str]:
    yield _regime(decision, theta)
    if decision.decisive_layer is not None:
        yield f"The sharpest depth is {decision.decisive_layer}."
    for name, gate in decision.gates.items():
        if name in _GATES and gate.holds is not None:
            yield _of_gate(_GATES[name], gate, decision.mixing)
    spatial = decision.regime == "candidate-space"
    stands = "Not all gates hold, so the" if spatial else "The"
    yield from _CONCLUSIONS.get(_operator(decision), [f"{stands} model's scores stand."])
    question = decision.gates.get("question")
    if question is not None and question.holds is not None:
        yield _of_gate(_QUESTION, question, None)


def _regime(decision: Decision, theta: Theta | None) -> str:
    d_eff, value = "", decision.d_eff
    if not math.isnan(value):
        gate = None if theta is None else Gate(value, theta.tau_dim, None)
        d_eff = f" (d_eff = {_number(value) if gate is None else comparison(gate, 5)})"
    if decision.regime == "candidate-space":
        return (
            f"Across the model's interior the candidates move in more than one direction{d_eff}, "
            "so the question is whether one depth deserves more trust than the last."
        )
    if len(decision.candidates) == 2:
        return f"With two candidates only their difference moves{d_eff}: one direction."
    return f"Across the model's interior the candidates move along one direction{d_eff}."


def _of_gate(sentences: tuple[str, str], gate: Gate, mixing: float | None) -> str:
    return sentences[0 if gate.holds else 1].format(
        compared=comparison(gate),
        value=_number(float(gate.value or 0)),
        mixing=f" (λ = {_number(mixing)})" if mixing else "",
    )


def _outcome(decision: Decision) -> str:
    before, after = (_quotation(decision, i) for i in (decision.base_index, decision.index))
    if (override := decision.withheld) is not None:
        return (
            f"That would make it {_quotation(decision, override.index)}, which the certificate "
            f"withholds ({override.rule}): the answer stays {before}."
        )
    if not decision.corrected:
        return f"The answer stays {after}."
    return f"The answer changes from {before} to {after}."


def _quotation(decision: Decision, index: int) -> str:
    truthful = decision.truthful
    verdict = "" if truthful is None else " (true)" if truthful[index] else " (false)"
    return f"“{shorten(decision.candidates[index], _QUOTE_LIMIT)}”{verdict}"


def _operator(decision: Decision) -> str:
    """Return the operator that the rule chose, even if a certificate or a gate withholds it."""
    if decision.withheld is not None:
        return decision.withheld.operator
    gates = decision.gates
    if "question" not in gates or gates["question"].holds:
        return decision.operator
    if decision.regime == "candidate-space":
        return "decisive"
    return "mix" if gates["invariant"].holds else "early"


def comparison(gate: Gate, digits: int = 3) -> str:
    """Return a gate's value and threshold as a comparison, such as `2.57 > 1`."""
    if gate.value is None:
        return "not read"
    if isinstance(gate.threshold, bool):
        return "yes" if gate.value else "no"
    value, threshold = float(gate.value), float(gate.threshold)
    if value == threshold:
        return f"{_number(value)} = {_number(threshold)}"
    # More digits are shown if the two would look equal.
    digits = next((n for n in (digits, 6, 9) if f"{value:.{n}g}" != f"{threshold:.{n}g}"), 17)
    sign = ">" if value > threshold else "<"
    return f"{_number(value, digits)} {sign} {_number(threshold, digits)}"


def _number(value: float, digits: int = 5) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−")
