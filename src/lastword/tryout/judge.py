"""Computes the figures of a verdict from records, a certificate and a contest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import softmax

from lastword.methods import resolve
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import mc1_rows, of_items
from lastword.trust.automation import ERRORS, Rung, curve, estimate, labels_to_prove
from lastword.trust.certification import Outcome, Sample
from lastword.trust.evidence import Evidence
from lastword.trust.paired import paired
from lastword.trust.policy import CERTIFIABLE, TRACE
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
    cheaper,
)
from lastword.tryout.material import Material
from lastword.tryout.prompts import Raced
from lastword.tryout.second_round import Proven
from lastword.tryout.verdict import (
    MODEL,
    Class,
    Guarantee,
    RowAnswer,
    ShareAnswered,
    Standing,
    Standings,
    Verdict,
)

_TAIL = (1 - 0.95) / 2  # probability below, and above, a 95% interval


@dataclass(frozen=True, eq=False)
class Contestant:
    """The answers of the model, a correction, a probe or a baseline; cross-fitted if fitted.

    Attributes:
        table: Probabilities; the model's for texts that a correction leaves [texts, options].
        right: MC1; nan where a correction does not apply, or the model was not asked [texts].
        kind: Its kind in the contest; empty for the model and corrections.
        cost: Compute of an answer, relative to the model's; None if unknown.
    """

    name: str
    table: Table
    right: np.ndarray
    kind: str = ""
    cost: float | None = 1.0


def judge(
    material: Material,
    sample: Sample | None,
    contest: Contest | None,
    terms: Terms,
    proven: Proven,
    prompts: Sequence[Raced] = (),
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Verdict:
    """Return the figures of a verdict.

    `left_out` are names of prompts that were not tested, with the reason.
    """
    # Figures of the contest are cross-fitted on all labels, which is the most accurate comparison
    # but proves nothing: the best of many is chosen on the same labels. Figures of the certificate
    # come only from the labels that tested the certified method.
    model = dict[str, Contestant]() if sample is None else _of_model(material, sample)
    probe = None if proven.kind is None or proven.probe is None else proven.probe.name
    fitted = {} if contest is None else _fitted(contest, proven.kind, probe)
    results = _Results(material, contest, proven, model | fitted)
    answered = _answered(results, terms)
    name = None if material.cell is None else material.cell.model
    return Verdict(
        name,
        len(material.truths),
        _standings(results, prompts, left_out, answered),
        _guarantee(results, terms),
        answered,
        _by_depth(results),
        tuple(notes),
    )


def _of_model(material: Material, sample: Sample) -> dict[str, Contestant]:
    assert material.cell is not None
    cell, base = material.cell, material.cell.scores["base_scores"]
    others = resolve([n for n in CERTIFIABLE if n != TRACE], facts_of(sample.cell.info))
    scores = {MODEL: base, TRACE: cell.scores["scores"], **derive(cell, others)}
    return {
        name: Contestant(
            name,
            material.spread(softmax(np.where(np.isnan(u[:, :1]), base, u), axis=1)),
            material.spread(of_items(mc1_rows, u, cell.truthful)),
        )
        for name, u in scores.items()
    }


def _fitted(contest: Contest, kind: str | None, probe: str | None) -> dict[str, Contestant]:
    """Return probes and baselines; the kind that is served has the name of the served probe."""
    names = dict(contest.names) | ({kind: probe} if kind and probe else {})
    found = [
        Contestant(
            names.get(kind, kind),
            table,
            (answers_of(contest.material, table) == contest.material.truths) * 1.0,
            kind,
            0.0 if kind in SIMPLE else contest.costs.get(kind),
        )
        for kind, table in contest.crossed.items()
    ]
    return {one.name: one for one in found}


@dataclass(frozen=True, eq=False)
class _Results:
    """The answers of every contestant to the texts of a trial.

    Each text has one right option and others, so that all of them count for MC1.
    """

    material: Material
    contest: Contest | None
    proven: Proven
    by_name: dict[str, Contestant]

    @property
    def model(self) -> Contestant | None:
        """The model; None if it did not answer."""
        return self.by_name.get(MODEL)

    @cached_property
    def base(self) -> np.ndarray:
        """MC1 of the model [texts]; nan without one."""
        return (
            np.full(len(self.material.truths), np.nan) if self.model is None else self.model.right
        )

    @property
    def probes(self) -> list[Contestant]:
        kinds = [] if self.contest is None else self.contest.kinds
        return [one for one in self.by_name.values() if one.kind in kinds]

    @cached_property
    def probe(self) -> Contestant | None:
        if self.contest is None:
            return None
        kind = self.proven.kind or self.contest.best
        return next(one for one in self.by_name.values() if one.kind == kind)

    @cached_property
    def correction(self) -> Contestant | None:
        corrections = [c for name, c in self.by_name.items() if not c.kind and name != MODEL]
        left = np.isnan(self.base)
        whole = [one for one in corrections if (np.isnan(one.right) == left).all()]
        return max(whole, key=self.worth, default=None)

    @property
    def chosen(self) -> Outcome | None:
        """The test that chose a correction to certify; None if it chose none."""
        outcome = self.proven.outcome
        certified = outcome is not None and outcome.finding.chosen is not None
        return outcome if certified and self.proven.kind is None else None

    @cached_property
    def best(self) -> Contestant:
        """The certified contestant, or else the best of the corrections and probes."""
        if self.chosen is not None:
            return self.by_name[self.chosen.finding.policy.method]
        if self.probe is None:
            assert self.correction is not None
            return self.correction
        # Corrections have no class weights, and a sample is not compared with all texts.
        alone = self.material.job.balanced or not self.material.whole
        if alone or self.proven.kind is not None or self.correction is None:
            return self.probe
        return max(self.correction, self.probe, key=self.worth)

    def worth(self, one: Contestant) -> float:
        return float(np.nanmean(one.right * self.material.worths))

    @cached_property
    def stands(self) -> np.ndarray:
        """True where the best answer replaces the model's [texts]."""
        if self.chosen is None or self.best.kind:
            return np.asarray(~np.isnan(self.best.right))
        policy = self.chosen.finding.policy
        return self.material.spread(self.chosen.sample.items.stands(policy) * 1.0) > 0

    @cached_property
    def shown(self) -> Contestant:
        """The best contestant, limited by the certificate."""
        if self.model is None:
            return self.best
        table = np.where(self.stands[:, None], self.best.table, self.model.table)
        return replace(
            self.best, table=table, right=np.where(self.stands, self.best.right, self.base)
        )

    def standing(self, name: str, right: np.ndarray, *, compares: bool = True) -> Standing:
        """Return the standing of answers [texts], tested against the model's."""
        line = _standing(name, right)
        if self.material.job.balanced and not np.isnan(right).all():
            line = replace(line, worth=float(np.nanmean(right * self.material.worths)))
        if not compares or self.model is None:
            return line
        fixed, broken, p = paired(right - self.base, self.material.groups)
        return replace(line, fixed=fixed, broken=broken, p=p)

    def steps(self, one: Contestant) -> list[Rung]:
        """Return share against error of a contestant, where it applies."""
        applies = ~np.isnan(one.right)
        groups = self.material.groups[applies]
        return curve(one.table[applies].max(axis=1), one.right[applies] < 1, groups)


