"""Answer: the scores and the decision of one item, with the gates that led to it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from scipy.special import softmax

from lastword.errors import ItemError
from lastword.files.strict_json import strict
from lastword.files.wording import shorten
from lastword.rule.geometry import Columns, Inputs, Scores, tied_first

# These fields explain TRACE's decision; they are cleared if other scores decide.
_NO_REASONS: dict[str, Any] = {
    "d_eff": math.nan,
    "gates": {},
    "decisive_layer": None,
    "mixing": None,
    "withheld": None,
    "deferred": False,
}

Regime = Literal["scalar", "candidate-space"]
Form = TypeVar("Form", bound="Answer")


@dataclass(frozen=True)
class Gate:
    """One comparison of the rule; `None` if the decision did not need it (method, section 9)."""

    value: float | bool | None
    threshold: float | bool
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a value that is not finite becomes a string."""
        return {"value": strict(self.value), "threshold": self.threshold, "holds": self.holds}


@dataclass(frozen=True, eq=False)
class Withheld:
    """An override that a certificate did not allow (method, section 13).

    Attributes:
        rule: The rule that it fails, in words.
        index: Index of TRACE's answer among the candidates.
        answer: Text of that answer.
        operator: The operator that chose it.
        scores: u, the scores that rank it first, in nats [candidates].
    """

    rule: str
    index: int
    answer: str
    operator: str
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {field.name: strict(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The corrected choice among the candidates of one item.

    It is serialised by `records.decision` (JSON), `records.record` (rows), `records.schema`
    (columns) and `service.schema` (the service's response). Instances compare by identity.

    Attributes:
        id: Name of the item.
        candidates: The candidates, as given.
        truthful: True for each candidate that is right; None without labels.
        index: Index of the corrected answer.
        base_index: Index of the model's answer.
        tied: True if several candidates share the top score.
        regime: `candidate-space` if d_eff > tau_dim, else `scalar` (method, section 3).
        method: `trace`; `base` under --shadow; the name of another correction.
        operator: `base`, `decisive`, `mix` or `early`; for other corrections, the method's name.
        d_eff: Effective trajectory dimension, Eq. 5; nan if not needed.
        invariant: I(M) of the model, Eq. 16.
        scores: u, the scores that decide, in nats [candidates].
        base_scores: b = S[:, L], mean log-probability per token in nats [candidates].
        gates: The regime's gates by name, in the order of the rule.
        decisive_layer: l*, Eq. 7; None if not needed.
        mixing: lambda, Eq. 17; None outside the mix branch.
        truncated: Prompt tokens dropped to fit the context.
        withheld: The override that the certificate did not allow.
        deferred: True if the certificate's threshold makes it abstain.
        trajectory: S in nats [candidates, L + 1]; nan at depths that were not read.
        t_scores: t [candidates]; None if T was not read.
        t_readings: t by reading of the scorer [candidates]; empty unless all were read.
        blind_scores: b without the question; None without a blind prompt.
        blind_trajectory: S without the question; None unless read whole.
        blind_t_scores: t without the question; None like `blind_trajectory`.
        content_free_scores: b [content-free inputs, candidates]; None unless read.
        methods: Scores of other corrections [candidates] by name; None if one does not apply.
    """

    id: str | None = None
    candidates: tuple[str, ...]
    truthful: tuple[bool, ...] | None = None
    index: int
    base_index: int
    tied: bool = False
    regime: Regime
    method: str = "trace"
    operator: str
    d_eff: float = math.nan
    invariant: float | None = None
    scores: Scores
    base_scores: Scores
    gates: Mapping[str, Gate] = field(default_factory=dict)
    decisive_layer: int | None = None
    mixing: float | None = None
    truncated: int = 0
    withheld: Withheld | None = None
    deferred: bool = False
    trajectory: Columns
    t_scores: Scores | None = None
    t_readings: Mapping[str, Scores] = field(default_factory=dict)
    blind_scores: Scores | None = None
    blind_trajectory: Columns | None = None
    blind_t_scores: Scores | None = None
    content_free_scores: Inputs | None = None
    methods: Mapping[str, Scores | None] = field(default_factory=dict)

    def by(self: Form, method: str) -> Form:
        """Return the decision by the scores of another correction, without TRACE's gates.

        Raises:
            KeyError: The method was not computed (see `methods`).
            ItemError: The method does not apply to the item.
        """
        scores = self.methods[method]
        if scores is None:
            lacking = "content_free prompts" if method.startswith("contextual") else "blind_prompt"
            raise ItemError(f"method {method} does not apply: it has no {lacking}", self.id)
        return self._decided_by(scores, method, _NO_REASONS | {"method": method})

    def as_base(self: Form) -> Form:
        """Return the decision by the model's scores, without any correction."""
        return self._decided_by(self.base_scores, "base", _NO_REASONS | {"method": "base"})

    def withhold(self: Form, rule: str) -> Form:
        """Return the model's answer instead of the corrected one, which fails `rule`."""
        override = Withheld(rule, self.index, self.answer, self.operator, self.scores)
        return self._decided_by(self.base_scores, "base", {"withheld": override})

    def _decided_by(self: Form, scores: Scores, operator: str, reasons: dict[str, Any]) -> Form:
        tied = tied_first(scores)
        index, shared = int(tied[0]), len(tied) > 1
        return replace(self, scores=scores, operator=operator, index=index, tied=shared, **reasons)

    @property
    def answer(self) -> str:
        """The corrected answer."""
        return self.candidates[self.index]

    @property
    def base_answer(self) -> str:
        """The model's answer."""
        return self.candidates[self.base_index]

    @property
    def corrected(self) -> bool:
        """True if the corrected answer differs from the model's."""
        return self.index != self.base_index

    @property
    def probabilities(self) -> Scores:
        """softmax(u): the candidates' probabilities by the corrected scores, which sum to 1."""
        probabilities: Scores = softmax(self.scores)
        return probabilities

    @property
    def base_probabilities(self) -> Scores:
        """softmax(b): the candidates' probabilities by the model's scores, which sum to 1."""
        probabilities: Scores = softmax(self.base_scores)
        return probabilities

    def __repr__(self) -> str:
        """Return one line: answer, operator, probability, and number of candidates."""
        whose = f"by {self.operator}"
        if self.withheld is not None:
            whose = f"{self.withheld.operator} withheld"
        elif self.corrected:
            whose = f"instead of {shorten(self.base_answer)!r} {whose}"
        if self.decisive_layer is not None and self.operator == "decisive":
            whose += f" at depth {self.decisive_layer}"
        share = f"{self.probabilities[self.index]:.3f} among {len(self.candidates)}"
        parts = [repr(shorten(self.answer)), whose, share]
        parts += [flag for flag in ("tied", "deferred") if getattr(self, flag)]
        parts += [] if self.id is None else [f"id={self.id!r}"]
        return f"{type(self).__name__}({', '.join(parts)})"
