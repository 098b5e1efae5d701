"""The road of a try: items, records, certificate, verdict."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lastword.decide.decider import Decider, read_states
from lastword.decide.file import write_questions
from lastword.decide.templates import CHAT, DEFAULT, TEMPLATES, template_of
from lastword.errors import InputError, ItemError
from lastword.files.folder import Folder, locate
from lastword.files.strict_json import to_json
from lastword.files.writing import open_whole
from lastword.lab.evaluation.runner import execute, prepare
from lastword.lab.evaluation.work import Work
from lastword.lab.report.build import VERDICT, write_page
from lastword.methods import resolve
from lastword.probes.probe import SUFFIX
from lastword.probes.state import POOLINGS
from lastword.records.info import read_run
from lastword.text.question import question_digest
from lastword.trust.certification import Outcome, Sample, outcome, read_sample
from lastword.trust.certify import claims
from lastword.trust.certify import judge as judge_claims
from lastword.trust.choice import beside
from lastword.trust.policy import METHODS, Promise, is_probe
from lastword.trust.terms import Terms
from lastword.tryout.contest import Contest, Material, fitting, hold
from lastword.tryout.labels import Labels, read_labels
from lastword.tryout.named import Named
from lastword.tryout.prompts import BUDGET, file_of, race
from lastword.tryout.sets import Sets, check_level, prediction_sets
from lastword.tryout.verdict import Verdict, judge

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer

_SAMPLE = 4  # items by which the time that all take is told
CERTIFICATE, QUESTIONS, PAGE = "certificate.toml", "questions.yaml", "index.html"
PROBE = f"answer{SUFFIX}"


@dataclass(frozen=True)
class Job:
    """Labelled examples on a model, ready to be run.

    Attributes:
        work: The examples' items under a template, as the runner takes them.
        sets: Level of prediction sets; None for no sets.
    """

    tracer: "Tracer"
    labels: Labels
    work: Work
    terms: Terms
    budget: float = BUDGET
    sets: float | None = None

    @property
    def items(self) -> int:
        """How many there are."""
        return len(self.labels.rows)

    def plan(self) -> list[str]:
        """Say what will be done and what it can lead to; a few items are run for its time."""
        counts = {len(question.options) for _, question, *_ in self.labels.rows}
        least, most = min(counts), max(counts)
        options = f"{most} choices" if least == most else f"{least} to {most} choices"
        lines = [
            *self.labels.said,
            f"{self.items} labelled examples of {options}; every correction is scored on each: "
            f"about {_duration(self._seconds())}, and at most {_duration(self.budget)} for other "
            "prompts",
        ]
        if self.items < self.terms.least:
            lines.append(
                f"too few to certify anything: {self.terms.least} labels are needed; the picture "
                "is shown all the same"
            )
        return lines

    def _seconds(self) -> float:
        """About how long all items and the contest's fits take, by a few items and one fit."""
        from lastword.decide.batch import Scope

        work, rows = self.work, self.labels.rows[:_SAMPLE]
        items = self.work.dataset.items(self.work.template)[:_SAMPLE]
        encoded = [e for e in self.tracer.encode(items) if not isinstance(e, ItemError)]
        if not encoded:
            raise InputError("none of the first examples can be read: shorten their texts")
        start = time.perf_counter()
        self.tracer.decide_group(encoded, Scope(work.record, work.blind, work.methods))
        if (question := self.labels.question) is None:
            return (time.perf_counter() - start) / len(encoded) * self.items
        read_states(self.tracer, [own[0] for own in rows], question, work.template, POOLINGS)
        each = (time.perf_counter() - start) / len(encoded)
        return each * self.items + fitting(self.tracer, self.items, len(question.options))

    def run(self, out: Path | None = None, advance: Callable[[int], None] | None = None) -> Verdict:
        """The verdict; with `out` a folder keeps what it was made from.

        Args:
            out: Gets the records, the certificate, the question, the verdict and a page; started
                again it goes on, and with other labels keeps the former records.
            advance: Told how many items are done, as `evaluation.runner.execute`.

        Raises:
            RecordError: The folder holds another run.
        """
        if out is not None:
            return self._run(locate(str(out)), out, advance)
        with TemporaryDirectory() as folder:
            return self._run(locate(folder), None, advance)

    def _run(
        self, root: Folder, out: Path | None, advance: Callable[[int], None] | None
    ) -> Verdict:
        decider = Decider(self.tracer)
        cell = execute(decider, prepare(decider, self.work), root, advance=advance).cell
        sample = read_sample(cell, methods=None)
        contest = self._contest(sample)
        probes = () if contest is None else [own.probe.name for own in contest.entrants]
        terms = replace(self.terms, methods=(*sample.methods, *probes))
        few = sample.items.group_count < terms.least
        one = self.labels.question
        questions = () if one is None else (question_digest(one),)
        certified = None if few else _certified(sample, terms, questions, contest)
        (read,) = sample.cells
        raced = race(self.tracer, self.labels, self.work.template, self.budget)
        verdict = judge(read, read_run(cell), certified, terms, contest, raced)
        verdict = replace(verdict, table=self.labels.said)
        if self.sets is not None:
            verdict = replace(verdict, sets=_sets(sample, contest, self.sets))
        if out is not None:
            self._keep(cell, out, verdict, certified, contest)
            for own in raced.prompts:
                if own.template.name not in TEMPLATES:
                    _write(out / file_of(own.name), own.template.text)
        return verdict

    def _contest(self, sample: Sample) -> Contest | None:
        """Return what probes get of the items that count; None where labels are too few for one."""
        (cell,) = sample.cells
        rows = {id: own for *own, id, _ in self.labels.rows}
        own = [rows[str(id)] for id in cell.items["id"].iloc[cell.mc1_places]]
        texts, questions, truths = zip(*own, strict=True)
        known = texts, questions, truths, sample.items.groups, cell
        return hold(self.tracer, Material(*known, self.work.template, self.labels.unlabelled))

    def _keep(
        self,
        cell: Folder,
        out: Path,
        verdict: Verdict,
        certified: Outcome | None,
        contest: Contest | None,
    ) -> None:
        """Write what a try leaves beside its records; the page last."""
        for name in (CERTIFICATE, PROBE):
            (out / name).unlink(missing_ok=True)  # of other labels
        if contest is not None:
            contest.entrant(verdict.method).probe.write(out / PROBE)
        if certified is not None and certified.finding.chosen is not None:
            _write(out / CERTIFICATE, certified.certificate.to_toml())
        if (question := self.labels.question) is not None:
            probes = {"answer": PROBE} if verdict.method == verdict.probe else {}
            write_questions(out / QUESTIONS, {"answer": question}, probes)
        _write(out / VERDICT, to_json(verdict.to_dict()) + "\n")
        write_page(cell, out / PAGE)