def _standings(
    results: _Results, prompts: Sequence[Raced], left_out: Sequence[str], answered: ShareAnswered
) -> Standings:
    material, best = results.material, results.best
    cheap = _cheaper(results)
    named = [one.name for one in results.probes if one.kind in material.job.named]
    parts = [results.correction, cheap, results.probe, best]
    shown = [one.name for one in parts if one is not None]
    constant = results.by_name.get(LARGEST)
    return Standings(
        lines=tuple(_lines(results)),
        best=best.name,
        cheaper=None if cheap is None else cheap.name,
        saves=0.0 if cheap is None or not best.cost else 1 - (cheap.cost or 0.0) / best.cost,
        probe=None if results.probe is None else results.probe.name,
        cost=best.cost,
        classes=tuple(_classes(results, answered)) if material.labels.question is not None else (),
        answers=_answers(results),
        prompts=tuple(_raced(results, one) for one in prompts),
        prompts_left_out=tuple(left_out),
        shown=(*named, *shown),
        objective=material.job.objective,
        constant=None if constant is None else str(answers_of(material, constant.table)[0]),
    )


def _cheaper(results: _Results) -> Contestant | None:
    best, worths = results.best, results.material.worths
    simple = [results.by_name[name] for name in SIMPLE if name in results.by_name]
    order = {one.name: one.right * worths for one in (*simple, *results.probes, best)}
    if np.isnan(order[best.name]).any():
        return None
    return results.by_name.get(cheaper(order, best.name, results.material.groups) or "")


def _lines(results: _Results) -> Iterator[Standing]:
    material, model = results.material, results.model
    chance = float(np.mean([1 / len(names) for names in material.options]))
    yield Standing("chance", chance, chance, chance)
    if material.cell is not None and model is not None:
        blind = of_items(mc1_rows, material.cell.scores["blind_scores"], material.cell.truthful)
        yield _standing("without the text", material.spread(blind))
        yield results.standing(MODEL, model.right, compares=False)
    for name, one in results.by_name.items():
        if name != MODEL:
            yield results.standing(name, one.right)


def _standing(name: str, right: np.ndarray) -> Standing:
    values = right[~np.isnan(right)]
    if not len(values):
        return Standing(name, np.nan, np.nan, np.nan)
    bounds = clopper_pearson(float(values.sum()), len(values), _TAIL)
    items = None if len(values) == len(right) else len(values)
    return Standing(name, float(values.mean()), *bounds, items=items)


