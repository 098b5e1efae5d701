"""What a contest of probes takes, and its results."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from lastword.model.encoder import Encoder
from lastword.probes.linear import recurring
from lastword.probes.logit import FOLDS as STACK_GROUPS
from lastword.probes.probe import Probe
from lastword.probes.state import can_fit
from lastword.records.cells import Cell
from lastword.text.prompt_template import Template
from lastword.text.question import Choice
from lastword.trust.crossfit import Folds, random_folds
from lastword.trust.groups import FRACTION, SEED, fit_part
from lastword.trust.record_groups import Groups

WORDS, DEPTH_0, LARGEST = "bag of words", "words' embeddings", "largest class"
SIMPLE = (LARGEST, WORDS)  # baselines that a verdict may recommend in place of the model
UNREAD = "fitted without the text"
FOLDS = 5

Right = Bool[np.ndarray, " texts"]


@dataclass(frozen=True, eq=False)
class Contest:
    """Results of probes and their controls on the same labels.

    Attributes:
        probe: The probe that is tested: fitted to one half of the labels.
        tested: True for the texts that test it, which are the other half [texts].
        right: True where it is right; meaningless for texts that do not test it [texts].
        crossed: Cross-fitted answers of probes and baselines, by name [texts].
        refit: Function that fits a probe of this kind to all labels; cached.
        cost: Mean compute of its answers, relative to the model's. It includes the model where the
            probe is uncertain. None if options differ by text.
        likeness: Conformal p-values of the texts that test it; empty if it reads no state.
        by_depth: Leave-one-out accuracy of a probe per depth [depths]; empty if options differ by
            text, like the next two.
        curve: Number of labels and leave-one-out accuracy with a quarter, a half and all of them,
            at the depth that is best with all.
        baselines: Answers of the largest class and the bag of words by name [texts], both fitted
            to the labels of the probe.
    """

    probe: Probe
    tested: Right
    right: Right
    crossed: dict[str, np.ndarray]
    refit: Callable[[], Probe]
    cost: float | None = None
    likeness: tuple[float, ...] = ()
    by_depth: Float[np.ndarray, " depths"] = field(default_factory=lambda: np.empty(0))
    curve: tuple[tuple[int, float], ...] = ()
    baselines: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Material:
    """Labelled texts of a trial, with their records and settings.

    Attributes:
        groups: The group of each text; a group is never on both sides of a split.
        cell: The records of the texts.
        readers: Sentence encoders that take part, alone and combined with the model's probe.
        balanced: True to fit and choose probes by mean recall, False by accuracy.
    """

    texts: Sequence[str]
    questions: Sequence[Choice]
    truths: Sequence[str]
    groups: Groups
    cell: Cell
    template: Template
    readers: Sequence[Encoder] = ()
    balanced: bool = False

    @cached_property
    def fit_half(self) -> Right:
        """True for the texts that the probe is fitted to; the others test it [texts]."""
        return fit_part(self.groups, FRACTION, SEED)

    @property
    def every(self) -> Right:
        """True for all texts [texts]."""
        return np.ones(len(self.truths), dtype=bool)

    @property
    def folds(self) -> Folds:
        """The fold of each text [texts]."""
        return random_folds(self.groups, FOLDS, SEED)

    @property
    def one_question(self) -> bool:
        """True if all texts have the same question."""
        return all(question == self.questions[0] for question in self.questions)

    @property
    def enough(self) -> bool:
        """True if probes can be fitted to each half of the labels, and without each fold."""
        halves = self.fit_half, ~self.fit_half
        return all(map(self._can_fit, (*halves, *(self.folds != fold for fold in range(FOLDS)))))

    def _can_fit(self, among: Right) -> bool:
        labels = np.array(self.truths)[among].tolist()
        judged = set(self.groups[among][recurring(labels)])
        return can_fit(labels) and len(judged) >= STACK_GROUPS


def class_weights(labels: Iterable[str], options: Iterable[str] = ()) -> dict[str, float]:
    """Return the weight of each class: 1 / (number of classes times its share of the labels).

    The mean over texts of right answers with these weights is the mean recall. A class without a
    label has the weight of one with a single label.
    """
    counts = Counter(labels)
    each = {name: counts.total() / len(counts) for name in options}
    return each | {name: counts.total() / (len(counts) * count) for name, count in counts.items()}
