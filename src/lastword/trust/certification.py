"""Certification: labelled items from records, and the certificate that they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.records.cells import Cell, read_cells, stack_cells
from lastword.records.info import RunInfo, find_cells, read_run
from lastword.records.metrics import Rows, Truths, mc1_rows
from lastword.records.recheck import recheck
from lastword.records.store import unfinished
from lastword.rule.geometry import Scores
from lastword.text.prompt_template import template_name
from lastword.trust import other_methods
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Finding, Trial, certify, judge, trials
from lastword.trust.drift import REFERENCE, rounded, sampled, statistics
from lastword.trust.labelled import Answers, Labelled
from lastword.trust.other_methods import BLIND, MODEL, WORDINGS, Means
from lastword.trust.paired import random_flips
from lastword.trust.policy import (
    BATCH,
    CERTIFIABLE,
    GATED,
    OVERRIDING,
    TRACE,
    Policy,
    ScalarOperator,
    scalar_operator,
)
from lastword.trust.record_groups import groups
from lastword.trust.subject import CertifiedProbe, Subject
from lastword.trust.terms import Terms

_DRAWS = 2000  # of random overrides


@dataclass(frozen=True, eq=False)
class Sample:
    """The labelled items of one model, with their records.

    Attributes:
        scores: Scores by the model, each method and each control [items, candidates].
        truth: True for the true candidates [items, candidates].
        means: Mean probabilities by label set, for batch calibration.
    """

    items: Labelled
    scores: Mapping[str, Rows]
    truth: Truths
    scalar: ScalarOperator
    subject: Subject
    cells: tuple[Cell, ...]
    methods: tuple[str, ...]
    means: Means

    @property
    def benchmarks(self) -> dict[str, str]:
        """The fingerprint of the items by benchmark."""
        return {cell.benchmark: cell.info["dataset"]["fingerprint"] for cell in self.cells}

    @cached_property
    def reference(self) -> dict[str, tuple[float, ...]]:
        """The values of each statistic on at most `REFERENCE` items, rounded, for drift."""
        places = [cell.answer_places[cell.mc1_places] for cell in self.cells]
        number, place = np.repeat(np.arange(len(places)), [*map(len, places)]), np.hstack(places)
        # One draw covers the items of all cells.
        if len(place) > REFERENCE:
            drawn = np.sort(np.random.default_rng(0).choice(len(place), REFERENCE, replace=False))
            number, place = number[drawn], place[drawn]
        values: dict[str, list[float]] = {}
        for n, cell in enumerate(self.cells):
            rows: list[Any] = cell.whole(place[number == n]).to_dict("records")
            for name, value in (pair for row in rows for pair in statistics(row).items()):
                values.setdefault(name, []).append(rounded(value))
        # The model's other scalar operator never acts, so its statistic would always be 0.
        impossible = {*OVERRIDING} - {"decisive", self.scalar}
        return {name: tuple(each) for name, each in values.items() if name not in impossible}

    def shown(self, policy: Policy) -> tuple[list[Scores], list[int]]:
        """Return the scores under a policy of items with one truth, and the truths' indices."""
        base, u = self.scores[MODEL], self.scores[policy.method]
        withheld = self.items.methods[policy.method].overrides & ~self.items.stands(policy)
        u = np.where(withheld[:, None], base, u)
        places = np.flatnonzero(self.truth.sum(axis=1) == 1)
        # Finite base scores mark the candidates; the rest of a row is padding.
        rows = [u[place][np.isfinite(base[place])] for place in places]
        return rows, self.truth[places].argmax(axis=1).tolist()

    def controlled(self, finding: Finding) -> Finding:
        """Return a finding with the results of the controls under its terms."""
        gains, items = {}, replace(self.items, failed=0)
        for name in [name for name in (*WORDINGS, *BLIND) if name in self.scores]:
            terms = replace(finding.terms, methods=(name,))
            best = judge(trials(items, self.scalar, terms), terms).chosen
            gains[name] = 0 if best is None else best.gain
        flips = nan if finding.chosen is None else self.flips(finding.chosen)
        return replace(finding, controls=gains, flips=flips)

    def flips(self, trial: Trial) -> float:
        """Return the share of draws in which as many random overrides gain at least as much."""
        base, truth = self.scores[MODEL], self.truth
        right = truth[np.arange(len(base)), base.argmax(axis=1)]
        elsewhere = (truth.sum(axis=1) - right) / (np.isfinite(base).sum(axis=1) - 1)
        tied = (mc1_rows(base, truth) > 0).astype(float)
        fixed, broken = random_flips(tied, elsewhere, trial.evidence.overrides, _DRAWS)
        return (1 + int((fixed - broken >= trial.gain).sum())) / (1 + _DRAWS)


