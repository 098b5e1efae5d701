"""Label job: trains and tests a probe while a person labels a table.

One thread reads texts ahead of the person, fits the probe after round one, draws the rows of the
second round and tests the probe on their labels. The files are those of `try` and `try --next`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event

from filelock import FileLock, Timeout

from lastword.decide.batch import Scope
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.methods import resolve
from lastword.model.encoder import Encoder
from lastword.text.question import Choice, question_digest
from lastword.trust.second_round import FIRST
from lastword.trust.terms import Terms
from lastword.tryout.ahead import ReadAhead
from lastword.tryout.journal import FILE, Journal, row_digest
from lastword.tryout.labelling import Labelling
from lastword.tryout.labels import (
    Labels,
    Row,
    labelled_already,
    question_of,
    read_labels,
    read_unlabelled,
)
from lastword.tryout.page import FILE as PAGE
from lastword.tryout.run import PEERS, TryJob, ready, template_for
from lastword.tryout.second_round import (
    FIRST_ROWS,
    STATE,
    SecondRound,
    begin,
    conclude,
    name_of,
    random_order,
    read_second_round,
    write_rows,
)
from lastword.tryout.table_options import Columns, TableOptions
from lastword.tryout.verdict import Verdict

POOL = 500  # maximum number of texts that are read for the second round
ENOUGH = 170  # number of these that are enough to begin it
_TOGETHER = 8  # number of texts that are read before the labels are checked again
_UNFINISHED = "The second round is not finished: nothing is proven yet."


@dataclass
class Progress:
    """The progress that the page shows.

    Attributes:
        doing: The current work of the model's thread, in words.
        read: Number of texts that the model has read.
        to_read: Number of texts that it will read.
        curve: Numbers of labels, and the probe's leave-one-out accuracy with them.
        words: The verdict; empty before the first one.
        proven: True if the gain is proven.
        more: Number of rows that may be labelled to go on.
        commands: The commands that use the result, each after its purpose.
        page: The file of the page with all results; None before it is written.
        ended: True if there is nothing left to label.
    """

    doing: str = "Loading the model"
    read: int = 0
    to_read: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    words: str = ""
    proven: bool = False
    more: int = 0
    commands: tuple[str, ...] = ()
    page: Path | None = None
    ended: bool = False


@dataclass
class LabelJob:
    """A table that is being labelled, with its labels.

    Attributes:
        table: Every row by its id.
        out: Folder of the labels and of all results.
        load: Function that loads the model.
        load_readers: Function that loads the sentence encoders that take part.
        order: The rows that have a text, in the order in which they are read and labelled.
        labelling: The labels.
        holder: Lock of the folder.
        progress: The progress of the work.
    """

    name: str
    table: Mapping[str, Row]
    columns: Columns
    question: Choice
    out: Path
    terms: Terms
    template: str | None
    load: Callable[[], Tracer]
    load_readers: Callable[[], Sequence[Encoder]]
    order: tuple[str, ...]
    labelling: Labelling
    holder: FileLock
    progress: Progress = field(default_factory=Progress)
    _stop: Event = field(default_factory=Event)
    _go_on: Event = field(default_factory=Event)
    _ended: Event = field(default_factory=Event)

    def more(self) -> None:
        """Continue with the next rows, after a verdict without proof."""
        self._resume()

    def end(self) -> None:
        """Finish with the labels of the last verdict."""
        self._ended.set()
        self._resume()

    def close(self) -> None:
        """Make `run` return before its next step, and unlock the folder."""
        if not self._stop.is_set():
            self._stop.set()
            self._resume()
            self.labelling.close()
            self.holder.release()

    def _resume(self) -> None:
        self._go_on.set()
        with self.labelling.change:
            self.labelling.change.notify_all()

    def run(self) -> None:
        """Do all of the model's work, until nothing is left to label or `close` is called.

        Raises:
            TraceError: The model or the labels cannot be used. The labels stay on the disk.
        """
        with suppress(_Closed):
            self._run()

    def _run(self) -> None:
        begun = (self.out / STATE).exists()
        if begun:
            self._offer(read_second_round(self.out))
        tracer, readers = ReadAhead(self.load()), self.load_readers()
        read = self.order if begun else self._read(tracer)
        if not begun:
            self._wait(lambda: self.labelling.complete)
        labels = self._labels(read)
        job = ready(tracer, labels, self.terms, template=self.template, budget=0.0, readers=readers)
        job = replace(job, proves=False)  # `_begin` and `_prove` do that, between labels
        if not begun and (reason := self._begin(job)) is not None:
            verdict = job.run(self.out)
            self.progress.words = f"{verdict.advice.headline} {reason}"
            self._show(job, verdict, reason)
            self.progress.ended = True
            return
        self.progress.doing = "Writing the results"
        verdict = job.run(self.out)
        self.progress.curve = verdict.depths.curve
        self._show(job, verdict, self.progress.words or _UNFINISHED)
        self._prove(job, verdict)

    def _read(self, tracer: ReadAhead) -> Sequence[str]:
        """Read texts until round one is complete and `ENOUGH` more are read, or none is left."""
        template = template_for(tracer, self.template)
        first, rows = self.labelling.rows, self.order[: FIRST + POOL]
        enough = min(len(rows), first + ENOUGH)
        whole = Scope("all", "all", resolve(PEERS, tracer.facts))
        self.progress.to_read = len(rows)
        tracer.digests  # noqa: B018 - computed now and cached, because the files are large
        while (done := self.progress.read) < len(rows):
            self.progress.doing = f"Reading texts: {done} of {enough}"
            if self._stop.is_set():
                raise _Closed
            if self.labelling.complete and done >= enough:
                break
            # A piece ends with round one, whose texts are read at every depth for the records.
            end = min(done + _TOGETHER, first if done < first else len(rows))
            texts = [self.labelling.texts[row] for row in rows[done:end]]
            read = partial(tracer.read, texts, self.question, template)
            read(whole) if done < first else read()
            self.progress.read = end
        return rows[: self.progress.read]

    def _labels(self, read: Sequence[str]) -> Labels:
        """Return the labels of round one, with the texts that were read as the pool."""
        column, by_row = self.columns.label, self.labelling.labels_of(1)
        rows = [{**row, column: by_row.get(id) or ""} for id, row in self.table.items()]
        first = [self.table[id] for id in by_row]
        write_rows(self.out / FIRST_ROWS, first, column, [*by_row.values()])
        labels, pool = read_labels(rows, self.columns), {*read}
        table = {id: row for id, row in labels.table.items() if id in pool}
        return replace(labels, name=self.name, table=table)

    # Round two

    def _begin(self, job: TryJob) -> str | None:
        """Train the probe and draw the rows of the second round, or return why there is none."""
        self.progress.doing = "Training the probe"
        if (policy := job.policy()) is None:
            return "No second round: a probe needs several labels of at least two options."
        more = job.template_name, job.terms, job.readers
        lines = begin(self.out, job.tracer, job.labels, lambda: policy, *more)
        if not (self.out / STATE).exists():
            return " ".join(lines) or (
                "No second round: the table has too few texts without a label."
            )
        self._offer(read_second_round(self.out))
        return None

    def _offer(self, second: SecondRound) -> None:
        """Offer the rows of a look for labelling; after the first look only if the user agrees."""
        for row in second.rows:
            if self.labelling.texts.get(row.id) != row.text:
                raise InputError(
                    f"{self.name}, row {row.id}: the row was edited since it was drawn. Restore "
                    "it, or choose another folder with --out"
                )
        number, rows = second.look + 1, [row.id for row in second.open_rows]
        # A look with earlier labels follows a verdict without proof, also after a restart: show
        # that verdict again, and wait for the user's choice.
        if second.labels and not self.labelling.labels_of(number):
            before = replace(second, asked=len(second.labels), look=second.look - 1)
            self.progress.words, self.progress.more = before.verdict().words, len(rows)
        self.labelling.open(number, rows)

    def _prove(self, job: TryJob, verdict: Verdict) -> None:
        """Test the labels of each look, until the gain is proven or the user stops."""
        while True:
            if self.progress.more:
                self._wait(self._go_on.is_set)
                self._go_on.clear()
                self.progress.more = 0
                if self._ended.is_set():
                    break
            self._wait(lambda: self.labelling.complete)
            self.progress.doing = "Testing the probe"
            second, labels = read_second_round(self.out), self.labelling.labels
            rows = [self.table[row] for row in labels]
            path = self.out / name_of(second.look)
            write_rows(path, rows, self.columns.label, [*labels.values()])
            second.tell(labels)
            proof = conclude(self.out, second, job.labels)
            self.progress.words = proof.words
            self.progress.proven = proof.certificate is not None
            if self.progress.proven:
                least = proof.drawn.worth(self.terms.delta)["net_at_least"]
                method = second.probe.name
                proven = replace(verdict.certificate, method=method, net_at_least=least)
                verdict = replace(verdict, certificate=proven)
                self._show(job, verdict, proof.words, job.commands_of_proof(self.out))
                break
            self._show(job, verdict, proof.words)
            if second.asked == len(second.rows):
                break
            self._offer(read_second_round(self.out))
        self.progress.ended = True

    def _show(
        self, job: TryJob, verdict: Verdict, words: str, commands: Sequence[str] = ()
    ) -> None:
        """Write the page of the verdict with the words and commands of the second round."""
        commands = commands or verdict.advice.commands
        headline = words if self.progress.proven else verdict.advice.headline
        advice = replace(
            verdict.advice, headline=headline, guarantee=(words,), commands=tuple(commands)
        )
        job.write_verdict(replace(verdict, advice=advice), self.out)
        self.progress.page = self.out / PAGE
        self.progress.commands = tuple(commands)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a change of the labels or a choice of the user."""
        with self.labelling.change:
            self.labelling.change.wait_for(lambda: condition() or self._stop.is_set())
        if self._stop.is_set():
            raise _Closed


