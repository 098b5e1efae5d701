"""Label job: trains and tests a probe while a person labels a table.

One thread reads texts ahead of the person, fits the probe after round one, draws the rows of the
second round and tests the probe on their labels. The files are those of `try`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

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
from lastword.tryout.labelling import FILE, Labelling
from lastword.tryout.labels import (
    Labels,
    Row,
    labelled_already,
    question_of,
    read_labels,
    read_unlabelled,
)
from lastword.tryout.page import FILE as PAGE
from lastword.tryout.rounds import (
    STATE,
    finish,
    random_order,
    read_second_round,
    require_unchanged,
    write_rounds,
)
from lastword.tryout.run import PEERS, Trial, ready, template_for
from lastword.tryout.second_round import SecondRound
from lastword.tryout.table_options import Columns, TableOptions
from lastword.tryout.verdict import Verdict

POOL = 500  # maximum number of texts that are read for the second round
ENOUGH = 170  # number of these that are enough to begin it
_TOGETHER = 8  # number of texts that are read before the labels are checked again
_UNFINISHED = "The second round is not finished: nothing is proven yet."
_TOO_FEW = "No second round: a probe needs several labels of at least two options."
_NO_POOL = "No second round: the table has too few texts without a label."
_NO_PROMISE = "No second round: without a language model only --error has something to prove."

Condition = Callable[[], bool]


@dataclass
class Progress:
    """The progress that the page shows.

    Attributes:
        doing: The current work of the model's thread, in words.
        read: Number of texts that the model has read.
        to_read: Number of texts that it has to read before the second round.
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
        load: Function that loads the language model; it returns None without one.
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
    load: Callable[[], Tracer | None]
    load_readers: Callable[[], Sequence[Encoder]]
    order: tuple[str, ...]
    labelling: Labelling
    holder: FileLock
    progress: Progress = field(default_factory=Progress)
    _choice: bool | None = None
    _closed: bool = False

    def choose(self, *, more: bool) -> None:
        """Continue with more rows after a verdict without proof, or end."""
        with self.labelling.change:
            self._choice = more
            self.labelling.change.notify_all()

    def close(self) -> None:
        """Make `run` return before its next step, and unlock the folder."""
        with self.labelling.change:
            self._closed = True
            self.labelling.change.notify_all()
        self.holder.release()

    def run(self) -> None:
        """Do all of the model's work, until nothing is left to label or `close` is called.

        Raises:
            TraceError: The model or the labels cannot be used. The labels stay on the disk.
        """
        for condition in self._steps():
            if not self._wait(condition):
                return
        self.progress.ended = True

    def _wait(self, condition: Condition) -> bool:
        """Wait until a condition holds; return False if the job is closed."""
        with self.labelling.change:
            self.labelling.change.wait_for(lambda: self._closed or condition())
            return not self._closed

    def _steps(self) -> Iterator[Condition]:
        """Do the work, and yield a condition wherever it has to hold before the next step."""
        begun = (self.out / STATE).exists()
        if begun:
            self._offer(read_second_round(self.out))
        tracer = self.load()
        tracer, readers = tracer and ReadAhead(tracer), self.load_readers()
        if not begun:
            if isinstance(tracer, ReadAhead):
                yield from self._read(tracer)
            yield lambda: self.labelling.complete
        read = self.order[: self.progress.read or FIRST + POOL]
        trial, reason = self._train(tracer, readers, self.order if begun else read, begun=begun)
        if trial is None or reason:
            self.progress.words = f"{self.progress.words} {reason}".lstrip()
            return
        yield from self._prove(trial)

    def _train(
        self,
        tracer: Tracer | None,
        readers: Sequence[Encoder],
        read: Sequence[str],
        *,
        begun: bool,
    ) -> tuple[Trial | None, str]:
        """Train the probe and draw the rows of round two; return why there is none, or ""."""
        self.progress.doing = "Training the probe"
        labels = self._labels(read)
        job = ready(tracer, labels, self.terms, template=self.template, budget=0.0, readers=readers)
        trial = job.prepare(self.out)
        lines = [] if begun else trial.begin(self.out)
        reason = ""
        if not (self.out / STATE).exists():
            nothing = _NO_POOL if tracer or self.terms.error is not None else _NO_PROMISE
            reason = _TOO_FEW if trial.contest is None else " ".join(lines) or nothing
        elif not begun:
            self._offer(read_second_round(self.out))
        self.progress.doing = "Writing the results"
        verdict = trial.conclude(self.out, draws=False)
        self.progress.curve = verdict.depths.curve
        self._show(
            verdict, verdict.advice.headline if reason else self.progress.words or _UNFINISHED
        )
        return trial, reason

    def _read(self, tracer: ReadAhead) -> Iterator[Condition]:
        """Read texts until round one is complete and `ENOUGH` more are read, or none is left."""
        template = template_for(tracer, self.template)
        first, rows = len(self.labelling.rows), self.order[: FIRST + POOL]
        whole = Scope("all", "all", resolve(PEERS, tracer.facts))
        self.progress.doing = "Reading texts"
        self.progress.to_read = enough = min(len(rows), first + ENOUGH)
        tracer.digests  # noqa: B018 - computed now and cached, because the files are large
        while (done := self.progress.read) < len(rows):
            if self.labelling.complete and done >= enough:
                break
            # A piece ends with round one, whose texts are read at every depth for the records.
            end = min(done + _TOGETHER, first if done < first else len(rows))
            texts = [self.labelling.texts[row] for row in rows[done:end]]
            read = partial(tracer.read, texts, self.question, template)
            read(whole) if done < first else read()
            self.progress.read = end
            yield lambda: True

    def _labels(self, read: Sequence[str]) -> Labels:
        """Return the labels of round one, with the texts that were read as the pool."""
        column, first = self.columns.label, self.labelling.labels_of(1)
        rows = [{**row, column: first.get(id) or ""} for id, row in self.table.items()]
        self._write(1)
        labels, pool = read_labels(rows, self.columns), {*read}
        table = {id: row for id, row in labels.table.items() if id in pool}
        return replace(labels, name=self.name, table=table)

    def _write(self, rounds: int) -> None:
        """Write the labels of the first rounds to `labels.csv`."""
        labels = {number: self.labelling.labels_of(number) for number in range(1, rounds + 1)}
        write_rounds(self.out, labels, self.labelling.texts)

    # Round two

    def _offer(self, second: SecondRound) -> None:
        """Offer the rows of a look for labelling; after the first look only if the user agrees."""
        require_unchanged(second, self.labelling.texts)
        number, rows = second.look + 1, [row.id for row in second.open_rows]
        # A look with earlier labels follows a verdict without proof, also after a restart: show
        # that verdict again, and wait for the user's choice.
        if rows and second.labels and not self.labelling.labels_of(number):
            self.progress.words, self.progress.more = second.before.verdict().words, len(rows)
        self.labelling.open(number, rows)

    def _prove(self, trial: Trial) -> Iterator[Condition]:
        """Test the labels of each look, until the promise is proven or the user stops."""
        second = read_second_round(self.out)
        while True:
            if self.progress.more:
                yield lambda: self._choice is not None
                more, self._choice, self.progress.more = self._choice, None, 0
                if not more:
                    return
            yield lambda: self.labelling.complete
            self.progress.doing = "Testing the probe"
            self._write(self.labelling.round)
            if second.open_rows:
                second.tell(self.labelling.labels)
            proof = finish(self.out, second, trial.job.labels)
            self.progress.proven = proof.certificate is not None
            self._show(trial.conclude(self.out, second, proof), proof.words)
            if self.progress.proven or not second.open_rows:
                return
            self._offer(second)

    def _show(self, verdict: Verdict, words: str) -> None:
        """Show the words of a verdict whose page is written."""
        self.progress.words, self.progress.page = words, self.out / PAGE
        self.progress.commands = verdict.advice.commands


