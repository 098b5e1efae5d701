"""Plain tables: certificates of the predictions of any system (docs/tables.md).

No model is needed. A row has a prediction, the truth if it has a label, and optionally a
confidence, a rival's prediction, a group and the text. Either one statement has the whole delta: a
minimum confidence of answers of which at most `error` are wrong. Or two share it equally: a lower
bound of the accuracy, and the gain over the rival.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from lastword.errors import CertificateError, InputError
from lastword.files.cells import cell_text, spelling
from lastword.files.rows import Row as FileRow
from lastword.files.rows import guessed_name, read_rows, require_rows, stream_rows
from lastword.files.wording import counted
from lastword.model.weights.identity import text_digest
from lastword.trust.automation import Automation, Errors, Rung, climb, quantiles, rungs
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Trial
from lastword.trust.drift import Drift, rounded, sampled
from lastword.trust.evidence import Evidence
from lastword.trust.groups import normal, numbers
from lastword.trust.monitor import Monitor
from lastword.trust.policy import OFF, PREDICTION, Policy
from lastword.trust.subject import Predictions
from lastword.trust.terms import Terms

# The meanings of columns, with the names by which they are guessed.
_NAMES = {
    "prediction": ("prediction", "predicted", "predicted_label", "pred", "y_pred", "output"),
    "truth": ("truth", "label", "target", "gold", "expected", "y_true", "actual"),
    "confidence": ("confidence", "probability", "prob", "score", "certainty"),
    "rival": ("rival", "baseline", "other"),
    "group": ("group",),
    "text": ("text", "input", "prompt", "message", "question", "sentence"),
    "trained": ("trained",),
    "answerer": ("answerer",),
}

Row = Mapping[str, str]
Columns = Mapping[str, str]  # names of columns by their meaning


@dataclass(frozen=True, eq=False)
class PlainTable:
    """Predictions with their truth: rows as text, and their columns by meaning.

    `notes` has guesses about the table, in words.
    """

    name: str
    rows: Sequence[Row]
    columns: Columns
    notes: tuple[str, ...] = ()

    def cells(self, meaning: str) -> np.ndarray:
        """Return the cells of a column; empty ones if the table lacks it [rows]."""
        name = self.columns.get(meaning, "")
        return np.array([row.get(name, "") for row in self.rows], dtype=object)

    @cached_property
    def truths(self) -> np.ndarray:
        """The right answers; empty where unknown [rows]."""
        return self.cells("truth")

    @cached_property
    def predictions(self) -> np.ndarray:
        """The predictions [rows]."""
        return self.cells("prediction")

    @cached_property
    def confidence(self) -> Float[np.ndarray, " rows"] | None:
        """A number per row that grows with certainty; None without this column."""
        return self.cells("confidence").astype(float) if "confidence" in self.columns else None

    @cached_property
    def trained(self) -> Bool[np.ndarray, " rows"]:
        """True for labelled rows that trained the system, as `lastword decide` marks them."""
        marks = [mark.casefold() in ("true", "1") for mark in self.cells("trained")]
        return np.asarray((self.truths != "") & marks, dtype=bool)

    @cached_property
    def labelled(self) -> Bool[np.ndarray, " rows"]:
        """True for rows with a truth that can test: they trained nothing."""
        return np.asarray((self.truths != "") & ~self.trained, dtype=bool)

    @cached_property
    def marks(self) -> list[list[str]]:
        """The marks that a row shares with others of its group: the group's name, and its text."""
        pairs = zip(self.cells("group"), map(normal, self.cells("text")), strict=True)
        return [
            [f"{kind} {key}" for kind, key in (("group", group), ("text", text)) if key]
            for group, text in pairs
        ]

    @property
    def subject(self) -> Predictions:
        """The subject of a certificate: the system, the sha256 of all rows in canonical JSON."""
        lines = (json.dumps(dict(row), ensure_ascii=False, sort_keys=True) for row in self.rows)
        answerers = {*self.cells("answerer")[self.labelled]}
        answerer = answerers.pop() if len(answerers) == 1 else ""
        return Predictions(self.name, text_digest("\n".join(lines)), self.columns, answerer)


def read_plain(
    path: Path,
    columns: Columns | None = None,
    name: str | None = None,
    encoding: str | None = None,
) -> PlainTable:
    """Return the plain table of a CSV, TSV, Excel, JSON lines or Parquet file.

    Args:
        path: The file.
        columns: Names of columns by their meaning; others are guessed.
        name: Name of the system; by default the file's.
        encoding: Encoding of the file; by default UTF-8.

    Raises:
        InputError: It cannot be read, a column is missing, a prediction is empty, a confidence is
            not a number, or no row has a truth.
    """
    notes: list[str] = []
    rows = require_rows(read_rows(path, notes.append, encoding), path)
    values = [_texts(row, str(path)) for row in rows]
    places = [row.place for row in rows]
    table = plain_table(values, columns, name or path.stem, places, str(path))
    return replace(table, notes=(*notes, *table.notes))


