"""Shows a portrait as a table of candidates, in a terminal or as HTML without scripts or links."""

from collections.abc import Mapping, Sequence
from html import escape

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lastword.records.explanation import explain
from lastword.records.portrait import Portrait, portrait
from lastword.rule.answer import Answer


def correction(base: str, answer: str) -> Text:
    """Return the correction as text: the model's answer struck out, then the new answer."""
    if base == answer:
        return Text(f"{answer}  (unchanged)")
    return Text.assemble((base, "strike dim"), " → ", (answer, "bold"))


def terminal_table(portrait: Portrait, columns: Mapping[str, Sequence[object]]) -> Table:
    """Return a table with one row per candidate: the given columns, then probabilities."""
    table = Table(box=SIMPLE_HEAD)
    for heading, values in columns.items():
        counts = all(isinstance(value, int) for value in values)
        table.add_column(heading, justify="right" if counts else "left", overflow="fold")
    for heading in ("base", "corrected"):
        table.add_column(heading, justify="right")
    for candidate, *values in zip(portrait.candidates, *columns.values(), strict=True):
        texts = [Text(str(value)) for value in values]
        table.add_row(*texts, f"{candidate.before:.3f}", f"{candidate.after:.3f}")
    return table


def notebook(answer: Answer) -> str:
    """Return the HTML of a decision for notebooks: its candidates and its reasons.

    The answer is bold, and a corrected one is struck out.
    """
    picture, left = portrait(answer), "style='text-align:left'"
    heads = f"<th></th><th {left}>candidate</th><th>base</th><th>corrected</th>"
    rows = ""
    for place, candidate in enumerate(picture.candidates):
        text = escape(candidate.text)
        if place == picture.index:
            text = f"<strong>{text}</strong>"
        elif place == picture.base_index:
            text = f"<s>{text}</s>"
        rows += (
            f"<tr><td>{candidate.letter}</td><td {left}>{text}</td>"
            f"<td>{candidate.before:.3f}</td><td>{candidate.after:.3f}</td></tr>"
        )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<div>{table}<p>{escape(explain(answer))}</p></div>"