class _Closed(Exception):  # noqa: N818 - not an error: ends the thread
    """The job was closed."""


def label_job(
    source: str,
    settings: TableOptions,
    out: Path,
    load: Callable[[], Tracer],
    terms: Terms,
    template: str | None = None,
    load_readers: Callable[[], Sequence[Encoder]] = tuple,
) -> LabelJob:
    """Return a table that is ready to be labelled; its folder is locked until `close`.

    Args:
        source: The table; nothing in it is labelled.
        settings: Its columns, and the options.
        out: Folder of the labels. Those that it has already are taken over.
        load: Loads the model; called by `LabelJob.run`.
        terms: The promise.
        template: Prompt template; chosen by the model if left out.
        load_readers: Loads the sentence encoders that take part; called after `load`.

    Raises:
        InputError: The table cannot be read or has labels, a labelled row was edited, the folder
            belongs to other labels, or another process labels there.
    """
    unlabelled = read_unlabelled(source, settings)
    if unlabelled is None:
        raise labelled_already(source)
    table, columns, _ = unlabelled
    question = question_of(columns, next(iter(table.values())))
    texts = {id: row[columns.text] for id, row in table.items()}
    order = tuple(random_order(table, columns.text))
    new = not (out / FILE).exists()
    if new and (out / STATE).exists():
        raise InputError(f"{out} has the results of a try. Choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    holder = FileLock(out / f".{FILE}.lock")
    try:
        holder.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another `lastword label` writes to {out}. Use its page, or stop it first"
        ) from error
    rows = {id: row_digest(texts[id]) for id in order[:FIRST]}
    journal = Journal(out / FILE, {"question": question_digest(question), "rows": rows})
    if journal.header["question"] != question_digest(question):
        raise InputError(
            f"{out} has labels of another question. Give the same --choices, --instructions and "
            "--describe, or choose another folder with --out"
        )
    # After a restart the rows of round one are those of the journal, whatever their order now.
    first = journal.header["rows"]
    labelling = Labelling(source, texts, [o.text for o in question.options], journal)
    order = (*first, *(id for id in order if id not in first))
    name = Path(source).stem
    return LabelJob(
        name,
        table,
        columns,
        question,
        out,
        terms,
        template,
        load,
        load_readers,
        order,
        labelling,
        holder,
    )
