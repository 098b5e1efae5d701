"""Answer: what is known of one answered item, and every reason for it."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from scipy.special import softmax

from lastword.errors import ItemError
from lastword.files.shorten import shorten
from lastword.files.strict_json import strict
from lastword.rule.fact import fact
from lastword.rule.geometry import Columns, Inputs, Scores, tied_first

Regime = Literal["scalar", "candidate-space"]
Form = TypeVar("Form", bound="Answer")


@dataclass(frozen=True)
class Gate:
    """One comparison of the rule; `None` where the decision did not need it (method, section 9)."""

    value: float | bool | None
    threshold: float | bool
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON form; a value that is not finite is a string."""
        return {"value": strict(self.value), "threshold": self.threshold, "holds": self.holds}


@dataclass(frozen=True, eq=False)
class Withheld:
    """An override that a certificate did not allow (method, section 13).

    Attributes:
        rule: The rule that it fails, in words.
        index: Place of the answer that TRACE wanted.
        answer: That answer.
        operator: Whose override it was.
        scores: u, the scores that wanted it [candidates].
    """

    rule: str
    index: int
    answer: str
    operator: str
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Return JSON form."""
        return {own.name: strict(getattr(self, own.name)) for own in fields(self)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The corrected choice among the candidates of one item; equal to itself alone.

    The fields stand in the order of their JSON. One more is one more line: what is made from them
    has it then, and a type that JSON, Parquet or the service has no form for is refused there.
    """

    id: str | None = field(default=None, metadata=fact("Its name.", json="given", column=False))
    candidates: tuple[str, ...] = field(
        metadata=fact("The candidates, as given.", json="never", column=False)
    )
    truthful: tuple[bool, ...] | None = field(
        default=None,
        metadata=fact("Which are right; null where nobody says.", json="never", column=False),
    )
    index: int = field(metadata=fact("Place of the corrected answer.", also=("answer",)))
    base_index: int = field(
        metadata=fact("Place of the model's own answer.", also=("base_answer", "corrected"))
    )
    tied: bool = field(default=False, metadata=fact("Whether the top score is shared."))
    regime: Regime = field(metadata=fact("By d_eff against tau_dim (method, section 3)."))
    method: str = field(
        default="trace",
        metadata=fact("`trace`; `base` under --shadow; a peer's name.", column=False, reason=True),
    )
    operator: str = field(
        metadata=fact("`base`, `decisive`, `mix` or `early`; a method's name for its peers.")
    )
    d_eff: float = field(
        default=math.nan,
        metadata=fact("Effective trajectory dimension, Eq. 5; nan where unneeded.", reason=True),
    )
    invariant: float | None = field(
        default=None, metadata=fact("I(M) of the model, Eq. 16, needed or not.")
    )
    scores: Scores = field(
        metadata=fact("u, the scores that decide.", also_columns=("probabilities",))
    )
    base_scores: Scores = field(metadata=fact("b = S[:, L], mean log-probability a token in nats."))
    gates: Mapping[str, Gate] = field(
        default_factory=dict,
        metadata=fact("The regime's gates by name, in the order of the rule.", reason=True),
    )
    decisive_layer: int | None = field(
        default=None, metadata=fact("l*, Eq. 7; null where it was not needed.", reason=True)
    )
    mixing: float | None = field(
        default=None,
        metadata=fact("lambda, Eq. 17; null outside the mix branch.", name="lambda", reason=True),
    )
    truncated: int = field(
        default=0, metadata=fact("Prompt tokens dropped to fit the context.", column=False)
    )
    withheld: Withheld | None = field(
        default=None,
        metadata=fact("What correction wanted and the certificate did not allow.", reason=True),
    )
    deferred: bool = field(
        default=False,
        metadata=fact("Too unsure to be given, by the certificate's threshold.", reason=True),
    )
    trajectory: Columns = field(
        metadata=fact("S, by candidate and depth 0..L; null where unread.", json="full")
    )
    t_scores: Scores | None = field(
        default=None, metadata=fact("t; null where T was not read.", json="full")
    )
    blind_scores: Scores | None = field(
        default=None,
        metadata=fact("b without the question; null without a blind prompt.", json="never"),
    )
    blind_trajectory: Columns | None = field(
        default=None,
        metadata=fact("S without the question; null unless read whole.", json="full, given"),
    )
    blind_t_scores: Scores | None = field(
        default=None,
        metadata=fact("t without the question; null like `blind_trajectory`.", json="full, given"),
    )
    content_free_scores: Inputs | None = field(
        default=None,
        metadata=fact("b by content-free input and candidate; null unless read.", json="never"),
    )
    methods: Mapping[str, Scores | None] = field(
        default_factory=dict,
        metadata=fact(
            "Scores of peers that were asked too; null where one does not apply.", json="never"
        ),
    )

    def by(self: Form, method: str) -> Form:
        """Return the decision of a peer that was asked too, without TRACE's gates.

        Raises:
            ItemError: The method does not apply to the item.
        """
        scores = self.methods[method]
        if scores is None:
            lacking = "content_free prompts" if method.startswith("contextual") else "blind_prompt"
            raise ItemError(f"method {method} does not apply: it has no {lacking}", self.id)
        return self._decided_by(scores, method, self._no_reasons() | {"method": method})

    def as_base(self: Form) -> Form:
        """Return the decision of the model's own scores, as if nothing had been corrected."""
        return self._decided_by(self.base_scores, "base", self._no_reasons() | {"method": "base"})

    def withhold(self: Form, rule: str) -> Form:
        """Return the model's own answer in the place of the corrected one, which fails `rule`."""
        override = Withheld(rule, self.index, self.answer, self.operator, self.scores)
        return self._decided_by(self.base_scores, "base", {"withheld": override})

    def _decided_by(self: Form, scores: Scores, operator: str, reasons: dict[str, Any]) -> Form:
        tied = tied_first(scores)
        index, shared = int(tied[0]), len(tied) > 1
        return replace(self, scores=scores, operator=operator, index=index, tied=shared, **reasons)

    def _no_reasons(self) -> dict[str, Any]:
        """Give the rule's reasons as they are where it was not asked."""
        return {
            own.name: own.default if own.default_factory is MISSING else own.default_factory()
            for own in fields(self)
            if own.metadata["fact"].reason
        }

    @property
    def answer(self) -> str:
        """Return the corrected answer."""
        return self.candidates[self.index]

    @property
    def base_answer(self) -> str:
        """Return the model's own answer."""
        return self.candidates[self.base_index]

    @property
    def corrected(self) -> bool:
        """True if the corrected answer differs from the model's own."""
        return self.index != self.base_index

    @property
    def probabilities(self) -> Scores:
        """Return softmax(u): candidate-restricted probabilities of the corrected scores."""
        probabilities: Scores = softmax(self.scores)
        return probabilities

    @property
    def base_probabilities(self) -> Scores:
        """Return softmax(b): candidate-restricted probabilities of the base scores."""
        probabilities: Scores = softmax(self.base_scores)
        return probabilities

    def __repr__(self) -> str:
        """Return one line: the answer, whose it is, and its probability among how many."""
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
        form = type(self).__name__
        return f"{form}({', '.join([repr(shorten(self.answer)), whose, share, *more])})"