def _texts(row: FileRow, source: str) -> Row:
    if row.error is not None or not isinstance(row.value, Mapping):
        raise InputError(f"{source}, {row.place}: {row.error or 'expected an object'}")
    return {name: str(cell_text(value)).strip() for name, value in row.value.items()}


def plain_table(
    rows: Sequence[Row],
    columns: Columns | None = None,
    name: str = "predictions",
    places: Sequence[str] = (),
    source: str = "the table",
) -> PlainTable:
    """Return rows as a plain table; arguments and errors are those of `read_plain`."""
    places = places or [f"row {n}" for n in range(1, len(rows) + 1)]
    columns, guesses = _guessed(rows, columns or {}, source)
    table = PlainTable(name, rows, columns)
    _check_cells(table, places, source)
    if not (table.truths != "").any():
        raise InputError(f"{source}: no row has a truth in the column {columns['truth']!r}")
    if not table.labelled.any():
        raise InputError(f"{source}: all rows with a truth trained the system; label others")
    return replace(table, notes=(*guesses, *_notes(table)))


def _guessed(
    rows: Sequence[Row], chosen: Columns, source: str, needed: Sequence[str] = ("truth",)
) -> tuple[Columns, list[str]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    by_name = {name.strip().casefold(): name for name in reversed(names)}
    columns, guesses = dict(chosen), []
    # `lastword decide` writes the answers to a question NAME as NAME and NAME.probability.
    decided = [name for name in names if f"{name}.probability" in names][:1]
    own = {"prediction": decided, "confidence": [f"{name}.probability" for name in decided]}
    for name in chosen.values():
        if name not in names:
            raise InputError(f"{source} has no column {name!r}; it has {', '.join(names)}")
    for meaning in [meaning for meaning in _NAMES if meaning not in chosen]:
        usual = [by_name[key] for key in _NAMES[meaning] if key in by_name]
        candidates = [*own.get(meaning, []), *usual]
        if free := [name for name in candidates if name not in columns.values()]:
            columns[meaning] = free[0]
            guesses.append(f"{meaning} is column {guessed_name(free[0], names)}")
        elif meaning in ("prediction", *needed):
            raise InputError(
                f"{source} has no column for the {meaning}; it has {', '.join(names)}. Name it: "
                f"{meaning}=NAME (in a command --{meaning}-column NAME)"
            )
    return columns, [f"guessed: {', '.join(guesses)}"] if guesses else []


def _check_cells(table: PlainTable, places: Sequence[str], source: str) -> None:
    for meaning in [m for m in ("prediction", "rival", "confidence") if m in table.columns]:
        for place, cell in zip(places, table.cells(meaning), strict=True):
            where = f"{source}, {place}: {table.columns[meaning]!r}"
            if meaning == "confidence" and not _finite(cell):
                raise InputError(f"{where} is {cell!r:.40}, expected a finite number")
            if not cell:
                raise InputError(f"{where} is empty")


def _finite(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _notes(table: PlainTable) -> Iterator[str]:
    answers, truths = {*table.predictions, *table.cells("rival")} - {""}, {*table.truths} - {""}
    by_spelling = {spelling(truth): truth for truth in sorted(truths)}
    pairs = [
        f"`{answer}` and `{by_spelling[spelling(answer)]}`"
        for answer in sorted(answers - truths)
        if spelling(answer) in by_spelling
    ]
    if pairs:
        shown = ", ".join(pairs[:3]) + (", ..." if len(pairs) > 3 else "")
        yield f"predictions and truths differ in spelling, and count as different: {shown}"
    if trained := int(table.trained.sum()):
        yield f"left out {counted(trained, 'row')} that trained the system: they prove nothing"


@dataclass(frozen=True)
class ClassErrors:
    """The rows of one class: the share that is answered, and the share of wrong answers there."""

    name: str
    items: int
    share: float
    error: float | None


@dataclass(frozen=True)
class PlainFinding:
    """Results of the tests on a plain table: errors of all labelled rows, and the curve of them.

    The curve is empty without a confidence.
    """

    table: PlainTable
    certificate: Certificate
    errors: Errors
    curve: tuple[Rung, ...] = ()

    @property
    def classes(self) -> Iterator[ClassErrors]:
        """The given answers by true class: a promise about all does not hold for each of them."""
        table, given = self.table, self.table.labelled
        if (least := self.certificate.threshold) is not None and table.confidence is not None:
            given = given & (table.confidence >= least)
        wrong = table.predictions != table.truths
        for name in sorted({*table.truths[table.labelled]}):
            among = table.labelled & (table.truths == name)
            error = float(wrong[among & given].mean()) if (among & given).any() else None
            yield ClassErrors(name, int(among.sum()), float(given[among].mean()), error)


def certify_plain(
    table: PlainTable, *, delta: float = 0.05, error: float | None = None
) -> PlainFinding:
    """Test all statements about a plain table.

    With `error` the only guarantee is that of the given answers; without it, there are bounds of
    the accuracy, and of the gain over the rival.

    Raises:
        InputError: A share is not between 0 and 1, or there is no confidence for `error`.
    """
    terms = Terms(delta=delta, error=error, methods=(PREDICTION,), promise="gain")
    if error is not None and table.confidence is None:
        raise InputError(
            "--error needs a column of confidences; name it by --confidence-column NAME"
        )
    labelled, pool = table.labelled, table.confidence
    groups = numbers([table.marks[place] for place in np.flatnonzero(labelled)])
    wrong = (table.predictions != table.truths)[labelled]
    trials, curve, reference = list[Trial](), tuple[Rung, ...](), {}
    if "rival" in table.columns:
        base = (table.cells("rival") == table.truths)[labelled]
        policy = Policy((PREDICTION,), 0.0, PREDICTION)
        trials.append(Trial(policy, 0.5, Evidence.of(base, ~wrong, groups)))
    if pool is not None:
        sure, firsts = pool[labelled], np.unique(groups, return_index=True)[1]
        fresh = pool[~table.trained]
        curve = tuple(rungs(sure, wrong, groups, quantiles(fresh), fresh))
        reference = sampled(sure[firsts], "confidence")
    automation = None if error is None else Automation(error, climb(curve, error, delta))
    errors = Errors.of(wrong, groups)
    certificate = Certificate(
        table.subject, terms, OFF, tuple(trials), automation, errors, reference=reference
    )
    return PlainFinding(table, certificate, errors, curve)


class PredictionMonitor:
    """Tests on a stream of predictions if a certificate's guarantee still holds.

    One answer of each group and text counts: its first labelled one tests the error among the
    answers that are given, and its first one tests the drift of the confidence. The choice of the
    answers that get their truth must not depend on whether they were right.

    Raises:
        CertificateError: The certificate has no guarantee about errors.
    """

    def __init__(self, certificate: Certificate) -> None:
        if (rate := certificate.error_rate) is None:
            raise CertificateError("it guarantees no error rate; certify with --error")
        delta, subject = certificate.terms.delta, certificate.subject
        self.threshold = certificate.threshold
        # A monitor needs a rate inside (0, 1), and a bound of the accuracy may be 0 or 1.
        self.state = Monitor(min(max(rate, 1e-6), 1 - 1e-6), delta)
        self.drift = Drift(certificate.reference, delta)
        self.read = self.given = 0
        self._columns = subject.columns if isinstance(subject, Predictions) else {}
        self._tested: dict[str, set[str]] = {"drift": set(), "truth": set()}

    def watch(self, path: Path) -> None:
        """Read a table, or lines of JSON from standard input as they come, until an alarm.

        Raises:
            InputError: As `read_plain`, or there is a threshold and no confidence.
        """
        for row in stream_rows(path):
            self.see(_texts(row, str(path)), str(path), row.place)
            if self.state.alarm:
                break

    def see(self, row: Row, source: str = "the stream", place: str = "") -> None:
        """Count one answer, and test it."""
        place = place or f"row {self.read + 1}"
        chosen = {meaning: name for meaning, name in self._columns.items() if name in row}
        one = PlainTable("", [row], _guessed([row], chosen, source, needed=())[0])
        _check_cells(one, [place], source)
        sure = None if one.confidence is None else float(one.confidence[0])
        if self.threshold is not None and sure is None:
            raise InputError(f"{source}, {place}: it needs a confidence; the certificate has one")
        given = self.threshold is None or sure is None or sure >= self.threshold
        self.read, self.given = self.read + 1, self.given + given
        (marks,) = one.marks
        if sure is not None and self._first("drift", marks):
            self.drift.see({"confidence": rounded(sure)})
        if given and one.labelled[0] and self._first("truth", marks):
            self.state = self.state.seen(bool(one.predictions[0] != one.truths[0]))

    def _first(self, test: str, marks: Sequence[str]) -> bool:
        alone = self._tested[test].isdisjoint(marks)
        self._tested[test].update(marks)
        return alone
