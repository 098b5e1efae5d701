"""Run a trial: answer labelled rows, fit probes, certify, and write the verdict."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from lastword.decide.decider import Decider
from lastword.decide.templates import CHAT, DEFAULT, template_of
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.wording import counted
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe, encoder_name
from lastword.records.cells import Cell
from lastword.text.prompt_template import Template
from lastword.text.question import question_digest
from lastword.trust.automation import Automation, Rung, plan
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
from lastword.tryout.judge import Proven, judge
from lastword.tryout.labels import Labels, read_labels
from lastword.tryout.material import Material
from lastword.tryout.prompts import BUDGET, Race, race
from lastword.tryout.rounds import begin, begun, finish
from lastword.tryout.sampling import readable, sampled
from lastword.tryout.second_round import Proof, SecondRound, certified
from lastword.tryout.served import Served
from lastword.tryout.table_options import TableKeywords, TableOptions
from lastword.tryout.verdict import ACCURACY, BALANCED, Verdict
from lastword.tryout.words import advise

_log = logging.getLogger("lastword")

PEERS = ("contextual",)  # methods whose prompts are read besides the model's


def _nothing(done: Any) -> None:
    pass


@dataclass(frozen=True)
class TryJob:
    """A trial: labelled examples, a model and settings.

    Attributes:
        tracer: The language model; None if only encoders and words take part.
        template: The prompt template.
        template_name: The template's name as the user gave it; None if lastword chose it.
        readers: Sentence encoders that take part.
        named: Names of those that the user named.
        balanced: True to fit and rank by mean recall, False by accuracy.
        cheap: True to choose the cheapest method within half a standard error of the best.
    """

    tracer: Tracer | None
    labels: Labels
    template: Template
    terms: Terms
    budget: float = BUDGET
    template_name: str | None = None
    readers: tuple[Encoder, ...] = ()
    named: tuple[str, ...] = ()
    balanced: bool = False
    cheap: bool = False

    @property
    def items(self) -> int:
        """The number of labelled examples."""
        return len(self.labels.rows)

    @property
    def answers(self) -> int:
        """The number of rows that the model answers, or of all without a model."""
        return self.items if self.tracer is None else len(self.asked.rows)

    @property
    def methods(self) -> dict[str, Method]:
        """Methods whose prompts are read besides the model's."""
        return {} if self.tracer is None else resolve(PEERS, self.tracer.facts)

    @cached_property
    def asked(self) -> Labels:
        """The rows that the model answers: a sample if it is too slow with many options."""
        assert self.tracer is not None
        return sampled(self.tracer, self.labels, self.template, self.budget)

    @property
    def _sample(self) -> str:
        return (
            f"With so many options the model answers only {len(self.asked.rows)} rows in the time "
            "of --budget, and no other prompts; encoders, words and probes take all rows"
        )

    def plan(self) -> list[str]:
        """Return lines with the notes on the table, the work, and the labels that are missing."""
        counts = {len(row.question.options) for row in self.labels.rows}
        least, most = min(counts), max(counts)
        options = f"{most} options" if least == most else f"{least} to {most} options"
        work = "Encoders and words take part; a language model would too with --model"
        if self.tracer is not None:
            budget = f"{self.budget:.0f} s" if self.budget < 100 else f"{self.budget / 60:.0f} min"
            work = f"The model answers each, and other prompts get at most {budget}"
            if self.answers < self.items:
                work = self._sample
        return [*self.labels.notes, f"{self.items} labelled examples with {options}. {work}"]

    def run(
        self,
        out: Path | None = None,
        advance: Callable[[int], None] = _nothing,
        stage: Callable[[str], None] = _nothing,
    ) -> Verdict:
        """Run the trial and return its verdict; with `out`, write all results to a folder.

        If rows of a second round are labelled in the folder, they decide what is certified.

        Args:
            out: Folder for the records, the certificate, the probe, the question and the
                verdict. Rows in its records are not answered again.
            advance: Called with the number of items done since the last call.
            stage: Called with the name of each stage when it begins.

        Raises:
            InputError: No example can be read, or there are too few labels for a probe and no
                model.
            RecordError: The folder has another run.
        """
        second = None if out is None else begun(out, self.labels, self.terms)
        trial = self.prepare(out, advance, stage)
        stage("certifying")
        if out is None or second is None:
            return trial.conclude(out)
        return trial.conclude(out, second, finish(out, second, self.labels))

    def prepare(
        self,
        out: Path | None = None,
        advance: Callable[[int], None] = _nothing,
        stage: Callable[[str], None] = _nothing,
    ) -> "Trial":
        """Let every contestant answer the rows; see `run`."""
        labels, sample, cell, notes = self.labels, None, None, self.labels.notes
        if self.tracer is not None:
            stage(f"asking the model about {self.answers} rows")
            labels, sample, cell, more = self._ask(self.tracer, out, advance)
            notes = (*notes, *more)
        stage("fitting probes to the labels")
        settings = self.readers, self.named, self.balanced, self.terms.error, self.cheap
        material = Material(labels, self.template, cell, *settings)
        contest = hold(self.tracer, material)
        if contest is None and self.tracer is None:
            raise InputError(
                "too few labels for a probe: label more rows of at least two options, or give a "
                "language model (--model)"
            )
        raced = Race()
        if self.tracer is not None:
            stage("trying other prompts")
            seconds = self.budget if self.answers == self.items else 0.0
            raced = race(self.tracer, self.labels, self.template, seconds)
        return Trial(self, sample, material, contest, raced, notes)

    def _ask(
        self, tracer: Tracer, out: Path | None, advance: Callable[[int], None]
    ) -> tuple[Labels, Sample, Cell, list[str]]:
        """Return the rows that take part, the model's answers to them, and notes."""
        task = Decider(tracer), self.asked, self.template, self.methods
        cell, info = answer(*task, out, advance)
        errors, notes = cell.records["error"].dropna(), list[str]()
        if not len(cell.items):
            raise InputError(f"no example can be read; the first one: {errors.iloc[0]}")
        if len(errors):
            rows = counted(len(errors), "row")
            notes = [f"left out {rows} that the model cannot read; the first: {errors.iloc[0]}"]
            _log.warning("%s. A certificate counts such a row as broken", notes[0])
        sample = sample_of([cell], [info])
        if self.answers < self.items:
            labels = readable(tracer, self.labels, self.template)
            return labels, sample, cell, [*notes, self._sample]
        answered = {str(id) for id in cell.items["id"]}
        rows_left = tuple(row for row in self.labels.rows if row.id in answered)
        return replace(self.labels, rows=rows_left), sample, cell, notes


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial whose contestants have answered.

    Attributes:
        sample: The rows that the model answered; None without a model.
        contest: Probes and baselines; None if there are too few labels.
        raced: Results of other prompts.
        notes: Guesses and warnings about the table.
    """

    job: TryJob
    sample: Sample | None
    material: Material
    contest: Contest | None
    raced: Race
    notes: tuple[str, ...]

    @property
    def terms(self) -> Terms:
        """The terms with the methods that are tested."""
        terms = self.job.terms
        if self.contest is None:
            return terms if self.sample is None else replace(terms, methods=self.sample.methods)
        # Corrections have no class weights, and with an error the promise is about the probe.
        alone = self.sample is None or self.job.balanced or terms.error is not None
        corrections: tuple[str, ...] = ()
        if self.sample is not None and not alone:
            corrections = self.sample.methods
        return replace(terms, methods=(*corrections, self.contest.probe.name))

    def begin(self, out: Path) -> list[str]:
        """Draw rows for a second round, and return lines that explain them; [] for none."""
        if self.contest is None or self.job.balanced:
            return []
        return begin(out, self._decider, self.job.labels, self._policy, self.job.terms)

    def _decider(self, probe: Probe) -> Decider:
        tracer = self.job.tracer if probe.needs_model else None
        template = self.job.template_name
        return Decider(tracer, probes=[probe], encoders=self.job.readers, template=template)

    def _policy(self) -> tuple[Probe, Sequence[Rung]]:
        """Return the best probe, fitted to all labels, and its share against error."""
        assert self.contest is not None
        kind, places = self.contest.best, np.arange(len(self.material.truths))
        return self.contest.refit(kind), self.contest.steps(self.contest.crossed[kind], places)

    def conclude(
        self,
        out: Path | None = None,
        second: SecondRound | None = None,
        proof: Proof | None = None,
        *,
        draws: bool = True,
    ) -> Verdict:
        """Test the best method, and return the verdict; with a folder, write all results to it.

        Args:
            out: The folder.
            second: A second round that was begun there, with its `proof`.
            proof: What the labels of the second round prove.
            draws: False if the caller draws the rows of a second round.
        """
        first: tuple[str, ...] = ()
        if second is not None and proof is not None:
            proven, served = self._by_round(second, proof)
            first, more = (proof.words,), [proof.advice] if proof.advice else []
        else:
            more = self.begin(out) if out is not None and draws else []
            # Labels of a second round prove the errors, so this half does not spend delta on them.
            proven, served = self._by_halves(errors=draws and not more)
        figures = self.material, self.sample, self.contest, self.terms, proven, self.raced
        verdict = judge(*figures, self.notes)
        served = self._uncertified(verdict) if served.nothing else served
        commands = served.commands(self.job, verdict, out)
        verdict = replace(verdict, advice=advise(verdict, [*commands, *more], first))
        if out is not None:
            served.write(self.job, verdict, self.raced, out)
        return verdict

    def _by_round(self, second: SecondRound, proof: Proof) -> tuple[Proven, Served]:
        """Return what the labels of a second round prove."""
        assert self.contest is not None
        drawn = proof.drawn if proof.certificate is not None else None
        proven = Proven(None, proof.automation, self.contest.best, second.probe.name, drawn)
        return proven, Served(second.probe, proof.certificate)

    def _by_halves(self, *, errors: bool) -> tuple[Proven, Served]:
        """Test corrections on all labels, and the probe on the half that did not fit it."""
        contest, sample, terms = self.contest, self.sample, self.terms
        enough = sample is not None and sample.items.group_count >= terms.least
        if contest is None:
            if sample is None or not enough or self.job.balanced:
                return Proven(), Served()
            tested = outcome(sample, terms, self._questions)
            automation = tested.finding.automation
            sure = automation is not None and automation.rung(terms.delta) is not None
            chosen = tested.finding.chosen is not None or sure
            return Proven(tested, automation), Served(None, tested.certificate if chosen else None)
        gained = self._gained(sample, contest) if sample is not None and enough else None
        automation = None
        if terms.error is not None and errors:
            automation = _automation(contest, terms.error, terms.delta)
        certificate = self._certificate(gained, automation)
        if certificate is None or not is_probe(certificate.policy.method):
            return Proven(gained, automation), Served(None, certificate)
        named = contest.kind, contest.probe.name
        return Proven(gained, automation, *named), Served(contest.probe, certificate)

    def _gained(self, sample: Sample, contest: Contest) -> Outcome | None:
        """Test each method's gain over the model; the probe's on labels that did not fit it."""
        terms, items, material = self.terms, sample.items, self.material
        tested = contest.tested[material.answered]
        if not tested.any():
            return None

        def evidence(base: np.ndarray, shown: np.ndarray) -> Evidence:
            """Return the evidence that answers are better than others on the labels of the test."""
            pair = base[tested], shown[tested]
            return Evidence.of(*pair, items.groups[tested], failed=items.failed)

        probe = right_of(material, contest.shown)[material.answered]
        of_probe = evidence(items.mc1_base > 0, probe)
        finding = judge_trials(trials(items, sample.scalar, terms, of_probe), terms)
        result = Outcome(sample, sample.controlled(finding), self._questions)
        if finding.chosen is None:
            return result
        shown = probe
        if is_probe(finding.policy.method):
            mark = contest.probe.certified(FRACTION)
            result = replace(
                result, questions=(mark.question,), probe=mark, likeness=contest.likeness
            )
        else:
            shown = items.right(finding.policy)
        # The baselines are fitted to one half of the labels, so even a correction is compared
        # with them on the other half.
        baselines = {
            name: evidence((answers == material.truths)[material.answered], shown)
            for name, answers in contest.baselines.items()
        }
        return replace(result, baselines=baselines)

    @property
    def _questions(self) -> tuple[str, ...]:
        question = self.job.labels.question
        return () if question is None else (question_digest(question),)

    def _certificate(
        self, gained: Outcome | None, automation: Automation | None
    ) -> Certificate | None:
        """Return the certificate of what is proven; None if nothing is."""
        assert self.contest is not None
        probe, terms = self.contest.probe, self.terms
        sure = automation is not None and automation.rung(terms.delta) is not None
        if gained is not None and gained.finding.chosen is not None:
            finding = replace(gained.finding, automation=automation if sure else None)
            certificate = replace(gained, finding=finding).certificate
            return replace(certificate, subject=probe.subject) if certificate.probe else certificate
        if automation is None or not sure:
            return None
        labels = self.job.labels
        more = {
            "probe": probe.certified(FRACTION),
            "reference": {LIKENESS: self.contest.likeness},
            "benchmarks": {labels.digest_name: labels.fingerprint},
        }
        return certified(probe, terms, more, automation=automation)

    def _uncertified(self, verdict: Verdict) -> Served:
        """Return the best probe, fitted to all labels, if it is better than the model."""
        contest, model = verdict.contest, verdict.contest.model
        if self.contest is None or contest.best != contest.probe:
            return Served()
        if model is not None and contest.value(contest.line(contest.best)) <= contest.value(model):
            return Served()
        return Served(self.contest.refit(self.contest.best))


def _automation(contest: Contest, error: float, delta: float) -> Automation:
    """Test the errors of a probe's answers on the half of the labels that did not fit it."""
    places = np.flatnonzero(contest.tested)
    table = contest.shown[places]
    confidence, wrong = table.max(axis=1), ~right_of(contest.material, table, places)
    rows = len(places)
    ladder = plan(contest.planned, confidence, rows=rows, error=error, level=delta, drawn=False)
    groups = contest.material.groups[places]
    return Automation(error, ladder.test(confidence, wrong, groups, confidence, delta))


