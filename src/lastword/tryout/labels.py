"""Labelled examples from a table: guesses text, label and options, and notes doubts."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lastword.decide.item import fields_of, item_of
from lastword.errors import InputError
from lastword.files.cells import cell_text, restored, text_fault, unique_names
from lastword.files.rows import SEPARATORS, guessed_name, id_column, read_rows, require_rows
from lastword.files.strict_json import rows_digest
from lastword.files.wording import counted
from lastword.text.items import Item, rows_of
from lastword.text.prompt_template import Template
from lastword.text.question import MOST_CHOICES, Choice, Option
from lastword.trust.groups import marks, numbers
from lastword.tryout.doubts import doubts, left_out
from lastword.tryout.table_options import Columns, TableOptions

Row = Mapping[str, str]

_TEXTS = ("text", "input", "prompt", "question", "message", "query", "sentence", "body")
_LABELS = ("label", "truth", "class", "category", "intent", "target", "answer")
_CHOICES = ("choices", "options", "candidates")
_GROUP = "group"
_LISTS = (list, tuple, np.ndarray)
_EXAMPLES_A_LABEL = 3  # the label column has at least this many rows per value, on average


class LabelledRow(NamedTuple):
    """A text with the question about it, the right answer, its id and its group."""

    text: str
    question: Choice
    truth: str
    id: str
    group: str | None


@dataclass(frozen=True)
class Labels:
    """Texts with questions about them and the right answers.

    `table` has every row by its id, including those without a label; `notes` are guesses and
    warnings about it.
    """

    name: str
    rows: tuple[LabelledRow, ...]
    notes: tuple[str, ...]
    table: Mapping[str, Row] = field(default_factory=dict, repr=False)
    columns: Columns = Columns()

    @property
    def question(self) -> Choice | None:
        """The question, if all texts have the same one, else None."""
        first = self.rows[0].question
        return first if all(row.question == first for row in self.rows) else None

    @property
    def pool(self) -> dict[str, str]:
        """Texts without a label by row: one per group, and only of groups without any label."""
        texts = {id: text for id, text in self.texts.items() if text.strip()}
        group_column = self.columns.group or _GROUP
        shared = [
            marks(id, text, (), self.table[id].get(group_column) or None)
            for id, text in texts.items()
        ]
        group_of = dict(zip(texts, numbers([*shared]).tolist(), strict=True))
        labelled = {group_of.get(row.id) for row in self.rows}
        first: dict[int, str] = {}
        for id, group in group_of.items():
            if group not in labelled:
                first.setdefault(group, id)
        return {id: texts[id] for id in first.values()}

    @property
    def texts(self) -> dict[str, str]:
        """The text of every row of the table by its id."""
        return {id: row[self.columns.text] for id, row in self.table.items()}

    @property
    def groups(self) -> dict[str, int]:
        """The group number of each labelled row; rows with equal text or group value share one."""
        shared = [marks(row.id, row.text, (), row.group) for row in self.rows]
        return dict(zip([row.id for row in self.rows], numbers(shared).tolist(), strict=True))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all rows in canonical JSON, one per line."""
        return rows_digest(
            [row.id, fields_of(row.text, row.question), row.truth, row.group] for row in self.rows
        )

    @property
    def digest_name(self) -> str:
        """The name of these rows in records, with a digest: it changes when rows are added."""
        return f"try:{self.name}-{self.fingerprint[:6]}"

    def run_name(self, template: Template) -> str:
        """Return the name of a run of these rows with a template, as in records."""
        user = template.name.startswith("user/")
        return f"{self.digest_name}@user-{template.variant}" if user else self.digest_name

    def items(self, template: Template) -> list[Item]:
        """Return every row as an item, including its prompts without the text.

        Raises:
            InputError: The template cannot be rendered.
            ItemError: A row makes no valid item.
        """
        items = []
        for text, question, truth, id, group in self.rows:
            item = item_of(text, question, template, id=id, blind=True, content_free=True)
            truthful = tuple(candidate == truth for candidate in item.candidates)
            items.append(replace(item, truthful=truthful, group=group, question=None))
        return items


