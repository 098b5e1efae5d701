"""TRACE with one more gate: an override has to come from the question.

An override of o by e, decided at depth l (l* for decisive, 0 for early, L for mix), is applied iff

    T[e] - T[o] > max(1e-4, (S[e, l] - S[o, l]) / 2),  T = (S - S_blind)[., l]

(method, section 16). In words: at least half of e's lead must come from the question. The gate
avoids harm if the middle layers do not read the question, but is not a gain by itself. If both
prompts end alike, T is 0 at depth 0, so `early` is never applied. The factor 1/2 was chosen in
hindsight.
"""

from dataclasses import dataclass, replace

from lastword.methods.contract import Aggregation, Evidence, Facts, Needs
from lastword.methods.trace import Trace
from lastword.rule.answer import Gate
from lastword.rule.geometry import Scores
from lastword.rule.operators import Step
from lastword.rule.router import Ruling

LEAST = 1e-4  # nats; two runs of the same model differ by less


@dataclass(frozen=True)
class TraceGated:
    """u of the router's operator if the question favours its answer, else b."""

    facts: Facts
    aggregation: Aggregation = "mean"
    name: str = "trace-gated"

    @property
    def needs(self) -> Needs:
        """Every depth with and without the question, and T; a single decision reads less."""
        every = frozenset(range(self.facts.depth + 1))
        return Needs(every, t=True, blind=every)

    def scores(self, evidence: Evidence) -> Scores:
        """Return u, or b if the gate fails or there is no blind prompt."""
        verdict = self.next(evidence)
        assert isinstance(verdict, Ruling)
        return verdict.correction.scores

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Return TRACE's next step, then the blind reading at the deciding depth, or the ruling."""
        verdict = Trace(self.facts).next(evidence)
        if isinstance(verdict, Step):
            return verdict
        outcome, base = verdict.correction, evidence.trajectory.base
        e, o = int(outcome.scores.argmax()), int(base.argmax())
        if e == o:  # nothing to gate
            return verdict
        depth = {"early": 0, "mix": self.facts.depth}.get(outcome.operator, outcome.decisive_layer)
        assert depth is not None
        blind = evidence.blind
        if blind is not None and not blind.has([depth]):
            return Step(frozenset(), blind=frozenset([depth]))
        S = evidence.trajectory.scores[:, depth]
        threshold = max(LEAST, float(S[e] - S[o]) / 2)
        shift = None
        if blind is not None:
            T = S - blind.scores[:, depth]
            shift = float(T[e] - T[o])
        stands = shift is not None and shift > threshold
        gates = outcome.gates | {"question": Gate(shift, threshold, stands)}
        outcome = replace(outcome, gates=gates)
        if not stands:
            mixing = None if outcome.mixing is None else 0.0
            outcome = replace(outcome, operator="base", scores=base, mixing=mixing)
        return replace(verdict, correction=outcome)
