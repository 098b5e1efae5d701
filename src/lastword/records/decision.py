"""Decision: the answer that Python returns, with its JSON and its form in a notebook."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.files.strict_json import strict
from lastword.rule.answer import Answer

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Decision(Answer):
    """The answer of `Tracer.correct`: the fields of `rule.answer.Answer`, as JSON and as HTML."""

    def _repr_html_(self) -> str:
        from lastword.records.table import notebook

        return notebook(self)

    def to_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return strict JSON; `full` adds trajectories and t. Values not needed are null."""
        content: dict[str, Any] = {} if self.id is None else {"id": self.id}
        content |= {
            "schema": SCHEMA,
            "index": self.index,
            "answer": self.answer,
            "base_index": self.base_index,
            "base_answer": self.base_answer,
            "corrected": self.corrected,
            "tied": self.tied,
            "regime": self.regime,
            "method": self.method,
            "operator": self.operator,
            "d_eff": self.d_eff,
            "invariant": self.invariant,
            "scores": self.scores,
            "probabilities": self.probabilities,
            "base_scores": self.base_scores,
            "gates": {name: gate.to_dict() for name, gate in self.gates.items()},
            "decisive_layer": self.decisive_layer,
            "lambda": self.mixing,
            "truncated": self.truncated,
            "withheld": None if self.withheld is None else self.withheld.to_dict(),
            "deferred": self.deferred,
        }
        if full:
            content |= {"trajectory": self.trajectory, "t_scores": self.t_scores}
            blind = {"trajectory": self.blind_trajectory, "t_scores": self.blind_t_scores}
            content |= {f"blind_{key}": value for key, value in blind.items() if value is not None}
        return {key: strict(value) for key, value in content.items()}


def to_frame(decisions: Iterable[Decision]) -> "pd.DataFrame":
    """Return a frame with one row per decision: its JSON, the candidates, and columns per gate.

    The columns of a gate are `gates.NAME.value`, `gates.NAME.threshold` and `gates.NAME.holds`.
    They are null if the decision's regime does not have the gate.
    """
    import pandas as pd

    rows = ({**d.to_dict(), "id": d.id, "candidates": list(d.candidates)} for d in decisions)
    return pd.json_normalize([{"id": None, **record} for record in rows])
