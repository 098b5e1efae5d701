"""The rounds of a trial's labels in a folder: the first rows of a table, and the second round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lastword.decide.decider import Decider
from lastword.errors import InputError
from lastword.files.cells import restored
from lastword.files.wording import counted
from lastword.files.writing import write_text
from lastword.probes.probe import SUFFIX, Probe
from lastword.trust.automation import Rung
from lastword.trust.second_round import FIRST, LEAST_POOL
from lastword.trust.terms import Terms
from lastword.tryout.labelling import FILE, Labelling, random_order
from lastword.tryout.labels import Labels, read_labels, read_unlabelled
from lastword.tryout.second_round import Proven, SecondRound
from lastword.tryout.table_options import TableOptions

POLICY, STATE = f"second-round{SUFFIX}", "second-round.json"


def first_round(out: Path, texts: Mapping[str, str]) -> Labelling:
    """Return the rows of a folder's `labels.csv`; those of round one are drawn if there are none.

    Raises:
        InputError: The file has other rows than the table.
    """
    labelling = Labelling(out, texts)
    if not labelling.rounds:
        labelling.draw(1, random_order(texts)[:FIRST])
    return labelling


def read_trial(source: str, settings: TableOptions, out: Path | None) -> Labels | str:
    """Return the labels of a trial: those in its table, or else those of round one.

    If there are none, the result is words that ask the user for those in `labels.csv`.

    Raises:
        InputError: The table or `labels.csv` cannot be read.
    """
    unlabelled = None if out is None else read_unlabelled(source, settings)
    if out is None or unlabelled is None:
        return read_labels(source, settings)
    table, columns, notes = unlabelled
    texts = {id: row[columns.text] for id, row in table.items()}
    first = first_round(out, texts).rounds.get(1, {})
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
    labels: Labels,
    terms: Terms,
    policy: Callable[[], tuple[Probe, Decider, Sequence[Rung]]],
) -> str:
    """Draw the rows of the second round, unless the pool is too small.

    `policy` fits the probe to all labels; it returns the probe with what answers with it, and its
    share against error. The result is a line that explains the rows to the user; "" if nothing was
    written.
    """
    if labels.question is None:
        return ""
    rounds = Labelling(out, labels.texts).rounds
    if any(any(rows.values()) for number, rows in rounds.items() if number > 1):
        return f"{out / FILE} has labels of a second round and is kept."
    if len(labels.pool) < LEAST_POOL:
        return ""
    probe, decider, steps = policy()
    if terms.error is None and probe.threshold is None:
        return ""  # no model's answers to compare with
    second = SecondRound.start(decider, probe, labels, terms, steps)
    if not second.rows:
        return "No second round: the probe and the model agree on every text without a label."
    out.mkdir(parents=True, exist_ok=True)
    probe.write(out / POLICY)
    return _offer(out, second, labels)


def _offer(out: Path, second: SecondRound, labels: Labels) -> str:
    """Write the next rows to label and the state, and return an explanation for the user."""
    for row in second.rows:
        if labels.texts.get(row.id) != row.text:
            raise InputError(
                f"row {row.id} of the table was edited since it was drawn. Restore it, or choose "
                "another folder with --out"
            )
    error = second.terms.error
    goal = "the gain of a probe" if error is None else "how many answers may be given"
    rows = second.ask()
    Labelling(out, labels.texts).draw(second.look + 1, [row.id for row in rows])
    write_text(out / STATE, second.to_json() + "\n")
    return (
        f"To prove {goal}, with all your labels for the training, label the "
        f"{counted(len(rows), 'row')} of round {second.look + 1} in {out / FILE}, and run the same "
        "command again."
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
    second = SecondRound.from_json(
        (out / STATE).read_text(encoding="utf-8"), Probe.read(out / POLICY)
    )
    options = [option.text for option in second.probe.question.options]
    told = {
        id: label and restored(label, options)
        for number, rows in Labelling(out, labels.texts).rounds.items()
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
        second.labels |= new
    return second


def finish(out: Path, second: SecondRound, labels: Labels) -> tuple[Proven, str]:
    """Test the labels so far; return what they prove, and what the user can do next.

    Raises:
        InputError: A row of the table was edited.
    """
    if second.open_rows:  # asked for by the last verdict, and not labelled yet
        advice = f"Label the rows of round {second.look + 1} in {out / FILE}."
        return second.before.verdict(), advice
    proven = second.verdict()
    if proven.certificate is None and second.asked < len(second.rows):
        return proven, _offer(out, second, labels)
    write_text(out / STATE, second.to_json() + "\n")
    rest = "" if proven.certificate else "Every row that can be drawn is labelled."
    return proven, rest
