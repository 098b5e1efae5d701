"""The labelled texts of a trial, with the model's answers and the trial's settings."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lastword.decide.item import candidates_of
from lastword.model.encoder import Encoder
from lastword.probes.linear import recurring
from lastword.probes.logit import FOLDS as STACK_GROUPS
from lastword.probes.state import can_fit
from lastword.records.cells import Cell
from lastword.text.prompt_template import Template
from lastword.text.question import Choice
from lastword.trust.crossfit import Folds, random_folds
from lastword.trust.groups import FRACTION, SEED, fit_part
from lastword.tryout.labels import Labels

FOLDS = 5

Which = Bool[np.ndarray, " _texts"]


@dataclass(frozen=True, eq=False)
class Material:
    """Labelled texts of a trial, with their records and settings.

    Attributes:
        labels: The labelled texts.
        template: The prompt template.
        cell: The records of the model's answers; None without a language model.
        readers: Sentence encoders that take part, alone and combined with the model's probe.
        named: Names of those that the user named.
        balanced: True to fit and choose probes by mean recall, False by accuracy.
        error: Maximum share of wrong answers among those given; None to give all answers.
        cheap: True to choose the cheapest method within half a standard error of the best.
    """

    labels: Labels
    template: Template
    cell: Cell | None = None
    readers: Sequence[Encoder] = ()
    named: Sequence[str] = ()
    balanced: bool = False
    error: float | None = None
    cheap: bool = False

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
        """The places of the texts that the model answered, in the order of `cell.items`."""
        if self.cell is None:
            return np.empty(0, dtype=int)
        places = {row.id: place for place, row in enumerate(self.labels.rows)}
        return np.array([places[str(id)] for id in self.cell.items["id"]], dtype=int)

    @property
    def whole(self) -> bool:
        """True if the model answered every text."""
        return len(self.answered) == len(self.truths)

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
    def question(self) -> Choice | None:
        """The question, if all texts have the same one."""
        return self.labels.question

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
        weights = class_weights(labels) if self.balanced else dict.fromkeys(labels, 1.0)
        return np.array([weights[label] for label in labels])


def class_weights(labels: Iterable[str], options: Iterable[str] = ()) -> dict[str, float]:
    """Return the weight of each class: 1 / (number of classes times its share of the labels).

    The mean over texts of right answers with these weights is the mean recall. A class without a
    label has the weight of one with a single label.
    """
    counts = Counter(labels)
    each = {name: counts.total() / len(counts) for name in options}
    return each | {name: counts.total() / (len(counts) * count) for name, count in counts.items()}
