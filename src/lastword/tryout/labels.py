"""Labelled examples from a table: guesses text, label and options, and notes doubts."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lastword.decide.item import candidates_of, fields_of, item_of
from lastword.errors import InputError
from lastword.files.annotated import annotated_rows
from lastword.files.cells import cell_text, inert_cell, spelling, text_fault, unique_names
from lastword.files.delimited import SEPARATORS
from lastword.files.rows import guessed_name, id_column, read_rows, require_rows
from lastword.files.strict_json import rows_digest
from lastword.files.wording import counted
from lastword.text.items import Item, rows_of
from lastword.text.prompt_template import Template
from lastword.text.question import MOST_CHOICES, Choice, Option
from lastword.trust.groups import marks, numbers
from lastword.tryout.copies import near_copies
from lastword.tryout.table_options import Columns, TableOptions

Row = Mapping[str, Any]

_TEXTS = ("text", "input", "prompt", "question", "message", "query", "sentence", "body")
_LABELS = ("label", "truth", "class", "category", "intent", "target", "answer")
_CHOICES = ("choices", "options", "candidates")
_GROUP = "group"
_LISTS = (list, tuple, np.ndarray)
_EXAMPLES_A_LABEL = 3  # the label column has at least this many rows per value, on average
_SHOWN = 3  # number of rows that a note lists; the others are only counted


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

    Attributes:
        rows: The labelled rows.
        notes: Guesses and warnings about the table.
        table: Every row of the table by its id, including those without a label.
        columns: The columns of the table.
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
        texts = {id: text for id, text in self._texts.items() if text.strip()}
        column = self.columns.group or _GROUP
        shared = [
            marks(id, text, (), cell_text(self.table[id].get(column)) or None)
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
    def _texts(self) -> dict[str, str]:
        column = self.columns.text
        return {id: cell_text(row.get(column)) for id, row in self.table.items()}

    def without_examples(self, template: Template) -> "Labels":
        """Return the labels without rows whose text is an example in the template.

        Accuracy on a prompt's examples is too high, so they must not count. A note lists them.

        Raises:
            InputError: No other row is left.
        """
        shown = {id for id, text in self._texts.items() if _contains(template.text, text)}
        if not shown:
            return self
        rows = tuple(row for row in self.rows if row.id not in shown)
        if not rows:
            raise InputError("every labelled row is an example of the template: label other rows")
        ids = _first_few([f"row {id}" for id in self.table if id in shown])
        note = f"left out {counted(len(shown), 'row')} that the template shows: {ids}"
        table = {id: row for id, row in self.table.items() if id not in shown}
        return replace(self, rows=rows, table=table, notes=(*self.notes, note))

    @property
    def groups(self) -> dict[str, int]:
        """The group number of each labelled row; rows with equal text or group value share one."""
        shared = [marks(row.id, row.text, (), row.group) for row in self.rows]
        return dict(zip([row.id for row in self.rows], numbers(shared).tolist(), strict=True))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all rows in canonical JSON, one per line."""
        rows = []
        for text, question, truth, id, group in self.rows:
            candidates = candidates_of(question)
            truthful = [candidate == truth for candidate in candidates]
            # As a benchmark's examples (`lab/benchmarks`): no kind of metric, separator a space.
            row: list[Any] = [id, fields_of(text, question), candidates, truthful, None, " "]
            rows.append(row + ([] if group is None else [{"group": group}]))
        return rows_digest(rows)

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
    notes: list[str] = []
    is_path = isinstance(source, str | Path)
    rows = _file(Path(source), settings, notes) if is_path else [*map(_by_text, rows_of(source))]
    if not rows:
        raise InputError("the table has no rows; expected a text and a label per row")
    table, columns = _table(rows, settings, notes)
    table = _readable(table, columns, notes)
    labelled = {
        name: row for name, row in table.items() if cell_text(row.get(columns.label)).strip()
    }
    if not labelled:
        raise InputError(f"no row has a label in the column {columns.label}")
    if without := len(table) - len(labelled):
        notes.append(f"{counted(without, 'row')} without a label")
    questions = _rows(labelled, columns, notes)
    if not any(row.question.instructions for row in questions):
        notes.append(
            "the prompt asks no question, because no instructions were given; a question such as "
            '"Which team?" often helps (--instructions)'
        )
    name = Path(source).stem if is_path else "labels"
    return Labels(name, questions, tuple(notes), table, columns)


