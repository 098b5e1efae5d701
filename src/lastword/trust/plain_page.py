"""The page of a plain table: its guarantees, the errors by coverage, and the classes."""

from collections.abc import Sequence
from pathlib import Path

from lastword.files.writing import write_text
from lastword.records.chart import line_chart
from lastword.records.document import document
from lastword.trust.predictions import PlainFinding


def write_plain_page(finding: PlainFinding, words: Sequence[str], path: Path) -> None:
    """Write one HTML file that needs no network."""
    terms, plot = finding.certificate.terms, None
    if len(finding.curve) > 1:
        coverage = [100 * step.share for step in finding.curve]
        lines = {
            "wrong": (coverage, [step.errors.rate for step in finding.curve]),
            "upper bound": (coverage, [step.errors.at_most(terms.delta) for step in finding.curve]),
        }
        if terms.error is not None:
            lines["allowed"] = coverage, [terms.error] * len(coverage)
        plot = line_chart("Errors by coverage", "answers given, % of rows", lines, "wrong, %")
    title = f"lastword certify: {finding.table.name}"
    assets, values = Path(__file__).parent / "assets", {"finding": finding, "words": words}
    html = document("plain.html.j2", (), {}, assets=assets, title=title, plot=plot, **values)
    write_text(path, html)
