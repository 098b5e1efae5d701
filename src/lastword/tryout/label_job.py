"""Label job: trains and tests a probe while a person labels a table.

One thread loads the model, waits for the labels of each round, and runs the trial on them. The
files are those of `try`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.model.encoder import Encoder
from lastword.text.question import Choice
from lastword.trust.second_round import FIRST
from lastword.trust.terms import Terms
from lastword.tryout.labelling import FILE, Labelling, random_order
from lastword.tryout.labels import Labels, labelled_already, question_of, read_unlabelled
from lastword.tryout.material import TryJob
from lastword.tryout.page import FILE as PAGE
from lastword.tryout.rounds import STATE, first_round, read_trial
from lastword.tryout.run import prepare
from lastword.tryout.table_options import TableOptions

POOL = 300  # maximum number of texts that are read for the second round
_UNFINISHED = "The second round is not finished: nothing is proven yet."
_NO_MORE = (
    "There is no second round: it needs labels of several options in round one, 80 texts without a "
    "label, and a language model or --error."
)

Condition = Callable[[], bool]


@dataclass
class Progress:
    """The progress that the page shows.

    Attributes:
        doing: The current work of the model's thread, in words.
        words: The verdict; empty before the first one.
        more: Number of rows that may be labelled to go on.
        commands: The commands that use the result, each after its purpose.
        page: The file of the page with all results; None before it is written.
        ended: True if there is nothing left to label.
    """

    doing: str = "Loading the model"
    words: str = ""
    more: int = 0
    commands: tuple[str, ...] = ()
    page: Path | None = None
    ended: bool = False


@dataclass
class LabelJob:
    """A table that is being labelled, with its labels.

    Attributes:
        source: The table; nothing in it is labelled.
        settings: Its columns, and the options.
        out: Folder of the labels and of all results.
        load: Function that loads the language model; it returns None without one.
        load_readers: Function that loads the sentence encoders that take part.
        labelling: The labels.
        holder: Lock of the folder.
        progress: The progress of the work.
    """

    source: str
    settings: TableOptions
    question: Choice
    out: Path
    terms: Terms
    template: str | None
    load: Callable[[], Tracer | None]
    load_readers: Callable[[], Sequence[Encoder]]
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
        if all(map(self._wait, self._steps())):
            self.progress.ended = True

    def _wait(self, condition: Condition) -> bool:
        """Wait until a condition holds; return False if the job is closed."""
        with self.labelling.change:
            self.labelling.change.wait_for(lambda: self._closed or condition())
            return not self._closed

    def _steps(self) -> Iterator[Condition]:
        """Do the work, and yield a condition wherever it has to hold before the next step."""
        labelling, progress = self.labelling, self.progress
        tracer, readers = self.load(), tuple(self.load_readers())
        yield lambda: labelling.complete
        progress.doing = "Training the probe"
        labels = read_trial(self.source, self.settings, self.out)
        if isinstance(labels, str):  # every row was skipped
            progress.words = labels
            return
        job = TryJob(tracer, self._limited(labels), self.terms, self.template, 0.0, readers)
        trial = prepare(job, self.out)
        while True:
            progress.doing = "Testing the probe"
            verdict = trial.conclude(self.out)
            before = labelling.round
            labelling.read()
            last, words = labelling.complete, " ".join(verdict.advice.guarantee[:1])
            if before == 1:
                words = _NO_MORE if last else _UNFINISHED
            progress.words = f"{verdict.advice.headline}. {words}"
            progress.page, progress.commands = self.out / PAGE, verdict.advice.commands
            if last:
                return
            if before > 1:
                progress.more = len(labelling.rows)
                yield lambda: self._choice is not None
                more, self._choice, progress.more = self._choice, None, 0
                if not more:
                    return
            yield lambda: labelling.complete

    def _limited(self, labels: Labels) -> Labels:
        """Return labels whose pool is not too large to be read while a person waits."""
        if (self.out / STATE).exists():
            return labels
        some = {*self.labelling.rows, *random_order(labels.texts)[: FIRST + POOL]}
        table = {id: row for id, row in labels.table.items() if id in some}
        return replace(labels, table=table)


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

    See `LabelJob` for the arguments. Labels that the folder has already are taken over.

    Raises:
        InputError: The table cannot be read or has labels, a labelled row was edited, the folder
            has labels of another question, or another process labels there.
    """
    unlabelled = read_unlabelled(source, settings)
    if unlabelled is None:
        raise labelled_already(source)
    table, columns, _ = unlabelled
    question = question_of(columns, next(iter(table.values())))
    holder = _lock(out)
    labelling = first_round(out, {id: row[columns.text] for id, row in table.items()})
    options = {option.text for option in question.options}
    given = {label for rows in labelling.rounds.values() for label in rows.values() if label}
    if strange := given - options:
        raise InputError(
            f"{out / FILE} has the label {min(strange)!r}, which is not an option. Give the same "
            "--choices, or choose another folder with --out"
        )
    shown = source, settings, question, out, terms, template
    return LabelJob(*shown, load, load_readers, labelling, holder)


def _lock(out: Path) -> FileLock:
    """Lock a folder of labels for this process."""
    out.mkdir(parents=True, exist_ok=True)
    holder = FileLock(out / f".{FILE}.lock")
    try:
        holder.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another `lastword label` writes to {out}. Use its page, or stop it first"
        ) from error
    return holder
