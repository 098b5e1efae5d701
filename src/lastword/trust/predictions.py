"""Plain tables: certificates of the predictions of any system (method, section 21).

No model is needed. A row has a prediction, the truth if it has a label, and optionally a
confidence, a rival's prediction, a group and the text. Either one statement has the whole delta: a
minimum confidence of answers of which at most `error` are wrong. Or two share it equally: a lower
bound of the accuracy, and the gain over the rival.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from lastword.errors import InputError
from lastword.files.cells import cell_text, spelling
from lastword.files.rows import guessed_name, read_rows, require_rows
from lastword.files.wording import counted
from lastword.model.weights.identity import text_digest
from lastword.trust.automation import (
    ERRORS,
    Automation,
    Confidence,
    Errors,
    Estimate,
    Rung,
    climb,
    estimate,
    quantiles,
    rungs,
)
from lastword.trust.certificate import Certificate, now
from lastword.trust.claims import Trial
from lastword.trust.evidence import Evidence
from lastword.trust.groups import SEED, normal, numbers
from lastword.trust.policy import OFF, PREDICTION, Policy
from lastword.trust.second_round import deal
from lastword.trust.subject import Predictions
from lastword.trust.terms import Terms
from lastword.trust.testing import holm

_SHOWN = 3  # maximum number of pairs in a note
NEXT = 40  # number of rows to label next
_NAMES = {
    "prediction": ("prediction", "predicted", "predicted_label", "pred", "y_pred", "output"),
    "truth": ("truth", "label", "target", "gold", "expected", "y_true", "actual"),
    "confidence": ("confidence", "probability", "prob", "score", "certainty"),
    "rival": ("rival", "baseline", "other"),
    "group": ("group",),
    "text": ("text", "input", "prompt", "message", "question", "sentence"),
    "trained": ("trained",),
}


@dataclass(frozen=True)
class PlainColumns:
    """Columns of a plain table by their meaning; None for columns to guess."""

    prediction: str | None = None
    truth: str | None = None
    confidence: str | None = None
    rival: str | None = None
    group: str | None = None
    text: str | None = None
    trained: str | None = None


@dataclass(frozen=True, eq=False)
class PlainTable:
    """Predictions with their truth.

    Attributes:
        name: Name of the system that predicts.
        rows: All rows, as text by column.
        columns: Columns by their meaning; None for those that the table lacks.
        confidence: A number per row that grows with certainty, or None.
        notes: Guesses about the table, in words.
    """

    name: str
    rows: Sequence[Mapping[str, str]]
    columns: PlainColumns
    confidence: Float[np.ndarray, " rows"] | None = None
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> np.ndarray:
        """Return the cells of a column [rows]."""
        return np.array([row.get(name, "") for row in self.rows], dtype=object)

    @cached_property
    def truths(self) -> np.ndarray:
        """The right answers; empty where unknown [rows]."""
        assert self.columns.truth is not None
        return self.column(self.columns.truth)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The predictions [rows]."""
        assert self.columns.prediction is not None
        return self.column(self.columns.prediction)

    @cached_property
    def labelled(self) -> Bool[np.ndarray, " rows"]:
        """True for rows with a truth that can test: they trained nothing."""
        return np.asarray((self.truths != "") & ~self.trained, dtype=bool)

    @cached_property
    def trained(self) -> Bool[np.ndarray, " rows"]:
        """True for rows whose text trained the system, as `lastword decide` marks them."""
        marks = self.column(self.columns.trained or "")
        return np.array([str(mark).casefold() in ("true", "1") for mark in marks], dtype=bool)

    @cached_property
    def groups(self) -> Int[np.ndarray, " labelled"]:
        """The number of each labelled row's group: rows with one group value, or one text."""
        group, text = self.columns.group or "", self.columns.text or ""
        marks = []
        for place in np.flatnonzero(self.labelled).tolist():
            row = self.rows[place]
            keys = {"group": row.get(group, ""), "text": normal(row.get(text, ""))}
            marks.append([f"{kind} {key}" for kind, key in keys.items() if key])
        return numbers(marks)

    @property
    def digest(self) -> str:
        """The sha256 of all rows in canonical JSON."""
        lines = (json.dumps(dict(row), ensure_ascii=False, sort_keys=True) for row in self.rows)
        return text_digest("\n".join(lines))


