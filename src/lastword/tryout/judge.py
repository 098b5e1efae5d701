"""Computes the figures of a verdict from records, a certificate and a contest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lastword.decide.item import candidates_of
from lastword.methods import resolve
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import Rows, mc1_rows, of_items
from lastword.trust.certification import Outcome, Sample
from lastword.trust.claims import needed
from lastword.trust.evidence import Evidence, as_good
from lastword.trust.paired import paired
from lastword.trust.policy import CERTIFIABLE, TRACE
from lastword.trust.terms import Terms
from lastword.trust.testing import clopper_pearson
from lastword.trust.words import in_words
from lastword.tryout.material import LARGEST, SIMPLE, Contest, Material, class_weights
from lastword.tryout.prompts import Race, Raced
from lastword.tryout.verdict import (
    ACCURACY,
    BALANCED,
    Class,
    DepthAccuracy,
    Examples,
    Guarantee,
    RowAnswer,
    Standing,
    Standings,
    Verdict,
)

MODEL = "the model"
_TAIL = (1 - 0.95) / 2  # probability below, and above, a 95% interval


def judge(
    sample: Sample,
    material: Material,
    outcome: Outcome | None,
    terms: Terms,
    contest: Contest | None,
    race: Race,
    notes: Sequence[str] = (),
) -> Verdict:
    """Return the figures of a verdict.

    Args:
        sample: The labelled items with the model's answers.
        material: The same items, as the contest takes them.
        outcome: The tests on them; None if there are too few labels.
        terms: The terms of the guarantee.
        contest: Probes and their controls; None if there are too few labels for a probe.
        race: Results of other prompts.
        notes: Guesses and warnings about the table.
    """
    # Figures of the contest are cross-fitted on all labels, which is the most accurate comparison
    # but proves nothing: the best of many is chosen on the same labels. Figures of the certificate
    # come only from the labels that tested the certified method.
    results = _Results(sample, material, contest)
    trial = None if outcome is None else outcome.finding.chosen
    best = results.best if trial is None else trial.policy.method
    stands = _stands(results, outcome, best)
    standings = Standings(
        lines=tuple(_lines(results)),
        best=best,
        correction=results.best_correction,
        probe=None if contest is None else contest.probe.name,
        cost=None if contest is None else contest.cost,
        simple=_simple(results, best),
        classes=tuple(_classes(results, best, stands)) if material.one_question else (),
        answers=_answers(results, best, stands),
        prompts=tuple(_raced(results, one, best) for one in race.prompts),
        prompts_left_out=race.left_out,
        objective=BALANCED if material.balanced else ACCURACY,
        constant=results.constant,
    )
    guarantee = Guarantee(terms.promise, terms.alpha, terms.delta, terms.least)
    if outcome is not None:
        guarantee = replace(guarantee, **_certified(results, outcome, best, stands))
    examples = Examples(material.cell.model, len(material.truths), tuple(notes))
    return Verdict(examples, standings, guarantee, _depths(results))


@dataclass(frozen=True, eq=False)
class _Results:
    """The answers of every contestant to the items of a trial.

    Each item has one right option and others, so that all of them count for MC1.
    """

    sample: Sample
    material: Material
    contest: Contest | None

    @cached_property
    def options(self) -> list[tuple[str, ...]]:
        """The options of each item."""
        return [candidates_of(question) for question in self.material.questions]

    @cached_property
    def weights(self) -> np.ndarray:
        """The weight of each item: 1, or that of its class if mean recall counts [items]."""
        labels = self.material.truths
        weights = class_weights(labels) if self.material.balanced else dict.fromkeys(labels, 1.0)
        return np.array([weights[label] for label in labels])

    @cached_property
    def scores(self) -> dict[str, Rows]:
        """Scores by correction [items, options]; nan if it does not apply."""
        cell, facts = self.material.cell, facts_of(self.sample.run)
        others = resolve([name for name in CERTIFIABLE if name != TRACE], facts)
        return {TRACE: cell.scores["scores"]} | derive(cell, others)

    @property
    def crossed(self) -> Mapping[str, np.ndarray]:
        """Cross-fitted answers by probe or baseline [items]."""
        return {} if self.contest is None else self.contest.crossed

    @cached_property
    def base(self) -> np.ndarray:
        """MC1 of the model [items]."""
        return self.mc1(self.material.cell.scores["base_scores"])

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """MC1 by contestant [items]; nan if it does not apply."""
        truths = np.array(self.material.truths)
        crossed = {name: (answers == truths) * 1.0 for name, answers in self.crossed.items()}
        return {name: self.mc1(scores) for name, scores in self.scores.items()} | crossed

    def mc1(self, scores: Rows) -> np.ndarray:
        """Return MC1 per item [items]; nan without scores."""
        return of_items(mc1_rows, scores, self.material.cell.truthful)

    @property
    def best_correction(self) -> str:
        """The best of the corrections that apply to every item."""
        return self.best_of([name for name in self.scores if not np.isnan(self.right[name]).any()])

    @property
    def best(self) -> str:
        """The best of the corrections and tested probes."""
        if self.contest is None:
            return self.best_correction
        probe = self.contest.probe.name
        # Corrections have no class weights.
        return probe if self.material.balanced else self.best_of([self.best_correction, probe])

    def best_of(self, names: Sequence[str]) -> str:
        """Return the contestant with the highest accuracy or mean recall."""
        return max(names, key=lambda name: float(np.nanmean(self.right[name] * self.weights)))

    @property
    def constant(self) -> str | None:
        """The answer of the baseline that gives all texts the same answer."""
        return str(self.crossed[LARGEST][0]) if LARGEST in self.crossed else None

    @cached_property
    def model_answers(self) -> list[str]:
        """The option that the model chooses, per item."""
        pairs = zip(self.options, self.material.cell.items["base_index"], strict=True)
        return [names[int(index)] for names, index in pairs]

    def answers(self, name: str) -> list[str]:
        """Return the option that a contestant chooses, per item; the model's if it has none."""
        if name in self.crossed:
            return [str(answer) for answer in self.crossed[name]]
        rows = zip(self.scores[name], self.options, self.model_answers, strict=True)
        return [model if np.isnan(u[0]) else names[int(u.argmax())] for u, names, model in rows]

    def standing(self, name: str, right: np.ndarray, *, compares: bool = True) -> Standing:
        """Return the standing of answers to all items [items], tested against the model's."""
        line = _standing(name, right)
        if self.material.balanced and not np.isnan(right).all():
            line = replace(line, worth=float(np.nanmean(right * self.weights)))
        if not compares:
            return line
        fixed, broken, p = paired(right - self.base, self.material.groups)
        return replace(line, fixed=fixed, broken=broken, p=p)