def _sets(sample: Sample, contest: Contest | None, level: float) -> Sets:
    """Return the sets of the probe that labels make, whatever is certified.

    Another may be certified on the texts that set the threshold, and to choose by them would spend
    them twice.
    """
    if contest is None:
        return Sets(level)
    own = contest.entrants[0]
    return prediction_sets(own.probe.name, own.likely, sample.items.groups[own.tested], level)


def _certified(
    sample: Sample, terms: Terms, questions: tuple[str, ...], contest: Contest | None
) -> Outcome:
    """Test the corrections on all labels, and each probe on those that it was not made of."""
    if contest is None:
        return outcome(sample, terms, questions)
    items, base = sample.items, sample.items.mc1_base > 0
    own = {
        one.probe.name: (base[one.tested], one.right[one.tested], items.groups[one.tested])
        for one in contest.entrants
    }
    finding = judge_claims(claims(items, sample.scalar, terms, sample.failed, own), terms)
    controls = beside(finding, items, sample.cells, sample.scalar)
    if is_probe(method := finding.policy.method):
        mark, like = (one := contest.entrant(method)).mark, one.likeness
        return Outcome(sample, finding, controls, (mark.question,), mark, like)
    return Outcome(sample, finding, controls, questions)


def ready(
    tracer: "Tracer",
    labels: Labels,
    terms: Terms,
    *,
    template: str | None = None,
    budget: float = BUDGET,
    sets: float | None = None,
) -> Job:
    """Labelled examples made ready for a model.

    Raises:
        InputError: No such template, or no such level.
    """
    check_level(sets)
    written_by = template_of(template or (DEFAULT if tracer.chat is None else CHAT))
    benchmark = labels.benchmark(written_by)
    methods = resolve(["contextual"], tracer.facts)
    work = Work(benchmark.load(), benchmark.template(), "all", methods)
    return Job(tracer, labels, work, terms, budget, sets)


def try_labels(
    source: Any,
    tracer: "Tracer",
    *,
    text: str | None = None,
    label: str | None = None,
    choices: str | None = None,
    describe: str | Path | None = None,
    instructions: str | None = None,
    template: str | None = None,
    budget: float = BUDGET,
    sets: float | None = None,
    out: str | Path | None = None,
    promise: Promise = "gain",
    alpha: float = 0.05,
    delta: float = 0.05,
) -> Verdict:
    """Try labelled examples on a model: what they say of it and of its corrections.

    Args:
        source: CSV, TSV, JSON lines or Parquet by its path; a data frame, or dictionaries.
        tracer: The model, without a certificate.
        text: Column of the text; guessed where it is left out, as are the next two.
        label: Column of the right answer.
        choices: Column of each row's own options, or a file of the options of all.
        describe: TOML file with a description a label.
        instructions: The question that is asked of each text.
        template: Of decisions, or a file of Jinja.
        budget: Seconds that other prompts may take.
        sets: Level of prediction sets, between 0 and 1; None for no sets.
        out: Folder that keeps records, certificate, question, verdict and page.
        promise: `gain`, more right answers than the model's own; or `breaks`: that, and at most
            alpha of all answers broken.
        alpha: Largest share of answers that may be broken, where few breaks are promised.
        delta: Largest chance that the labels mislead.

    Raises:
        InputError: The table cannot be read, or a column cannot be guessed.
    """
    described = None if describe is None else Path(describe)
    columns = Named(text, label, choices, described, instructions)
    terms = Terms(alpha, delta, methods=METHODS, promise=promise)
    read = read_labels(source, columns)
    job = ready(tracer, read, terms, template=template, budget=budget, sets=sets)
    return job.run(None if out is None else Path(out))


def _write(path: Path, text: str) -> None:
    with open_whole(path) as file:
        file.write(text.encode())


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