def read_plain(
    path: Path,
    columns: PlainColumns | None = None,
    name: str | None = None,
    encoding: str | None = None,
) -> PlainTable:
    """Return the plain table of a CSV, TSV, Excel, JSON lines or Parquet file.

    Samples of lm-evaluation-harness and results of promptfoo (JSON) are read as they are.

    Raises:
        InputError: The file cannot be read, a column is missing, a prediction is empty, a
            confidence is not a number, or no row has a truth.
    """
    notes: list[str] = []
    rows = require_rows(read_rows(path, notes.append, encoding), path)
    if bad := [row for row in rows if row.error is not None]:
        raise InputError(f"{path}, {bad[0].place}: {bad[0].error}")
    values = [{name: str(cell_text(v)).strip() for name, v in row.value.items()} for row in rows]
    places = [row.place for row in rows]
    return plain_table(values, columns, name or path.stem, places, notes, str(path))


def plain_table(
    rows: Sequence[Mapping[str, str]],
    columns: PlainColumns | None = None,
    name: str = "predictions",
    places: Sequence[str] = (),
    notes: Sequence[str] = (),
    source: str = "the table",
) -> PlainTable:
    """Return rows as a plain table; arguments and errors are those of `read_plain`."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns, guesses = _guessed(names, columns, source)
    places = places or [f"row {n}" for n in range(1, len(rows) + 1)]

    def check(fault: Callable[[Mapping[str, str]], str | None]) -> None:
        for place, row in zip(places, rows, strict=True):
            if (what := fault(row)) is not None:
                raise InputError(f"{source}, {place}: {what}")

    assert columns.prediction is not None and columns.truth is not None
    prediction, truth, rival = columns.prediction, columns.truth, columns.rival
    check(lambda row: None if row.get(prediction) else f"{prediction!r} is empty")
    if not any(row.get(truth) for row in rows):
        raise InputError(f"{source}: no row has a truth in the column {truth!r}")
    table = PlainTable(name, rows, columns)
    trained = int((table.trained & (table.truths != "")).sum())
    if not table.labelled.any():
        raise InputError(f"{source}: all rows with a truth trained the system; label others")
    left_out = f"left out {counted(trained, 'row')} that trained the system: they prove nothing"
    if rival is not None:
        check(lambda row: None if row.get(rival) else f"{rival!r} is empty")
    confidence = None
    if (column := columns.confidence) is not None:
        check(lambda row: _no_number(column, row.get(column, "")))
        confidence = np.array([float(row[column]) for row in rows])
    answers = [row[name] for row in rows for name in (prediction, rival) if name is not None]
    alike = _alike({*answers}, {row.get(truth, "") for row in rows} - {""})
    notes = [*notes, *guesses, *alike, *([left_out] if trained else [])]
    return replace(table, confidence=confidence, notes=tuple(notes))


def _alike(answers: set[str], truths: set[str]) -> list[str]:
    """Return a note on answers that differ from a truth only in spelling, and count as wrong."""
    by_spelling = {spelling(truth): truth for truth in sorted(truths)}
    pairs = [
        f"`{answer}` and `{by_spelling[spelling(answer)]}`"
        for answer in sorted(answers - truths)
        if spelling(answer) in by_spelling
    ]
    more = f" and {len(pairs) - _SHOWN} more pairs" if len(pairs) > _SHOWN else ""
    shown = ", ".join(pairs[:_SHOWN])
    note = f"predictions and truths differ in spelling, and count as different: {shown}{more}"
    return [note] if pairs else []


def _no_number(column: str, text: str) -> str | None:
    try:
        if math.isfinite(float(text)):
            return None
    except ValueError:
        pass
    return f"{column!r} is {text!r:.40}, expected a finite number"


def _guessed(
    names: Sequence[str], columns: PlainColumns | None, source: str
) -> tuple[PlainColumns, list[str]]:
    """Return the columns by their meaning, and a note about those that were guessed."""
    roles = asdict(columns or PlainColumns())
    by_name = {name.strip().casefold(): name for name in reversed(names)}
    guesses = []
    for meaning, name in roles.items():
        if name is not None:
            if name not in names:
                raise InputError(f"{source} has no column {name!r}; it has {', '.join(names)}")
            continue
        # A column has one role, which the user's choice decides first.
        candidates = [by_name[key] for key in _NAMES[meaning] if key in by_name]
        roles[meaning] = next((name for name in candidates if name not in roles.values()), None)
        if roles[meaning] is not None:
            guesses.append(f"{meaning} is column {guessed_name(roles[meaning], names)}")
        elif meaning in ("prediction", "truth"):
            raise InputError(
                f"{source} has no column for the {meaning}; it has {', '.join(names)}. Name it: "
                f"{meaning}=NAME (in a command --{meaning} NAME)"
            )
    return PlainColumns(**roles), [f"guessed: {', '.join(guesses)}"] if guesses else []


@dataclass(frozen=True)
class PlainSlice:
    """Accuracy on a part of the rows; `worse` if it is below that of the others, by Holm."""

    name: str
    items: int
    right: float
    worse: bool


@dataclass(frozen=True)
class PlainFinding:
    """Results of the tests on a plain table.

    Attributes:
        curve: The errors at or above each confidence, the highest first; empty without a
            confidence.
    """

    table: PlainTable
    certificate: Certificate
    curve: tuple[Rung, ...] = ()
    slices: tuple[PlainSlice, ...] = ()

    @property
    def estimates(self) -> list[Estimate]:
        """The share of rows that can be answered at 5, 10 and 20% error; they prove nothing."""
        return [estimate(self.curve, error) for error in ERRORS] if self.curve else []

    @property
    def errors(self) -> Errors:
        """The errors of all labelled rows."""
        assert self.certificate.errors is not None
        return self.certificate.errors


def certify_plain(
    table: PlainTable, *, delta: float = 0.05, error: float | None = None, by: str | None = None
) -> PlainFinding:
    """Test all statements about a plain table.

    Args:
        table: The predictions.
        delta: Maximum probability that one of the guarantees does not hold.
        error: Maximum share of wrong answers among those that are given, the only guarantee then;
            None for a bound of the accuracy, and of the gain over the rival.
        by: Column of the slices; by default the prediction.

    Raises:
        InputError: A share is not between 0 and 1, there is no confidence for `error`, or no such
            column.
    """
    terms = Terms(delta=delta, error=error, methods=(PREDICTION,), promise="gain")
    if by is not None and not any(by in row for row in table.rows):
        raise InputError(f"the table has no column {by!r} to slice by")
    if error is not None and table.confidence is None:
        raise InputError(
            "--error needs a column of confidences; name it by --confidence-column NAME"
        )
    labelled, groups = table.labelled, table.groups
    wrong = (table.predictions != table.truths)[labelled]
    trials: tuple[Trial, ...] = ()
    if table.columns.rival is not None:
        base = (table.column(table.columns.rival) == table.truths)[labelled]
        policy = Policy((PREDICTION,), 0.0, PREDICTION)
        trials = (Trial(policy, 0.5, Evidence.of(base, ~wrong, groups)),)
    curve = () if table.confidence is None else tuple(_curve(table.confidence, table, wrong))
    certificate = Certificate(
        Predictions(table.name, table.digest),
        terms,
        OFF,
        trials,
        None if error is None else Automation(error, climb(curve, error, delta)),
        Errors.of(wrong, groups),
        date=now(),
    )
    parts = table.column(by or str(table.columns.prediction))[labelled]
    return PlainFinding(table, certificate, curve, _slices(parts, wrong, groups, delta))


def _curve(confidence: Confidence, table: PlainTable, wrong: np.ndarray) -> list[Rung]:
    known = confidence[table.labelled]
    return rungs(known, wrong, table.groups, quantiles(confidence), confidence)


def _slices(
    parts: np.ndarray, wrong: np.ndarray, groups: np.ndarray, delta: float
) -> tuple[PlainSlice, ...]:
    """Return the accuracy of each part, tested against the others by Fisher and Holm.

    The tests use one row of each group, so that the rows are independent.
    """
    from scipy.stats import fisher_exact

    _, first = np.unique(groups, return_index=True)
    names = np.unique(parts.astype(str)).tolist()
    p = []
    for name in names:
        inside = parts[first] == name
        table = [
            [int((wrong[first] & side).sum()), int((~wrong[first] & side).sum())]
            for side in (inside, ~inside)
        ]
        p.append(float(fisher_exact(table, alternative="greater").pvalue))
    worse = holm(np.array(p)) <= delta
    return tuple(
        PlainSlice(name, int(inside.sum()), float(1 - wrong[inside].mean()), bool(low))
        for name, low in zip(names, worse, strict=True)
        for inside in [parts == name]
    )


def next_rows(table: PlainTable, count: int = NEXT) -> list[Mapping[str, str]]:
    """Return rows to label next, drawn at random (method, section 20).

    With a rival they are unlabelled rows on which the two predictions differ, because others carry
    no information about the gain; without one, any unlabelled rows. Each text is drawn once.
    """
    free = (table.truths == "") & ~table.trained
    if table.columns.rival is not None:
        free &= table.predictions != table.column(table.columns.rival)
    places = np.flatnonzero(free)
    text = table.columns.text or ""
    texts = [[normal(table.rows[i].get(text, "")) or f"row {i}"] for i in places.tolist()]
    return [table.rows[i] for i in places[deal(numbers(texts).tolist(), SEED)][:count].tolist()]
