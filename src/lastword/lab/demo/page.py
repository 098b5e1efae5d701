"""The demo's page: its stories with their worked items, one file that needs no network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.lab.demo.story import Story
from lastword.records.document import compress, document
from lastword.records.item_view import item, text
from lastword.rule.theta import Theta

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "trajectory.js", "portrait.js", "demo.js")


def write_page(
    path: Path, stories: Sequence[Story], verdict: Mapping[str, Any] | None = None
) -> None:
    """Write one self-contained HTML file.

    Raises:
        InputError: The file cannot be written.
    """
    records = [outcome.record for story in stories for outcome in story.examples.values()]
    html = document(
        "demo.html.j2",
        _SCRIPTS,
        {"items": compress([(text(record), item(record, Theta())) for record in records])},
        assets=_ASSETS,
        title="lastword demo",
        stories=stories,
        verdict=verdict,
        lines=[] if verdict is None else _lines(verdict),
    )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _lines(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the accuracies that a reader compares, of all that `try` has."""
    contest, certified = verdict["contest"], verdict["certificate"]["line"]
    lines = {line["name"]: line for line in [*contest["lines"], *filter(None, [certified])]}
    names = ("chance", "the model", contest["correction"], "bag of words", contest["probe"])
    return [lines[name] for name in (*names, "certified") if name in lines]
