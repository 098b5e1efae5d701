"""Run a trial: answer labelled rows, fit probes, certify, and write the verdict."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lastword.decide.decider import Decider
from lastword.decide.states import read_passages
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.files.wording import counted
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe, encoder_name
from lastword.records.cells import Cell
from lastword.text.question import question_digest
from lastword.trust.automation import Automation, Rung, plan, rungs, until_failure
from lastword.trust.certificate import Certificate
from lastword.trust.certification import Outcome, Sample, outcome, sample_of
from lastword.trust.claims import judge as judge_trials
from lastword.trust.claims import trials
from lastword.trust.drift import LIKENESS
from lastword.trust.evidence import Evidence
from lastword.trust.groups import FRACTION
from lastword.trust.policy import CERTIFIABLE, Promise, is_probe
from lastword.trust.terms import Terms
from lastword.tryout.answers import answer
from lastword.tryout.contest import Contest, right_of
from lastword.tryout.fitting import hold
from lastword.tryout.judge import judge
from lastword.tryout.labels import Labels, read_labels
from lastword.tryout.material import ACCURACY, BUDGET, Material, TryJob
from lastword.tryout.prompts import Raced, race
from lastword.tryout.rounds import begin, begun, finish
from lastword.tryout.second_round import Proven, certified
from lastword.tryout.served import commands, write_results
from lastword.tryout.table_options import TableOptions
from lastword.tryout.verdict import Verdict
from lastword.tryout.words import advise

_log = logging.getLogger("lastword")


def _nothing(done: object) -> None:
    pass


@dataclass(frozen=True, eq=False)
class PreparedTrial:
    """A trial whose contestants have answered; the contest is None if there are too few labels."""

    job: TryJob
    sample: Sample | None
    material: Material
    contest: Contest | None
    prompts: tuple[Sequence[Raced], Sequence[str]]
    notes: tuple[str, ...]

    @property
    def terms(self) -> Terms:
        """The terms with the methods that are tested."""
        terms = self.job.terms
        corrections = () if self.sample is None else self.sample.methods
        if self.contest is None:
            return replace(terms, methods=corrections) if corrections else terms
        # Corrections have no class weights, and with an error the promise is about the probe.
        if self.job.balanced or terms.error is not None:
            corrections = ()
        return replace(terms, methods=(*corrections, self.contest.probe.name))

    def conclude(self, out: Path | None = None) -> Verdict:
        """Test the best method, and return the verdict; with a folder, write all results to it.

        If rows of a second round are labelled there, they decide what is certified.

        Raises:
            InputError: The folder belongs to other labels or another promise.
        """
        labels, advice = self.job.labels, ""
        second = None if out is None else begun(out, labels, self.job.terms)
        if out is not None and second is not None and self.contest is not None:
            proven, advice = finish(out, second, labels)
            proven = replace(proven, kind=self.contest.best)
        else:
            if out is not None and self.contest is not None and not self.job.balanced:
                advice = begin(out, labels, self.job.terms, self._policy)
            # Labels of a second round prove the errors, so this half does not spend delta on them.
            proven = self._by_halves(errors=not advice)
        figures = self.material, self.sample, self.contest, self.terms, proven, *self.prompts
        verdict = judge(*figures, self.notes)
        if proven.probe is None and proven.certificate is None:
            proven = Proven(self._uncertified(verdict))
        next_steps = [*commands(proven, self.job, out), *filter(None, [advice])]
        verdict = replace(verdict, advice=advise(verdict, next_steps, proven.words))
        if out is not None:
            write_results(proven, self.job, verdict, self.prompts[0], out)
        return verdict

    def _policy(self) -> tuple[Probe, Decider, Sequence[Rung]]:
        assert self.contest is not None
        kind, job = self.contest.best, self.job
        probe, every = self.contest.refit(kind), np.arange(len(self.material.truths))
        tracer = job.tracer if probe.needs_model else None
        decider = Decider(tracer, probes=[probe], encoders=job.encoders, template=job.template_name)
        return probe, decider, self.contest.steps(self.contest.crossed[kind], every)

    def _by_halves(self, *, errors: bool) -> Proven:
        """Test corrections on all labels, and the probe on the half that did not fit it."""
        contest, sample, terms = self.contest, self.sample, self.terms
        enough = sample is not None and sample.items.group_count >= terms.least
        if contest is None:
            if sample is None or not enough or self.job.balanced:
                return Proven()
            tested = outcome(sample, terms, self._questions)
            automation = tested.finding.automation
            chosen = tested.finding.chosen is not None or _sure(automation, terms)
            certificate = tested.certificate if chosen else None
            return Proven(None, certificate, tested, automation)
        gained = self._gained(sample, contest) if sample is not None and enough else None
        automation = None
        if terms.error is not None and errors:
            automation = _automation(contest, terms.error, terms.delta)
        certificate = self._certificate(contest, gained, automation)
        proven = Proven(None, certificate, gained, automation)
        if certificate is None or not is_probe(certificate.policy.method):
            return proven
        return replace(proven, probe=contest.probe, kind=contest.kind)

    def _gained(self, sample: Sample, contest: Contest) -> Outcome | None:
        """Test each method's gain over the model; the probe's on labels that did not fit it."""
        terms, items, material = self.terms, sample.items, self.material
        tested = contest.tested[material.answered]
        right = right_of(material, contest.shown)[material.answered]
        pair = (items.mc1_base > 0)[tested], right[tested]
        of_probe = Evidence.of(*pair, items.groups[tested], failed=items.failed)
        finding = judge_trials(trials(items, sample.scalar, terms, of_probe), terms)
        result = Outcome(sample, sample.controlled(finding), self._questions)
        if finding.chosen is None:
            return result
        if is_probe(finding.policy.method):
            mark = contest.probe.certified(FRACTION)
            return replace(
                result, questions=(mark.question,), probe=mark, likeness=contest.likeness
            )
        return result

    @property
    def _questions(self) -> tuple[str, ...]:
        question = self.job.labels.question
        return () if question is None else (question_digest(question),)

    def _certificate(
        self, contest: Contest, gained: Outcome | None, automation: Automation | None
    ) -> Certificate | None:
        probe, labels = contest.probe, self.job.labels
        automation = automation if _sure(automation, self.terms) else None
        if gained is not None and gained.finding.chosen is not None:
            finding = replace(gained.finding, automation=automation)
            certificate = replace(gained, finding=finding).certificate
            return replace(certificate, subject=probe.subject) if certificate.probe else certificate
        if automation is None:
            return None
        more = {
            "probe": probe.certified(FRACTION),
            "reference": {LIKENESS: contest.likeness},
            "benchmarks": {labels.digest_name: labels.fingerprint},
        }
        return certified(probe, self.terms, more, automation=automation)

    def _uncertified(self, verdict: Verdict) -> Probe | None:
        """Return the best probe, fitted to all labels, if it is better than the model."""
        contest, model = verdict.contest, verdict.contest.model
        if self.contest is None or contest.best != contest.probe:
            return None
        if model is not None and contest.value(contest.line(contest.best)) <= contest.value(model):
            return None
        return self.contest.refit(self.contest.best)


def _sure(automation: Automation | None, terms: Terms) -> bool:
    return automation is not None and automation.rung(terms.delta) is not None


def _automation(contest: Contest, error: float, delta: float) -> Automation:
    places = np.flatnonzero(contest.tested)
    table = contest.shown[places]
    confidence, wrong = table.max(axis=1), ~right_of(contest.material, table, places)
    rows = len(places)
    # Planned on the texts that the probe was fitted to.
    planned = contest.steps(contest.chosen.scores, contest.chosen.judged)
    ladder = plan(planned, confidence, rows=rows, error=error, level=delta, drawn=False)
    steps = rungs(confidence, wrong, contest.material.groups[places], ladder.thresholds)
    return Automation(error, until_failure(steps, error, delta))


def run(
    job: TryJob,
    out: Path | None = None,
    advance: Callable[[int], None] = _nothing,
    stage: Callable[[str], None] = _nothing,
) -> Verdict:
    """Run a trial and return its verdict; with `out`, write all results to a folder.

    Rows in the folder's records are not answered again. `advance` is called with the number of
    items done since the last call, `stage` with the name of each stage when it begins.

    Raises:
        InputError: No example can be read, or there are too few labels for a probe and no model.
        RecordError: The folder has another run.
    """
    if out is not None:
        begun(out, job.labels, job.terms)  # an unsuitable folder is refused before the work
    trial = prepare(job, out, advance, stage)
    stage("certifying")
    return trial.conclude(out)


def prepare(
    job: TryJob,
    out: Path | None = None,
    advance: Callable[[int], None] = _nothing,
    stage: Callable[[str], None] = _nothing,
) -> PreparedTrial:
    """Let every contestant answer the rows; see `run`."""
    labels, sample, cell, notes = job.labels, None, None, job.labels.notes
    if job.tracer is not None:
        stage(f"asking the model about {len(job.asked.rows)} rows")
        labels, sample, cell, more = _ask(job, job.tracer, out, advance)
        notes = (*notes, *more)
    stage("fitting probes to the labels")
    material = Material(job, labels, cell)
    contest = hold(material)
    if contest is None and sample is None:
        raise InputError(
            "too few labels for a probe: label more rows of at least two options, or give a "
            "language model (--model)"
        )
    prompts: tuple[Sequence[Raced], Sequence[str]] = (), ()
    if job.tracer is not None and job.sample is None:
        stage("trying other prompts")
        prompts = race(job.tracer, job.labels, job.template, job.budget)
    return PreparedTrial(job, sample, material, contest, prompts, notes)


def _ask(
    job: TryJob, tracer: Tracer, out: Path | None, advance: Callable[[int], None]
) -> tuple[Labels, Sample, Cell, list[str]]:
    """Return the rows that take part, the model's answers to them, and notes."""
    cell = answer(job, tracer, out, advance)
    errors, notes = cell.records["error"].dropna(), list[str]()
    if not len(cell.items):
        raise InputError(f"no example can be read; the first one: {errors.iloc[0]}")
    if len(errors):
        rows = counted(len(errors), "row")
        notes = [f"left out {rows} that the model cannot read; the first: {errors.iloc[0]}"]
        _log.warning("%s. A certificate counts such a row as broken", notes[0])
    if job.sample is not None:
        return _readable(job, tracer), sample_of(cell), cell, [*notes, job.sample]
    answered = {str(id) for id in cell.items["id"]}
    rows_left = tuple(row for row in job.labels.rows if row.id in answered)
    return replace(job.labels, rows=rows_left), sample_of(cell), cell, notes


