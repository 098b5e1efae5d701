"""Shows a correction in a terminal, and a portrait as HTML without scripts or links."""

from html import escape

from rich.text import Text

from lastword.records.explanation import explain
from lastword.records.portrait import portrait
from lastword.rule.answer import Answer


def correction(base: str, answer: str) -> Text:
    """Return the correction as text: the model's answer struck out, then the new answer."""
    if base == answer:
        return Text(f"{answer}  (unchanged)")
    return Text.assemble((base, "strike dim"), " → ", (answer, "bold"))


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
