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
    """Return the HTML of a decision for notebooks: its candidates and its reasons."""
    return f"<div>{html_table(portrait(answer))}<p>{escape(explain(answer))}</p></div>"


def html_table(portrait: Portrait) -> str:
    """Return an HTML table of the candidates: the answer bold, a corrected one struck out."""
    left = "style='text-align:left'"
    heads = f"<th></th><th {left}>candidate</th><th>base</th><th>corrected</th>"
    rows = "".join(
        f"<tr><td>{candidate.letter}</td><td {left}>{_emphasis(portrait, place)}</td>"
        f"<td>{candidate.before:.3f}</td><td>{candidate.after:.3f}</td></tr>"
        for place, candidate in enumerate(portrait.candidates)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _emphasis(portrait: Portrait, place: int) -> str:
    text = escape(portrait.candidates[place].text)
    if place == portrait.index:
        return f"<strong>{text}</strong>"
    return f"<s>{text}</s>" if place == portrait.base_index else text
