"""Computes the figures of a verdict from records, a certificate and a contest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lastword.methods import resolve
from lastword.probes.controls import fit_cell
from lastword.records.cells import Cell
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import mc1_rows, of_items
from lastword.records.ragged import Lists
from lastword.trust.certification import Outcome, Sample
from lastword.trust.claims import needed
from lastword.trust.evidence import Evidence, as_good
from lastword.trust.paired import paired
from lastword.trust.policy import CERTIFIABLE, TRACE
from lastword.trust.record_groups import Groups, groups
from lastword.trust.terms import Terms
from lastword.trust.testing import clopper_pearson
from lastword.trust.words import in_words
from lastword.tryout.contest import LARGEST, SIMPLE, Contest, class_weights
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
    outcome: Outcome | None,
    terms: Terms,
    contest: Contest | None,
    race: Race,
    *,
    notes: Sequence[str] = (),
    balanced: bool = False,
) -> Verdict:
    """Return the figures of a verdict.

    Args:
        sample: The labelled items with the model's answers.
        outcome: The tests on them; None if there are too few labels.
        terms: The terms of the guarantee.
        contest: Probes and their controls; None if there are too few labels for a probe.
        race: Results of other prompts.
        notes: Guesses and warnings about the table.
        balanced: True to rank the contestants by mean recall, False by accuracy.
    """
    # Figures of the contest are cross-fitted on all labels, which is the most accurate comparison
    # but proves nothing: the best of many is chosen on the same labels. Figures of the certificate
    # come only from the labels that tested the certified method.
    (cell,) = sample.cells
    results = _Results(cell, sample.run, contest, balanced)
    trial = None if outcome is None else outcome.finding.chosen
    best = results.best if trial is None else trial.policy.method
    stands = _stands(results, outcome, best)
    corrected = np.where(stands, results.right[best], results.base)
    fixed_options = len({tuple(sorted(names)) for names in results.options}) == 1
    entrant = None if contest is None else contest.entrant
    standings = Standings(
        lines=_lines(results),
        best=best,
        correction=results.best_correction,
        probe=None if entrant is None else entrant.probe.name,
        cost=None if entrant is None else entrant.cost,
        simple=_simple(results, best),
        classes=_classes(results, corrected) if fixed_options else (),
        answers=_answers(results, best, stands),
        prompts=tuple(_raced(results, one, best) for one in race.prompts),
        prompts_left_out=race.left_out,
        objective=BALANCED if balanced else ACCURACY,
        constant=results.constant,
    )
    guarantee = Guarantee(terms.promise, terms.alpha, terms.delta, terms.least)
    if outcome is not None:
        guarantee = replace(guarantee, **_certified(results, outcome, best, corrected))
    return Verdict(
        Examples(cell.model, len(cell.items), tuple(notes)),
        standings,
        guarantee,
        _depths(results),
    )


@dataclass(frozen=True, eq=False)
class _Results:
    """The answers of every contestant to the items of a cell.

    Each item of a trial has one right option and others, so that all of them count for MC1.
    """

    cell: Cell
    run: Mapping[str, Any]
    contest: Contest | None
    balanced: bool = False

    @cached_property
    def truths(self) -> list[np.ndarray]:
        """True for the right options, per item [options]."""
        return [np.asarray(t, dtype=bool) for t in self.cell.items["truthful"]]

    @cached_property
    def options(self) -> list[tuple[str, ...]]:
        """The options of each item."""
        options: list[tuple[str, ...]] = [()] * len(self.cell.items)
        for places, frame in self.cell.slices("candidates"):
            for place, names in zip(places, frame["candidates"], strict=True):
                options[int(place)] = tuple(names)
        return options

    @cached_property
    def labels(self) -> np.ndarray:
        """The right option of each item."""
        pairs = zip(self.options, self.truths, strict=True)
        return np.array([names[int(t.argmax())] for names, t in pairs])

    @cached_property
    def weights(self) -> np.ndarray:
        """The weight of each item: 1, or that of its class if mean recall counts [items]."""
        if not self.balanced:
            return np.ones(len(self.labels))
        weights = class_weights(self.labels)
        return np.array([weights[label] for label in self.labels.tolist()])

    @cached_property
    def groups(self) -> Groups:
        """The group of each item [items]."""
        return groups([self.cell])

    @cached_property
    def base(self) -> np.ndarray:
        """MC1 of the model [items]."""
        return self.mc1(list(self.cell.items["base_scores"]))

    @cached_property
    def scores(self) -> dict[str, list[np.ndarray | None]]:
        """Scores by correction, per item [options]; None if it does not apply."""
        others = resolve([name for name in CERTIFIABLE if name != TRACE], facts_of(self.run))
        return {TRACE: list(self.cell.items["scores"])} | derive(self.cell, others)

    @property
    def crossed(self) -> Mapping[str, np.ndarray]:
        """Cross-fitted answers by probe or baseline [items]."""
        return {} if self.contest is None else self.contest.crossed

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """MC1 by contestant [items]; nan if it does not apply."""
        by_scores = {name: self.mc1(scores) for name, scores in self.scores.items()}
        return by_scores | {
            name: (answers == self.labels).astype(float) for name, answers in self.crossed.items()
        }

    @property
    def best_correction(self) -> str:
        """The best of the corrections that apply to every item."""
        return self._best([name for name in self.scores if not np.isnan(self.right[name]).any()])

    @property
    def best(self) -> str:
        """The best of the corrections and tested probes."""
        if self.contest is None:
            return self.best_correction
        probe = self.contest.entrant.probe.name
        if self.balanced:
            return probe  # corrections have no class weights
        return self._best([self.best_correction, probe])

    def _best(self, names: Sequence[str]) -> str:
        return max(names, key=lambda name: float(np.nanmean(self.worth(name))))

    @property
    def constant(self) -> str | None:
        """The answer of the baseline that gives all texts the same answer."""
        return str(self.crossed[LARGEST][0]) if LARGEST in self.crossed else None

    def worth(self, name: str) -> np.ndarray:
        """Return the worth of each answer of a contestant [items]; nan if it does not apply.

        The mean over items is the accuracy or the mean recall.
        """
        return (self.base if name == MODEL else self.right[name]) * self.weights

    def with_worth(self, line: Standing) -> Standing:
        """Return the standing of a contestant with its mean recall if that ranks it."""
        if not self.balanced:
            return line
        worth = self.worth(line.name)
        return replace(line, worth=None if np.isnan(worth).all() else float(np.nanmean(worth)))

    def mc1(self, scores: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return MC1 per item [items]; nan without scores."""
        base, truthful = (Lists.of(self.cell.items[n]) for n in ("base_scores", "truthful"))
        return of_items(mc1_rows, base.of_rows(scores), truthful)

    @cached_property
    def model_answers(self) -> list[str]:
        """The option that the model chooses, per item."""
        pairs = zip(self.options, self.cell.items["base_index"], strict=True)
        return [names[int(index)] for names, index in pairs]

    def answers(self, name: str) -> list[str]:
        """Return the option that a contestant chooses, per item; the model's if it has none."""
        if name in self.crossed:
            return [str(answer) for answer in self.crossed[name]]
        rows = zip(self.scores[name], self.options, self.model_answers, strict=True)
        return [model if u is None else names[int(np.argmax(u))] for u, names, model in rows]