def template_for(tracer: Tracer | None, name: str | None) -> Template:
    """Return the prompt template of this name; None chooses the model's default.

    Raises:
        InputError: No such template.
    """
    return template_of(name or (DEFAULT if tracer is None or tracer.chat is None else CHAT))


def ready(
    tracer: Tracer | None,
    labels: Labels,
    terms: Terms,
    *,
    template: str | None = None,
    budget: float = BUDGET,
    readers: Sequence[Encoder] = (),
    named: Sequence[str] = (),
    objective: str = ACCURACY,
    prefer: str = "accurate",
) -> TryJob:
    """Return the trial of labelled examples on a model.

    Raises:
        InputError: No such template, level, objective or preference, or no contestant.
    """
    if objective not in (ACCURACY, BALANCED):
        raise InputError(f"--objective is accuracy or balanced, not {objective!r}")
    if objective == BALANCED and labels.question is None:
        raise InputError("--objective balanced needs the same options for every row")
    if prefer not in ("accurate", "cheap"):
        raise InputError(f"--prefer is accurate or cheap, not {prefer!r}")
    if tracer is None and (labels.question is None or not readers):
        why = "options that differ by row need" if labels.question is None else "a trial needs"
        raise InputError(f"{why} a language model (--model){'' if readers else ' or an encoder'}")
    return TryJob(
        tracer,
        labels,
        template_for(tracer, template),
        terms,
        budget,
        template,
        tuple(readers),
        tuple(named),
        balanced=objective == BALANCED,
        cheap=prefer == "cheap",
    )


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
    readers: Sequence[Encoder | str | Path] = (),
    objective: str = ACCURACY,
    prefer: str = "accurate",
    **table: Unpack[TableKeywords],
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
        readers: Sentence encoders that take part: an `Encoder`, a hub name, a folder, `minilm` or
            `mpnet`.
        objective: `accuracy`, or `balanced`: probes are fitted and ranked by mean recall.
        prefer: `accurate`, or `cheap`: the cheapest method within half a standard error of the
            best.
        **table: The columns `text`, `label`, `id` and `group`, the `choices`, `describe`,
            `instructions` and `encoding`, as in `TableOptions`.

    Raises:
        InputError: The table cannot be read, or a column cannot be guessed.
    """
    encoders = [one if isinstance(one, Encoder) else Encoder(one) for one in readers]
    job = ready(
        tracer,
        read_labels(source, TableOptions(**table)),
        Terms(alpha, delta, error, methods=CERTIFIABLE, promise=promise),
        template=template,
        budget=budget,
        readers=encoders,
        named=[encoder_name(one.name) for one in encoders],
        objective=objective,
        prefer=prefer,
    )
    return job.run(None if out is None else Path(out))
