"""Certification: labelled items from records, and the certificate that they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword.errors import RecordError
from lastword.records.cells import Cell, read_cells
from lastword.records.info import RunInfo, find_cells, read_run
from lastword.records.metrics import Rows, Truths, mc1_rows
from lastword.records.recheck import recheck
from lastword.records.store import unfinished
from lastword.rule.geometry import Scores
from lastword.text.prompt_template import template_name
from lastword.trust import other_methods
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Finding, certify, judge, trials
from lastword.trust.drift import REFERENCE, rounded, sampled, statistics
from lastword.trust.groups import groups
from lastword.trust.labelled import Labelled, MethodAnswers
from lastword.trust.other_methods import BLIND, MODEL, WORDINGS, Means
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
from lastword.trust.subject import CertifiedProbe, Subject
from lastword.trust.terms import Terms


@dataclass(frozen=True, eq=False)
class Sample:
    """The labelled items of one model, with their records.

    Scores are those of the model, each method and each control [items, candidates]; `means` are
    mean probabilities by label set, for batch calibration.
    """

    items: Labelled
    scores: Mapping[str, Rows]
    truth: Truths
    scalar: ScalarOperator
    subject: Subject
    cell: Cell
    methods: tuple[str, ...]
    means: Means

    @cached_property
    def reference(self) -> dict[str, tuple[float, ...]]:
        """The values of each statistic on at most `REFERENCE` items, rounded, for drift."""
        places = self.cell.answer_places[self.cell.mc1_places]
        if len(places) > REFERENCE:
            rng = np.random.default_rng(0)
            places = places[np.sort(rng.choice(len(places), REFERENCE, replace=False))]
        values: dict[str, list[float]] = {}
        rows: list[Any] = self.cell.whole(places).to_dict("records")
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
        return replace(finding, controls=gains)


def read_sample(
    path: Path, benchmark: str | None = None, methods: Sequence[str] | None = (TRACE,)
) -> Sample:
    """Read the labelled items of a benchmark at or under a path.

    Args:
        path: A cell's folder, or any folder above.
        benchmark: May be left out if there is one.
        methods: The methods of the policies; None for all that the records allow.

    Raises:
        RecordError: There are no records of it, or of several models or benchmarks; the run is
            unfinished or was made under a certificate; or a record contradicts its trajectory.
    """
    runs = {folder: read_run(folder) for folder in find_cells(path)}
    models = list(dict.fromkeys(run["model"] for run in runs.values()))
    present = [run["benchmark"] for run in runs.values()]
    if len(models) > 1:
        raise RecordError(
            f"{path} holds records of {' and '.join(models)}; a certificate is for one model: "
            "name its own folder"
        )
    if benchmark is None and len(present) > 1:
        raise RecordError(f"{path} holds {', '.join(present)}; name one of them by --benchmark")
    if (benchmark or present[0]) not in present:
        raise RecordError(f"{path} has no records of {benchmark}; it has {', '.join(present)}")
    folder = [*runs][present.index(benchmark or present[0])]
    _require_whole(folder, runs[folder])
    return sample_of(read_cells(folder)[0], methods)


def _require_whole(folder: Path, run: RunInfo) -> None:
    name = f"{run['model']} on {run['benchmark']}"
    if run.get("certificate") is not None:
        raise RecordError(
            f"{name} was run under a certificate, which hides TRACE's overrides; "
            "run `lastword eval` without one"
        )
    if (method := run.get("correction")) is not None:
        raise RecordError(
            f"{name} was decided by {method}, which hides TRACE's overrides; run "
            f"`lastword eval` without --correction, and certify with --methods {method}"
        )
    for sentence in unfinished(folder):
        raise RecordError(sentence)


def sample_of(cell: Cell, methods: Sequence[str] | None = None) -> Sample:
    """Return the sample of a cell; by default all methods that the records allow are used.

    Raises:
        RecordError: A record does not follow from its trajectory.
    """
    run, truth = cell.info, cell.truthful[cell.mc1_places]
    subject, invariant = Subject.of(run), float(run["invariant"])
    recheck(cell, subject.theta, invariant, int(run["depth"]))
    scalar = scalar_operator(invariant, subject.theta.tau_I)
    names = other_methods.allowed(cell, CERTIFIABLE) if methods is None else tuple(methods)
    means = other_methods.means(cell) if any(name.startswith(BATCH) for name in names) else {}
    u = other_methods.scores(cell, other_methods.resolved(cell, names, means))
    return Sample(_labelled(cell, u, truth), u, truth, scalar, subject, cell, names, means)


def _labelled(cell: Cell, u: Mapping[str, Rows], truth: Truths) -> Labelled:
    of_trace, base = cell.items["operator"].to_numpy(str)[cell.mc1_places], u[MODEL]
    # TRACE's operators are also those of the gated rule; other methods are their only operator.
    answers = {
        name: MethodAnswers.of(
            rows, base, truth, of_trace if name in (TRACE, GATED) else np.full(len(rows), name)
        )
        for name, rows in u.items()
        if name != MODEL
    }
    sure = softmax(base, axis=1).max(axis=1)
    return Labelled(mc1_rows(base, truth), sure, answers, groups(cell), cell.failed)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of the tests on a sample.

    `likeness` has the conformal p-values of the items that tested the probe.
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
        run, method, reference = sample.cell.info, finding.policy.method, {}
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
            benchmarks={run["benchmark"]: run["dataset"]["fingerprint"]},
            templates=(template_name(run["template"]),),
            versions=run["packages"],
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
