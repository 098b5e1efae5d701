"""TRACE: one operator per item, chosen by geometry and I(M) (Algorithm 1).

It applies to every item and corrects only if its gates hold. Its scores are those of the operator
(Eqs. 9, 18 and 19): mean log-probabilities per token, or log pi over the candidates from the
decisive layer.
"""

from lastword.methods.contract import Facts, Method, Needs, method
from lastword.rule.router import next_step


@method("trace", "one operator per item, by geometry and I(M)", "TRACE, Algorithm 1")
def trace(facts: Facts) -> Method:
    """Return Algorithm 1, which reads only as much of an item as its steps need."""
    needs = Needs(frozenset(range(facts.depth + 1)), t=True)
    invariant, theta = facts.invariant, facts.theta
    return Method("trace", needs, rule=lambda e: next_step(e.trajectory, invariant, theta))
