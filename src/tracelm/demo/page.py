"""The demo's page: the worked items as the report shows an item, one file that needs no network."""

from collections.abc import Mapping
from pathlib import Path

from tracelm.demo.outcome import Outcome
from tracelm.errors import InputError
from tracelm.report.document import compress, document
from tracelm.report.page_data import item, text
from tracelm.theta import Theta

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "plots.js", "portrait.js", "demo.js")


def write_page(path: Path, note: str, examples: Mapping[str, Outcome], theta: Theta) -> None:
    """Write one self-contained HTML file.

    Args:
        path: The file.
        note: What the embedded models are.
        examples: Worked items by the rule that chose them.
        theta: Constants of the decisions.

    Raises:
        InputError: The file cannot be written.
    """
    html = document(
        "demo.html.j2",
        _SCRIPTS,
        {"items": compress([(text(o.record), item(o.record, theta)) for o in examples.values()])},
        assets=_ASSETS,
        title="tracelm demo",
        note=note,
        examples={f"Organism: the {name}": o.item for name, o in examples.items()},
    )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
