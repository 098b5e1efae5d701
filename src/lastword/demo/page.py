"""The demo's page: its parts with their worked items, one file that needs no network."""

from collections.abc import Sequence
from pathlib import Path

from lastword.demo.section import Section
from lastword.errors import InputError
from lastword.report.document import compress, document
from lastword.report.page_data import item, text
from lastword.theta import Theta

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "trajectory.js", "portrait.js", "demo.js")


def write_page(path: Path, sections: Sequence[Section], theta: Theta) -> None:
    """Write one self-contained HTML file.

    Args:
        path: The file.
        sections: Parts of the demo, in their order.
        theta: Constants of the decisions.

    Raises:
        InputError: The file cannot be written.
    """
    outcomes = [outcome for section in sections for outcome in section.examples.values()]
    html = document(
        "demo.html.j2",
        _SCRIPTS,
        {"items": compress([(text(o.record), item(o.record, theta)) for o in outcomes])},
        assets=_ASSETS,
        title="lastword demo",
        sections=sections,
    )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
