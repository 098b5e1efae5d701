"""Explains an answer in words, for the terminal, every page and the report."""

import math
from collections.abc import Iterator, Mapping

from lastword.files.wording import counted, shorten
from lastword.records.decision import Decision
from lastword.rule.answer import Gate
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
_GISTS = {
    "base": "No depth gives enough reason to leave the model's answer.",
    "decisive": "Depth {layer} tells the candidates apart better than the last, and decides.",
    "mix": "The scorer T tells the candidates apart better than the model, and is mixed in.",
    "early": "The model is not confident; depth 0, which has not read the question, decides.",
}
# Descriptions of the scores of corrections that read the question, by name without options.
_SCORES = {
    "pmi": "the model's scores, minus {number} times its scores without the question",
    "dcpmi": "the model's summed scores, minus its summed scores without the question",
    "contextual": "the model's probabilities, divided by those on inputs without content",
    "batch-calibrated": "the model's probabilities, minus their mean over items with these labels",
}


def explain(decision: Decision, theta: Theta | None = None) -> str:
    """Explain an answer: its regime, the gates that were checked, the operator, the change.

    Args:
        decision: The answer to explain; values that were not needed are left out.
        theta: Constants of the decision; with them the threshold of d_eff is shown.
    """
    return " ".join(_sentences(decision, theta))


def gist(decision: Decision) -> str:
    """Return the reason in one line without numbers, as a heading of the explanation."""
    if decision.method not in _BY_THE_RULE:
        return f"The scores of {decision.method} decide."
    if len(decision.candidates) == 1:
        return "There is one candidate, so there is nothing to choose."
    if decision.withheld is not None:
        answer = decision.candidates[decision.withheld.index]
        return f"The certificate withholds “{shorten(answer, _QUOTE_LIMIT)}”."
    return _GISTS[decision.operator].format(layer=decision.decisive_layer)


def _sentences(decision: Decision, theta: Theta | None) -> Iterator[str]:
    if decision.method not in _BY_THE_RULE:
        yield from _by_scores(decision)
    elif len(decision.candidates) == 1:
        yield "There is one candidate, so there is nothing to choose."
        return
    else:
        spatial = decision.regime == "candidate-space"
        yield from (_candidate_space if spatial else _scalar)(decision, theta)
        shift = comparison(decision.gates.get("question"))
        yield from _by_gate(
            decision.gates,
            "question",
            f"The question moved the two apart by enough ({shift} nats a token), so this stands.",
            f"But the question did not move them apart by enough ({shift} nats a token), so the"
            " model's scores stand.",
        )
    yield _outcome(decision)
    if decision.deferred:
        yield "The answer is too unsure for the certificate: it is deferred, not given."
    if decision.tied:
        yield "The top score is shared by several candidates; the first of them is named."
    if decision.truncated:
        tokens = counted(decision.truncated, "token")
        yield f"To fit the model's context, the prompt was cut by {tokens}."


def _by_scores(decision: Decision) -> Iterator[str]:
    """Yield sentences that name the method that decides, and describe its scores."""
    yield f"The scores of {decision.method} decide."
    plain, _, number = decision.method.partition("@")
    if plain in _SCORES:
        yield f"They are {_SCORES[plain].format(number=number)}."


def _candidate_space(decision: Decision, theta: Theta | None) -> Iterator[str]:
    gates = decision.gates
    yield (
        "Across the model's interior the candidates move in more than one direction"
        f"{_dimension(decision, theta)}, so the question is whether one depth"
        " deserves more trust than the last."
    )
    if decision.decisive_layer is not None:
        yield f"The sharpest depth is {decision.decisive_layer}."
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
        if _operator(decision) == "decisive"
        else "Not all gates hold, so the model's scores stand."
    )


