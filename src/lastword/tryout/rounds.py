"""The rows that a trial asks its user to label: `OUT/labels.csv`, with one row per text.

    id,text,round,label
    17,Where is my parcel?,1,shipping
    4,I want my money back,2,

Round 1 has the first rows of a table without labels. Later rounds have the rows on which a fixed
probe and the model differ, or that it answers with confidence. The user fills in labels, and runs
the same command again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lastword.decide.decider import Decider
from lastword.errors import InputError
from lastword.files.cells import cell_text, csv_line, restored, visible
from lastword.files.rows import read_objects
from lastword.files.wording import counted
from lastword.files.writing import write_text
from lastword.probes.probe import SUFFIX, Probe
from lastword.trust.automation import Rung
from lastword.trust.groups import SEED
from lastword.trust.second_round import FIRST, LEAST_POOL
from lastword.trust.terms import Terms
from lastword.tryout.labels import Labels, read_labels, read_unlabelled
from lastword.tryout.second_round import Proof, SecondRound
from lastword.tryout.table_options import TableOptions

FILE, POLICY, STATE = "labels.csv", f"second-round{SUFFIX}", "second-round.json"
_COLUMNS = ("id", "text", "round", "label")

Rounds = dict[int, dict[str, str | None]]
"""Labels by row, by round; None for a row without a label."""


def read_rounds(out: Path, texts: Mapping[str, str]) -> Rounds:
    """Return the labels in a folder's `labels.csv`; {} if there is no such file.

    Rows are matched by their texts, because a spreadsheet may rewrite their ids.

    Raises:
        InputError: A row or column is missing, or a row was edited or is there twice.
    """
    path, rounds = out / FILE, Rounds()
    if not path.exists():
        return rounds
    ids = {_key(visible(text)): id for id, text in reversed([*texts.items()])}
    seen = set[str]()
    for place, row in enumerate(read_objects(path), start=2):
        if missing := [name for name in _COLUMNS[1:] if name not in row]:
            raise InputError(f"{path} has no column {missing[0]!r}. Restore its first line")
        cells = {name: cell_text(row[name]) for name in _COLUMNS[1:]}
        id, number = ids.get(_key(cells["text"])), cells["round"].strip()
        if id is None or not number.isdecimal():
            what = "its round is not a number" if id else "its text is not in the table"
            raise InputError(f"{path}, line {place}: {what}. Restore the row, and add labels only")
        if id in seen:
            raise InputError(f"{path}, line {place}: the row is there twice. Remove one of them")
        seen.add(id)
        rounds.setdefault(int(number), {})[id] = cells["label"].strip() or None
    return rounds


def write_rounds(out: Path, rounds: Rounds, texts: Mapping[str, str]) -> Path:
    """Write `labels.csv` to a folder, and return its path."""
    rows = [
        (id, texts[id], number, label or "")
        for number, labels in sorted(rounds.items())
        for id, label in labels.items()
    ]
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / FILE, "".join(map(csv_line, [_COLUMNS, *rows])))
    return out / FILE


def _key(text: str) -> str:
    return " ".join(text.split())  # a spreadsheet may change the ends of lines


def random_order(texts: Mapping[str, str]) -> list[str]:
    """Return the ids of the rows in the random order in which they are labelled.

    Blank texts are left out, and of equal texts all but one.
    """
    ids = [*texts]
    order = [ids[i] for i in np.random.default_rng(SEED).permutation(len(ids))]
    first = {_key(texts[id]): id for id in reversed(order)}
    return [id for id in order if (key := _key(texts[id])) and first[key] == id]


def read_trial(source: str, settings: TableOptions, out: Path | None) -> Labels | str:
    """Return the labels of a trial: those in its table, or else those of round one.

    Returns:
        The labels, or words that ask the user for the first ones, which are written to
        `labels.csv`.

    Raises:
        InputError: The table or `labels.csv` cannot be read.
    """
    unlabelled = None if out is None else read_unlabelled(source, settings)
    if out is None or unlabelled is None:
        return read_labels(source, settings)
    table, columns, notes = unlabelled
    texts = {id: row[columns.text] for id, row in table.items()}
    rounds = read_rounds(out, texts)
    if not rounds:
        rounds = {1: dict.fromkeys(random_order(texts)[:FIRST])}
        write_rounds(out, rounds, texts)
    first = rounds.get(1, {})
    if not any(first.values()):
        words = (
            f"Nothing is labelled yet. Label the {counted(len(first), 'row')} in {out / FILE} "
            "(column `label`), drawn at random, and run the same command again."
        )
        return "\n".join([words, *notes])
    rows = [{**row, columns.label: first.get(id) or ""} for id, row in table.items()]
    labels = read_labels(rows, columns)
    return replace(labels, name=Path(source).stem, notes=(*notes, *labels.notes))


# The second round


def begin(
    out: Path,
    decider: Callable[[Probe], Decider],
    labels: Labels,
    policy: Callable[[], tuple[Probe, Sequence[Rung]]],
    terms: Terms,
) -> list[str]:
    """Draw the rows of the second round, unless the pool is too small.

    Args:
        out: The folder.
        decider: Returns what answers with a probe.
        labels: The table.
        policy: Fits the probe to all labels; called only if needed. Returns it with its share
            against error.
        terms: The promise.

    Returns:
        Lines that explain the rows to the user; [] if nothing was written.
    """
    if labels.question is None:
        return []
    rounds = read_rounds(out, labels.texts)
    if any(any(rows.values()) for number, rows in rounds.items() if number > 1):
        return [f"{out / FILE} has labels of a second round and is kept."]
    if len(labels.pool) < LEAST_POOL:
        return []
    probe, steps = policy()
    if terms.error is None and probe.threshold is None:
        return []  # no model's answers to compare with
    second = SecondRound.start(decider(probe), probe, labels, terms, steps)
    if not second.rows:
        return ["No second round: the probe and the model agree on every text without a label."]
    out.mkdir(parents=True, exist_ok=True)
    probe.write(out / POLICY)
    return [_offer(out, second, labels)]


def _offer(out: Path, second: SecondRound, labels: Labels) -> str:
    """Write the next rows to label and the state, and return an explanation for the user."""
    require_unchanged(second, labels.texts)
    chance = None if second.terms.error is not None else second.chance
    rows, rounds = second.ask(), read_rounds(out, labels.texts)
    kept = {number: rows for number, rows in rounds.items() if number <= second.look}
    drawn: Rounds = {second.look + 1: {row.id: None for row in rows}}
    path = write_rounds(out, kept | drawn, labels.texts)
    write_text(out / STATE, second.to_json() + "\n")
    goal, why = (
        "the gain of a probe",
        f"This proves it with about {100 * (chance or 0):.0f}% probability.",
    )
    if chance is None:
        goal, why = "how many answers may be given", "They are drawn among the confident answers."
    return (
        f"To prove {goal}, with all your labels for the training, label the "
        f"{counted(len(rows), 'row')} of round {second.look + 1} in {path}, and run the same "
        f"command again. {why}"
    )


def read_second_round(out: Path) -> SecondRound:
    """Return the second round that was begun in a folder.

    Raises:
        InputError: No second round was begun, or its files do not belong together.
    """
    try:
        text = (out / STATE).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"no second round was begun in {out}: {error.strerror}") from error
    return SecondRound.from_json(text, Probe.read(out / POLICY))


def require_unchanged(second: SecondRound, texts: Mapping[str, str]) -> None:
    """Raise InputError if a drawn row of the table was edited or removed."""
    for row in second.rows:
        if texts.get(row.id) != row.text:
            raise InputError(
                f"row {row.id} of the table was edited since it was drawn. Restore it, or choose "
                "another folder with --out"
            )


def begun(out: Path, labels: Labels, terms: Terms) -> SecondRound | None:
    """Return a folder's second round with the new labels; None if none is labelled.

    A row without a label counts as skipped if another row of its round has one.

    Raises:
        InputError: The files do not belong together, the promise is another one, or the label of a
            tested row was changed.
    """
    if not (out / STATE).exists():
        return None
    second, rounds = read_second_round(out), read_rounds(out, labels.texts)
    options = [option.text for option in second.probe.question.options]
    told = {
        id: label and restored(label, options)
        for number, rows in rounds.items()
        if number > 1
        for id, label in rows.items()
    }
    if not second.labels and not any(told.values()):
        return None
    if (second.terms.error, second.terms.delta) != (terms.error, terms.delta):
        raise InputError(
            f"the second round in {out} is for another promise. Give the same --error and --delta, "
            "or choose another folder with --out"
        )
    for id, label in second.labels.items():
        if told.get(id) != label:
            raise InputError(
                f"{out / FILE}, row {id}: its label was {label or 'empty'} when it was tested, and "
                "cannot change. Restore it, or choose another folder with --out"
            )
    new = {row.id: told.get(row.id) for row in second.open_rows}
    if strange := {*told} - {row.id for row in second.rows[: second.asked]}:
        raise InputError(f"{out / FILE}, row {min(strange)}: it was not drawn for this policy")
    if any(new.values()):
        second.tell(new)
    return second


def finish(out: Path, second: SecondRound, labels: Labels) -> Proof:
    """Test the labels so far, and write the certificate, or more rows to label.

    Raises:
        InputError: A row of the table was edited.
    """
    if second.open_rows:  # asked for by the last verdict, and not labelled yet
        proof = second.before.verdict()
        return replace(proof, advice=f"Label the rows of round {second.look + 1} in {out / FILE}.")
    proof = second.verdict()
    if proof.certificate is None and second.asked < len(second.rows):
        return replace(proof, advice=_offer(out, second, labels))
    write_text(out / STATE, second.to_json() + "\n")
    if proof.certificate is None:
        return replace(proof, advice="Every row that can be drawn is labelled.")
    return proof