def read_sample(
    path: Path, benchmarks: Sequence[str] = (), methods: Sequence[str] | None = (TRACE,)
) -> Sample:
    """Read the labelled items at or under a path.

    Args:
        path: A cell's folder, or any folder above.
        benchmarks: Benchmarks whose items count; may be left out if there is one.
        methods: The methods of the policies; None for all that the records allow.

    Raises:
        RecordError: There are no records; they belong to several models, or to several benchmarks
            that are not listed; a run is unfinished or was made under a certificate; or a record
            does not follow from its trajectory.
    """
    runs = {folder: read_run(folder) for folder in find_cells(path)}
    models = list(dict.fromkeys(run["model"] for run in runs.values()))
    present = [run["benchmark"] for run in runs.values()]
    if len(models) > 1:
        raise RecordError(
            f"{path} holds records of {' and '.join(models)}; a certificate is for one model: "
            "name its own folder"
        )
    if absent := [name for name in benchmarks if name not in present]:
        raise RecordError(f"{path} has no records of {absent[0]}; it has {', '.join(present)}")
    if not benchmarks and len(present) > 1:
        raise RecordError(
            f"{path} holds {', '.join(present)}; name those to take together by --benchmark"
        )
    chosen = [folder for folder in runs if runs[folder]["benchmark"] in (benchmarks or present)]
    for folder in chosen:
        _require_whole(folder, runs[folder])
    return sample_of([cell for folder in chosen for cell in read_cells(folder)], methods)


def _require_whole(folder: Path, run: RunInfo) -> None:
    name, sentences = f"{run['model']} on {run['benchmark']}", unfinished(folder)
    if run.get("certificate") is not None:
        sentences = [
            f"{name} was run under a certificate, which hides TRACE's overrides; "
            "run `lastword eval` without one"
        ]
    elif (method := run.get("correction")) is not None:
        sentences = [
            f"{name} was decided by {method}, which hides TRACE's overrides; run "
            f"`lastword eval` without --correction, and certify with --methods {method}"
        ]
    for sentence in sentences:
        raise RecordError(sentence)


def sample_of(cells: Sequence[Cell], methods: Sequence[str] | None = None) -> Sample:
    """Return the sample of labelled items in cells of one model, on disk or in memory.

    By default, all methods that the records allow are used.

    Raises:
        RecordError: The cells are not of one model, or a record does not follow from its
            trajectory.
    """
    first = cells[0].info
    subject, invariant = Subject.of(first), float(first["invariant"])
    for cell in cells:
        if Subject.of(cell.info) != subject:
            raise RecordError(
                f"{cell.model} on {cell.benchmark} has another Theta, chat template or weights "
                f"than on {cells[0].benchmark}; certify each separately"
            )
        recheck(cell, subject.theta, invariant, int(first["depth"]))
    scalar = scalar_operator(invariant, subject.theta.tau_I)
    names = other_methods.allowed(cells, CERTIFIABLE) if methods is None else tuple(methods)
    means = other_methods.means(cells) if any(name.startswith(BATCH) for name in names) else {}
    u = other_methods.scores(cells, other_methods.resolved(cells, first, names, means))
    truth = stack_cells([cell.truthful[cell.mc1_places] * 1.0 for cell in cells]) > 0
    items = _labelled(cells, u, truth)
    return Sample(items, u, truth, scalar, subject, tuple(cells), names, means)


def _labelled(cells: Sequence[Cell], u: Mapping[str, Rows], truth: Truths) -> Labelled:
    """Return the items as the model, each method and each control answer them."""
    places = [cell.items["operator"].to_numpy(str)[cell.mc1_places] for cell in cells]
    # TRACE's operators are also those of the gated rule; other methods are their only operator.
    of_trace, base = np.concatenate(places), u[MODEL]
    answers = {
        name: Answers.of(
            rows, base, truth, of_trace if name in (TRACE, GATED) else np.full(len(rows), name)
        )
        for name, rows in u.items()
        if name != MODEL
    }
    sure = softmax(base, axis=1).max(axis=1)
    failed = sum(cell.failed for cell in cells)
    return Labelled(mc1_rows(base, truth), sure, answers, groups(cells), failed)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of the tests on a sample.

    Attributes:
        questions: Digests of the items' questions, if there are any.
        likeness: Conformal p-values of the items that tested the probe; empty if it has none.
    """

    sample: Sample
    finding: Finding
    questions: tuple[str, ...] = ()
    probe: CertifiedProbe | None = None
    likeness: tuple[float, ...] = ()

    @property
    def certificate(self) -> Certificate:
        """The certificate of the finding, dated now."""
        sample, finding, automation = self.sample, self.finding, self.finding.automation
        runs = [cell.info for cell in sample.cells]
        method, reference = finding.policy.method, {}
        if self.probe is not None:
            reference = sampled(self.likeness)
        else:
            reference = sample.reference
            if method not in (TRACE, GATED):  # others compute no more than the base's scores
                reference = {"confidence": reference["confidence"]}
        proven = automation is not None and automation.rung(finding.terms.delta) is not None
        return Certificate(
            sample.subject,
            finding.terms,
            finding.policy,
            finding.trials,
            automation if proven else None,
            benchmarks=sample.benchmarks,
            templates=tuple(dict.fromkeys(template_name(run["template"]) for run in runs)),
            versions=runs[0]["packages"],
            reference=reference,
            means=sample.means if method.startswith(BATCH) else {},
            questions=self.questions,
            probe=self.probe,
        )


def outcome(sample: Sample, terms: Terms, questions: tuple[str, ...] = ()) -> Outcome:
    """Test the methods of a sample, and the controls in the same test.

    Raises:
        InputError: There are fewer groups than any policy needs.
    """
    finding = certify(sample.items, sample.scalar, replace(terms, methods=sample.methods))
    return Outcome(sample, sample.controlled(finding), questions)
