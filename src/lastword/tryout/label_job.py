"""Label job: trains and tests a probe while a person labels a table.

One thread loads the model, waits for the labels of each round, and runs the trial on them. The
files are those of `try`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.model.encoder import Encoder
from lastword.trust.terms import Terms
from lastword.tryout.labelling import FILE
from lastword.tryout.labels import labelled_already, question_of, read_unlabelled
from lastword.tryout.material import TryJob
from lastword.tryout.page import FILE as PAGE
from lastword.tryout.rounds import first_round, read_trial
from lastword.tryout.run import prepare
from lastword.tryout.table_options import TableOptions

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
        commands: The commands that use the result, each after its purpose.
        page: The file of the page with all results; None before it is written.
        ended: True if there is nothing left to label.
    """

    doing: str = "Loading the model"
    words: str = ""
    commands: tuple[str, ...] = ()
    page: Path | None = None
    ended: bool = False


class LabelJob:
    """A table that a person labels; its folder is locked until `close`.

    Labels that the folder has already are taken over. `load` loads the language model, or returns
    None; `load_encoders` loads the sentence encoders that take part.

    Raises:
        InputError: The table cannot be read or has labels, a labelled row was edited, the folder
            has labels of another question, or another process labels there.
    """

    def __init__(
        self,
        source: str,
        settings: TableOptions,
        out: Path,
        load: Callable[[], Tracer | None],
        terms: Terms,
        template: str | None = None,
        load_encoders: Callable[[], Sequence[Encoder]] = tuple,
    ) -> None:
        self.source, self.settings, self.out = source, settings, out
        self.terms, self.template = terms, template
        self._load, self._load_encoders = load, load_encoders
        self.progress, self._closed = Progress(), False
        unlabelled = read_unlabelled(source, settings)
        if unlabelled is None:
            raise labelled_already(source)
        table, columns, _ = unlabelled
        self.question = question_of(columns, next(iter(table.values())))
        self._holder = _lock(out)
        texts = {id: row[columns.text] for id, row in table.items()}
        self.labelling = first_round(out, texts)
        given = {label for rows in self.labelling.rounds.values() for label in rows.values()}
        if strange := given - {None, *(option.text for option in self.question.options)}:
            raise InputError(
                f"{out / FILE} has a label that is not an option: {', '.join(map(str, strange))}. "
                "Give the same --choices, or choose another folder with --out"
            )

    def close(self) -> None:
        """Make `run` return before its next step, and unlock the folder."""
        with self.labelling.change:
            self._closed = True
            self.labelling.change.notify_all()
        self._holder.release()

    def run(self) -> None:
        """Do all of the model's work, until nothing is left to label or `close` is called.

        Raises:
            TraceError: The model or the labels cannot be used. The labels stay on the disk.
        """
        if all(map(self._wait, self._steps())):
            self.progress.ended = True

    def _wait(self, condition: Condition) -> bool:
        with self.labelling.change:
            self.labelling.change.wait_for(lambda: self._closed or condition())
            return not self._closed

    def _steps(self) -> Iterator[Condition]:
        """Do the work, and yield a condition wherever it has to hold before the next step."""
        labelling, progress = self.labelling, self.progress
        tracer, encoders = self._load(), tuple(self._load_encoders())
        yield lambda: labelling.complete
        progress.doing = "Training the probe"
        labels = read_trial(self.source, self.settings, self.out)
        if isinstance(labels, str):  # every row was skipped
            progress.words = labels
            return
        job = TryJob(tracer, labels, self.terms, self.template, 0.0, encoders)
        trial = prepare(job, self.out)
        while True:
            progress.doing = "Testing the probe"
            verdict = trial.conclude(self.out)
            before = labelling.round
            labelling.read()
            last, words = labelling.complete, " ".join(verdict.advice.guarantee[:1])
            if before == 1:
                words = _NO_MORE if last else _UNFINISHED
            proven = verdict.answered.share is not None and before > 1
            progress.words = words if proven else f"{verdict.advice.headline}. {words}"
            progress.page, progress.commands = self.out / PAGE, verdict.advice.commands
            if last:
                return
            yield lambda: labelling.complete


def _lock(out: Path) -> FileLock:
    out.mkdir(parents=True, exist_ok=True)
    holder = FileLock(out / f".{FILE}.lock")
    try:
        holder.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another `lastword label` writes to {out}. Use its page, or stop it first"
        ) from error
    return holder
