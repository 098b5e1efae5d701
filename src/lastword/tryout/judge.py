"""Computes the figures of a verdict from records, a certificate and a contest."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword.methods import resolve
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import Rows, mc1_rows, of_items
from lastword.trust.automation import ERRORS, Automation, Rung, curve, estimate, labels_to_prove
from lastword.trust.certification import Outcome, Sample
from lastword.trust.claims import needed
from lastword.trust.evidence import Evidence
from lastword.trust.paired import paired
from lastword.trust.policy import CERTIFIABLE, TRACE
from lastword.trust.second_round import DrawnRows
from lastword.trust.terms import Terms
from lastword.trust.testing import clopper_pearson
from lastword.trust.words import in_words
from lastword.tryout.contest import (
    LARGEST,
    SIMPLE,
    WORDS,
    Contest,
    Table,
    answers_of,
    best_of,
    cheaper,
)
from lastword.tryout.material import Material
from lastword.tryout.prompts import Race, Raced
from lastword.tryout.verdict import (
    ACCURACY,
    BALANCED,
    MODEL,
    Answered,
    Class,
    DepthAccuracy,
    Examples,
    Guarantee,
    RowAnswer,
    Standing,
    Standings,
    Verdict,
)

_TAIL = (1 - 0.95) / 2  # probability below, and above, a 95% interval


@dataclass(frozen=True, eq=False)
class Proven:
    """The statements that the labels of a test prove.

    Attributes:
        outcome: The test of a gain over the model; None if there are too few labels, or no model.
        automation: The test of the errors among given answers; None if none was asked for.
        kind: The kind of the probe that a promise is about; None if it is about a correction.
        name: This probe's name.
        drawn: The counts of a second round that proved a gain.
    """

    outcome: Outcome | None = None
    automation: Automation | None = None
    kind: str | None = None
    name: str = ""
    drawn: DrawnRows | None = None


def judge(
    material: Material,
    sample: Sample | None,
    contest: Contest | None,
    terms: Terms,
    proven: Proven,
    race: Race,
    notes: Sequence[str] = (),
) -> Verdict:
    """Return the figures of a verdict.

    Args:
        material: The labelled texts.
        sample: Those that the model answered, with its answers; None without a model.
        contest: Probes and their baselines; None if there are too few labels for a probe.
        terms: The terms of the guarantee.
        proven: What is proven.
        race: Results of other prompts.
        notes: Guesses and warnings about the table.
    """
    # Figures of the contest are cross-fitted on all labels, which is the most accurate comparison
    # but proves nothing: the best of many is chosen on the same labels. Figures of the certificate
    # come only from the labels that tested the certified method.
    results = _Results(sample, material, contest, proven)
    answered = _answered(results, terms, proven.automation)
    guarantee = Guarantee(terms.promise, terms.alpha, terms.delta, terms.least)
    if proven.outcome is not None:
        guarantee = replace(guarantee, **_certified(results, proven.outcome))
    elif proven.drawn is not None:
        least = proven.drawn.worth(terms.delta)["net_at_least"]
        guarantee = replace(guarantee, method=proven.name, net_at_least=least)
    model = None if material.cell is None else material.cell.model
    examples = Examples(model, len(material.truths), tuple(notes))
    standings = _standings(results, race, answered)
    return Verdict(examples, standings, guarantee, answered, _depths(results))


def _standings(results: "_Results", race: Race, answered: Answered) -> Standings:
    material = results.material
    return Standings(
        lines=tuple(_lines(results)),
        best=results.best,
        **results.beside,
        correction=results.best_correction,
        probe=None if results.kind is None else results.names[results.kind],
        cost=results.cost(results.best),
        classes=tuple(_classes(results, answered)) if material.question is not None else (),
        answers=_answers(results),
        prompts=tuple(_raced(results, one) for one in race.prompts),
        prompts_left_out=race.left_out,
        named=tuple(results.names[kind] for kind in results.kinds if kind in material.named),
        objective=BALANCED if material.balanced else ACCURACY,
        constant=results.constant,
    )


@dataclass(frozen=True, eq=False)
class _Results:
    """The answers of every contestant to the texts of a trial.

    Each text has one right option and others, so that all of them count for MC1.
    """

    sample: Sample | None
    material: Material
    contest: Contest | None
    proven: Proven

    @property
    def kinds(self) -> list[str]:
        """The kinds of probes, the cheapest first."""
        return [] if self.contest is None else self.contest.kinds

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each contestant of the contest by its kind."""
        if self.contest is None:
            return {}
        names = {kind: kind for kind in self.contest.crossed} | {**self.contest.names}
        return names if self.proven.kind is None else names | {self.proven.kind: self.proven.name}

    @cached_property
    def kind(self) -> str | None:
        """The kind of the certified probe, or of the best one."""
        if self.contest is None:
            return None
        return self.proven.kind or self.contest.best

    @cached_property
    def scores(self) -> dict[str, Rows]:
        """Scores by correction [answered, options]; nan if it does not apply."""
        cell = self.material.cell
        if cell is None or self.sample is None:
            return {}
        others = resolve([n for n in CERTIFIABLE if n != TRACE], facts_of(self.sample.run))
        return {TRACE: cell.scores["scores"]} | derive(cell, others)

    def of_model(self, scores: Rows) -> np.ndarray:
        """Return MC1 of scores of the answered texts [texts]; nan for others, or without scores."""
        right = np.full(len(self.material.truths), np.nan)
        assert self.material.cell is not None
        right[self.material.answered] = of_items(mc1_rows, scores, self.material.cell.truthful)
        return right

    @cached_property
    def base(self) -> np.ndarray:
        """MC1 of the model [texts]; nan without one."""
        if (cell := self.material.cell) is None:
            return np.full(len(self.material.truths), np.nan)
        return self.of_model(cell.scores["base_scores"])

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """MC1 by contestant [texts]; nan if it does not apply."""
        of_model = {name: self.of_model(scores) for name, scores in self.scores.items()}
        return of_model | {
            self.names[kind]: (self.answers(self.names[kind]) == self.material.truths) * 1.0
            for kind in self.names
        }

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Cross-fitted probabilities by name of a contestant [texts, options]."""
        crossed = {} if self.contest is None else self.contest.crossed
        return {self.names[kind]: table for kind, table in crossed.items()}

    def table(self, name: str) -> Table:
        """Return a contestant's probabilities [texts, options]; 0 for texts without an answer."""
        if name in self.tables:
            return self.tables[name]
        widest = max(map(len, self.material.options))
        cell, table = self.material.cell, np.zeros((len(self.material.truths), widest))
        assert cell is not None
        base = cell.scores["base_scores"]
        own = base if name == MODEL else self.scores[name]
        shown = np.where(np.isnan(own[:, :1]), base, own)
        table[self.material.answered, : shown.shape[1]] = softmax(shown, axis=1)
        return table

    @property
    def best_correction(self) -> str | None:
        """The best of the corrections that apply to every answered text."""
        places = self.material.answered
        names = [name for name in self.scores if not np.isnan(self.right[name][places]).any()]
        return max(names, key=self.worth, default=None)

    @cached_property
    def best(self) -> str:
        """The certified method, or else the best of the corrections and probes."""
        outcome, correction = self.proven.outcome, self.best_correction
        if self.proven.kind is None and outcome is not None and outcome.finding.chosen is not None:
            return outcome.finding.policy.method
        if self.kind is None:
            assert correction is not None
            return correction
        probe = self.names[self.kind]
        # Corrections have no class weights, and a sample is not compared with all texts.
        alone = self.material.balanced or not self.material.whole
        if alone or self.proven.kind is not None or correction is None:
            return probe
        return max(correction, probe, key=self.worth)

    def worth(self, name: str) -> float:
        """Return a contestant's accuracy or mean recall."""
        return float(np.nanmean(self.right[name] * self.material.worths))

    @property
    def beside(self) -> dict[str, Any]:
        """A cheaper contestant that is as good as the best, or the best if a cheap one is used."""
        names = [self.names[kind] for kind in (*SIMPLE, *self.kinds) if kind in self.names]
        worths = {n: self.right[n] * self.material.worths for n in [*names, self.best]}
        if np.isnan(worths[self.best]).any():
            return {}
        if self.material.cheap:
            top = best_of(worths, replace(self.material, cheap=False))
            return {"cheaper": None if top == self.best else top}
        name = cheaper(worths, self.best, self.material, None)
        own, other = self.cost(self.best), 0.0 if name in SIMPLE else self.cost(name)
        saves = 1 - other / own if name and own and other is not None else 0.0
        return {"cheaper": name, "saves": saves}

    def cost(self, name: str | None) -> float | None:
        """Return the compute of a contestant's answer; a correction costs the model's answer."""
        if self.contest is None or name not in self.tables:
            return 1.0
        by_name = {self.names[kind]: cost for kind, cost in self.contest.costs.items()}
        return by_name.get(name)

    @property
    def constant(self) -> str | None:
        """The answer of the baseline that gives all texts the same answer."""
        return None if LARGEST not in self.tables else str(self.answers(LARGEST)[0])

    @cached_property
    def model_answers(self) -> np.ndarray:
        """The option that the model chooses; empty where it was not asked [texts]."""
        answers = np.full(len(self.material.truths), "", dtype=object)
        if (cell := self.material.cell) is not None:
            pairs = zip(self.material.answered, cell.items["base_index"], strict=True)
            for place, index in pairs:
                answers[place] = self.material.options[place][int(index)]
        return answers

    def answers(self, name: str) -> np.ndarray:
        """Return the option that a contestant chooses [texts]; the model's if it has none."""
        if name in self.tables:
            return answers_of(self.material, self.tables[name])
        answers = self.model_answers.copy()
        for place, u in zip(self.material.answered, self.scores[name], strict=True):
            if not np.isnan(u[0]):
                answers[place] = self.material.options[place][int(u.argmax())]
        return answers

    @cached_property
    def stands(self) -> np.ndarray:
        """True where the best answer replaces the model's: as certified, else everywhere."""
        everywhere = np.ones(len(self.material.truths), dtype=bool)
        outcome = self.proven.outcome
        if self.best in self.tables:
            return everywhere
        if outcome is None or outcome.finding.chosen is None:
            everywhere[self.material.answered] = ~np.isnan(self.scores[self.best][:, 0])
        else:
            policy = outcome.finding.policy
            everywhere[self.material.answered] = outcome.sample.items.stands(policy)
        return everywhere

    @cached_property
    def shown(self) -> np.ndarray:
        """The answers of the best contestant, limited by the certificate [texts]."""
        return np.where(self.stands, self.answers(self.best), self.model_answers)

    @cached_property
    def corrected(self) -> np.ndarray:
        """MC1 of the best contestant, limited by the certificate [texts]."""
        return np.where(self.stands, self.right[self.best], self.base)

    def standing(self, name: str, right: np.ndarray, *, compares: bool = True) -> Standing:
        """Return the standing of answers [texts], tested against the model's."""
        line = _standing(name, right)
        if self.material.balanced and not np.isnan(right).all():
            line = replace(line, worth=float(np.nanmean(right * self.material.worths)))
        if not compares or self.material.cell is None:
            return line
        fixed, broken, p = paired(right - self.base, self.material.groups)
        return replace(line, fixed=fixed, broken=broken, p=p)


