"""Run a trial: answer labelled items, fit probes, certify, and write the verdict."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import tomli_w

from lastword.decide.decider import Decider
from lastword.decide.questions_file import write_questions
from lastword.decide.templates import CHAT, DEFAULT, TEMPLATES, template_of
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.cells import csv_line
from lastword.files.strict_json import to_json
from lastword.files.wording import counted
from lastword.files.writing import write_text
from lastword.methods import resolve
from lastword.methods.contract import Method
from lastword.model.encoder import Encoder, installed
from lastword.probes.probe import SUFFIX, Probe
from lastword.records.cells import Cell
from lastword.records.info import RunInfo
from lastword.text.prompt_template import Template
from lastword.text.question import question_digest
from lastword.trust.certification import Outcome, Sample, outcome, sample_of
from lastword.trust.claims import Trial, trials
from lastword.trust.claims import judge as judge_trials
from lastword.trust.evidence import Evidence
from lastword.trust.groups import FRACTION
from lastword.trust.policy import CERTIFIABLE, Policy, Promise, is_probe
from lastword.trust.terms import Terms
from lastword.tryout.answers import answer
from lastword.tryout.contest import hold, policy_of
from lastword.tryout.judge import judge
from lastword.tryout.labels import Labels, read_labels
from lastword.tryout.material import Contest, Material
from lastword.tryout.page import write_page
from lastword.tryout.prompts import BUDGET, Race, file_of, race
from lastword.tryout.rounds import begin
from lastword.tryout.table_options import TableKeywords, TableOptions
from lastword.tryout.verdict import ACCURACY, BALANCED, FILE, Verdict
from lastword.tryout.words import advise

_log = logging.getLogger("lastword")

PEERS = ("contextual",)  # methods whose prompts are read besides the model's
CERTIFICATE, QUESTIONS = "certificate.toml", "questions.yaml"
SETTINGS = "lastword.toml"  # options of `decide` and `serve`
ANSWERS, _ANSWER_COLUMNS = "answers.csv", ("id", "text", "truth", "model", "best")
PROBE, UNCERTIFIED = f"answer{SUFFIX}", f"answer-uncertified{SUFFIX}"


@dataclass(frozen=True)
class TryJob:
    """A trial: labelled examples, a model and settings.

    Attributes:
        template: The prompt template.
        template_name: The template's name as the user gave it; None if lastword chose it.
        readers: Sentence encoders that take part.
        proves: False leaves certificate and second round to the caller.
        balanced: True to fit and rank by mean recall, False by accuracy.
    """

    tracer: Tracer
    labels: Labels
    template: Template
    terms: Terms
    budget: float = BUDGET
    template_name: str | None = None
    readers: tuple[Encoder, ...] = ()
    proves: bool = True
    balanced: bool = False

    @property
    def items(self) -> int:
        """The number of labelled examples."""
        return len(self.labels.rows)

    @property
    def methods(self) -> dict[str, Method]:
        """Methods whose prompts are read besides the model's."""
        return resolve(PEERS, self.tracer.facts)

    def plan(self) -> list[str]:
        """Return lines with the notes on the table, the work, and the labels that are missing."""
        counts = {len(row.question.options) for row in self.labels.rows}
        least, most = min(counts), max(counts)
        options = f"{most} options" if least == most else f"{least} to {most} options"
        lines = [
            *self.labels.notes,
            f"{self.items} labelled examples with {options}. The model and every correction "
            f"answer each, and other prompts get at most {_duration(self.budget)}",
        ]
        if self.items < self.terms.least:
            lines.append(
                f"too few to certify anything: {self.terms.least} labels are needed. The results "
                "are shown anyway"
            )
        return lines

    def run(
        self,
        out: Path | None = None,
        advance: Callable[[int], None] = lambda done: None,
        stage: Callable[[str], None] = lambda name: None,
    ) -> Verdict:
        """Run the trial and return its verdict; with `out`, write all results to a folder.

        Args:
            out: Folder for the records, the certificate, the probes, the question and the
                verdict. Rows in its records are not answered again.
            advance: Called with the number of items done since the last call.
            stage: Called with the name of each stage when it begins.

        Raises:
            InputError: No example can be read.
            RecordError: The folder has another run.
        """
        stage(f"asking the model about {self.items} rows")
        cell, info, notes = self._answer(out, advance)
        sample = sample_of([cell], [info])
        stage("fitting probes to the labels")
        material = self._material(sample)
        contest = hold(self.tracer, material)
        stage("certifying")
        terms = self._terms_of(sample, contest)
        certified = self._certify(sample, terms, contest, material) if self.proves else None
        stage("trying other prompts")
        raced = race(self.tracer, self.labels, self.template, self.budget)
        verdict = judge(sample, material, certified, terms, contest, raced, notes)
        commands = self._commands(verdict, out, _novelty(contest))
        if self.proves and not self.balanced and out is not None and contest is not None:
            stage("drawing rows for a second round")
            more = self.template_name, self.terms, self.readers
            commands += begin(out, self.tracer, self.labels, contest.refit, *more)
        verdict = replace(verdict, advice=advise(verdict, commands))
        if out is not None:
            stage(f"writing {out}")
            self._write(out, verdict, certified, contest, raced)
        return verdict

    def _answer(
        self, out: Path | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> tuple[Cell, RunInfo, tuple[str, ...]]:
        """Return the model's answers, their run, and the notes on the table."""
        task = Decider(self.tracer), self.labels, self.template, self.methods
        cell, info = answer(*task, out, advance)
        notes, errors = self.labels.notes, cell.records["error"].dropna()
        if not len(cell.items):
            raise InputError(f"no example can be read; the first one: {errors.iloc[0]}")
        if len(errors):
            rows = counted(len(errors), "row")
            unread = f"left out {rows} that the model cannot read; the first: {errors.iloc[0]}"
            _log.warning("%s. A certificate counts such a row as broken", unread)
            notes = (*notes, unread)
        return cell, info, notes

    def _terms_of(self, sample: Sample, contest: Contest | None) -> Terms:
        """Return the terms with the methods that are tested."""
        if contest is None:
            return replace(self.terms, methods=sample.methods)
        probe = contest.probe.name
        # Corrections have no class weights.
        return replace(self.terms, methods=(probe,) if self.balanced else (*sample.methods, probe))

    def policy(self) -> Probe | None:
        """Return the probe fitted to all labels, for a second round; None with too few labels."""
        cell, info, _ = self._answer()
        return policy_of(self.tracer, self._material(sample_of([cell], [info])))

    def _material(self, sample: Sample) -> Material:
        """Return the answered items in the form that the contest takes."""
        (cell,) = sample.cells
        rows = {row.id: row for row in self.labels.rows}
        answered = [rows[str(id)] for id in cell.items["id"]]
        texts, questions, truths, *_ = zip(*answered, strict=True)
        labelled = texts, questions, truths, sample.items.groups, cell
        return Material(*labelled, self.template, self.readers, self.balanced)

    def _certify(
        self, sample: Sample, terms: Terms, contest: Contest | None, material: Material
    ) -> Outcome | None:
        """Test the corrections on all labels, and each probe on those it was not fitted to."""
        if sample.items.group_count < terms.least:
            return None
        question = self.labels.question
        questions = () if question is None else (question_digest(question),)
        if contest is None:
            return None if self.balanced else outcome(sample, terms, questions)
        items, tested, name = sample.items, contest.tested, contest.probe.name
        truths = np.array(material.truths)

        def evidence(base: np.ndarray, shown: np.ndarray) -> Evidence:
            """Return the evidence that answers are better than others on the labels of the test."""
            return Evidence.of(base[tested], shown[tested], items.groups[tested])

        probe = Trial(Policy((name,), 0.0, name), 1.0, evidence(items.mc1_base > 0, contest.right))
        finding = judge_trials(trials(items, sample.scalar, terms, sample.failed, probe), terms)
        controls = sample.controls(finding)
        certified = Outcome(sample, finding, controls, questions)
        if finding.chosen is None:
            return certified
        shown = contest.right
        if is_probe(finding.policy.method):
            mark = contest.probe.certified(FRACTION)
            certified = replace(
                certified, questions=(mark.question,), probe=mark, likeness=contest.likeness
            )
        else:
            shown = items.right(finding.policy)
        # The baselines are fitted to one half of the labels, so even a correction is compared
        # with them on the other half.
        baselines = {
            baseline: evidence(answers == truths, shown).with_failed(sample.failed)
            for baseline, answers in contest.baselines.items()
        }
        return replace(certified, baselines=baselines)

    @property
    def _settings(self) -> dict[str, Any]:
        """The options that select the model, its template and its encoders, by name."""
        source = self.tracer.source
        settings: dict[str, Any] = {"model": str(source.get("path", source["model"]))}
        if self.template_name is not None:
            settings["template"] = self.template_name
        if encoders := [str(r.place) for r in self.readers if not installed(r.name)]:
            settings["encoder"] = encoders
        return settings

    def commands_of_proof(self, out: Path) -> list[str]:
        """Return the commands that use the result of a second round, each after its purpose."""
        files = {"certificate": CERTIFICATE, "probe": [PROBE], "questions": QUESTIONS}
        return _serve_from(out, self._settings | files)

    def _commands(self, verdict: Verdict, out: Path | None, novelty: dict[str, float]) -> list[str]:
        """Return the commands that use a verdict, each after a line with its purpose."""
        if out is None:
            return ["Run it again with --out FOLDER to get the files that serve the result."]
        contest, method, settings = verdict.contest, verdict.certificate.method, self._settings
        if method is None:
            (out / SETTINGS).unlink(missing_ok=True)
            lines = [
                "Nothing is certified. To serve the model unchanged:",
                f"lastword serve{_flags(settings)}",
            ]
            probe, value = contest.probe, contest.value
            if probe is not None and value(contest.line(probe)) > value(contest.model):
                questions = {"questions": out / QUESTIONS} if contest.classes else {}
                settings |= questions | {"probe": out / UNCERTIFIED} | novelty
                lines += [
                    "To serve an uncertified probe, fitted to all labels, at your own risk:",
                    f"lastword serve{_flags(settings)}",
                ]
            return lines
        settings["certificate"] = CERTIFICATE
        if contest.classes:
            settings["questions"] = QUESTIONS
        if method == contest.probe:
            settings |= novelty if contest.classes else novelty | {"probe": [PROBE]}
        return _serve_from(out, settings)

    def _write(
        self,
        out: Path,
        verdict: Verdict,
        certified: Outcome | None,
        contest: Contest | None,
        raced: Race,
    ) -> None:
        """Write the results into the folder of the records."""
        method = verdict.certificate.method
        for name in (CERTIFICATE, PROBE, UNCERTIFIED):
            (out / name).unlink(missing_ok=True)  # from a run with other labels
        if contest is not None:
            contest.probe.write(out / PROBE)
            if method is None:
                contest.refit().write(out / UNCERTIFIED)
        if certified is not None and method is not None:
            write_text(out / CERTIFICATE, certified.certificate.to_toml())
        if (question := self.labels.question) is not None:
            probes = {"answer": PROBE} if method is not None and is_probe(method) else {}
            write_questions(out / QUESTIONS, {"answer": question}, probes)
        for prompt in raced.prompts:
            template = prompt.template
            if not isinstance(template, Template) or prompt.probe:
                continue
            if template.name not in TEMPLATES:
                write_text(out / file_of(prompt.name), template.text)
        self.write_verdict(verdict, out)
        texts = self._texts
        rows = [(r.id, texts[r.id], r.truth, r.model, r.shown) for r in verdict.contest.answers]
        write_text(out / ANSWERS, "".join(map(csv_line, [_ANSWER_COLUMNS, *rows])))

    def write_verdict(self, verdict: Verdict, out: Path) -> None:
        """Write a verdict and its page to a folder."""
        write_text(out / FILE, to_json(verdict.to_dict()) + "\n")
        write_page(verdict, self._texts, out)

    @property
    def _texts(self) -> dict[str, str]:
        """The text of each labelled row by its id."""
        return {row.id: row.text for row in self.labels.rows}


def _flags(settings: Mapping[str, Any]) -> str:
    """Return options as flags of a command."""
    pairs = (
        (name, each)
        for name, value in settings.items()
        for each in (value if isinstance(value, list) else [value])
    )
    return "".join(f" --{name} {each}" for name, each in pairs)


def _serve_from(out: Path, settings: Mapping[str, Any]) -> list[str]:
    """Write the settings to a folder; return the commands that use them, after their purpose."""
    write_text(out / SETTINGS, tomli_w.dumps(settings))
    decide = ["To answer a text:", f"lastword decide {out} --text 'A NEW TEXT'"]
    serve = ["To serve it:", f"lastword serve {out}"]
    return decide + serve if "questions" in settings else serve


def _novelty(contest: Contest | None) -> dict[str, float]:
    """Return the option that defers texts unlike the labels, at a level that they allow."""
    linear = None if contest is None else contest.probe.linear
    return {} if linear is None else {"novelty": float(f"{linear.likeness.level():g}")}


def template_for(tracer: Tracer, name: str | None) -> Template:
    """Return the prompt template of this name; None chooses the model's default.

    Raises:
        InputError: No such template.
    """
    return template_of(name or (DEFAULT if tracer.chat is None else CHAT))


def ready(
    tracer: Tracer,
    labels: Labels,
    terms: Terms,
    *,
    template: str | None = None,
    budget: float = BUDGET,
    readers: Sequence[Encoder] = (),
    objective: str = ACCURACY,
) -> TryJob:
    """Return the trial of labelled examples on a model.

    Raises:
        InputError: No such template, level or objective.
    """
    if objective not in (ACCURACY, BALANCED):
        raise InputError(f"--objective is accuracy or balanced, not {objective!r}")
    if objective == BALANCED and labels.question is None:
        raise InputError("--objective balanced needs the same options for every row")
    return TryJob(
        tracer,
        labels,
        template_for(tracer, template),
        terms,
        budget,
        template,
        tuple(readers),
        balanced=objective == BALANCED,
    )


def try_labels(
    source: Any,
    tracer: Tracer,
    *,
    template: str | None = None,
    budget: float = BUDGET,
    out: str | Path | None = None,
    promise: Promise = "gain",
    alpha: float = 0.05,
    delta: float = 0.05,
    readers: Sequence[Encoder | str | Path] = (),
    objective: str = ACCURACY,
    **table: Unpack[TableKeywords],
) -> Verdict:
    """Test a model on labelled examples: what to run, how much it gains, and how certain that is.

    Args:
        source: Path of a CSV, TSV, Excel, JSON lines or Parquet file; a data frame, or
            dictionaries.
        tracer: The model.
        template: `decide/plain`, `decide/listed`, `decide/chat`, or a Jinja file.
        budget: Seconds for trying other prompts.
        out: Folder for records, certificate, probes, question, verdict and its page.
        promise: `gain`: accuracy is higher than the model's. `breaks`: in addition, at most a
            share `alpha` of all answers is broken.
        alpha: Maximum share of answers broken, for `breaks`; in [0, 1].
        delta: Maximum probability that the guarantee does not hold; in (0, 1).
        readers: Sentence encoders that take part: an `Encoder`, a hub name, a folder, `minilm` or
            `mpnet`.
        objective: `accuracy`, or `balanced`: probes are fitted and ranked by mean recall.
        **table: The columns `text`, `label`, `id` and `group`, the `choices`, `describe`,
            `instructions` and `encoding`, as in `TableOptions`.

    Raises:
        InputError: The table cannot be read, or a column cannot be guessed.
    """
    job = ready(
        tracer,
        read_labels(source, TableOptions(**table)),
        Terms(alpha, delta, methods=CERTIFIABLE, promise=promise),
        template=template,
        budget=budget,
        readers=[one if isinstance(one, Encoder) else Encoder(one) for one in readers],
        objective=objective,
    )
    return job.run(None if out is None else Path(out))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