def _readable(job: TryJob, tracer: Tracer) -> Labels:
    texts = [(row.text, row.id) for row in job.labels.rows]
    passages = read_passages(tracer, texts, job.labels.rows[0].question, job.template, "mean")
    pairs = zip(job.labels.rows, passages, strict=True)
    rows = tuple(row for row, read in pairs if not isinstance(read, ItemError))
    return replace(job.labels, rows=rows)


def try_labels(
    source: Any,
    tracer: Tracer | None = None,
    *,
    template: str | None = None,
    budget: float = BUDGET,
    out: str | Path | None = None,
    promise: Promise = "gain",
    alpha: float = 0.05,
    delta: float = 0.05,
    error: float | None = None,
    encoders: Sequence[Encoder | str | Path] = (),
    objective: str = ACCURACY,
    prefer: str = "accurate",
    **table: str | None,
) -> Verdict:
    """Compare methods on labelled examples: what to run, how much it gains, how much it answers.

    Args:
        source: Path of a CSV, TSV, Excel, JSON lines or Parquet file; a data frame, or
            dictionaries.
        tracer: The language model; None to try encoders and words alone.
        template: `decide/plain`, `decide/listed`, `decide/chat`, or a Jinja file.
        budget: Seconds for trying other prompts.
        out: Folder for records, certificate, probe, question, verdict and its page.
        promise: `gain`: accuracy is higher than the model's. `breaks`: in addition, at most a
            share `alpha` of all answers is broken.
        alpha: Maximum share of answers broken, for `breaks`; in (0, 1).
        delta: Maximum probability that the guarantee does not hold; in (0, 1).
        error: Maximum share of wrong answers among those that are given; None for no such promise.
        encoders: Sentence encoders that take part: an `Encoder`, a hub name, a folder, `minilm` or
            `mpnet`.
        objective: `accuracy`, or `balanced`: probes are fitted and ranked by mean recall.
        prefer: `accurate`, or `cheap`: the cheapest probe within half a standard error of the best.
        **table: The columns `text`, `label`, `id` and `group`, the `choices`, `describe`,
            `instructions` and `encoding`, as in `TableOptions`.

    Raises:
        InputError: The table cannot be read, or a column cannot be guessed.
    """
    loaded = tuple(one if isinstance(one, Encoder) else Encoder(one) for one in encoders)
    job = TryJob(
        tracer,
        read_labels(source, TableOptions(**table)),
        Terms(alpha, delta, error, methods=CERTIFIABLE, promise=promise),
        template,
        budget,
        loaded,
        tuple(encoder_name(one.name) for one in loaded),
        objective,
        prefer,
    )
    return run(job, None if out is None else Path(out))
