"""A trial's settings, and its labelled texts with the model's answers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lastword.decide.item import candidates_of, item_of
from lastword.decide.templates import CHAT, DEFAULT, template_of
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.model.encoder import Encoder
from lastword.probes.linear import recurring
from lastword.probes.logit import FOLDS as STACK_GROUPS
from lastword.probes.state import can_fit
from lastword.records.cells import Cell
from lastword.records.metrics import Rows
from lastword.text.prompt_template import Template
from lastword.trust.crossfit import Folds, random_folds
from lastword.trust.groups import FRACTION, SEED, fit_part
from lastword.trust.terms import Terms
from lastword.tryout.labels import Labels

FOLDS = 5
ACCURACY, BALANCED = "accuracy", "balanced"
BUDGET = 300.0  # seconds
MANY = 20  # options of a question from which on the model's answers have to fit the budget
LEAST = 20  # minimum number of rows that it answers
_COUNTED = 8  # number of rows from which the time is estimated
_OPERATIONS = {"cpu": 2e11, "cuda": 1e14}  # per second, counted as `_seconds` does

Which = Bool[np.ndarray, " _texts"]


@dataclass(frozen=True, eq=False)
class TryJob:
    """A trial: labelled examples, a model and settings (see `try_labels`).

    Attributes:
        tracer: The language model; None if only encoders and words take part.
        template_name: The template's name as the user gave it; None chooses the model's default.
        named: Names of the sentence encoders that the user named.

    Raises:
        InputError: No such template, objective or preference, or no contestant.
    """

    tracer: Tracer | None
    labels: Labels
    terms: Terms
    template_name: str | None = None
    budget: float = BUDGET
    encoders: tuple[Encoder, ...] = ()
    named: tuple[str, ...] = ()
    objective: str = ACCURACY
    prefer: str = "accurate"

    def __post_init__(self) -> None:
        """Refuse settings that do not fit together."""
        shared, tracer, objective = self.labels.question is not None, self.tracer, self.objective
        if objective not in (ACCURACY, BALANCED):
            raise InputError(f"--objective is accuracy or balanced, not {objective!r}")
        if self.prefer not in ("accurate", "cheap"):
            raise InputError(f"--prefer is accurate or cheap, not {self.prefer!r}")
        if self.balanced and not shared:
            raise InputError("--objective balanced needs the same options for every row")
        if tracer is None and not (shared and self.encoders):
            why = "a trial needs" if shared else "options that differ by row need"
            or_encoder = "" if self.encoders else " or an encoder"
            raise InputError(f"{why} a language model (--model){or_encoder}")
        _ = self.template  # an unknown one is an error

    @cached_property
    def template(self) -> Template:
        """The prompt template."""
        chat = self.tracer is not None and self.tracer.chat is not None
        return template_of(self.template_name or (CHAT if chat else DEFAULT))

    @property
    def balanced(self) -> bool:
        """True if probes are fitted and ranked by mean recall."""
        return self.objective == BALANCED

    @cached_property
    def asked(self) -> Labels:
        """The rows that the model answers; with many options, what `budget` allows of the test."""
        labels, tracer = self.labels, self.tracer
        question, rows = labels.question, labels.rows
        if tracer is None or question is None or len(question.options) <= MANY or not self.budget:
            return labels
        count = max(LEAST, int(self.budget / self._seconds(tracer)))
        if count >= len(rows):
            return labels
        groups = np.array([labels.groups[row.id] for row in rows])
        test = np.flatnonzero(~fit_part(groups, FRACTION, SEED))
        order = np.random.default_rng(SEED).permutation(test)[:count]
        return replace(labels, rows=tuple(rows[place] for place in np.sort(order)))

    @property
    def sample(self) -> str | None:
        """A note about the rows that the model answers; None if it answers all."""
        if len(self.asked.rows) == len(self.labels.rows):
            return None
        return (
            f"With so many options the model answers only {len(self.asked.rows)} rows in the time "
            "of --budget, and no other prompts; encoders, words and probes take all rows"
        )

    def _seconds(self, tracer: Tracer) -> float:
        """Estimate the time of an answer: every token passes every layer and the head after it."""
        rows = self.labels.rows[:_COUNTED]
        encoded = tracer.encode([item_of(row.text, row.question, self.template) for row in rows])
        tokens = [one.tokens for one in encoded if not isinstance(one, ItemError)]
        profile = tracer.profile
        weights = profile.depth * (12 * profile.width**2 + profile.width * profile.vocabulary)
        rate = _OPERATIONS.get(profile.device.type, _OPERATIONS["cpu"])
        return 2 * float(np.mean(tokens or [0])) * weights / rate


@dataclass(frozen=True, eq=False)
class Material:
    """Labelled texts that the model can read, with the records of its answers, if there are any."""

    job: TryJob
    labels: Labels
    cell: Cell | None = None

    @cached_property
    def texts(self) -> list[str]:
        """The texts."""
        return [row.text for row in self.labels.rows]

    @cached_property
    def truths(self) -> np.ndarray:
        """The right option of each text [texts]."""
        return np.array([row.truth for row in self.labels.rows])

    @cached_property
    def options(self) -> list[tuple[str, ...]]:
        """The options of each text."""
        return [candidates_of(row.question) for row in self.labels.rows]

    @cached_property
    def groups(self) -> Int[np.ndarray, " texts"]:
        """The group of each text; a group is never on both sides of a split."""
        groups = self.labels.groups
        return np.array([groups[row.id] for row in self.labels.rows])

    @cached_property
    def answered(self) -> Int[np.ndarray, " answered"]:
        """The place of each item of the cell among the texts."""
        assert self.cell is not None
        places = {row.id: place for place, row in enumerate(self.labels.rows)}
        return np.array([places[str(id)] for id in self.cell.items["id"]], dtype=int)

    @property
    def whole(self) -> bool:
        """True if the model answered every text."""
        return self.cell is not None and len(self.answered) == len(self.truths)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return values of the items of the cell by text; nan where it has no item [texts, ...]."""
        result = np.full((len(self.truths), *values.shape[1:]), np.nan)
        result[self.answered] = values
        return result

    def scores(self, name: str) -> Rows:
        """Return the model's scores of one kind in nats [texts, options]; nan without an answer."""
        assert self.cell is not None
        return self.spread(self.cell.scores[name])

    @cached_property
    def fit_half(self) -> Which:
        """True for the texts that the probe is fitted to; the others test it [texts]."""
        return fit_part(self.groups, FRACTION, SEED)

    @property
    def every(self) -> Which:
        """True for all texts [texts]."""
        return np.ones(len(self.truths), dtype=bool)

    @property
    def folds(self) -> Folds:
        """The fold of each text [texts]."""
        return random_folds(self.groups, FOLDS, SEED)

    @property
    def enough(self) -> bool:
        """True if probes can be fitted to each half of the labels, and without each fold."""
        halves = self.fit_half, ~self.fit_half
        return all(map(self._can_fit, (*halves, *(self.folds != fold for fold in range(FOLDS)))))

    def _can_fit(self, among: Which) -> bool:
        labels = self.truths[among].tolist()
        judged = set(self.groups[among][recurring(labels)])
        return can_fit(labels) and len(judged) >= STACK_GROUPS

    @cached_property
    def worths(self) -> np.ndarray:
        """The worth of a right answer to each text: 1, or the weight of its class [texts]."""
        labels = self.truths.tolist()
        weights = class_weights(labels) if self.job.balanced else dict.fromkeys(labels, 1.0)
        return np.array([weights[label] for label in labels])


def class_weights(labels: Iterable[str], options: Iterable[str] = ()) -> dict[str, float]:
    """Return the weight of each class: 1 / (number of classes times its share of the labels).

    The mean over texts of right answers with these weights is the mean recall. A class without a
    label has the weight of one with a single label.
    """
    counts = Counter(labels)
    each = {name: counts.total() / len(counts) for name in options}
    return each | {name: counts.total() / (len(counts) * count) for name, count in counts.items()}