def _lines(results: _Results) -> Iterator[Standing]:
    chance = float(np.mean([1 / len(names) for names in results.material.options]))
    yield Standing("chance", chance, chance, chance)
    if (cell := results.material.cell) is not None:
        blind = results.of_model(cell.scores["blind_scores"])
        yield _standing("without the text", blind)
        yield results.standing(MODEL, results.base, compares=False)
    yield from (results.standing(name, right) for name, right in results.right.items())


def _standing(name: str, right: np.ndarray) -> Standing:
    values = right[~np.isnan(right)]
    if not len(values):
        return Standing(name, np.nan, np.nan, np.nan)
    bounds = clopper_pearson(float(values.sum()), len(values), _TAIL)
    items = None if len(values) == len(right) else len(values)
    return Standing(name, float(values.mean()), *bounds, items=items)


def _raced(results: _Results, prompt: Raced) -> Standing:
    """Return the standing of another prompt on the rows that it was tested on.

    The model is compared with its answers under the current prompt, a probe with the best
    contestant.
    """
    place = {row.id: n for n, row in enumerate(results.material.labels.rows)}
    at, right = np.array([place[id] for id in prompt.ids]), prompt.right
    rival = results.right[results.best] if prompt.probe else results.base
    fixed, broken, p = paired(right - rival[at], results.material.groups[at])
    line = _standing(prompt.name, right.astype(float))
    return replace(line, fixed=fixed, broken=broken, p=p, items=len(at))