def _lines(results: _Results) -> Iterator[Standing]:
    chance = float(np.mean([1 / len(names) for names in results.options]))
    yield Standing("chance", chance, chance, chance)
    blind = results.mc1(results.material.cell.scores["blind_scores"])
    yield _standing("without the text", blind)
    yield results.standing(MODEL, results.base, compares=False)
    yield from (results.standing(name, right) for name, right in results.right.items())


def _standing(name: str, right: np.ndarray) -> Standing:
    values = right[~np.isnan(right)]
    if not len(values):
        return Standing(name, np.nan, np.nan, np.nan)
    bounds = clopper_pearson(float(values.sum()), len(values), _TAIL)
    return Standing(name, float(values.mean()), *bounds)


def _raced(results: _Results, prompt: Raced, best: str) -> Standing:
    """Return the standing of another prompt on the rows that it was tested on.

    The model is compared with its answers under the current prompt, a probe with the best
    contestant.
    """
    place = {str(id): n for n, id in enumerate(results.material.cell.items["id"])}
    at, right = np.array([place[id] for id in prompt.ids]), prompt.right
    rival = results.right[best] if prompt.probe else results.base
    fixed, broken, p = paired(right - rival[at], results.material.groups[at])
    line = _standing(prompt.name, right.astype(float))
    return replace(line, fixed=fixed, broken=broken, p=p, items=len(at))