def _raced(results: _Results, prompt: Raced) -> Standing:
    """Return the standing of another prompt, compared with the current one on the same rows."""
    place = {row.id: n for n, row in enumerate(results.material.labels.rows)}
    at, right = np.array([place[id] for id in prompt.ids]), prompt.right
    fixed, broken, p = paired(right - results.base[at], results.material.groups[at])
    line = _standing(prompt.name, right.astype(float))
    return replace(line, fixed=fixed, broken=broken, p=p, items=len(at))


def _answers(results: _Results) -> tuple[RowAnswer, ...]:
    material, model = results.material, results.model
    shown = answers_of(material, results.shown.table).tolist()
    base = shown if model is None else answers_of(material, model.table).tolist()
    asked = (~np.isnan(results.base)).tolist()
    confidence = results.best.table.max(axis=1).tolist()
    given = (~np.isnan(results.shown.right)).tolist()
    rows = zip(material.labels.rows, base, asked, shown, confidence, given, strict=True)
    return tuple(
        RowAnswer(row.id, row.truth, b if asked else None, answer, p)
        for row, b, asked, answer, p, given in rows
        if given
    )


def _classes(results: _Results, answered: ShareAnswered) -> Iterator[Class]:
    least = answered.threshold
    if least is None:
        error = answered.error or ERRORS[1]
        (least,) = (e.threshold for e in answered.estimates if e.error == error)
    truths, corrected = results.material.truths, results.shown.right
    given = results.best.table.max(axis=1) >= (2.0 if least is None else least)
    for label in np.unique(truths).tolist():
        among = truths == label
        recall, wrong = _mean(corrected[among]), _mean(1 - corrected[among & given])
        yield Class(
            label,
            int(among.sum()),
            _mean(results.base[among]),
            np.nan if recall is None else recall,
            float(given[among].mean()),
            wrong,
        )


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the values that are not nan; None if all are."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else None


def _answered(results: _Results, terms: Terms) -> ShareAnswered:
    """Return the share of texts that is answered at which error."""
    names = [results.best.name, WORDS, MODEL]
    shown = [results.by_name[name] for name in names if name in results.by_name]
    shown += [one for one in (results.correction, *results.probes) if one is not None]
    steps = {one.name: results.steps(one) for one in shown}
    best = steps[results.best.name] = results.steps(
        replace(results.shown, table=results.best.table)
    )
    error = terms.error or ERRORS[1]
    answered = ShareAnswered(
        tuple(estimate(best, one) for one in sorted({*ERRORS, error})),
        {n: tuple((s.share, s.errors.rate) for s in each) for n, each in steps.items()},
        terms.error,
        needed=labels_to_prove(best, error, terms.delta),
    )
    if (automation := results.proven.automation) is None:
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


def _guarantee(results: _Results, terms: Terms) -> Guarantee:
    """Return what is promised, by the first labels or by a second round."""
    guarantee = Guarantee(terms)
    outcome, proven = results.proven.outcome, results.proven
    if outcome is None:
        if proven.drawn is None or proven.certificate is None:
            return guarantee
        least = proven.drawn.worth(terms.delta)["net_at_least"]
        return replace(guarantee, method=results.best.name, net_at_least=least)
    finding = outcome.finding
    if (trial := finding.chosen) is None:
        return guarantee
    tested = trial.evidence
    right = tested.base_right + tested.fixed - tested.broken
    return replace(
        guarantee,
        method=finding.policy.method,
        policy=in_words(finding.policy),
        line=results.standing("certified", results.shown.right),
        tested=_counted(right, tested),
        net_at_least=finding.worth["net_at_least"],
        rivals=finding.rivals,
    )


def _counted(right: int, evidence: Evidence) -> Standing:
    items, fixed, broken = evidence.items, evidence.fixed, evidence.broken
    bounds = clopper_pearson(float(right), items, _TAIL)
    return Standing("tested", right / items, *bounds, fixed, broken, items=items)


def _by_depth(results: _Results) -> tuple[tuple[float, float], ...]:
    """Return the accuracy by depth of head and probes; classes are weighted as in the fits."""
    material, contest = results.material, results.contest
    if contest is None or material.cell is None or not len(contest.by_depth):
        return ()
    right, weights = np.zeros(len(contest.by_depth)), material.worths[material.answered]
    for places, table in material.cell.pieces("trajectory"):
        first = material.cell.stack(places, table["trajectory"]).argmax(axis=1)
        truth = material.cell.truthful[places].argmax(axis=1)
        right += weights[places] @ (first == truth[:, None])
    head = (right / weights.sum()).tolist()
    return tuple(zip(head, contest.by_depth.tolist(), strict=True))
