"""Fits probes and a bag of words to labels, and holds the contest.

The certified probe is fitted to one half of the labels and tested on the other half. The first half
also chooses the kind of probe, by leave-one-out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.errors import InputError
from lastword.probes.controls import features_of_cell
from lastword.probes.linear import recurring
from lastword.probes.logit import Options
from lastword.probes.probe import Fit, Probe, encoder_name, trained_digest
from lastword.probes.state import (
    POOLINGS,
    LinearFit,
    LinearProbe,
    StateBlock,
    fit_beside,
    fit_stacked,
    fit_state,
)
from lastword.probes.threshold import (
    answers_by_itself,
    choose_threshold,
)
from lastword.probes.trajectory import TrajectoryProbe, fit_trajectory, unread
from lastword.probes.words import bag_of_words
from lastword.text.prompt_template import template_name
from lastword.trust.crossfit import cross_fit
from lastword.trust.groups import SEED
from lastword.tryout.contest import (
    LARGEST,
    PROBE,
    SIMPLE,
    STACKED,
    UNREAD,
    WORDS,
    Candidate,
    Contest,
    Places,
    Table,
    best_of,
    right_of,
)
from lastword.tryout.cost import Compute
from lastword.tryout.material import FOLDS, Material, Which, class_weights

if TYPE_CHECKING:
    from sklearn.model_selection import GridSearchCV


def hold(material: Material) -> Contest | None:
    """Run the contest: of state probes if all texts have one question, else trajectory probes.

    The result is None if there are too few labels for a probe.
    """
    if material.labels.question is None:
        return None if material.cell is None else _by_trajectory(material)
    return _Fitting.read(material).contest() if material.enough else None


@dataclass(frozen=True, eq=False)
class _Fitting:
    """Labelled texts of one question, with their states and scores.

    Attributes:
        options: The options of the question.
        states: Pooled states by source: `probe` for the model, or an encoder's name
            [texts, depths, poolings, width].
        base: The model's scores in nats [texts, options]; None unless it answered every text.
        blind: Its scores without the text in nats [texts, options].
    """

    material: Material
    options: tuple[str, ...]
    states: Mapping[str, np.ndarray]
    base: np.ndarray | None
    blind: np.ndarray | None

    @classmethod
    def read(cls, material: Material) -> "_Fitting":
        question, job, states = material.labels.question, material.job, dict[str, np.ndarray]()
        assert question is not None
        texts, template = material.texts, job.template
        if job.tracer is not None:
            states[PROBE] = read_states(job.tracer, texts, question, template, POOLINGS)
        for encoder in job.encoders:
            states[encoder_name(encoder.name)] = read_states(encoder, texts, question, template)
        base = blind = None
        if material.whole:
            base, blind = material.scores("base_scores"), material.scores("blind_scores")
        return cls(material, material.options[0], states, base, blind)

    def contest(self) -> Contest:
        material, half = self.material, self.material.fit_half
        chosen = self.fits(half)
        kind = self.choose(chosen)
        crossed = cross_fit(self.contestants, material.folds)
        crossed[LARGEST] = self.constant(material.every, material.every)
        crossed = {name: crossed[name] for name in (*SIMPLE, *chosen)}  # the cheapest first
        probe = self.probe(chosen[kind])
        assert probe.linear is not None
        return Contest(
            material=material,
            crossed=crossed,
            kind=kind,
            chosen=chosen[kind],
            probe=probe,
            shown=self.probabilities(chosen[kind], material.every),
            names={kind: one.fit.name for kind, one in self.fitted_to_all.items()},
            refit=cache(lambda kind: self.probe(self.fitted_to_all[kind])),
            costs=self.costs(chosen),
            likeness=tuple(probe.linear.likeness_p(self.rows(probe.linear, ~half)).tolist()),
            by_depth=self.by_depth,
        )

    def costs(self, candidates: Mapping[str, Candidate]) -> dict[str, float | None]:
        """Return the compute of an answer by kind, relative to the model's; None without one."""
        compute = Compute(self.material)
        return {
            kind: compute.relative(one.fit, one.asks)
            for kind, one in candidates.items()
            if isinstance(one.fit, LinearProbe)
        }

    @cached_property
    def weights(self) -> dict[str, float] | None:
        """The weight of each class in fits; None for accuracy, where all are 1."""
        if not self.material.job.balanced:
            return None
        # The weights must not depend on the labels that test the probe.
        return class_weights(self.material.truths[self.material.fit_half].tolist(), self.options)

    def fits(self, among: Which) -> dict[str, Candidate]:
        """Fit probes, the cheapest first: to states, to pairs, and over the model's scores."""
        labels, weights = self.material.truths[among].tolist(), self.weights
        fits = {
            name: fit_state(
                states[among],
                labels,
                poolings=POOLINGS[: states.shape[2]],
                encoder="" if name == PROBE else name,
                weights=weights,
            )
            # Encoders first: they cost less than the model.
            for name, states in sorted(self.states.items(), key=lambda one: one[0] == PROBE)
        }
        for name in [name for name in fits if PROBE in fits and name != PROBE]:
            # Only the two layers that were chosen alone are combined: all pairs would be too many.
            model, other = fits[PROBE], fits[name]
            rows = self.rows(model.probe, among), self.rows(other.probe, among)
            fits[f"{PROBE}+{name}"] = fit_beside(model, other, rows, labels, weights=weights)
        candidates = {name: self.candidate(fit, among) for name, fit in fits.items()}
        if self.base is not None:
            first = self.choose(candidates)
            candidates[STACKED] = self.stacked(fits[first], among)
        return candidates

    def choose(self, candidates: Mapping[str, Candidate]) -> str:
        """Return the kind to use, by leave-one-out answers."""
        places = next(iter(candidates.values())).judged
        weights = self.weights
        each = [1.0 if weights is None else weights[t] for t in self.material.truths[places]]
        worths = {
            name: right_of(self.material, one.scores, places) * np.array(each)
            for name, one in candidates.items()
        }
        groups = self.material.groups[places]
        return best_of(worths, groups, cheap=self.material.job.prefer == "cheap")

    def judged(self, among: Which) -> tuple[Which, Places]:
        """Return the fitted texts that leave-one-out can judge, as a mask and as places."""
        # Leave-one-out scores of the only text of a class say nothing about its later texts.
        judged = recurring(self.material.truths[among].tolist())
        return judged, np.flatnonzero(among)[judged]

    def stacked(self, fit: LinearFit, among: Which) -> Candidate:
        """Return a probe over a probe's scores and the model's as a candidate."""
        assert self.base is not None and self.blind is not None
        judged, places = self.judged(among)
        labels = self.material.truths[places].tolist()
        names = [*map(str, self.material.groups[places])]
        scores = self.base[places], self.blind[places]
        single = replace(fit, scores=fit.scores[judged])
        over = fit_stacked(single, labels, self.options, *scores, names, self.weights)
        return self._candidate(over.probe, among, places, over.scores)

    def candidate(self, fit: LinearFit, among: Which) -> Candidate:
        judged, places = self.judged(among)
        leads = fit.probe.table(fit.scores[judged], self.options)
        return replace(self._candidate(fit.probe, among, places, leads), right=fit.right)

    def _candidate(self, fit: LinearProbe, among: Which, places: Places, leads: Table) -> Candidate:
        """Return a candidate; with the model's answers, one that may leave texts to it.

        `leads` are its leave-one-out scores on the ridge's scale [places, options].
        """
        table = fit.probabilities(leads, self.options)
        if self.base is None or self.material.job.terms.error is not None:
            return Candidate(fit, among, places, table, asks=float(fit.stack is not None))
        weights = self.weights
        worth = None if weights is None else np.array([weights[name] for name in self.options])
        truths = np.array([*map(self.options.index, self.material.truths[places])])
        base = self.base[places].argmax(axis=1)
        threshold = choose_threshold(leads, base, truths, worth)
        # If the first option leads the second by the threshold, it leads the model's answer too.
        first_leads = np.diff(np.sort(leads, axis=1)[:, -2:], axis=1) > threshold
        asks = 1.0 if fit.stack is not None else 1 - float(first_leads.mean())
        mixed = self._mixed(table, leads, places, threshold)
        return Candidate(fit, among, places, mixed, threshold, asks=asks)

    def _mixed(self, table: Table, leads: Table, places: Places, threshold: float | None) -> Table:
        """Return the probabilities of a probe, or the model's where its lead is too small."""
        if threshold is None or self.base is None:
            return table
        base = self.base[places]
        first = base.argmax(axis=1)
        own = answers_by_itself(leads, first, threshold) | (leads.argmax(axis=1) == first)
        return np.where(own[:, None], table, softmax(base, axis=1))

    def probabilities(self, one: Candidate, some: Which) -> Table:
        """Return a candidate's probabilities for some texts [some, options]."""
        assert isinstance(one.fit, LinearProbe)
        scores = None if self.base is None else self.base[some]
        blind = None if self.blind is None else self.blind[some]
        of_map = one.fit.scores(self.rows(one.fit, some))
        leads = one.fit.table(of_map, self.options, scores, blind)
        table = one.fit.probabilities(leads, self.options)
        return self._mixed(table, leads, np.flatnonzero(some), one.threshold)

    def rows(self, fit: LinearProbe, some: Which) -> np.ndarray:
        """Return a probe's features of some texts [some, width]."""

        def rows_of(block: StateBlock) -> np.ndarray:
            place = 0 if block.encoder else POOLINGS.index(block.pooling)
            return np.asarray(self.states[block.encoder or PROBE][some, block.layer, place])

        return np.concatenate([*map(rows_of, fit.blocks)], axis=1).astype(np.float64)

    def contestants(self, rest: Which, some: Which) -> dict[str, Table]:
        """Return each contestant's probabilities for some texts, fitted and chosen on the rest."""
        every = {name: self.probabilities(one, some) for name, one in self.fits(rest).items()}
        # One search for the penalty: the other fits differ in a tenth of the labels.
        words = self.bag(rest, [*self.words.best_params_.values()])
        return every | {LARGEST: self.constant(rest, some), WORDS: self.by_words(words, some)}

    @cached_property
    def words(self) -> "GridSearchCV":
        return self.bag(self.material.fit_half)

    def bag(self, among: Which, strengths: Sequence[float] = ()) -> "GridSearchCV":
        texts = [self.material.texts[i] for i in np.flatnonzero(among)]
        return bag_of_words(texts, self.material.truths[among].tolist(), self.weights, strengths)

    def by_words(self, words: "GridSearchCV", some: Which) -> Table:
        """Return the probabilities of a bag of words for some texts [some, options]."""
        table = np.zeros((int(some.sum()), len(self.options)))
        asked = [self.material.texts[i] for i in np.flatnonzero(some)]
        table[:, [self.options.index(str(n)) for n in words.classes_]] = words.predict_proba(asked)
        return table

    def constant(self, rest: Which, some: Which) -> Table:
        """Return the shares of the classes among some labels, as probabilities for other texts."""
        counts = Counter(self.material.truths[rest].tolist())
        shares = [counts[name] / counts.total() for name in self.options]
        return np.tile(shares, (int(some.sum()), 1))

    @cached_property
    def fitted_to_all(self) -> dict[str, Candidate]:
        return self.fits(self.material.every)

    def probe(self, one: Candidate) -> Probe:
        texts = [self.material.texts[i] for i in np.flatnonzero(one.among).tolist()]
        probe = _probe(self.material, one.fit, texts)
        probe = replace(probe, threshold=one.threshold)
        if not probe.needs_model and probe.encoder is not None:
            return replace(probe, subject=probe.encoder)
        return probe

    @property
    def by_depth(self) -> np.ndarray:
        """The leave-one-out accuracy of a probe per layer of the model [depths]; may be empty."""
        right = self.fitted_to_all[PROBE].right if PROBE in self.states else None
        return np.empty(0) if right is None else right.max(axis=1)


