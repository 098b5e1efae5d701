"""The page of a plain table: its guarantees, the errors by coverage, and the classes."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from lastword.files.writing import write_text
from lastword.records.chart import line_chart
from lastword.records.document import document
from lastword.trust.predictions import PlainFinding

_ASSETS = Path(__file__).parent / "assets"


def write_plain_page(finding: PlainFinding, words: Sequence[str], path: Path) -> None:
    """Write one HTML file that needs no network.

    Raises:
        OSError: The file cannot be written.
    """
    html = document(
        "plain.html.j2",
        (),
        {},
        assets=_ASSETS,
        title=f"lastword certify: {finding.table.name}",
        finding=finding,
        words=words,
        plot=_risk_coverage(finding),
    )
    write_text(path, html)


def _risk_coverage(finding: PlainFinding) -> Markup | None:
    """Draw the errors of the given answers by their share; None without a confidence."""
    if len(finding.curve) < 2:
        return None
    terms = finding.certificate.terms
    coverage = [100 * step.share for step in finding.curve]
    errors = [step.errors.rate for step in finding.curve]
    bounds = [step.errors.at_most(terms.delta) for step in finding.curve]
    lines = {
        "wrong": (coverage, errors),
        "upper bound": (coverage, bounds),
    }
    if terms.error is not None:
        lines["allowed"] = coverage, [terms.error] * len(coverage)
    return line_chart("Errors by coverage", "answers given, % of rows", lines, "wrong, %")