def read_unlabelled(
    source: str, settings: TableOptions, notes: list[str]
) -> tuple[dict[str, Row], Columns] | None:
    """Read a table in which no row has a label.

    The options must be given as a file or as `a,b,c`, not as a column of the table. Rows that
    cannot be read are added to the notes.

    Returns:
        The rows by id, and the columns, including the empty one for labels; None if a row has a
        label.

    Raises:
        InputError: The table cannot be read, its text column cannot be guessed, or its label column
            has other values than the options.
    """
    rows = _file(Path(source), settings, notes)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows or settings.choices is None or settings.choices in columns:
        return None
    options = {option.text for option in _read_choices(settings.choices)}
    for column in columns:
        cells = {cell_text(row.get(column)) for row in rows} - {""}
        if cells and (column == settings.label or cells <= options):
            return None
    label = settings.label or _LABELS[0]
    if any(cell_text(row.get(label)) for row in rows):
        raise labelled_already(source)
    return _table([{**row, label: ""} for row in rows], replace(settings, label=label), [])


def labelled_already(source: str) -> InputError:
    """Return the error of a table that should have no labels."""
    return InputError(
        f"{source} has labels already. Test a model on them with `lastword try`, or name an empty "
        "or new column for the labels with --label"
    )


def _table(
    rows: Sequence[Row], settings: TableOptions, notes: list[str]
) -> tuple[dict[str, Row], Columns]:
    """Return rows of text by id, and the columns; add notes about guesses and unreadable cells."""
    rows = _as_text(rows, notes)
    columns, guesses = _guess(rows, settings)
    notes += guesses
    return dict(zip(_names(rows, columns.id), rows, strict=True)), columns


def _file(path: Path, settings: TableOptions, notes: list[str]) -> list[Row]:
    """Return the readable rows of a file; add a note about the others."""
    rows = annotated_rows(require_rows(read_rows(path, notes.append, settings.encoding), path))
    bad = [f"{row.place}: {row.error}" for row in rows if row.error is not None]
    if len(bad) == len(rows):
        raise InputError(f"cannot read {path}: {bad[0]}")
    notes += [f"left out {counted(len(bad), 'row')}: {_first_few(bad)}"] if bad else []
    return [row.value for row in rows if row.error is None]


def _by_text(row: Any) -> Row:
    """Return a row of a frame or a dictionary with column names as text."""
    if not isinstance(row, Mapping):
        raise InputError(f"a row of labels is a dictionary, not {type(row).__name__}")
    try:
        return dict(zip(unique_names([*row]), row.values(), strict=True))
    except ValueError as error:
        raise InputError(str(error)) from error


def _as_text(rows: Sequence[Row], notes: list[str]) -> list[Row]:
    """Return rows with cells as text or lists; other cells become empty, with a note."""
    bad: dict[str, tuple[int, str]] = {}

    def cell(column: str, value: Any) -> Any:
        if isinstance(value, _LISTS):
            return value
        try:
            return cell_text(value)
        except InputError as error:
            count, why = bad.get(column, (0, str(error)))
            bad[column] = count + 1, why
            return ""

    texts: list[Row] = [{name: cell(name, value) for name, value in row.items()} for row in rows]
    for column, (count, why) in bad.items():
        notes.append(f"column {column}: {counted(count, 'cell')} read as empty: {why}")
    return texts


def _readable(rows: Mapping[str, Row], columns: Columns, notes: list[str]) -> dict[str, Row]:
    """Return the rows by id whose text and label a model can read; add a note about the others."""
    faults = {
        name: f"row {name}: its {column} {fault}"
        for name, row in rows.items()
        for column in (columns.text, columns.label)
        if (fault := text_fault(cell_text(row.get(column)))) is not None
    }
    labelled = {name: row for name, row in rows.items() if cell_text(row.get(columns.label))}
    faults |= {
        name: f"row {name}: its {columns.text} is blank"
        for name, row in labelled.items()
        if not cell_text(row.get(columns.text)).strip()
    }
    if faults:
        notes.append(f"left out {counted(len(faults), 'row')}: {_first_few([*faults.values()])}")
    return {name: row for name, row in rows.items() if name not in faults}


def _names(rows: Sequence[Row], column: str | None) -> list[str]:
    """Return the rows' ids; missing ids become, and repeated ones get, the row's number."""
    ids = [cell_text(row.get(column or "")) for row in rows]
    counts = Counter(ids)
    return [
        str(n) if not id else id if counts[id] == 1 else f"{id} (row {n})"
        for n, id in enumerate(ids, start=1)
    ]


