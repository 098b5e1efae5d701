"""Decision: the answer to one item, as it is returned, stored, shown and sent."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from lastword.errors import ItemError
from lastword.files.strict_json import strict
from lastword.files.wording import shorten
from lastword.records.metrics import mc1, mc2, mc3
from lastword.rule.geometry import Columns, Inputs, Scores, Trajectory, tied_first
from lastword.rule.operators import Gate, Regime, Ruling

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1

# These fields explain TRACE's decision; they are cleared if other scores decide.
_NO_REASONS: dict[str, Any] = {
    "d_eff": math.nan,
    "gates": {},
    "decisive_layer": None,
    "mixing": None,
    "withheld": None,
    "deferred": False,
}


@dataclass(frozen=True, eq=False)
class Withheld:
    """An override that a certificate did not allow (docs/statistics.md).

    It has the rule that it fails, in words, and TRACE's answer with its operator and scores u.
    """

    rule: str
    index: int
    answer: str
    operator: str
    scores: Scores

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {field.name: strict(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Withheld":
        """Return the override in its JSON form."""
        return cls(**{**values, "scores": np.asarray(values["scores"], dtype=float)})


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Decision:
    """The corrected choice among the candidates of one item.

    Instances compare by identity.

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
        model: The model's name in records.
        benchmark: The benchmark in records, with its template if that is not the default.
        kind: The metric that the item is for; None for all.
        place: Index in the benchmark's item list.
        prompt: The prompt.
        question: The question, for readers of reports.
        shared: The item's `group`: items of one group are not independent.
        prompt_tokens: Number of the prompt's tokens.
        candidate_tokens: Number of each candidate's tokens.
        blind_tokens: Number of each candidate's tokens after the blind prompt; None without one.
        boundary_moved: True if the prompt's last token changed with the candidate.
        seconds: Its share of the time that its group took, in seconds.
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
    model: str = ""
    benchmark: str = ""
    kind: str | None = None
    place: int = 0
    prompt: str = ""
    question: str | None = None
    shared: str | None = None
    prompt_tokens: int | None = None
    candidate_tokens: tuple[int, ...] | None = None
    blind_tokens: tuple[int, ...] | None = None
    boundary_moved: bool | None = None
    seconds: float | None = None

    @classmethod
    def of(
        cls, ruling: Ruling, trajectory: Trajectory, candidates: Sequence[str], **others: Any
    ) -> "Decision":
        """Return the decision of the rule, or of another correction, on one trajectory."""
        tied = tied_first(ruling.scores)
        return cls(
            candidates=tuple(candidates),
            index=int(tied[0]),
            base_index=int(trajectory.base.argmax()),
            tied=len(tied) > 1,
            base_scores=trajectory.base,
            trajectory=trajectory.scores,
            t_scores=trajectory.t,
            **vars(ruling),
            **others,
        )

    def by(self, method: str) -> "Decision":
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

    def as_base(self) -> "Decision":
        """Return the decision by the model's scores, without any correction."""
        return self._decided_by(self.base_scores, "base", _NO_REASONS | {"method": "base"})

    def withhold(self, rule: str) -> "Decision":
        """Return the model's answer instead of the corrected one, which fails `rule`."""
        override = Withheld(rule, self.index, self.answer, self.operator, self.scores)
        return self._decided_by(self.base_scores, "base", {"withheld": override})

    def _decided_by(self, scores: Scores, operator: str, reasons: dict[str, Any]) -> "Decision":
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

    def share(self, metric: str, *, base: bool = False) -> float | None:
        """Return `mc1`, `mc2` or `mc3` of the scores; None if the item does not count for it."""
        compute, kind = _METRICS[metric]
        if self.truthful is None or self.kind not in (None, kind):
            return None
        value = compute(self.base_scores if base else self.scores, self.truthful)
        return None if math.isnan(value) else value

    @property
    def gain(self) -> float | None:
        """Corrected minus base MC1; None if the item does not count for it."""
        after, before = self.share("mc1"), self.share("mc1", base=True)
        return None if after is None or before is None else after - before

    def value(self, name: str) -> Any:
        """Return what a column of records, or a key of the JSON form, has."""
        if name == "gates":
            return {gate: value.to_dict() for gate, value in self.gates.items()}
        if name == "withheld":
            return self.withheld and self.withheld.to_dict()
        if (metric := name.removesuffix("_base")) in _METRICS:
            return self.share(metric, base=metric != name)
        return getattr(self, "mixing" if name == "lambda" else name)

    def to_dict(self, *, full: bool = False) -> dict[str, Any]:
        """Return strict JSON; `full` adds trajectories and t. Values not needed are null."""
        names = [*_SENT]
        if full:
            names += ["trajectory", "t_scores"]
            blind = ("blind_trajectory", "blind_t_scores")
            names += [name for name in blind if getattr(self, name) is not None]
        content: dict[str, Any] = {} if self.id is None else {"id": self.id}
        content["schema"] = SCHEMA
        return content | {name: strict(self.value(name)) for name in names}

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
        return f"Decision({', '.join(parts)})"


# The keys of the JSON form, after `id` and `schema`.
_SENT = (
    *("index", "answer", "base_index", "base_answer", "corrected", "tied", "regime", "method"),
    *("operator", "d_eff", "invariant", "scores", "probabilities", "base_scores", "gates"),
    *("decisive_layer", "lambda", "truncated", "withheld", "deferred"),
)

# Every metric with the kind of items that count for it. MC3 compares several truths with several
# falsehoods, so it belongs to the sets that MC2 counts.
_METRICS: dict[str, tuple[Callable[..., float], str]] = {
    "mc1": (mc1, "mc1"),
    "mc2": (mc2, "mc2"),
    "mc3": (mc3, "mc2"),
}


def to_frame(decisions: Iterable[Decision]) -> "pd.DataFrame":
    """Return a frame with one row per decision: its JSON, the candidates, and columns per gate.

    The columns of a gate are `gates.NAME.value`, `gates.NAME.threshold` and `gates.NAME.holds`.
    They are null if the decision's regime does not have the gate.
    """
    import pandas as pd

    rows = ({**d.to_dict(), "id": d.id, "candidates": list(d.candidates)} for d in decisions)
    return pd.json_normalize([{"id": None, **record} for record in rows])