def _answers(results: _Results) -> tuple[RowAnswer, ...]:
    confidence = results.table(results.best).max(axis=1).tolist()
    shown, model = results.shown.tolist(), results.model_answers.tolist()
    rows = zip(results.material.labels.rows, model, shown, confidence, strict=True)
    return tuple(
        RowAnswer(row.id, row.truth, base or None, answer or row.truth, p)
        for row, base, answer, p in rows
        if answer
    )


def _classes(results: _Results, answered: Answered) -> Iterator[Class]:
    least = answered.threshold
    if least is None:
        error = answered.error or ERRORS[1]
        (least,) = (e.threshold for e in answered.estimates if e.error == error)
    truths, corrected = results.material.truths, results.corrected
    given = results.table(results.best).max(axis=1) >= (2.0 if least is None else least)
    for label in np.unique(truths).tolist():
        among = truths == label
        base = results.base[among]
        model = None if np.isnan(base).all() else float(np.nanmean(base))
        right = corrected[among & given]
        wrong = None if not len(right) else 1 - float(np.nanmean(right))
        shares = float(np.nanmean(corrected[among])), float(given[among].mean())
        yield Class(label, int(among.sum()), model, *shares, wrong)


def _answered(results: _Results, terms: Terms, automation: Automation | None) -> Answered:
    """Return the share of texts that is answered at which error."""
    shown = [results.best, WORDS, MODEL, results.best_correction]
    shown += [results.names[kind] for kind in results.kinds]
    names = [n for n in dict.fromkeys(shown) if n in results.tables or n in results.scores]
    names += [] if results.material.cell is None else [MODEL]
    steps = {name: _steps(results, name) for name in names}
    error = terms.error or ERRORS[1]
    errors = sorted({*ERRORS, error})
    answered = Answered(
        tuple(estimate(steps[results.best], one) for one in errors),
        {n: tuple((s.share, s.errors.rate) for s in each) for n, each in steps.items()},
        terms.error,
        needed=labels_to_prove(steps[results.best], error, terms.delta),
    )
    if automation is None:
        return answered
    rung = automation.rung(terms.delta)
    tested = automation.rungs[-1].errors.items if automation.rungs else 0
    if rung is None:
        return replace(answered, tested=tested)
    passed = automation.rungs[: automation.rungs.index(rung) + 1]
    return replace(
        answered,
        share=rung.share,
        threshold=rung.threshold,
        proven=tuple((one.share, one.errors.rate) for one in passed),
        tested=tested,
        needed=None,
    )