def _guess(rows: Sequence[Row], settings: TableOptions) -> tuple[Columns, list[str]]:
    """Return the columns, and notes about those that were guessed."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in (settings.text, settings.label, settings.id, settings.group):
        if name is not None and name not in columns:
            raise InputError(f"no column {name!r}; the table has {', '.join(columns)}")
    if len(columns) == 1:
        raise InputError(
            f"the table has one column, {columns[0]!r}: expected a text and a label, in columns "
            f"separated by {', '.join(SEPARATORS.values())}"
        )
    # A column of lists can only be the options.
    lists = [c for c in columns if _are_lists([row.get(c) for row in rows])]
    used = {settings.text, settings.label, settings.choices, settings.group, *lists}
    rest = [c for c in columns if c not in used]
    id = settings.id or id_column(rest)
    label = settings.label or _label(rows, [c for c in rest if c != id])
    text = settings.text or _longest(rows, [c for c in rest if c not in (label, id)])
    offered = [c for c in lists if _offers(rows, c, label)]
    options = [c for c in (*_CHOICES, *offered) if c in columns and c not in (text, label)]
    choices = settings.choices or next(iter(options), None)
    pairs = {"text": text, "label": label, "choices": choices, "id": id}
    guessed = [
        f"{n} is column {guessed_name(c, columns)}"
        for n, c in pairs.items()
        if c is not None and c != getattr(settings, n)
    ]
    note = [f"guessed: {', '.join(guessed)}"] if guessed else []
    return Columns(**vars(settings) | pairs), note


def _are_lists(cells: Sequence[Any]) -> bool:
    """Return True if every cell of a column is empty, a list, or a JSON list."""

    def is_list(cell: Any) -> bool:
        try:
            return isinstance(cell, _LISTS) or isinstance(json.loads(cell), list)
        except ValueError:
            return False

    filled = [cell for cell in cells if isinstance(cell, _LISTS) or cell_text(cell) != ""]
    return bool(filled) and all(map(is_list, filled))


def _offers(rows: Sequence[Row], column: str, label: str) -> bool:
    """Return True if the label of every labelled row is in its list of options."""
    pairs = [(row.get(column), truth) for row in rows if (truth := cell_text(row.get(label))) != ""]
    try:
        return all(truth in [option.text for option in _listed(cell)] for cell, truth in pairs)
    except InputError:  # not a list, or not a list of options
        return False


def _label(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the label column: by its name, or the only column with few distinct values."""
    if by_name := [c for c in columns if c.casefold() in _LABELS]:
        return by_name[0]
    values = {c: {cell_text(row.get(c)) for row in rows} - {""} for c in columns}
    most = len(rows) // _EXAMPLES_A_LABEL
    candidates = [c for c, texts in values.items() if 2 <= len(texts) <= most]
    if len(candidates) != 1:
        many = "several columns repeat" if candidates else "no column repeats"
        raise InputError(
            f"cannot tell which column is the label: {many} few values. Choose one with --label "
            f"({', '.join(columns)})"
        )
    return candidates[0]


