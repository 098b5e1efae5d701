"""Second round of a trial: a fixed policy, the rows that test it, and its files (section 20).

second = SecondRound.start(tracer, labels, probe, template)
rows = second.ask()                      # 40 texts by id, in random order
second.tell({id: "refund", other: None})  # None: skipped
proof = second.verdict()
proof.certificate                        # None if the gain is not proven
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lastword.decide.answer import ChoiceAnswer, Probed, QuestionAnswer
from lastword.decide.decider import Decider, subject_of
from lastword.decide.plan import Plan
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.cells import cell_text
from lastword.files.rows import read_objects
from lastword.files.strict_json import from_json, to_json
from lastword.files.wording import counted
from lastword.files.writing import write_text
from lastword.model.encoder import Encoder
from lastword.probes.probe import SUFFIX, Probe
from lastword.text.question import question_digest
from lastword.trust.certificate import Certificate, CertifiedProbe
from lastword.trust.claims import Finding, PolicyTrial
from lastword.trust.drift import LIKENESS, rounded
from lastword.trust.evidence import GroupEvidence
from lastword.trust.groups import SEED
from lastword.trust.policy import Promise, family
from lastword.trust.second_round import FIRST, LEAST_POOL, ROWS, DrawnRows, chance_of_proof, deal
from lastword.trust.terms import Terms
from lastword.tryout.labels import Labels, Row, read_labels, read_unlabelled
from lastword.tryout.table_options import TableOptions

POLICY, STATE, FIRST_ROWS = f"next{SUFFIX}", "next.json", "first.csv"
_SCHEMA, _QUESTION, _TOGETHER, _REFERENCE = 1, "answer", 64, 1000


@dataclass(frozen=True)
class DifferingRow:
    """A text to which policy and model give different answers.

    Attributes:
        id: The row's id in the table.
        policy: The policy's answer.
        model: The model's answer.
    """

    id: str
    text: str
    policy: str
    model: str


@dataclass(frozen=True)
class Proof:
    """Verdict of a second round.

    Attributes:
        drawn: The counts of the rows.
        certificate: The certificate; None if the gain is not proven.
        words: The verdict in words.
    """

    drawn: DrawnRows
    certificate: Certificate | None
    words: str


@dataclass
class SecondRound:
    """A fixed policy, and the rows that test it.

    Attributes:
        probe: The policy: a probe with its threshold.
        pool: Number of texts without a label, one per group.
        rows: Texts on which policy and model differ, in random order.
        reference: Conformal p-values of texts in the pool, for the monitor of drift.
        benchmarks: Fingerprint of the table by its name.
        asked: Number of rows that were offered for labelling.
        labels: Labels by row; None for a skipped row.
        look: Number of the current look, from 1; 0 before the first.
    """

    probe: Probe
    promise: Promise
    alpha: float
    delta: float
    pool: int
    rows: tuple[DifferingRow, ...]
    reference: tuple[float, ...] = ()
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    labels: dict[str, str | None] = field(default_factory=dict)
    look: int = 0

    @classmethod
    def start(
        cls,
        tracer: Tracer,
        labels: Labels,
        probe: Probe,
        template: str | None,
        terms: Terms,
        readers: Sequence[Encoder] = (),
    ) -> "SecondRound":
        """Answer every text without a label by policy and by model, and shuffle those that differ.

        `readers` are the sentence encoders that the probe may need.

        Raises:
            InputError: The probe has no threshold, or is for another model or template.
        """
        if probe.threshold is None:
            raise InputError("a second round needs a probe with a threshold: run `try` again")
        decider = Decider(tracer, probes=[probe], readers=readers, template=template)
        ready = decider.prepare({_QUESTION: probe.question})
        pool = [*labels.pool.items()]
        read: list[tuple[DifferingRow | None, float]] = []
        for first in range(0, len(pool), _TOGETHER):
            some = pool[first : first + _TOGETHER]
            # "all" makes the decider compute the model's answer even where the probe is certain.
            plans = decider.plan_many([(text, id) for id, text in some], ready, read="all")
            pairs = [*zip(some, plans, strict=True)]
            sound = [(row, plan) for row, plan in pairs if isinstance(plan, Plan)]
            answers = decider.answer([plan for _, plan in sound], "return")
            for ((id, text), _), answer in zip(sound, answers, strict=True):
                if not isinstance(answer, Exception):
                    read.append(_difference(id, text, answer[_QUESTION]))
        # The order is fixed before any label exists, so that the first rows are a random sample.
        differing = [row for row, _ in read if row is not None]
        order = deal(range(len(differing)), SEED)
        likeness = np.random.default_rng(SEED).permutation([like for _, like in read])
        return cls(
            probe,
            terms.promise,
            terms.alpha,
            terms.delta,
            len(read),
            tuple(differing[i] for i in order),
            tuple(map(rounded, likeness[:_REFERENCE].tolist())),
            {labels.digest_name: labels.fingerprint},
        )

    @property
    def open_rows(self) -> tuple[DifferingRow, ...]:
        """The rows that were offered and have no label yet."""
        return tuple(row for row in self.rows[: self.asked] if row.id not in self.labels)

    @property
    def chance(self) -> float:
        """Probability that the next look proves a gain, at the leave-one-out rates."""
        figures = (int(self.probe.figures[name]) for name in ("fixed", "broken", "changed"))
        fixed, broken, changed = figures
        rows = min(self.asked + ROWS, len(self.rows))
        return chance_of_proof(fixed, broken, changed, rows, self.delta / 2 ** (self.look + 1))

    def ask(self, k: int = ROWS) -> tuple[DifferingRow, ...]:
        """Return the next `k` rows to label, and begin a look.

        Raises:
            InputError: Rows without a label are left from the last look, or no row is left.
        """
        if self.open_rows:
            raise InputError(f"{counted(len(self.open_rows), 'row')} given out without a label yet")
        if self.asked >= len(self.rows):
            raise InputError("every row on which policy and model differ has been given out")
        self.asked, self.look = min(self.asked + k, len(self.rows)), self.look + 1
        return self.open_rows

    def tell(self, labels: Mapping[str, str | None]) -> None:
        """Add labels of rows that `ask` returned; None skips a row.

        Raises:
            InputError: A row was not offered or has a label already, or a label is not an option.
        """
        open_ids = {row.id for row in self.open_rows}
        options = [option.text for option in self.probe.question.options]
        for id, label in labels.items():
            if id not in open_ids:
                raise InputError(f"row {id} was not drawn for this look, or has its label already")
            if label is not None and label not in options:
                raise InputError(f"row {id}: {label!r} is not one of {', '.join(options)}")
        self.labels |= labels

    def verdict(self) -> Proof:
        """Test the labels of all looks so far, at the level of this look.

        Raises:
            InputError: A row that was offered has no label and was not skipped.
        """
        if self.open_rows or not self.asked:
            raise InputError("tell the labels of all rows that were given out first")
        rows = self.rows[: self.asked]
        truths = [self.labels[row.id] for row in rows]
        skipped = np.array([truth is None for truth in truths])
        pairs = [*zip(rows, truths, strict=True)]
        right = np.array([row.policy == truth for row, truth in pairs])
        # A skipped row counts as broken: otherwise skipping the hard rows would help the policy.
        base = np.array([row.model == truth for row, truth in pairs]) | skipped
        every = np.ones(len(rows), dtype=bool)
        # The pool has one text per group, so all rows are independent.
        evidence = GroupEvidence.of(base, right, np.arange(len(rows)), changed=every)
        drawn = DrawnRows(
            self.pool,
            len(self.rows),
            len(rows),
            evidence.fixed,
            evidence.broken,
            int(skipped.sum()),
            self.look,
        )
        proven = drawn.proves(self.promise, self.alpha, self.delta)
        certificate = self._certificate(drawn, evidence) if proven else None
        return Proof(drawn, certificate, self._words(drawn, proven=proven))

    def _certificate(self, drawn: DrawnRows, evidence: GroupEvidence) -> Certificate:
        probe, state = self.probe, self.probe.state
        assert state is not None
        methods, test = (probe.name,), "unconditional"
        terms = Terms(self.alpha, self.delta, methods=methods, promise=self.promise, test=test)
        ((policy, share),) = family("mix", terms.methods, terms.promise).items()
        trial = PolicyTrial(policy, evidence, True, share)
        # The trial's `certified` is set here: `drawn.proves` has tested it, at the look's level.
        counts = evidence.items, evidence.groups, evidence.base_right
        question = question_digest(probe.question)
        return Certificate.of(
            probe.subject,
            Finding(terms, *counts, (trial,), trial, None),
            benchmarks=dict(self.benchmarks),
            templates=(probe.template,),
            questions=(question,),
            versions={"lastword": version("lastword")},
            reference={LIKENESS: self.reference},
            probe=CertifiedProbe(probe.digest, question, SEED, 1.0, state.depth, state.pooling),
            second=drawn,
        )

    def _words(self, drawn: DrawnRows, *, proven: bool) -> str:
        skipped = f", {drawn.skipped} of them skipped" if drawn.skipped else ""
        counts = (
            f"of {drawn.rows} labelled rows the policy corrected {drawn.fixed} and broke "
            f"{drawn.broken}{skipped}; policy and model differ on {drawn.differ} of {drawn.pool} "
            "texts"
        )
        if not proven:
            return f"Not proven: {counts} (p = {drawn.p:.2g}, level {drawn.level(self.delta):.2g})."
        least = 100 * drawn.gain_bound(drawn.level(self.delta))
        return (
            f"Proven with {100 * (1 - self.delta):g}% confidence: accuracy rises by "
            f"{f'at least {least:.2g} points' if least else 'more than 0 points'}; {counts}."
        )

    def to_json(self) -> str:
        """Return the state as JSON, without the probe, which is stored separately."""
        values = {n: v for n, v in vars(self).items() if n not in ("probe", "rows")}
        rows = [asdict(row) for row in self.rows]
        return to_json({"schema": _SCHEMA, "policy": self.probe.digest, "rows": rows, **values})

    @classmethod
    def from_json(cls, text: str, probe: Probe) -> "SecondRound":
        """Return the second round stored as JSON, with its policy.

        Raises:
            InputError: The text is not a second round, or belongs to another policy.
        """
        try:
            values: dict[str, Any] = from_json(text)
            schema, policy, rows = (values.pop(n) for n in ("schema", "policy", "rows"))
            if schema != _SCHEMA:
                raise InputError(f"its schema is {schema}, expected {_SCHEMA}")
            if policy != probe.digest:
                raise InputError("it was drawn for another policy")
            values["reference"] = tuple(values["reference"])
            return cls(probe=probe, rows=tuple(DifferingRow(**row) for row in rows), **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"this is not a second round: {error}") from error


def _difference(id: str, text: str, answer: QuestionAnswer) -> tuple[DifferingRow | None, float]:
    """Return the row if policy and model differ on it, and the likeness of its text."""
    assert isinstance(answer, ChoiceAnswer) and isinstance(answer.decision, Probed)
    how = answer.decision
    like = 1.0 if how.likeness is None else how.likeness
    if not how.corrected or how.model is None:
        return None, like
    assert answer.choice is not None
    return DifferingRow(id, text, str(answer.choice), how.model), like


# Files


def begin(
    out: Path,
    tracer: Tracer,
    labels: Labels,
    refit: Callable[[], Probe],
    template: str | None,
    terms: Terms,
    readers: Sequence[Encoder] = (),
) -> list[str]:
    """Write the rows to label next, unless the pool is too small.

    `refit` fits the policy to all labels; it is called only if needed.

    Returns:
        Lines that explain the rows to the user; [] if nothing was written.
    """
    if labels.question is None:
        return []
    for path in sorted(out.glob("next*.csv")):
        if _has_labels(path, labels.columns.label):
            return [f"{path} has labels and is kept. Finish it with --next, or move it away."]
    if len(labels.pool) < LEAST_POOL:
        return []
    second = SecondRound.start(tracer, labels, refit(), template, terms, readers)
    if not second.rows:
        return ["No second round: the probe and the model agree on every text without a label."]
    return _offer(out, second, labels)


def _has_labels(path: Path, column: str) -> bool:
    return any(row.get(column) for row in read_objects(path))


def _offer(out: Path, second: SecondRound, labels: Labels) -> list[str]:
    """Write the next rows to label and the state, and return an explanation for the user."""
    chance, rows = second.chance, second.ask()
    drawn = {row.id: labels.table[row.id] for row in rows}
    write_rows(path := out / name_of(second.look), [*drawn.values()], labels.columns.label)
    second.probe.write(out / POLICY)
    write_text(out / STATE, second.to_json() + "\n")
    return [
        f"To prove the gain of a probe that all your labels train, label the "
        f"{counted(len(rows), 'row')} in {path} (column `{labels.columns.label}`), and run the "
        f"same command with --next {path}. Probe and model differ on them. This proves a gain "
        f"with about {100 * chance:.0f}% probability.",
    ]


def name_of(look: int) -> str:
    """Return the name of the file with the rows of a look."""
    return "next.csv" if look == 1 else f"next-{look}.csv"


def is_first(path: Path, out: Path) -> bool:
    """Return True if a file has the labels of round one, not of a look of the second round."""
    return path.name == FIRST_ROWS or not (out / STATE).exists()


def finish(out: Path, tracer: Tracer, labels: Labels, path: Path) -> Proof:
    """Test the fixed policy with the labels of a file, and write the certificate or more rows.

    Raises:
        InputError: No second round was begun here, or a row was edited, added or drawn for another
            policy. Nothing is written then.
    """
    second = read_second_round(out)
    second.probe.check(subject_of(tracer))
    second.tell(_labels_of(second, labels, path))
    return conclude(out, second, labels)


def read_second_round(out: Path) -> SecondRound:
    """Return the second round that was begun in a folder.

    Raises:
        InputError: No second round was begun, or its files do not belong together.
    """
    probe = Probe.read(out / POLICY)
    try:
        return SecondRound.from_json((out / STATE).read_text(encoding="utf-8"), probe)
    except OSError as error:
        raise InputError(f"no second round was begun in {out}: {error.strerror}") from error


def conclude(out: Path, second: SecondRound, labels: Labels) -> Proof:
    """Test the labels of a look, and write the certificate or more rows.

    Raises:
        InputError: A row has no label, or a row of the table was edited. Nothing is written then.
    """
    probe, proof = second.probe, second.verdict()
    if proof.certificate is not None:
        probe.write(out / f"answer{SUFFIX}")
        write_text(out / "certificate.toml", proof.certificate.to_toml())
        return proof
    more: Sequence[str] = ["Every row on which they differ is labelled; there are no more."]
    if second.asked < len(second.rows):
        _require_table(second, labels)
        more = _offer(out, second, labels)
    return Proof(proof.drawn, None, " ".join([proof.words, *more]))


def _labels_of(second: SecondRound, labels: Labels, path: Path) -> dict[str, str | None]:
    """Return the labels of a file by row; rows missing from the file count as skipped."""
    drawn, columns = {row.text: row.id for row in second.open_rows}, labels.columns
    result: dict[str, str | None] = {}
    for place, row in enumerate(_labelled_rows(path, labels.columns.label), start=1):
        text, name = row.get(columns.text), row.get(columns.id or "") or f"row {place}"
        id = drawn.get(text if isinstance(text, str) else "")
        if id is None:
            edited = name in drawn.values()
            why = "its text was edited" if edited else "it was not drawn for this policy and look"
            raise InputError(f"{path}, {name}: {why}. Restore the drawn rows and add labels only")
        if id in result:
            raise InputError(f"{path}, {name}: the row is there twice")
        result[id] = cell_text(row.get(labels.columns.label)).strip() or None
    return dict.fromkeys(drawn.values()) | result


def _labelled_rows(path: Path, column: str) -> list[dict[str, Any]]:
    """Return the rows of a file; InputError if it has no column of labels."""
    rows = read_objects(path)
    if not any(column in row for row in rows):
        columns = ", ".join(dict.fromkeys(name for row in rows for name in row))
        raise InputError(
            f"{path} has no column {column!r} for the labels; it has {columns}. Rename one to "
            f"{column!r}"
        )
    return rows


def _require_table(second: SecondRound, labels: Labels) -> None:
    """Raise InputError if a row of the next look was edited since it was drawn."""
    for row in second.rows[second.asked : second.asked + ROWS]:
        if labels.table.get(row.id, {}).get(labels.columns.text) != row.text:
            raise InputError(f"row {row.id} of the table is not what it was when it was drawn")


def draw_first(source: str, settings: TableOptions, out: Path) -> str | None:
    """Write the first rows to label of a table without labels.

    Returns:
        An explanation for the user; None if a row of the table has a label.

    Raises:
        InputError: The rows were written before and have labels.
    """
    unlabelled = read_unlabelled(source, settings)
    if unlabelled is None:
        return None
    table, columns, notes = unlabelled
    column, path = columns.label, out / FIRST_ROWS
    if path.exists() and _has_labels(path, column):
        raise InputError(f"{path} has labels: give it by --next {path}, or move it away")
    out.mkdir(parents=True, exist_ok=True)
    drawn = {id: table[id] for id in random_order(table, columns.text)[:FIRST]}
    write_rows(path, [*drawn.values()], column)
    words = (
        f"Nothing is labelled yet. Label the {counted(len(drawn), 'row')} in {path} (column "
        f"`{column}`), drawn at random, and run the same command with --next {path}."
    )
    return "\n".join([words, *notes])


def random_order(table: Mapping[str, Row], column: str) -> list[str]:
    """Return the ids of the rows with a text, in the random order in which they are labelled."""
    ids = [*table]
    order = [ids[i] for i in np.random.default_rng(SEED).permutation(len(ids))]
    return [id for id in order if cell_text(table[id].get(column)).strip()]


def read_round(source: str, settings: TableOptions, path: Path | None, out: Path | None) -> Labels:
    """Return the labels of round one, from the table or from a separate file of its first rows.

    Args:
        source: The table.
        settings: Its columns and the task.
        path: A file of labelled rows; None if the table has the labels.
        out: The folder of the try.

    Raises:
        InputError: The table has labels and no second round was begun, or a row or label of the
            file does not match the table. Nothing is written then.
    """
    if path is None or out is None:
        return read_labels(source, settings)
    unlabelled = read_unlabelled(source, settings)
    if unlabelled is None:
        if is_first(path, out):
            raise InputError(f"no second round was begun in {out}: {source} has labels already")
        return read_labels(source, settings)
    table, columns, notes = unlabelled
    column, file = columns.label, path if is_first(path, out) else out / FIRST_ROWS
    first = _labelled_rows(file, column)
    labels = read_labels(
        _with_labels(table, first, column, source, file), replace(settings, label=column)
    )
    if file.name != FIRST_ROWS:  # which later rounds read again
        out.mkdir(parents=True, exist_ok=True)
        values = [cell_text(row.get(column)) for row in first]
        write_rows(out / FIRST_ROWS, first, column, values)
    return replace(labels, name=Path(source).stem, notes=(*notes, *labels.notes))


def _with_labels(
    table: Mapping[str, Row], labelled: Sequence[Row], column: str, source: str, path: Path
) -> list[dict[str, Any]]:
    """Return the rows of a table with the labels of equal rows of a file."""
    rows = [dict(row) for row in table.values()]
    # Reversed, so that the first of several equal rows gets the label.
    places = {_content(row, column): row for row in reversed(rows)}
    for place, row in enumerate(labelled, start=1):
        same = places.get(_content(row, column))
        if same is None:
            raise InputError(f"{path}, row {place}: no row of {source} is like it; was it edited?")
        same[column] = row.get(column)
    return rows


def _content(row: Mapping[str, Any], label: str) -> str:
    texts = {name: cell_text(cell) for name, cell in sorted(row.items()) if name != label}
    return to_json({name: text for name, text in texts.items() if text})


def write_rows(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    label: str,
    values: Sequence[str | None] | None = None,
) -> None:
    """Write rows of the user's table with a column of labels, empty where a value is None."""
    columns = list(dict.fromkeys([*(name for row in rows for name in row), label]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    for row, value in zip(rows, values or [None] * len(rows), strict=True):
        writer.writerow({name: cell_text(cell) for name, cell in row.items()} | {label: value})
    write_text(path, text.getvalue())
