"""Contest: what labels buy beside corrections: probes, the words alone, the embeddings alone.

Shares that stand side by side are cross-fitted: every text is answered by a fit on other groups of
texts. What is certified is not: a probe of one half of the labels is tested on the other half, and
that probe is the one that runs. Which kind of probe that is, its own half decides: the one that
costs more has to gain more there than chance would.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import softmax

from lastword.benchmarks.template import Template, template_name
from lastword.decisions.item import candidates_of, item_of
from lastword.decisions.question import Choice, question_digest
from lastword.errors import ItemError
from lastword.evaluation.controls import features_of_cell
from lastword.probes.answering import passages_of, read_states
from lastword.probes.probe import Fit, Probe
from lastword.probes.stacked import StackedProbe, fit_stacked
from lastword.probes.state import POOLINGS, StateFit, StateProbe, fit_state, kept
from lastword.probes.taught import teach
from lastword.probes.trajectory import Options, TrajectoryProbe, fit_trajectory, without_input
from lastword.probes.words import bag_of_words
from lastword.records.cells import Cell
from lastword.text.forest import build
from lastword.trust.certificate import Probe as Mark
from lastword.trust.groups import FRACTION, SEED, fit_part
from lastword.trust.policy import SELF_TAUGHT

if TYPE_CHECKING:
    from lastword.tracer import Tracer

ALONE, STACKED = "probe", "probe+model"
WORDS, DEPTH_0, LARGEST = "bag of words", "words' embeddings", "largest class"
UNREAD = "fitted without the text"
FOLDS = 5
_COUNTED = 16  # texts whose cost is counted
_FITS = 10  # of every depth: those of the folds, the half and all, and what the rest comes to

Right = Bool[np.ndarray, " texts"]
Groups = Int[np.ndarray, " texts"]


@dataclass(frozen=True, eq=False)
class Entrant:
    """A probe that is tested, and runs.

    Attributes:
        probe: Made of texts that do not test it.
        tested: Texts that do [texts].
        right: Where it is right on these [texts]; no word of the others.
        cost: What an answer of it takes, in answers of the model.
        fraction: The share of the labelled groups that made it.
        likeness: By it, of the texts that test it; none where it reads no state.
        likely: Of each text that tests it, its options' probabilities and the place of the right
            one.
    """

    probe: Probe
    tested: Right
    right: Right
    cost: float
    fraction: float = FRACTION
    likeness: tuple[float, ...] = ()
    likely: tuple[tuple[np.ndarray, int], ...] = ()

    @property
    def mark(self) -> Mark:
        """Return what names the probe in its certificate."""
        state, question = self.probe.state, question_digest(self.probe.question)
        depth, pooling = (None, None) if state is None else (state.depth, state.pooling)
        return Mark(self.probe.digest, question, SEED, self.fraction, depth, pooling)


@dataclass(frozen=True, eq=False)
class Contest:
    """Results of probes and their controls on the same labels.

    Attributes:
        entrants: The probe that the labels of one half make, first; then the self-taught one.
        crossed: By name, where a cross-fitted probe, bag of words and so on are right [texts].
        by_depth: Leave-one-out share right of a probe of each depth [depths]; empty where options
            differ by text.
        curve: Labels and leave-one-out share right of a quarter, a half and all of them, at the
            depth that is best with all.
    """

    entrants: tuple[Entrant, ...]
    crossed: dict[str, Right]
    by_depth: Float[np.ndarray, " depths"]
    curve: tuple[tuple[int, float], ...] = ()

    def entrant(self, method: str | None) -> Entrant:
        """Return the probe of that method, or the first where none is."""
        return next((own for own in self.entrants if own.probe.name == method), self.entrants[0])


@dataclass(frozen=True, eq=False)
class Material:
    """Labelled texts of a try, and how the model reads them.

    Attributes:
        texts: The inputs.
        questions: Of each.
        truths: The right option of each.
        groups: Of each; texts of one group are never on both sides of a fit.
        cell: Their records; each text is an item that counts.
        template: Writes the prompts.
        unlabelled: More texts of the same kind.
    """

    texts: Sequence[str]
    questions: Sequence[Choice]
    truths: Sequence[str]
    groups: Groups
    cell: Cell
    template: Template
    unlabelled: Sequence[str] = ()


def hold(tracer: "Tracer", material: Material) -> Contest | None:
    """Hold the contest: state probes where all texts have one question, else trajectory probes.

    Args:
        tracer: The model.
        material: The labelled texts.

    Returns:
        None where there are too few labels for a probe.
    """
    made = fit_part(material.groups, FRACTION, SEED)
    one = all(own == material.questions[0] for own in material.questions)
    return (_by_state if one else _by_trajectory)(tracer, material, made)


def fitting(tracer: "Tracer", labels: int, classes: int) -> float:
    """Return about how many seconds the fits of state probes take: one of a depth, times all.

    Args:
        tracer: The model.
        labels: How many there are.
        classes: Of these.
    """
    noise = np.random.default_rng(SEED).normal(size=(labels, 1, 1, tracer.profile.width))
    start = time.perf_counter()
    fit_state(noise, [str(i % classes) for i in range(labels)], poolings=POOLINGS[:1])
    places = (tracer.profile.depth + 1) * len(POOLINGS)
    return (time.perf_counter() - start) * places * _FITS


def _by_state(tracer: "Tracer", material: Material, made: Right) -> Contest | None:
    texts, labels, question = material.texts, material.truths, material.questions[0]
    if not _enough(labels, made) or not _enough(labels, ~made):
        return None
    states = read_states(tracer, texts, question, material.template, POOLINGS)
    options, truths = candidates_of(question), np.array(labels)
    frame = material.cell.mc1_items
    base, blind = (np.stack([*frame[name]]) for name in ("base_scores", "blind_scores"))

    def fits(fitted: Sequence[int]) -> tuple[StateFit, StackedProbe, Right]:
        """A state probe, a stacked one, and where this is right on the labels of other folds."""
        own, groups = truths[fitted].tolist(), [str(material.groups[i]) for i in fitted]
        fit = fit_state(states[fitted], own)
        over = fit_stacked(fit, own, options, base[fitted], blind[fitted], groups)
        return fit, over.probe, np.array(options)[over.scores.argmax(axis=1)] == own

    def scored(probe: Fit, own: Right) -> tuple[np.ndarray, Sequence[str]]:
        fit = probe.state if isinstance(probe, StackedProbe) else probe
        assert not isinstance(fit, TrajectoryProbe)
        rows = states[own, fit.depth, POOLINGS.index(fit.pooling)].astype(np.float64)
        known, names = fit.scores(rows), fit.classes
        if isinstance(probe, StackedProbe):
            known, names = probe.scores(known, options, base[own], blind[own]), options
        return known, names

    def answers(probe: Fit | None, own: Right) -> np.ndarray:
        if probe is None:  # nothing is taught: the model answers
            return np.asarray(np.array(options)[base[own].argmax(axis=1)])
        known, names = scored(probe, own)
        return np.asarray(np.array(names)[known.argmax(axis=1)])

    def contestants(rest: Right, own: Right) -> dict[str, np.ndarray]:
        fitted = _kept(labels, rest)
        fit, stacked, _ = fits(fitted)
        known = truths[fitted].tolist()
        words = bag_of_words([texts[i] for i in fitted], known)
        depth_0 = fit_state(states[fitted, :1, :1], known, poolings=POOLINGS[:1]).probe
        (largest, _), *_ = Counter(truths[rest].tolist()).most_common(1)
        return {
            ALONE: answers(fit.probe, own),
            STACKED: answers(stacked, own),
            SELF_TAUGHT: answers(taught or teach(states[rest], base[rest], options), own),
            WORDS: words.predict([texts[i] for i in np.flatnonzero(own).tolist()]),
            DEPTH_0: answers(depth_0, own),
            LARGEST: np.full(int(own.sum()), largest),
        }

    taught = _taught(tracer, material)
    fitted = _kept(labels, made)
    fit, stacked, both = fits(fitted)
    alone = np.array(fit.probe.classes)[fit.scores.argmax(axis=1)] == truths[fitted]
    better = int(both.sum()) - int(alone.sum()) > np.sqrt((both != alone).sum())
    chosen: Fit = stacked if better else fit.probe
    all_ = made | ~made

    def entrant(fit: Fit, labels: int, tested: Right, fraction: float = FRACTION) -> Entrant:
        probe = _probe(tracer, material, fit, labels)
        cost = _costs(tracer, material, probe)
        own = probe.state
        assert own is not None
        rows = states[tested, own.depth, POOLINGS.index(own.pooling)].astype(np.float64)
        like = tuple(own.likeness_p(rows).tolist())
        known, names = scored(fit, tested)
        p = np.zeros((len(known), len(options)))  # 0 of what it never answers
        p[:, [options.index(name) for name in names]] = softmax(known / fit.temperature, axis=1)
        likely = tuple(zip(p, map(options.index, truths[tested].tolist()), strict=True))
        right = answers(fit, all_) == truths
        return Entrant(probe, tested, right, cost, fraction, like, likely)

    entrants = [entrant(chosen, len(fitted), ~made)]
    if own := taught or teach(states[made], base[made], options):
        tested, fraction = (all_, 0.0) if taught else (~made, FRACTION)
        entrants.append(entrant(own, 0, tested, fraction))
    names = {ALONE: fit.probe.name, STACKED: stacked.name, SELF_TAUGHT: entrants[-1].probe.name}
    crossed = {
        names.get(name, name): own == truths
        for name, own in _crossed(contestants, material.groups).items()
        if name != SELF_TAUGHT or len(entrants) > 1
    }
    fitted = _kept(labels, all_)
    every = fit_state(states[fitted], truths[fitted].tolist())
    d, p = np.unravel_index(every.right.argmax(), every.right.shape)
    there, curve = states[:, d : d + 1, p : p + 1], [(len(fitted), float(every.right[d, p]))]
    order = np.random.default_rng(SEED).permutation(fitted)
    for count in (len(fitted) // 2, len(fitted) // 4):
        some = _kept(labels, np.isin(np.arange(len(made)), order[:count]))
        if set(truths[some]) == set(truths[fitted]):
            right = fit_state(there[some], truths[some].tolist(), poolings=POOLINGS[:1]).right
            curve.insert(0, (len(some), float(right.max())))
    return Contest(tuple(entrants), crossed, every.right.max(axis=1), tuple(curve))


def _taught(tracer: "Tracer", material: Material) -> StateProbe | None:
    """Return what texts without labels teach; None where there are none, or too few."""
    texts, question, template = material.unlabelled, material.questions[0], material.template
    if not texts:
        return None
    states = read_states(tracer, texts, question, template, POOLINGS)
    items = [item_of(text, question, template) for text in texts]
    own = tracer.correct_many(items, read="base", blind="none")
    base = np.stack([decision.base_scores for decision in own])
    return teach(states, base, candidates_of(question))


def _by_trajectory(tracer: "Tracer", material: Material, made: Right) -> Contest | None:
    items, places = features_of_cell(material.cell), np.arange(len(made))
    truths = np.array(
        [
            candidates_of(question).index(truth)
            for question, truth in zip(material.questions, material.truths, strict=True)
        ]
    )
    names = [str(own) for own in material.groups]
    unread = [without_input(x) for x in items]

    def fitted(features: Sequence[Options], among: Right) -> TrajectoryProbe:
        mine = places[among]
        own = [names[i] for i in mine]
        return fit_trajectory([features[i] for i in mine], truths[mine].tolist(), own).probe

    def answers(features: Sequence[Options], probe: TrajectoryProbe, own: Right) -> np.ndarray:
        return np.array([int(probe.scores(features[i]).argmax()) for i in places[own]])

    def contestants(rest: Right, own: Right) -> dict[str, np.ndarray]:
        pairs = {TrajectoryProbe.name: items, UNREAD: unread}
        return {name: answers(x, fitted(x, rest), own) for name, x in pairs.items()}

    if any(len(set(material.groups[half])) < FOLDS for half in (made, ~made)):
        return None
    probe = _probe(tracer, material, fitted(items, made), int(made.sum()))
    crossed = _crossed(contestants, material.groups)
    assert isinstance(probe.fit, TrajectoryProbe)
    right = answers(items, probe.fit, made | ~made) == truths
    fit, cost = probe.fit, _costs(tracer, material, probe)
    likely = tuple(
        (softmax(fit.scores(items[i]) / fit.temperature), int(truths[i])) for i in places[~made]
    )
    entrant = Entrant(probe, ~made, right, cost, likely=likely)
    return Contest((entrant,), {name: own == truths for name, own in crossed.items()}, np.empty(0))


def _probe(tracer: "Tracer", material: Material, fit: Fit, labels: int) -> Probe:
    name = template_name(material.template.to_dict())
    probe = Probe(material.questions[0], name, tracer.subject, fit, labels, seed=SEED)
    if (state := probe.state) is None:
        return probe
    options = [option.text for option in probe.question.options]
    return replace(probe, left_out=tuple(o for o in options if o not in state.classes))


def _folds(groups: Groups) -> Groups:
    names = np.random.default_rng(SEED).permutation(np.unique(groups))
    fold = dict(zip(names.tolist(), (np.arange(len(names)) % FOLDS).tolist(), strict=True))
    return np.array([fold[group] for group in groups.tolist()])


def _kept(labels: Sequence[str], among: Right) -> list[int]:
    return kept(labels, np.flatnonzero(among).tolist())


def _enough(labels: Sequence[str], among: Right) -> bool:
    return len({labels[i] for i in _kept(labels, among)}) >= 2


def _crossed(
    contestants: Callable[[Right, Right], dict[str, np.ndarray]], groups: Groups
) -> dict[str, np.ndarray]:
    """Return what each contestant answers to each text by a fit on the other folds."""
    folds, answers = _folds(groups), dict[str, list[np.ndarray]]()
    order = np.concatenate([np.flatnonzero(folds == fold) for fold in np.unique(folds)])
    for fold in np.unique(folds):
        for name, own in contestants(folds != fold, folds == fold).items():
            answers.setdefault(name, []).append(own)
    back = np.argsort(order)
    return {name: np.concatenate(own)[back] for name, own in answers.items()}


def _costs(tracer: "Tracer", material: Material, probe: Probe) -> float:
    """Return the multiplications of an answer by the probe over those of one by the model.

    A block has about 12 d^2 weights, each used once a token; the head d V, each used once a row
    that predicts a token, and a depth. Prompts without the input are the same for all texts of one
    question, and cost nothing there.
    """
    from lastword.batch import prompts_of

    profile, template = tracer.profile, material.template
    block, head = 12 * profile.width**2, profile.width * profile.vocabulary
    texts, questions = material.texts[:_COUNTED], material.questions[:_COUNTED]
    pairs = zip(texts, questions, strict=True)
    encoded = tracer.encode([item_of(text, question, template) for text, question in pairs])
    model = whole = 0
    for own in encoded:
        if isinstance(own, ItemError):
            continue
        for place, branches in enumerate(prompts_of(own)):
            forest = build(branches)
            trunk, rows = len(forest) * block * profile.depth, len(forest.reads.rows) * head
            model += 0 if place else trunk + rows  # the first is the one with the input
            whole += trunk + rows * (1 if place > 1 else profile.depth + 1)
    if (state := probe.state) is None:
        return whole / model
    passages = passages_of(tracer, texts, questions[0], template, state.pooling)
    read = sum(len(own.tokens) for own in passages) * block * state.depth / model
    return read + isinstance(probe.fit, StackedProbe)