def _longest(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the text column: by its name, or the one with the longest cells."""
    if by_name := [c for c in columns if c.casefold() in _TEXTS]:
        return by_name[0]
    lengths = {c: sum(len(cell_text(row.get(c))) for row in rows) for c in columns}
    if not lengths:
        raise InputError("the table has only a label; expected a column of text beside it")
    return max(lengths, key=lengths.__getitem__)


def _rows(rows: Mapping[str, Row], columns: Columns, notes: list[str]) -> tuple[LabelledRow, ...]:
    texts = {name: cell_text(row.get(columns.text)) for name, row in rows.items()}
    labels = {name: row[columns.label] for name, row in rows.items()}
    if lists := [name for name, label in labels.items() if isinstance(label, _LISTS)]:
        raise InputError(f"row {lists[0]}: its label is a list; expected one label per row")
    truths = {name: cell_text(label) for name, label in labels.items()}
    descriptions = _descriptions(columns.describe)
    shared = None
    if columns.choices is None or not any(columns.choices in row for row in rows.values()):
        options = None if columns.choices is None else _read_choices(columns.choices)
        if columns.label in truths.values():
            notes.append(
                f"the first line is read as names, and `{columns.label}` is a label too: if the "
                "table has no line of names, add one"
            )
        truths = _one_spelling(truths, options or [], notes, tidy=columns.tidy)
        notes += [*_note_single(truths), *_contradictions(texts, truths)]
        first = next(iter(rows.values()))
        options = _occurring(truths) if options is None else options
        shared = _question(options, descriptions, columns, first)
    questions = []
    for name, row in rows.items():
        question = shared or _offered(name, row, descriptions, columns)
        offered = [option.text for option in question.options]
        # `lastword labels` writes a label `=x` as `'=x`, which no spreadsheet calculates.
        written = {inert_cell(text): text for text in offered} | {text: text for text in offered}
        if truths[name] not in written:
            raise InputError(f"row {name}: the label {truths[name]!r} is not one of its choices")
        truths[name] = written[truths[name]]
        group = cell_text(row.get(columns.group or _GROUP)) or None
        questions.append(LabelledRow(texts[name], question, truths[name], name, group))
    if not any(row.group for row in questions):
        notes.append(
            "no row names a group: if texts share an author or a thread, name its column with "
            "--group, or the guarantee does not hold"
        )
    notes += _note_near_copies({row.id: row.text for row in questions if row.group is None})
    return tuple(questions)


def _offered(name: str, row: Row, descriptions: Mapping[str, str], columns: Columns) -> Choice:
    """Return the question of a row whose options are in a column."""
    try:
        return _question(_listed(row.get(columns.choices or "", "")), descriptions, columns, row)
    except InputError as error:
        raise InputError(
            f"row {name}: {error}. Options are a JSON list, or separated by |"
        ) from error


def _contains(template: str, text: str) -> bool:
    """Return True if a template contains a whole text, verbatim or as a JSON string."""
    forms = {text.strip(), json.dumps(text.strip(), ensure_ascii=False)[1:-1]} - {""}
    return any(re.search(rf"(?<!\w){re.escape(form)}(?!\w)", template) for form in forms)


def _one_spelling(
    truths: Mapping[str, str], options: Sequence[Option], notes: list[str], *, tidy: bool
) -> dict[str, str]:
    """Return the labels by row; with `tidy`, labels that look alike get one spelling.

    It is that of an option, or else the most frequent one.
    """
    counts = Counter(truths.values())
    spellings: dict[str, list[str]] = {}
    often = [label for label, _ in counts.most_common()]
    for label in dict.fromkeys([*(option.text for option in options), *often]):
        spellings.setdefault(spelling(label), []).append(label)
    joined = dict(truths)
    for first, *others in spellings.values():
        written = [f"`{one}` ({counted(counts[one], 'row')})" for one in others if counts[one]]
        if not written:
            continue
        if not tidy:
            notes.append(
                f"`{first}` and {' and '.join(written)}: one class? The option `tidy` joins them"
            )
            continue
        notes.append(f"joined: {' and '.join(written)} into `{first}`")
        joined |= {name: first for name, truth in truths.items() if truth in others}
    return joined


def _note_single(truths: Mapping[str, str]) -> list[str]:
    counts = Counter(truths.values())
    single = [f"`{label}` (row {name})" for name, label in truths.items() if counts[label] == 1]
    return [f"classes of one row: {_first_few(single)}"] if single else []


def _contradictions(texts: Mapping[str, str], truths: Mapping[str, str]) -> list[str]:
    rows: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        rows.setdefault(" ".join(text.split()), {}).setdefault(truths[name], name)
    twice = [
        " and ".join(f"row {name} (`{label}`)" for label, name in names.items())
        for names in rows.values()
        if len(names) > 1
    ]
    return [f"one text with two labels: {_first_few(twice)}"] if twice else []


def _note_near_copies(texts: Mapping[str, str]) -> list[str]:
    if not texts:
        return []
    like: dict[int, list[str]] = {}
    for name, number in zip(texts, near_copies([*texts.values()]).tolist(), strict=True):
        like.setdefault(number, []).append(name)
    near = [names for names in like.values() if len(names) > 1]
    if not near:
        return []
    rows = _first_few([f"rows {' and '.join(names[:_SHOWN])}" for names in near])
    return [
        f"near copies: {sum(map(len, near))} rows in {counted(len(near), 'group')} ({rows}); rows "
        "derived from one another need a shared value in a column `group`"
    ]


def _first_few(things: Sequence[str]) -> str:
    more = len(things) - _SHOWN
    return "; ".join([*things[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _question(
    options: Sequence[Option], descriptions: Mapping[str, str], columns: Columns, row: Row
) -> Choice:
    instructions = columns.instructions
    if instructions is None:
        instructions = cell_text(row.get("instructions"))
    described = [replace(o, description=descriptions.get(o.text, o.description)) for o in options]
    return Choice(instructions, described)


def question_of(columns: Columns, row: Row) -> Choice:
    """Return the question about every text of a table, with options from the user.

    Raises:
        InputError: The options or the descriptions cannot be read.
    """
    return _question(
        _read_choices(columns.choices or ""), _descriptions(columns.describe), columns, row
    )


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
    try:
        lines = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if "," in path:
            return _listed(path.split(","))
        raise InputError(
            f"choices are a column, a file of options, or options as a,b,c: {error}"
        ) from error
    return _listed(lines if lines.lstrip().startswith("[") else lines.split("\n"))


def _listed(value: Any) -> list[Option]:
    """Return the options of a cell or a file: a list, a JSON list, or texts separated by `|`."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else value.split("|")
        except ValueError as error:
            raise InputError(f"choices are not a JSON list: {error}") from error
    if not isinstance(value, Sequence) and not hasattr(value, "tolist"):
        raise InputError(f"choices are a list, not {type(value).__name__}")
    entries = [o.strip() if isinstance(o, str) else o for o in value]
    return [
        Option(o.get("value", ""), o.get("description"))
        if isinstance(o, Mapping)
        else Option(cell_text(o))
        for o in entries
        if o != ""
    ]


def _descriptions(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
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