def read_labels(source: Any, settings: TableOptions = TableOptions()) -> Labels:  # noqa: B008 - frozen
    """Read the labelled examples of a file or a data frame.

    Args:
        source: Path of a CSV, TSV, Excel, JSON lines or Parquet file; a frame, or dictionaries.
        settings: The columns and the task.

    Raises:
        InputError: There are no rows, a column is missing or cannot be guessed, or a label is not
            one of the choices.
    """
    rows, notes = _read(source, settings)
    columns, guessed = _guess(rows, settings)
    table, faults = dict[str, Row](), list[str]()
    for name, row in _named(rows, columns.id).items():
        if fault := _fault(row, columns):
            faults.append(f"row {name}: {fault}")
        else:
            table[name] = row
    labelled = {name: row for name, row in table.items() if row[columns.label].strip()}
    if not labelled:
        raise InputError(f"no row has a label in the column {columns.label}")
    notes += [*guessed, *left_out(faults)]
    if without := len(table) - len(labelled):
        notes.append(f"{counted(without, 'row')} without a label")
    examples, doubts = _examples(labelled, columns)
    name = Path(source).stem if isinstance(source, str | Path) else "labels"
    return Labels(name, examples, (*notes, *doubts), table, columns)


def read_unlabelled(
    source: str, settings: TableOptions
) -> tuple[dict[str, Row], Columns, list[str]] | None:
    """Read a table in which no row has a label; its options are a file, or `a,b,c`.

    The result is None if a row has a label; else the rows by id, the columns, and notes.

    Raises:
        InputError: The table cannot be read, its text column cannot be guessed, or its label column
            has other values than the options.
    """
    rows, notes = _read(source, settings)
    if settings.choices is None or settings.choices in rows[0]:
        return None
    options = {option.text for option in _read_choices(settings.choices)}
    values = {column: {row[column] for row in rows} - {""} for column in rows[0]}
    if any(seen and (c == settings.label or seen <= options) for c, seen in values.items()):
        return None
    label = settings.label or _LABELS[0]
    if strange := sorted(values.get(label, set()) - options):
        raise InputError(
            f"{source}, column {label!r}: {strange[0]!r} is not one of the options. Add it to "
            "--choices, or name an empty or new column with --label-column"
        )
    rows = [{**row, label: ""} for row in rows]
    columns, _ = _guess(rows, replace(settings, label=label))
    return _named(rows, columns.id), columns, notes


def labelled_already(source: str) -> InputError:
    """Return the error of a table that should have no labels."""
    return InputError(
        f"{source} has labels already. Test a model on them with `lastword try`, or name an empty "
        "or new column for the labels with --label-column"
    )


# The table as text


def _read(source: Any, settings: TableOptions) -> tuple[list[Row], list[str]]:
    """Return the rows of a source as texts of the same columns, and notes about the others."""
    notes, bad = list[str](), list[str]()
    if isinstance(source, str | Path):
        path = Path(source)
        rows = require_rows(read_rows(path, notes.append, settings.encoding), path)
        values = [row.value for row in rows if row.error is None]
        bad = [f"{row.place}: {row.error}" for row in rows if row.error is not None]
        if not values:
            raise InputError(f"cannot read {path}: {bad[0]}")
    else:
        values = [*map(_by_text, rows_of(source))]
    texts, labels = list[dict[str, str]](), [settings.label] if settings.label else _LABELS
    for number, row in enumerate(values, start=1):
        if any(isinstance(row.get(name), _LISTS) for name in labels):
            raise InputError(f"row {number}: its label is a list; expected one label per row")
        try:
            texts.append({name: cell_text(cell) for name, cell in row.items()})
        except InputError as error:
            bad.append(f"row {number}: {error}")
    if not texts:
        raise InputError("the table has no rows; expected a text and a label per row")
    columns = dict.fromkeys(name for row in texts for name in row)
    full = [{name: row.get(name, "") for name in columns} for row in texts]
    return [*full], [*notes, *left_out(bad)]