def _by_trajectory(material: Material) -> Contest | None:
    half, every = material.fit_half, material.every
    if any(len(set(material.groups[part])) < FOLDS for part in (half, ~half)):
        return None
    assert material.cell is not None
    items, places = features_of_cell(material.cell, material.cell.mc1_places), np.arange(len(half))
    pairs = zip(material.options, material.truths, strict=True)
    truths = [options.index(truth) for options, truth in pairs]
    widest = max(map(len, material.options))

    def fitted(features: Sequence[Options], among: Which) -> TrajectoryProbe:
        some = places[among]
        names = [str(group) for group in material.groups[among]]
        return fit_trajectory([features[i] for i in some], [truths[i] for i in some], names)

    def probabilities(features: Sequence[Options], probe: TrajectoryProbe, some: Which) -> Table:
        table = np.zeros((int(some.sum()), widest))
        for row, i in zip(table, places[some], strict=True):
            p = softmax(probe.scores(features[i]) / probe.temperature)
            row[: len(p)] = p
        return table

    def contestants(rest: Which, some: Which) -> dict[str, Table]:
        # The control is the same fit on the features that never read the input.
        pairs = {TrajectoryProbe.name: items, UNREAD: [x[:, : unread(x.shape[1])] for x in items]}
        return {name: probabilities(x, fitted(x, rest), some) for name, x in pairs.items()}

    @cache
    def refit(kind: str) -> Probe:
        return _probe(material, fitted(items, every), material.texts)

    fit = fitted(items, half)
    texts = [material.texts[i] for i in np.flatnonzero(half).tolist()]
    return Contest(
        material=material,
        crossed=cross_fit(contestants, material.folds),
        kind=TrajectoryProbe.name,
        chosen=Candidate(fit, half),
        probe=_probe(material, fit, texts),
        shown=probabilities(items, fit, every),
        names={},
        refit=refit,
    )


def _probe(material: Material, fit: Fit, texts: Sequence[str]) -> Probe:
    """Return a fit to these texts as a probe, with their digests."""
    name = template_name(material.job.template.to_dict())
    reads = "" if isinstance(fit, TrajectoryProbe) else fit.encoder
    job = material.job
    encoder = next((subject_of(r) for r in job.encoders if encoder_name(r.name) == reads), None)
    subject = encoder if job.tracer is None else subject_of(job.tracer)
    if subject is None:
        raise InputError("a probe without an encoder needs a language model")
    left_out: tuple[str, ...] = ()
    question = material.labels.rows[0].question
    if not isinstance(fit, TrajectoryProbe):
        left_out = tuple(o.text for o in question.options if o.text not in fit.classes)
    return Probe(
        question,
        name,
        subject,
        fit,
        len(texts),
        left_out,
        SEED,
        encoder=encoder,
        trained=frozenset(map(trained_digest, texts)),
    )
