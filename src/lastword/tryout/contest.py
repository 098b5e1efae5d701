"""Contest of the methods that are fitted to labels: probes, a bag of words, embeddings alone.

The accuracies that are compared are cross-fitted: each text is answered by a fit to other groups.
The certified probe is fitted to one half of the labels and tested on the other half. The first half
also chooses the kind of probe; a more expensive kind has to gain more there than chance would.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from lastword.decide.item import candidates_of, item_of
from lastword.decide.states import read_passages, read_states
from lastword.decide.subject import subject_of
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError
from lastword.model.backend import Profile
from lastword.model.encoder import EncoderProfile
from lastword.probes.controls import features_of_cell
from lastword.probes.linear import recurring
from lastword.probes.logit import Options
from lastword.probes.probe import Fit, Probe, encoder_name, trained_digest
from lastword.probes.state import (
    POOLINGS,
    Block,
    LinearFit,
    LinearProbe,
    can_fit,
    fit_beside,
    fit_stacked,
    fit_state,
)
from lastword.probes.threshold import (
    answers_by_itself,
    choose_threshold,
    effects,
    needs_no_model,
    of_options,
)
from lastword.probes.trajectory import TrajectoryProbe, fit_trajectory, unread
from lastword.probes.words import bag_of_words
from lastword.text.forest import build
from lastword.text.prompt_template import template_name
from lastword.text.tokens import Passage
from lastword.trust.crossfit import cross_fit
from lastword.trust.evidence import as_good
from lastword.trust.groups import SEED
from lastword.tryout.material import (
    DEPTH_0,
    FOLDS,
    LARGEST,
    UNREAD,
    WORDS,
    Contest,
    Material,
    Right,
    class_weights,
)

if TYPE_CHECKING:
    from sklearn.model_selection import GridSearchCV

ALONE, STACKED = "probe", "probe+model"
_SOURCE = "of "  # prefix of a source of states, replaced by the name of its probe
_COUNTED = 16  # number of texts from which the cost is estimated


def hold(tracer: Tracer, material: Material) -> Contest | None:
    """Run the contest: of state probes if all texts have one question, else trajectory probes.

    The result is None if there are too few labels for a probe.
    """
    return (_by_state if material.one_question else _by_trajectory)(tracer, material)


def policy_of(tracer: Tracer, material: Material) -> Probe | None:
    """Fit the probe to all labels, of the kind that one half chooses; None for too few labels."""
    if not material.enough:
        return None
    labelled = _Labelled.read(tracer, material)
    return labelled.refit(stacked=labelled.fits(material.fit_half).stack_wins)


def _by_state(tracer: Tracer, material: Material) -> Contest | None:
    if not material.enough:
        return None
    labelled, half = _Labelled.read(tracer, material), material.fit_half
    fits = labelled.fits(half)
    names = {_SOURCE + name: fit.probe.name for name, fit in fits.by_source.items()}
    names |= {ALONE: fits.single.fit.name, STACKED: fits.stacked.fit.name}
    crossed = {
        names.get(name, name): answers
        for name, answers in cross_fit(labelled.contestants, material.folds).items()
    }
    by_depth, curve = labelled.curve()
    chosen = fits.chosen
    probe = labelled.probe(chosen)
    return Contest(
        probe=probe,
        tested=~half,
        right=labelled.answers(chosen.fit, material.every, chosen.threshold) == labelled.truths,
        crossed=crossed | labelled.constant(material.every),
        refit=cache(lambda: labelled.refit(stacked=fits.stack_wins)),
        cost=labelled.cost(chosen, ~half),
        likeness=tuple(chosen.fit.likeness_p(labelled.rows(chosen.fit, ~half)).tolist()),
        by_depth=by_depth,
        curve=curve,
        baselines=labelled.constant(half)
        | {WORDS: labelled.words(np.flatnonzero(half).tolist()).predict([*material.texts])},
    )


@dataclass(frozen=True)
class _Candidate:
    """A fit, the threshold chosen on its leave-one-out scores, and its effects on the same."""

    fit: LinearProbe
    texts: tuple[str, ...]
    threshold: float
    effects: dict[str, float]


@dataclass(frozen=True, eq=False)
class _Fits:
    """The probes fitted to some labels.

    Attributes:
        by_source: The best state probe of each source of states, the cheapest source first.
        single: The cheapest of these that is as good as the best, by leave-one-out.
        stacked: A stacked probe that combines it with the model's scores.
        stack_wins: True if the stacked probe gains more than one standard error over the other.
    """

    by_source: Mapping[str, LinearFit]
    single: _Candidate
    stacked: _Candidate
    stack_wins: bool

    @property
    def chosen(self) -> _Candidate:
        """The better kind of probe."""
        return self.stacked if self.stack_wins else self.single


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Labelled texts of one question, with their states and scores.

    Attributes:
        truths: The right option of each text [texts].
        states: The model's pooled states [texts, depths, poolings, width].
        encoded: Each encoder's states by its name [texts, depths, 1, width].
        base: The model's scores in nats [texts, options].
        blind: The model's scores without the text in nats [texts, options].
    """

    tracer: Tracer
    material: Material
    options: tuple[str, ...]
    truths: np.ndarray
    states: np.ndarray
    encoded: Mapping[str, np.ndarray]
    base: np.ndarray
    blind: np.ndarray

    @classmethod
    def read(cls, tracer: Tracer, material: Material) -> "_Labelled":
        """Compute the states of all texts."""
        question, scores = material.questions[0], material.cell.scores
        states = read_states(tracer, material.texts, question, material.template, POOLINGS)
        base, blind = scores["base_scores"], scores["blind_scores"]
        options, truths = candidates_of(question), np.array(material.truths)
        encoded = {
            reader.name: read_states(reader, material.texts, question, material.template)
            for reader in material.readers
        }
        return cls(tracer, material, options, truths, states, encoded, base, blind)

    def by_source(self, fitted: Sequence[int]) -> dict[str, LinearFit]:
        """Fit a probe to the model's states, to each encoder's, and to both together.

        Returns:
            The fits by name, the cheapest source first.
        """
        # `fitted` are indices, and `some` the same texts as a mask, which `rows` takes.
        labels, some = self.truths[fitted].tolist(), np.isin(np.arange(len(self.truths)), fitted)
        weights = self.weights
        model = fit_state(self.states[fitted], labels, weights=weights)
        alone: dict[str, LinearFit] = {}
        both: dict[str, LinearFit] = {}
        for name, states in self.encoded.items():
            fit = fit_state(states[fitted], labels, encoder=encoder_name(name), weights=weights)
            alone[name] = fit
            # Only the two depths that were chosen alone are combined: all pairs would be too many.
            rows = self.rows(model.probe, some), self.rows(fit.probe, some)
            both[f"{ALONE}+{name}"] = fit_beside(model, fit, rows, labels, weights=weights)
        singles = {ALONE: model} | alone
        work = {name: self.work(fit.probe) for name, fit in singles.items()}
        work |= {f"{ALONE}+{name}": work[ALONE] + work[name] for name in alone}
        fits = singles | both
        return {name: fits[name] for name in sorted(fits, key=work.__getitem__)}

    def work(self, probe: LinearProbe) -> int:
        """Return the number of weights that one token of a probe's input passes through."""
        profiles = {encoder_name(r.name): r.profile for r in self.material.readers}
        if probe.encoder:
            return _weights(profiles[probe.encoder], profiles[probe.encoder].depth)
        return _weights(self.tracer.profile, probe.blocks[0].layer)

    @property
    def weights(self) -> dict[str, float] | None:
        """The weight of each class in fits; None for accuracy, where all are 1."""
        if not self.material.balanced:
            return None
        # The weights must not depend on the labels that test the probe.
        return class_weights(self.truths[self.material.fit_half], self.options)

    def fits(self, among: Right) -> _Fits:
        """Fit a probe to each source of states, and a stacked one over the best of them."""
        fitted, weights = np.flatnonzero(among).tolist(), self.weights
        labels, by_source = self.truths[fitted].tolist(), self.by_source(fitted)
        worth = np.diag([1.0 if weights is None else weights[name] for name in self.options])
        # Leave-one-out scores of the only text of a class say nothing about its later texts.
        places = np.array([*map(self.options.index, labels)])
        judged = np.flatnonzero(recurring(places)).tolist()
        truths, labels = places[judged], [labels[n] for n in judged]
        scores = self.base[fitted][judged], self.blind[fitted][judged]
        groups = self.material.groups[fitted][judged]

        def worths(one: LinearFit) -> np.ndarray:
            of_probe = np.array([*map(self.options.index, one.probe.classes)])
            return np.asarray(worth[truths, of_probe[one.scores[judged].argmax(axis=1)]])

        each = {name: worths(one) for name, one in by_source.items()}
        best = max(each.values(), key=np.mean)
        # More work has to win by more than a standard error.
        source = next(name for name, values in each.items() if as_good(values, best, groups))
        fit = replace(by_source[source], scores=by_source[source].scores[judged])
        names = [*map(str, groups)]
        over = fit_stacked(fit, labels, self.options, *scores, names, weights)
        base = scores[0].argmax(axis=1)

        def candidate(one: LinearProbe, table: np.ndarray) -> _Candidate:
            threshold = choose_threshold(table, base, truths, worth)
            counts = effects(table, base, truths, threshold)
            texts = tuple(self.material.texts[i] for i in fitted)
            return _Candidate(one, texts, threshold, {n: float(c) for n, c in counts.items()})

        single = candidate(fit.probe, of_options(fit.scores, fit.probe.classes, self.options))
        stacked = candidate(over.probe, over.scores)
        gains = worth[truths, over.scores.argmax(axis=1)] - each[source]
        # The stacked probe always runs the model, so it has to win by more than a standard error.
        wins = bool(gains.sum() > np.sqrt(np.square(gains).sum()))
        return _Fits(by_source, single, stacked, wins)

    @cached_property
    def fitted_to_all(self) -> _Fits:
        """The probes fitted to all labels."""
        return self.fits(self.material.every)

    def table(self, fit: LinearProbe, some: Right) -> np.ndarray:
        """Return the scores of all options on the ridge's scale, for some texts [some, options]."""
        scores = fit.scores(self.rows(fit, some))
        return fit.table(scores, self.options, self.base[some], self.blind[some])

    def rows(self, fit: LinearProbe, some: Right) -> np.ndarray:
        """Return a probe's features of some texts [some, width]."""
        encoded = {encoder_name(name): states for name, states in self.encoded.items()}

        def rows_of(block: Block) -> np.ndarray:
            if block.encoder:
                return np.asarray(encoded[block.encoder][some, block.layer, 0])
            place = POOLINGS.index(block.pooling)
            return np.asarray(self.states[some, block.layer, place])

        return np.concatenate([*map(rows_of, fit.blocks)], axis=1).astype(np.float64)

    def answers(self, fit: LinearProbe, some: Right, threshold: float | None = None) -> np.ndarray:
        """Return a probe's answers; with a threshold, the model's where the lead is too small."""
        table, options = self.table(fit, some), np.array(self.options)
        answers = options[fit.probabilities(table, self.options).argmax(axis=1)]
        if threshold is None:
            return np.asarray(answers)
        base = self.base[some].argmax(axis=1)
        stands = answers_by_itself(table, base, threshold)
        return np.asarray(np.where(stands, answers, options[base]))

    def contestants(self, rest: Right, some: Right) -> dict[str, np.ndarray]:
        """Return each contestant's answers to some texts, fitted and chosen on the rest."""
        texts, fitted, fits = self.material.texts, np.flatnonzero(rest).tolist(), self.fits(rest)
        depth_0 = self.one_depth(self.states[fitted, :1, :1], self.truths[fitted].tolist()).probe
        sources = fits.by_source.items()
        return {_SOURCE + name: self.answers(one.probe, some) for name, one in sources} | {
            ALONE: self.answers(fits.single.fit, some, fits.single.threshold),
            STACKED: self.answers(fits.stacked.fit, some, fits.stacked.threshold),
            WORDS: self.words(fitted).predict([texts[i] for i in np.flatnonzero(some).tolist()]),
            DEPTH_0: self.answers(depth_0, some),
        }

    def words(self, fitted: Sequence[int]) -> "GridSearchCV":
        """Fit a bag of words to some texts."""
        texts = self.material.texts
        return bag_of_words([texts[i] for i in fitted], self.truths[fitted].tolist(), self.weights)

    def one_depth(self, states: np.ndarray, labels: Sequence[str]) -> LinearFit:
        """Fit a probe to states of one depth and pooling."""
        return fit_state(states, labels, poolings=POOLINGS[:1], weights=self.weights)

    def constant(self, among: Right) -> dict[str, np.ndarray]:
        """Return the most frequent of some labels, as the answer to all texts, by its name."""
        (largest, _), *_ = Counter(self.truths[among].tolist()).most_common(1)
        return {LARGEST: np.full(len(self.truths), largest)}

    def refit(self, *, stacked: bool) -> Probe:
        """Fit a probe to all labels, stacked or not."""
        fits = self.fitted_to_all
        chosen = fits.stacked if stacked else fits.single
        return replace(self.probe(chosen), figures=chosen.effects)

    def probe(self, candidate: _Candidate) -> Probe:
        """Return the probe of a candidate."""
        probe = _probe(self.tracer, self.material, candidate.fit, candidate.texts)
        return replace(probe, threshold=candidate.threshold)

    def cost(self, candidate: _Candidate, tested: Right) -> float:
        """Return the compute of a probe's answer, relative to the model's: weights times tokens.

        A block has about 12 d^2 weights, each used once per token. The head has d V weights, each
        used once per predicted token.
        """
        tracer, material, fit = self.tracer, self.material, candidate.fit
        profile, question, template = tracer.profile, material.questions[0], material.template
        texts, model, read = material.texts[:_COUNTED], 0, 0
        for item in tracer.encode([item_of(text, question, template) for text in texts]):
            if not isinstance(item, ItemError):
                forest = build(item.prompt.branches)
                model += len(forest) * _weights(profile, profile.depth)
                model += len(forest.reads.rows) * profile.width * profile.vocabulary
        if not (block := fit.blocks[0]).encoder:
            inputs: list[tuple[str, str | None]] = [(text, None) for text in texts]
            passages = read_passages(tracer, inputs, question, template, block.pooling)
            tokens = sum(len(p.tokens) for p in passages if isinstance(p, Passage))
            read += tokens * _weights(profile, block.layer)
        for reader in material.readers:
            if encoder_name(reader.name) == fit.encoder:
                tokens = sum(len(text.tokens) for text in reader.encode(texts))
                read += tokens * _weights(reader.profile, reader.profile.depth)
        # A stacked probe always runs the model, another one where its lead is too small.
        if fit.stack is not None:
            return read / model + 1
        alone = needs_no_model(self.table(fit, tested), candidate.threshold)
        return read / model + 1 - float(alone.mean())

    def curve(self) -> tuple[np.ndarray, tuple[tuple[int, float], ...]]:
        """Return the leave-one-out accuracy by depth [depths], and pairs (labels, accuracy)."""
        # The model's states alone, at the depth and pooling that are best with all labels.
        every, count = self.fitted_to_all.by_source[ALONE], len(self.truths)
        d, p = np.unravel_index(every.right.argmax(), every.right.shape)
        states, curve = self.states[:, d : d + 1, p : p + 1], [(count, every.right[d, p])]
        order = np.random.default_rng(SEED).permutation(count)
        frequent = {name for name, size in Counter(self.truths.tolist()).items() if size >= 4}
        for part in (count // 2, count // 4):
            some = np.sort(order[:part])
            # A subset without a frequent class is an easier task, and one whose classes seldom
            # recur is judged by few texts: they are left out.
            labels = self.truths[some].tolist()
            judged = recurring(labels).sum()
            if frequent <= {*labels} and can_fit(labels) and 2 * judged >= part:
                right = self.one_depth(states[some], labels).right
                curve.insert(0, (len(some), right.max()))
        return every.right.max(axis=1), tuple((size, float(right)) for size, right in curve)


def _by_trajectory(tracer: Tracer, material: Material) -> Contest | None:
    half, every = material.fit_half, material.every
    if any(len(set(material.groups[part])) < FOLDS for part in (half, ~half)):
        return None
    items, places = features_of_cell(material.cell), np.arange(len(half))
    options = [candidates_of(question) for question in material.questions]
    truths = np.array([o.index(truth) for o, truth in zip(options, material.truths, strict=True)])
    groups = [str(group) for group in material.groups]

    def fitted(features: Sequence[Options], among: Right) -> TrajectoryProbe:
        some = places[among]
        of_groups = [groups[i] for i in some]
        return fit_trajectory([features[i] for i in some], truths[some].tolist(), of_groups)

    def answers(features: Sequence[Options], probe: TrajectoryProbe, some: Right) -> np.ndarray:
        return np.array([int(probe.scores(features[i]).argmax()) for i in places[some]])

    def contestants(rest: Right, some: Right) -> dict[str, np.ndarray]:
        # The control is the same fit on the features that never read the input.
        pairs = {TrajectoryProbe.name: items, UNREAD: [x[:, : unread(x.shape[1])] for x in items]}
        return {name: answers(x, fitted(x, rest), some) for name, x in pairs.items()}

    fit = fitted(items, half)
    crossed = {
        name: np.array([texts[index] for texts, index in zip(options, indices, strict=True)])
        for name, indices in cross_fit(contestants, material.folds).items()
    }
    right = answers(items, fit, every) == truths

    @cache
    def refit() -> Probe:
        return _probe(tracer, material, fitted(items, every), material.texts)

    texts = [material.texts[i] for i in np.flatnonzero(half).tolist()]
    probe = _probe(tracer, material, fit, texts)
    return Contest(probe, ~half, right, crossed, refit)


def _probe(tracer: Tracer, material: Material, fit: Fit, texts: Sequence[str]) -> Probe:
    """Return a fit to these texts as a probe, with their digests."""
    name = template_name(material.template.to_dict())
    question, subject = material.questions[0], subject_of(tracer)
    labels, trained = len(texts), frozenset(map(trained_digest, texts))
    if isinstance(fit, TrajectoryProbe):
        return Probe(question, name, subject, fit, labels, seed=SEED, trained=trained)
    readers = [r for r in material.readers if encoder_name(r.name) == fit.encoder]
    encoder = subject_of(readers[0]) if readers else None
    left_out = tuple(o.text for o in question.options if o.text not in fit.classes)
    return Probe(
        question, name, subject, fit, labels, left_out, SEED, encoder=encoder, trained=trained
    )


def _weights(profile: EncoderProfile | Profile, depth: int) -> int:
    """Return the number of weights of the first blocks, about 12 d^2 per block."""
    return 12 * profile.width**2 * depth