def _scalar(decision: Decision, theta: Theta | None) -> Iterator[str]:
    gates, d_eff = decision.gates, _dimension(decision, theta)
    yield (
        f"With two candidates only their difference moves{d_eff}: one direction."
        if len(decision.candidates) == 2
        else f"Across the model's interior the candidates move along one direction{d_eff}."
    )
    if "confidence" in gates:
        yield from _early(decision, gates)
    elif "invariant" in gates:
        yield from _mix(decision, gates)
    else:
        yield "The model's scores stand."


def _mix(decision: Decision, gates: Mapping[str, Gate]) -> Iterator[str]:
    yield (
        f"The model's invariant I(M) is high ({comparison(gates['invariant'])}), so the"
        " trajectory scorer T is asked."
    )
    if _operator(decision) != "mix":
        yield (
            "T separates its two best answers no further than the model does, so the model's scores"
            " stand."
        )
        return
    shift = _value(gates["shift"].value, " by {} nats a token") if "shift" in gates else ""
    weight = _value(decision.mixing or None, " (λ = {})")
    yield "T separates its two best answers further than the model does."
    if "shift" in gates and float(gates["shift"].value or 0) > 0:
        yield f"It rates the model's answer higher{shift}, so T is mixed in{weight}."
    else:
        yield f"It rates the model's answer lower{shift}, so scores move away from T{weight}."


def _early(decision: Decision, gates: Mapping[str, Gate]) -> Iterator[str]:
    yield f"The model's invariant I(M) is low ({comparison(gates['invariant'])})."
    best = comparison(gates["confidence"])
    if _operator(decision) != "early":
        yield f"Its best score is confident enough ({best} nats a token): the model's scores stand."
        return
    yield f"Its best score is not confident ({best} nats a token)."
    yield (
        "So each candidate is scored at depth 0, before any block has run: that rates its own"
        " wording, without having read the question."
    )


def _outcome(decision: Decision) -> str:
    base, index = decision.base_index, decision.index
    if (override := decision.withheld) is not None:
        quotation = _quotation(decision, override.index)
        return (
            f"That would make it {quotation}, which the certificate withholds ({override.rule}): "
            f"the answer stays {_quotation(decision, base)}."
        )
    if base == index:
        return f"The answer stays {_quotation(decision, index)}."
    return f"The answer changes from {_quotation(decision, base)} to {_quotation(decision, index)}."


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


def _by_gate(gates: Mapping[str, Gate], name: str, affirmation: str, denial: str) -> Iterator[str]:
    holds = gates[name].holds if name in gates else None
    if holds is not None:
        yield affirmation if holds else denial


def comparison(gate: Gate | None, digits: int = 3) -> str:
    """Return a gate's value and threshold as a comparison, such as `2.57 > 1`."""
    if gate is None or gate.value is None:
        return "not read"
    value, threshold = float(gate.value), float(gate.threshold)
    if value == threshold:
        return f"{_number(value)} = {_number(threshold)}"
    # More digits are shown if the two would look equal.
    digits = next((n for n in (digits, 6, 9) if f"{value:.{n}g}" != f"{threshold:.{n}g}"), 17)
    sign = ">" if value > threshold else "<"
    return f"{_number(value, digits)} {sign} {_number(threshold, digits)}"


def _dimension(decision: Decision, theta: Theta | None) -> str:
    """Return a text such as ` (d_eff = 1.0163 > 1.0015)`; without Theta, without threshold."""
    value = decision.d_eff
    if math.isnan(value):
        return ""
    if theta is None:
        return _value(value, " (d_eff = {})")
    return f" (d_eff = {comparison(Gate(value, theta.tau_dim, None), 5)})"


def _value(value: float | None, template: str) -> str:
    return "" if value is None else template.format(_number(float(value)))


def _number(value: float, digits: int = 5) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}g}".replace("-", "−")


def gate_lines(decision: Decision) -> list[tuple[str, bool | None]]:
    """Return one line per gate with its comparison, and True if it holds."""
    return [
        (name if key == "changes" else f"{name}: {comparison(gate)}", gate.holds)
        for key, gate in decision.gates.items()
        for name in [GATE_NAMES.get(key, key)]
    ]