def _simple(results: _Results, best: str) -> str | None:
    """Return the best baseline without a model if it is as good as the best contestant.

    As good means at most one standard error of the paired difference below it.
    """
    baselines = [name for name in SIMPLE if name in results.right]
    if not baselines:
        return None
    name = results.best_of(baselines)
    worths, best_worths = (results.right[one] * results.weights for one in (name, best))
    both = ~np.isnan(worths - best_worths)
    groups = results.material.groups[both]
    return name if as_good(worths[both], best_worths[both], groups) else None


def _stands(results: _Results, outcome: Outcome | None, method: str) -> np.ndarray:
    """Return True where a method's answer replaces the model's: as certified, else everywhere."""
    if method in results.crossed:
        return np.ones(len(results.weights), dtype=bool)
    if outcome is None or outcome.finding.chosen is None:
        return np.asarray(~np.isnan(results.scores[method]).any(axis=1))
    return outcome.sample.items.stands(outcome.finding.policy)


def _answers(results: _Results, method: str, stands: np.ndarray) -> tuple[RowAnswer, ...]:
    answers = results.material.truths, results.model_answers, results.answers(method)
    rows = zip(results.material.cell.items["id"], *answers, stands, strict=True)
    return tuple(
        RowAnswer(str(id), truth, model, shown if stand else model)
        for id, truth, model, shown, stand in rows
    )


def _classes(results: _Results, best: str, stands: np.ndarray) -> Iterator[Class]:
    corrected, truths = _corrected(results, best, stands), np.array(results.material.truths)
    for label in np.unique(truths).tolist():
        among = truths == label
        recall = float(results.base[among].mean()), float(np.nanmean(corrected[among]))
        yield Class(label, int(among.sum()), *recall)


def _corrected(results: _Results, best: str, stands: np.ndarray) -> np.ndarray:
    return np.where(stands, results.right[best], results.base)


def _certified(
    results: _Results, outcome: Outcome, best: str, stands: np.ndarray
) -> dict[str, Any]:
    """Return the fields of the guarantee that the tests give."""
    finding, terms = outcome.finding, outcome.finding.terms
    if (trial := finding.chosen) is None:
        trials = [trial for trial in finding.trials if trial.policy.method == best]
        return {"needed": needed(trials, terms, finding.items)}
    tested = trial.evidence
    right = tested.base_right + tested.fixed - tested.broken
    compared = {MODEL: tested, **outcome.baselines}
    return {
        "method": finding.policy.method,
        "policy": in_words(finding.policy),
        "line": results.standing("certified", _corrected(results, best, stands)),
        "tested": _counted("tested", right, tested),
        "net_at_least": finding.worth["net_at_least"],
        "over_baselines": outcome.over_baselines,
        "baselines": tuple(_counted(n, e.base_right, e) for n, e in compared.items()),
        "rivals": outcome.rivals,
    }


def _counted(name: str, right: int, evidence: Evidence) -> Standing:
    """Return the standing of answers on the labels that tested the certified method."""
    items, fixed, broken = evidence.items, evidence.fixed, evidence.broken
    bounds = clopper_pearson(float(right), items, _TAIL)
    return Standing(name, right / items, *bounds, fixed, broken, items=items)


def _depths(results: _Results) -> DepthAccuracy:
    """Return the accuracy by depth of head and probes; classes are weighted as in the fits."""
    cell, contest, weights = results.material.cell, results.contest, results.weights
    if contest is None or not len(contest.by_depth):
        return DepthAccuracy()
    right = np.zeros(len(contest.by_depth))
    for places, table in cell.pieces("trajectory"):
        first = cell.stack(places, table["trajectory"]).argmax(axis=1)
        truth = cell.truthful[places].argmax(axis=1)
        right += weights[places] @ (first == truth[:, None])
    head = (right / weights.sum()).tolist()
    return DepthAccuracy(tuple(zip(head, contest.by_depth.tolist(), strict=True)), contest.curve)
