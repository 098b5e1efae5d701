"""TRACE with one more gate: an override has to come from the question.

An override of o by e, decided at depth l (l* for decisive, 0 for early, L for mix), is applied iff

    T[e] - T[o] > max(1e-4, (S[e, l] - S[o, l]) / 2),  T = (S - S_blind)[., l]

(docs/methods.md). In words: at least half of e's lead must come from the question. The gate
avoids harm if the middle layers do not read the question, but is not a gain by itself. If both
prompts end alike, T is 0 at depth 0, so `early` is never applied. The factor 1/2 was chosen in
hindsight.
"""

from dataclasses import replace

from lastword.methods.contract import Facts, ItemReadings, Method, Needs, method
from lastword.methods.trace import trace
from lastword.rule.operators import Gate, Ruling, Step

LEAST = 1e-4  # nats; two runs of the same model differ by less


@method(
    "trace-gated",
    "TRACE, whose overrides have to come from the question",
    "a part of TRACE",
    compared="",
)
def trace_gated(facts: Facts) -> Method:
    """Return u of the router's operator if the question favours its answer, else b."""
    ungated = trace(facts)

    def rule(evidence: ItemReadings) -> Step | Ruling:
        verdict = ungated.next(evidence)
        if isinstance(verdict, Step):
            return verdict
        e, o = int(verdict.scores.argmax()), int(evidence.trajectory.base.argmax())
        return verdict if e == o else _gated(verdict, evidence, e, o)  # equal: nothing to gate

    every = frozenset(range(facts.depth + 1))
    return Method("trace-gated", Needs(every, t=True, blind=every), rule=rule)


def _gated(verdict: Ruling, evidence: ItemReadings, e: int, o: int) -> Step | Ruling:
    """Return the blind reading at the deciding depth, or the ruling with the gate."""
    blind, S = evidence.blind, evidence.trajectory
    depth = {"early": 0, "mix": S.depth}.get(verdict.operator, verdict.decisive_layer)
    assert depth is not None
    if blind is not None and not blind.has([depth]):
        return Step(frozenset(), blind=frozenset([depth]))
    at = S.scores[:, depth]
    threshold = max(LEAST, float(at[e] - at[o]) / 2)
    shift = None
    if blind is not None:
        T = at - blind.scores[:, depth]
        shift = float(T[e] - T[o])
    stands = shift is not None and shift > threshold
    gates = verdict.gates | {"question": Gate(shift, threshold, stands)}
    if stands:
        return replace(verdict, gates=gates)
    mixing = None if verdict.mixing is None else 0.0
    return replace(verdict, gates=gates, operator="base", scores=S.base, mixing=mixing)