def _by_text(row: object) -> Mapping[str, object]:
    """Return a row of a frame or a dictionary with column names as text."""
    if not isinstance(row, Mapping):
        raise InputError(f"a row of labels is a dictionary, not {type(row).__name__}")
    try:
        return dict(zip(unique_names([*row]), row.values(), strict=True))
    except ValueError as error:
        raise InputError(str(error)) from error


def _named(rows: Sequence[Row], column: str | None) -> dict[str, Row]:
    """Return the rows by id; a missing id becomes, and a repeated one gets, the row's number."""
    ids = [row[column] if column else "" for row in rows]
    counts = Counter(ids)
    names = [
        str(n) if not id else id if counts[id] == 1 else f"{id} (row {n})"
        for n, id in enumerate(ids, start=1)
    ]
    return dict(zip(names, rows, strict=True))


def _fault(row: Row, columns: Columns) -> str | None:
    """Return why a model cannot read the text or label of a row; None if it can."""
    for column in (columns.text, columns.label):
        if (fault := text_fault(row[column])) is not None:
            return f"its {column} {fault}"
    blank = row[columns.label] and not row[columns.text].strip()
    return f"its {columns.text} is blank" if blank else None


# Columns


def _guess(rows: Sequence[Row], settings: TableOptions) -> tuple[Columns, list[str]]:
    """Return the columns, and notes about those that were guessed."""
    columns = [*rows[0]]
    for name in (settings.text, settings.label, settings.id, settings.group):
        if name is not None and name not in columns:
            raise InputError(f"no column {name!r}; the table has {', '.join(columns)}")
    if len(columns) == 1:
        raise InputError(
            f"the table has one column, {columns[0]!r}: expected a text and a label, in columns "
            f"separated by {', '.join(SEPARATORS.values())}"
        )
    choices = settings.choices or next((c for c in _CHOICES if c in columns), None)
    used = {settings.text, settings.label, choices, settings.group}
    rest = [c for c in columns if c not in used]
    id = settings.id or id_column(rest)
    label = settings.label or _label(rows, [c for c in rest if c != id])
    text = settings.text or _longest(rows, [c for c in rest if c not in (label, id)])
    pairs = {"text": text, "label": label, "choices": choices, "id": id}
    guessed = [
        f"{n} is column {guessed_name(c, columns)}"
        for n, c in pairs.items()
        if c is not None and c != getattr(settings, n)
    ]
    note = [f"guessed: {', '.join(guessed)}"] if guessed else []
    return Columns(**vars(settings) | pairs), note