def label_job(
    source: str,
    settings: TableOptions,
    out: Path,
    load: Callable[[], Tracer | None],
    terms: Terms,
    template: str | None = None,
    load_readers: Callable[[], Sequence[Encoder]] = tuple,
) -> LabelJob:
    """Return a table that is ready to be labelled; its folder is locked until `close`.

    Args:
        source: The table; nothing in it is labelled.
        settings: Its columns, and the options.
        out: Folder of the labels. Those that it has already are taken over.
        load: Loads the language model, if any; called by `LabelJob.run`.
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
    order, holder = random_order(texts), _lock(out)
    options = [option.text for option in question.options]
    first = order[:FIRST]
    labelling = Labelling(out / FILE, texts, options, question_digest(question), first)
    # After a restart the rows of round one are those of the database, whatever their order now.
    kept = dict.fromkeys(labelling.rows)
    places = tuple(kept | dict.fromkeys(order))
    shown = Path(source).stem, table, columns, question, out, terms, template
    return LabelJob(*shown, load, load_readers, places, labelling, holder)


def _lock(out: Path) -> FileLock:
    """Lock a folder of labels for this process."""
    if (out / STATE).exists() and not (out / FILE).exists():
        raise InputError(f"{out} has the results of a try. Choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    holder = FileLock(out / f".{FILE}.lock")
    try:
        holder.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another `lastword label` writes to {out}. Use its page, or stop it first"
        ) from error
    return holder
