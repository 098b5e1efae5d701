"""Decision: what the method answers for one item, and every reason for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.errors import ItemError
from lastword.files.strict_json import strict
from lastword.rule.geometry import Scores, tied_first
from lastword.view.shorten import shorten

SCHEMA = 1

Regime = Literal["scalar", "candidate-space"]


@dataclass(frozen=True)
class Gate:
    """One comparison of the rule; `None` where the decision did not need it (method, section 9)."""

    value: float | bool | None
    threshold: float | bool
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """JSON form; a value that is not finite is a string."""
        return {"value": strict(self.value), "threshold": self.threshold, "holds": self.holds}


@dataclass(frozen=True, eq=False)
class Withheld:
    """What TRACE wanted where a certificate did not let it through (method, section 13).

    Attributes:
        rule: The rule that it fails, in words.
        index: Place of the answer that TRACE wanted.
        operator: Whose override it was.
        scores: u, the scores that wanted it [candidates].
    """

    rule: str
    index: int
    operator: str
    scores: Float[np.ndarray, " candidates"]


@dataclass(frozen=True, eq=False)
class Decision:
    """The corrected choice among the candidates of one item; equal to itself alone.

    Attributes:
        candidates: The candidates, as given.
        index: Place of the corrected answer.
        base_index: Place of the model's own answer, `argmax b`.
        regime: `scalar` or `candidate-space` (method, section 3).
        operator: `base`, `decisive`, `mix` or `early`; a method's name for its peers.
        scores: u, the scores that decide [candidates].
        base_scores: b = S[:, L], mean log-probability a token in nats [candidates].
        d_eff: Effective trajectory dimension, Eq. 5; nan where it was not needed.
        invariant: I(M) of the model, Eq. 16, whether or not the rule needed it.
        gates: The regime's gates by name, in the order of the rule.
        decisive_layer: l*, Eq. 7; None where it was not needed.
        mixing: lambda, Eq. 17; None outside the mix branch. JSON: `lambda`.
        trajectory: S [candidates, L + 1]; nan at depths that were not read.
        t_scores: t [candidates]; None where T was not read.
        blind_scores: Base scores without the question [candidates]; None without a blind prompt.
        blind_trajectory: S without the question [candidates, L + 1]; None unless it was read whole.
        blind_t_scores: t without the question [candidates]; None like `blind_trajectory`.
        tied: Whether the top score is shared.
        truncated: Prompt tokens dropped to fit the context.
        method: `trace`, or the name of a peer.
        methods: Scores of the peers that were asked too, by name; None where one does not apply.
        withheld: The override that a certificate did not let through: the base's answer stands.
        deferred: Whether the answer is too unsure to be given, by a certificate's threshold.
    """

    candidates: tuple[str, ...]
    index: int
    base_index: int
    regime: Regime
    operator: str
    scores: Float[np.ndarray, " candidates"]
    base_scores: Float[np.ndarray, " candidates"]
    d_eff: float
    invariant: float | None
    gates: dict[str, Gate]
    decisive_layer: int | None
    mixing: float | None
    trajectory: Float[np.ndarray, "candidates depths"]
    t_scores: Float[np.ndarray, " candidates"] | None
    tied: bool
    blind_scores: Float[np.ndarray, " candidates"] | None = None
    blind_trajectory: Float[np.ndarray, "candidates depths"] | None = None
    blind_t_scores: Float[np.ndarray, " candidates"] | None = None
    truncated: int = 0
    method: str = "trace"
    id: str | None = field(default=None)
    methods: Mapping[str, Float[np.ndarray, " candidates"] | None] = field(default_factory=dict)
    withheld: Withheld | None = None
    deferred: bool = False

    def by(self, method: str) -> "Decision":
        """What a peer that was asked too decides, without TRACE's gates.

        Raises:
            ItemError: The method does not apply to the item.
        """
        scores = self.methods[method]
        if scores is None:
            raise ItemError(f"method {method} does not apply: it has no blind_prompt", self.id)
        tied = tied_first(scores)
        return replace(
            self,
            index=int(tied[0]),
            operator=method,
            method=method,
            scores=scores,
            d_eff=math.nan,
            gates={},
            decisive_layer=None,
            mixing=None,
            tied=len(tied) > 1,
            withheld=None,
            deferred=False,
        )

    def withhold(self, rule: str) -> "Decision":
        """The model's own answer in the place of the corrected one, which fails `rule`."""
        tied = tied_first(self.base_scores)
        return replace(
            self,
            index=self.base_index,
            operator="base",
            scores=self.base_scores,
            tied=len(tied) > 1,
            withheld=Withheld(rule, self.index, self.operator, self.scores),
        )

    @property
    def answer(self) -> str:
        """The corrected answer."""
        return self.candidates[self.index]

    @property
    def base_answer(self) -> str:
        """The model's own answer."""
        return self.candidates[self.base_index]

    @property
    def corrected(self) -> bool:
        """Whether the corrected answer differs from the model's own."""
        return self.index != self.base_index

    @property
    def probabilities(self) -> Float[np.ndarray, " candidates"]:
        """softmax(u): candidate-restricted probabilities of the corrected scores."""
        probabilities: Scores = softmax(self.scores)
        return probabilities

    @property
    def base_probabilities(self) -> Float[np.ndarray, " candidates"]:
        """softmax(b): candidate-restricted probabilities of the base scores."""
        probabilities: Scores = softmax(self.base_scores)
        return probabilities

    def plot(self) -> Any:
        """Candidates over depth, before and after, as a `plotly.graph_objects.Figure`.

        Draws the depths that were read: ask with `read="all"` to see them all.
        """
        from lastword.view.plot import plot
        from lastword.view.portrait import portrait

        return plot(portrait(self.to_record()))

    def __repr__(self) -> str:
        """One line: the answer, whose it is, and its probability among how many."""
        whose = f"by {self.operator}"
        if self.withheld is not None:
            whose = f"{self.withheld.operator} withheld"
        elif self.corrected:
            whose = f"instead of {shorten(self.base_answer)!r} {whose}"
        if self.decisive_layer is not None and self.operator == "decisive":
            whose += f" at depth {self.decisive_layer}"
        share = f"{self.probabilities[self.index]:.3f} among {len(self.candidates)}"
        name = [] if self.id is None else [f"id={self.id!r}"]
        more = [*(["tied"] if self.tied else []), *(["deferred"] if self.deferred else []), *name]
        return f"Decision({', '.join([repr(shorten(self.answer)), whose, share, *more])})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from lastword.view.table import notebook

        return notebook(self.to_record())

    def to_record(self, truthful: Sequence[bool] | None = None) -> dict[str, Any]:
        """Everything that was read, with the candidates and, where it is known, their truth."""
        return {**self.to_dict(full=True), "candidates": self.candidates, "truthful": truthful}

    def to_dict(self, *, full: bool = False) -> dict[str, Any]:
        """The JSON of a decision; `full` adds trajectories and t. What was not needed is null."""
        record: dict[str, Any] = {} if self.id is None else {"id": self.id}
        record |= {
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
            "withheld": self._withheld(),
            "deferred": self.deferred,
        }
        if full:
            record |= {"trajectory": self.trajectory, "t_scores": self.t_scores}
        if full and self.blind_trajectory is not None:
            blind = {"trajectory": self.blind_trajectory, "t_scores": self.blind_t_scores}
            record |= {f"blind_{name}": value for name, value in blind.items()}
        return {key: strict(value) for key, value in record.items()}

    def _withheld(self) -> dict[str, Any] | None:
        """`withheld` in JSON, with the answer that was wanted."""
        if self.withheld is None:
            return None
        wanted = self.withheld
        return {
            "rule": wanted.rule,
            "index": wanted.index,
            "answer": self.candidates[wanted.index],
            "operator": wanted.operator,
            "scores": wanted.scores,
        }
