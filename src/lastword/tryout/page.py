"""The page of a trial: verdict, contestants, guarantee and errors.

It is one HTML file that needs no network. The page of `lastword report` has every item with its
trajectories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from markupsafe import Markup

from lastword.files.wording import percent, two_digits
from lastword.files.writing import write_text
from lastword.records.chart import line_chart
from lastword.records.document import compress, document
from lastword.trust.automation import ERRORS
from lastword.tryout.verdict import ShareAnswered, Standing, Verdict
from lastword.tryout.words import score

FILE = "index.html"
_ASSETS = Path(__file__).parent / "assets"


def write_page(verdict: Verdict, texts: Mapping[str, str], out: Path) -> None:
    """Write the page of a trial to `out/index.html`."""
    contest = verdict.contest
    rows = [
        (row.id, texts[row.id], row.truth, row.model or "", row.shown) for row in contest.answers
    ]
    html = document(
        "try.html.j2",
        ("data.js", "try.js"),
        {"rows": compress(rows)},
        assets=_ASSETS,
        title=f"lastword try: {contest.best}",
        verdict=verdict,
        best=contest.line(contest.best),
        score=partial(score, contest=contest),
        tiles=_tiles(verdict),
        curve=_curve(verdict.answered, contest.best),
        contestants=_contestants(verdict),
        by_depth=_by_depth(verdict.by_depth),
    )
    write_text(out / FILE, html)


def _tiles(verdict: Verdict) -> dict[str, str]:
    contest, certificate, answered = verdict.contest, verdict.certificate, verdict.answered
    best, model = contest.line(contest.best), contest.model
    error = answered.error or ERRORS[1]
    tiles = {"Accuracy" if best.worth is None else "Mean recall": score(best, contest)}
    if certificate.net_at_least is not None:
        tiles["Certified gain"] = f"{two_digits(certificate.net_at_least)} points or more"
    elif model is not None:
        tiles["Gain, not proven"] = (
            f"{100 * (contest.value(best) - contest.value(model)):+.1f} points"
        )
    if answered.share is not None:
        tiles[f"Answered, at most {percent(error)} wrong"] = percent(answered.share)
    elif answered.estimates:
        share = next(one.share for one in answered.estimates if one.error == error)
        tiles[f"Answered at {percent(error)} wrong, estimate"] = percent(share)
    tiles["Labels"] = f"{verdict.items:,}"
    if model is None:
        tiles["Compute"] = "no language model"
    elif contest.cost is not None:
        tiles["Compute"] = f"{two_digits(contest.cost)}% of the model’s"
    return tiles


def _curve(answered: ShareAnswered, best: str) -> Markup | None:
    """Draw the errors by the share of answered texts; proven thresholds are marked."""
    curves = {name: curve for name, curve in answered.curves.items() if len(curve) > 1}
    if best not in curves:
        return None
    lines = {}
    for name in [best, *(name for name in curves if name != best)]:
        shares, errors = zip(*curves[name], strict=True)
        lines[name] = [100 * share for share in shares], errors
    marked = [(100 * share, error) for share, error in answered.proven]
    title = "Errors by the share of answered texts (cross-validation)"
    return line_chart(title, "answered, % of texts", lines, "wrong, %", marked)


def _contestants(verdict: Verdict) -> list[Standing]:
    contest, certified = verdict.contest, verdict.certificate.line
    lines = [line for line in contest.lines if line.right == line.right]  # nan: does not apply
    lines += [replace(line, name=f"{line.name}*") for line in contest.prompts]
    lines += [] if certified is None else [certified]
    return sorted(lines, key=lambda line: -line.right)


def _by_depth(by_depth: Sequence[tuple[float, float]]) -> Markup | None:
    if len(by_depth) < 2:
        return None
    head, probe = zip(*by_depth, strict=True)
    layers = range(len(head))
    lines = {"probe on this layer": (layers, probe), "the model's head": (layers, head)}
    return line_chart("Accuracy by layer", "layer", lines, "accuracy, %")