def _label(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the label column: by its name, or the only column with few distinct values."""
    if by_name := [c for c in columns if c.casefold() in _LABELS]:
        return by_name[0]
    values = {c: {row[c] for row in rows} - {""} for c in columns}
    most = len(rows) // _EXAMPLES_A_LABEL
    candidates = [c for c, texts in values.items() if 2 <= len(texts) <= most]
    if len(candidates) != 1:
        many = "several columns repeat" if candidates else "no column repeats"
        raise InputError(
            f"cannot tell which column is the label: {many} few values. Choose one "
            f"with --label-column ({', '.join(columns)})"
        )
    return candidates[0]


def _longest(rows: Sequence[Row], columns: Sequence[str]) -> str:
    if by_name := [c for c in columns if c.casefold() in _TEXTS]:
        return by_name[0]
    if not columns:
        raise InputError("the table has only a label; expected a column of text beside it")
    return max(columns, key=lambda column: sum(len(row[column]) for row in rows))


# Labelled rows


def _examples(
    rows: Mapping[str, Row], columns: Columns
) -> tuple[tuple[LabelledRow, ...], list[str]]:
    """Return the labelled rows with their questions, and notes about doubtful ones."""
    descriptions = _descriptions(columns.describe)
    truths = {name: row[columns.label] for name, row in rows.items()}
    shared, notes = None, list[str]()
    if columns.choices is None or columns.choices not in next(iter(rows.values())):
        options = _occurring(truths) if columns.choices is None else _read_choices(columns.choices)
        shared = _question(options, descriptions, columns, next(iter(rows.values())))
        notes = doubts({name: row[columns.text] for name, row in rows.items()}, truths)
        if columns.label in truths.values():
            notes.append(
                f"the first line is read as names, and `{columns.label}` is a label too: if the "
                "table has no line of names, add one"
            )
    examples = tuple(
        _example(name, row, shared or _offered(name, row, descriptions, columns), columns)
        for name, row in rows.items()
    )
    notes += _rewritten(rows, examples, columns.label)
    if not any(row.group for row in examples):
        notes.append(
            "no row names a group: if texts share an author or a thread, name its column with "
            "--group, or the guarantee does not hold"
        )
    return examples, notes


def _example(name: str, row: Row, question: Choice, columns: Columns) -> LabelledRow:
    offered = [option.text for option in question.options]
    label = restored(row[columns.label], offered)
    if label not in offered:
        raise InputError(f"row {name}: the label {label!r} is not one of its choices")
    group = row.get(columns.group or _GROUP) or None
    return LabelledRow(row[columns.text], question, label, name, group)


def _rewritten(rows: Mapping[str, Row], examples: Sequence[LabelledRow], column: str) -> list[str]:
    pairs = Counter((rows[one.id][column], one.truth) for one in examples)
    changes = {pair: count for pair, count in pairs.items() if pair[0] != pair[1]}
    if not changes:
        return []
    told = [f"{new!r} as {old!r} ({counted(n, 'row')})" for (new, old), n in changes.items()]
    return [f"labels that a spreadsheet has rewritten are read as their options: {', '.join(told)}"]


def _offered(name: str, row: Row, descriptions: Mapping[str, str], columns: Columns) -> Choice:
    """Return the question of a row whose options are in a column."""
    try:
        return _question(_listed(row[columns.choices or ""]), descriptions, columns, row)
    except InputError as error:
        raise InputError(
            f"row {name}: {error}. Options are a JSON list, or separated by |"
        ) from error


def question_of(columns: Columns, row: Row) -> Choice:
    """Return the question about every text of a table, with options from the user.

    Raises:
        InputError: The options or the descriptions cannot be read.
    """
    options = _read_choices(columns.choices or "")
    return _question(options, _descriptions(columns.describe), columns, row)


def _question(
    options: Sequence[Option], descriptions: Mapping[str, str], columns: Columns, row: Row
) -> Choice:
    instructions = columns.instructions
    if instructions is None:
        instructions = row.get("instructions", "")
    described = [replace(o, description=descriptions.get(o.text, o.description)) for o in options]
    return Choice(instructions, described)


def _occurring(truths: Mapping[str, str]) -> list[Option]:
    """Return the distinct labels of the table, as the options of every row."""
    labels = sorted(set(truths.values()))
    if not 2 <= len(labels) <= MOST_CHOICES:
        raise InputError(
            f"the label column has {counted(len(labels), 'distinct value')}; at least 2 and at "
            f"most {MOST_CHOICES} are needed"
        )
    return [Option(label) for label in labels]


def _read_choices(path: str) -> list[Option]:
    """Return the options in a file, or in a text such as `a,b,c`."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if "," in path:
            return _options(path.split(","))
        raise InputError(
            f"choices are a column, a file of options, or options as a,b,c: {error}"
        ) from error
    return _listed(lines) if lines.lstrip().startswith("[") else _options(lines.split("\n"))


def _listed(cell: str) -> list[Option]:
    """Return the options of a cell: a JSON list, or texts separated by `|`."""
    try:
        return _options(json.loads(cell) if cell.lstrip().startswith("[") else cell.split("|"))
    except ValueError as error:
        raise InputError(f"choices are not a JSON list: {error}") from error


def _options(values: Sequence[Any]) -> list[Option]:
    entries = [value.strip() if isinstance(value, str) else value for value in values]
    return [
        Option(entry.get("value", ""), entry.get("description"))
        if isinstance(entry, Mapping)
        else Option(cell_text(entry))
        for entry in entries
        if entry != ""
    ]


def _descriptions(file: str | Path | None) -> dict[str, str]:
    if file is None:
        return {}
    path = Path(file)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the descriptions {path}: {error}") from error
    for name, text in table.items():
        if not isinstance(text, str):
            raise InputError(
                f"{path}: {name} is {type(text).__name__}, expected one text per label"
            )
    return table