def _steps(results: _Results, name: str) -> list[Rung]:
    table, right = results.table(name), results.base if name == MODEL else results.right[name]
    if name == results.best:
        right = results.corrected
    counts = ~np.isnan(right)
    groups = results.material.groups[counts]
    return curve(table[counts].max(axis=1), right[counts] < 1, groups)


def _certified(results: _Results, outcome: Outcome) -> Mapping[str, Any]:
    """Return the fields of the guarantee that the tests give."""
    finding, terms = outcome.finding, outcome.finding.terms
    if (trial := finding.chosen) is None:
        trials = [trial for trial in finding.trials if trial.policy.method == results.best]
        return {"needed": needed(trials, terms, finding.most.items) if trials else None}
    tested = trial.evidence
    right = tested.base_right + tested.fixed - tested.broken
    compared = {MODEL: tested, **outcome.baselines}
    return {
        "method": finding.policy.method,
        "policy": in_words(finding.policy),
        "line": results.standing("certified", results.corrected),
        "tested": _counted("tested", right, tested),
        "net_at_least": finding.worth["net_at_least"],
        "baselines": tuple(_counted(n, e.base_right, e) for n, e in compared.items()),
        "rivals": finding.rivals,
    }


def _counted(name: str, right: int, evidence: Evidence) -> Standing:
    """Return the standing of answers on the labels that tested the certified method."""
    items, fixed, broken = evidence.items, evidence.fixed, evidence.broken
    bounds = clopper_pearson(float(right), items, _TAIL)
    return Standing(name, right / items, *bounds, fixed, broken, items=items)


def _depths(results: _Results) -> DepthAccuracy:
    """Return the accuracy by depth of head and probes; classes are weighted as in the fits."""
    material, contest = results.material, results.contest
    if contest is None:
        return DepthAccuracy()
    if material.cell is None or not len(contest.by_depth):
        return DepthAccuracy(curve=contest.curve)
    right, weights = np.zeros(len(contest.by_depth)), material.worths[material.answered]
    for places, table in material.cell.pieces("trajectory"):
        first = material.cell.stack(places, table["trajectory"]).argmax(axis=1)
        truth = material.cell.truthful[places].argmax(axis=1)
        right += weights[places] @ (first == truth[:, None])
    head = (right / weights.sum()).tolist()
    return DepthAccuracy(tuple(zip(head, contest.by_depth.tolist(), strict=True)), contest.curve)