def _lines(results: _Results) -> tuple[Standing, ...]:
    blind = results.mc1(list(results.cell.items["blind_scores"]))
    chance = float(np.mean([t.mean() for t in results.truths]))
    return (
        Standing("chance", chance, chance, chance),
        _standing("without the text", blind),
        results.with_worth(_standing(MODEL, results.base)),
        *(
            results.with_worth(_against_model(results, name, right))
            for name, right in results.right.items()
        ),
    )


def _standing(name: str, right: np.ndarray) -> Standing:
    values = right[~np.isnan(right)]
    if not len(values):
        return Standing(name, np.nan, np.nan, np.nan)
    bounds = clopper_pearson(float(values.sum()), len(values), _TAIL)
    return Standing(name, float(values.mean()), *bounds)


def _against_model(results: _Results, name: str, right: np.ndarray) -> Standing:
    """Return the standing of answers to all items [items], tested against the model's."""
    fixed, broken, p = paired(right - results.base, results.groups)
    return replace(_standing(name, right), fixed=fixed, broken=broken, p=p)


def _raced(results: _Results, prompt: Raced, best: str) -> Standing:
    """Return the standing of another prompt on the rows that it was tested on.

    The model is compared with its answers under the current prompt, a probe with the best
    contestant.
    """
    place = {str(id): n for n, id in enumerate(results.cell.items["id"])}
    at, right = np.array([place[id] for id in prompt.ids]), prompt.right
    rival = results.right[best] if prompt.probe else results.base
    fixed, broken, p = paired(right - rival[at], results.groups[at])
    line = _standing(prompt.name, right.astype(float))
    return replace(line, fixed=fixed, broken=broken, p=p, items=len(at))


