"""Contest: what labels buy beside corrections: a probe, the words alone, the embeddings alone.

Shares that stand side by side are cross-fitted: every text is answered by a fit on other groups of
texts. What is certified is not: a probe of one half of the labels is tested on the other half, and
that probe is the one that runs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.benchmarks.template import Template, template_name
from lastword.decisions.question import Choice, question_digest
from lastword.errors import ItemError
from lastword.probes.answering import passages_of, read_states
from lastword.probes.probe import Probe
from lastword.probes.state import LEAST, POOLINGS, StateFit, StateProbe, States, fit_state
from lastword.probes.words import bag_of_words
from lastword.text.forest import build
from lastword.trust.certificate import Probe as Mark

if TYPE_CHECKING:
    from lastword.tracer import Tracer

WORDS, DEPTH_0, LARGEST = "bag of words", "words' embeddings", "largest class"
FOLDS, SEED, FRACTION = 5, 0, 0.5
_COUNTED = 16  # texts whose cost is counted

Right = Bool[np.ndarray, " texts"]
Groups = Int[np.ndarray, " texts"]


@dataclass(frozen=True, eq=False)
class Contest:
    """What a probe and its controls get on the same labels.

    Attributes:
        probe: Of one half of the labels; the one that is tested and runs.
        tested: Texts of the other half [texts].
        right: Where the probe is right on the half that tests it [texts]; no word of the others.
        crossed: By name, where a cross-fitted probe, bag of words and so on are right [texts].
        by_depth: Leave-one-out share right of a probe of each depth [depths].
        cost: What an answer of the probe takes, in answers of the model.
    """

    probe: Probe
    tested: Right
    right: Right
    crossed: dict[str, Right]
    by_depth: Float[np.ndarray, " depths"]
    cost: float

    @property
    def mark(self) -> Mark:
        """What names the probe in its certificate."""
        fit = self.probe.fit
        assert isinstance(fit, StateProbe)
        question = question_digest(self.probe.question)
        return Mark(self.probe.digest, fit.depth, fit.pooling, question, SEED, FRACTION)


def hold(
    tracer: "Tracer",
    texts: Sequence[str],
    labels: Sequence[str],
    groups: Groups,
    question: Choice,
    template: Template,
) -> Contest | None:
    """Hold the contest on labelled texts of one question.

    Args:
        tracer: The model.
        texts: The inputs.
        labels: The right option of each.
        groups: Of each; texts of one group are never on both sides of a fit.
        question: Theirs.
        template: Writes the prompts.

    Returns:
        None where there are too few labels for a probe.
    """
    made = _half(groups)
    if not _enough(labels, made) or not _enough(labels, ~made):
        return None
    states = read_states(tracer, texts, question, template, POOLINGS)
    fit = _fitted(states, labels, made)
    truths = np.array(labels)
    probe = Probe(
        question=question,
        template=template_name(template.to_dict()),
        subject=tracer.subject,
        fit=fit.probe,
        labels=int(made.sum()),
        left_out=tuple(o.text for o in question.options if o.text not in fit.probe.classes),
        seed=SEED,
    )
    rows = states[:, fit.probe.depth, POOLINGS.index(fit.probe.pooling)].astype(np.float64)
    answers = np.array(fit.probe.classes)[fit.probe.scores(rows).argmax(axis=1)]
    folds = _folds(groups)

    def by_probe(some: States) -> Callable[[Right, Right], np.ndarray]:
        return lambda rest, own: _answers(_fitted(some, labels, rest), some[own])

    def by_words(rest: Right, own: Right) -> np.ndarray:
        kept = _kept(labels, rest)
        model = bag_of_words([texts[i] for i in kept], [labels[i] for i in kept])
        return np.asarray(model.predict([texts[i] for i in np.flatnonzero(own).tolist()]))

    def by_largest(rest: Right, own: Right) -> np.ndarray:
        return np.full(int(own.sum()), Counter(truths[rest].tolist()).most_common(1)[0][0])

    contestants = {
        "probe": by_probe(states),
        WORDS: by_words,
        DEPTH_0: by_probe(states[:, :1, :1]),
        LARGEST: by_largest,
    }
    crossed = {name: _crossed(how, truths, folds) for name, how in contestants.items()}
    whole = _fitted(states, labels, np.ones(len(labels), dtype=bool))
    return Contest(
        probe=probe,
        tested=~made,
        right=answers == truths,
        crossed=crossed,
        by_depth=whole.right.max(axis=1),
        cost=_cost(tracer, texts, question, template, probe),
    )


def _half(groups: Groups) -> Right:
    """Where a text's group is in the half that makes the probe."""
    names = np.random.default_rng(SEED).permutation(np.unique(groups))
    return np.isin(groups, names[: round(FRACTION * len(names))])


def _folds(groups: Groups) -> Groups:
    names = np.random.default_rng(SEED).permutation(np.unique(groups))
    fold = dict(zip(names.tolist(), (np.arange(len(names)) % FOLDS).tolist(), strict=True))
    return np.array([fold[group] for group in groups.tolist()])


def _kept(labels: Sequence[str], among: Right) -> list[int]:
    """Places among some whose class has labels enough there."""
    places = np.flatnonzero(among).tolist()
    counts = Counter(labels[i] for i in places)
    return [i for i in places if counts[labels[i]] >= LEAST]


def _enough(labels: Sequence[str], among: Right) -> bool:
    return len({labels[i] for i in _kept(labels, among)}) >= 2


def _fitted(states: States, labels: Sequence[str], among: Right) -> StateFit:
    kept = _kept(labels, among)
    return fit_state(states[kept], [labels[i] for i in kept], poolings=POOLINGS[: states.shape[2]])


def _answers(fit: StateFit, states: States) -> np.ndarray:
    own = fit.probe
    rows = states[:, own.depth, POOLINGS.index(own.pooling)].astype(np.float64)
    return np.asarray(np.array(own.classes)[own.scores(rows).argmax(axis=1)])


def _crossed(
    answer: Callable[[Right, Right], np.ndarray], truths: np.ndarray, folds: Groups
) -> Right:
    """Where each text is answered right by a fit on the other folds."""
    right = np.zeros(len(truths), dtype=bool)
    for fold in np.unique(folds):
        own = folds == fold
        right[own] = answer(~own, own) == truths[own]
    return right


def _cost(
    tracer: "Tracer", texts: Sequence[str], question: Choice, template: Template, probe: Probe
) -> float:
    """Return the multiplications of an answer by the probe over those of one by the model.

    A block has about 12 d^2 weights, each used once a token; the head d V, each used once a row
    that predicts a token.
    """
    from lastword.batch import branches_of
    from lastword.decisions.item import item_of

    fit = probe.fit
    assert isinstance(fit, StateProbe)
    some, profile = texts[:_COUNTED], tracer.profile
    block, head = 12 * profile.width**2, profile.width * profile.vocabulary
    items = [tracer.trim(item_of(text, question, template)) for text in some]
    encoded = [own for own in tracer.encode(items) if not isinstance(own, ItemError)]
    model = 0
    for own in encoded:
        forest = build(branches_of(own))
        model += len(forest) * block * profile.depth + len(forest.reads.rows) * head
    passages = passages_of(tracer, some, question, template, fit.pooling)
    return sum(len(own.tokens) for own in passages) * block * fit.depth / model
