"""Shows a correction in a terminal, and a portrait as HTML without scripts or links."""

from html import escape

from rich.text import Text

from lastword.records.explanation import explain
from lastword.records.portrait import Portrait, portrait
from lastword.rule.answer import Answer


def correction(base: str, answer: str) -> Text:
    """Return the correction as text: the model's answer struck out, then the new answer."""
    if base == answer:
        return Text(f"{answer}  (unchanged)")
    return Text.assemble((base, "strike dim"), " → ", (answer, "bold"))


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