def _simple(results: _Results, best: str) -> str | None:
    """Return the best baseline without a model if it is as good as the best contestant.

    As good means at most one standard error of the paired difference below it.
    """
    baselines = [name for name in SIMPLE if name in results.right]
    name = max(baselines, key=lambda name: float(np.nanmean(results.worth(name))), default=None)
    if name is None:
        return None
    worths, best_worths = results.worth(name), results.worth(best)
    both = ~np.isnan(worths - best_worths)
    return name if as_good(worths[both], best_worths[both], results.groups[both]) else None


def _stands(results: _Results, outcome: Outcome | None, method: str) -> np.ndarray:
    """Return True where a method's answer replaces the model's: as certified, else everywhere."""
    if method in results.crossed:
        return np.ones(len(results.cell.items), dtype=bool)
    if outcome is None or outcome.finding.chosen is None:
        return np.array([u is not None for u in results.scores[method]])
    return outcome.sample.items.stands(outcome.finding.policy)


def _answers(results: _Results, method: str, stands: np.ndarray) -> tuple[RowAnswer, ...]:
    answers = (results.labels, results.model_answers, results.answers(method))
    rows = zip(results.cell.items["id"], *answers, stands, strict=True)
    return tuple(
        RowAnswer(str(id), str(truth), model, shown if stand else model)
        for id, truth, model, shown, stand in rows
    )


def _classes(results: _Results, corrected: np.ndarray) -> tuple[Class, ...]:
    classes = []
    for label in np.unique(results.labels).tolist():
        among = results.labels == label
        before, after = results.base[among], corrected[among]
        *_, p = paired(after - before, results.groups[among])
        recall = float(before.mean()), float(np.nanmean(after))
        classes.append(Class(label, int(among.sum()), *recall, p))
    return tuple(classes)


def _certified(
    results: _Results, outcome: Outcome, best: str, corrected: np.ndarray
) -> dict[str, Any]:
    """Return the fields of the guarantee that the tests give."""
    finding, terms = outcome.finding, outcome.finding.terms
    if (trial := finding.chosen) is None:
        trials = [trial for trial in finding.trials if trial.policy.method == best]
        return {"needed": needed(trials, terms, finding.items)}
    line, tested = _against_model(results, "certified", corrected), trial.evidence
    if results.balanced:
        line = replace(line, worth=float(np.nanmean(corrected * results.weights)))
    right = tested.base_right + tested.fixed - tested.broken
    compared = {MODEL: tested, **outcome.baselines}
    return {
        "method": finding.policy.method,
        "policy": in_words(finding.policy),
        "line": line,
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
    cell, contest = results.cell, results.contest
    fit = fit_cell(cell)
    middle = None if fit is None else fit.middle
    if contest is None or not len(contest.by_depth):
        return DepthAccuracy(middle=middle)
    right = np.zeros(len(contest.by_depth))
    for places, frame in cell.slices("trajectory"):
        for place, S in zip(places, frame["trajectory"], strict=True):
            truth = results.truths[int(place)]
            right += results.weights[int(place)] * truth[np.stack([*S]).argmax(axis=0)]
    head = (right / results.weights.sum()).tolist()
    pairs = tuple(zip(head, contest.by_depth.tolist(), strict=True))
    return DepthAccuracy(pairs, contest.curve, middle)
