"""`lastword certify`: makes a certificate from labelled records or predictions, or refuses."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.output import check_writable, printable, say, write_lines
from lastword.cli.progress import waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.records.info import RUN_FILE

if TYPE_CHECKING:
    from lastword.trust.automation import Rung
    from lastword.trust.certificate import Certificate
    from lastword.trust.terms import Terms

_table = partial(typer.Option, rich_help_panel="Table of predictions (guessed if left out)")


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of a table of predictions, by their meaning."""

    prediction_column: Annotated[str | None, _table(help="Column of the prediction.")] = None
    truth_column: Annotated[str | None, _table(help="Column of the right answer.")] = None
    confidence_column: Annotated[str | None, _table(help="Column of the confidence.")] = None
    rival_column: Annotated[str | None, _table(help="Column of a rival's prediction.")] = None
    group: opt.Group = None
    text_column: opt.TextColumn = None


def certify(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Results folder from `lastword eval` or `try`; or a table of predictions: CSV, "
            "TSV, Excel, JSON lines or Parquet.",
        ),
    ],
    *,
    promise: opt.Promise = "gain",
    alpha: opt.Alpha = 0.05,
    delta: opt.Delta = 0.05,
    error: opt.Error = None,
    benchmark: Annotated[str | None, typer.Option(help="Benchmark whose items count.")] = None,
    methods: Annotated[
        str,
        typer.Option(help="Methods to choose from: trace, names with commas (pmi@0.5), or all."),
    ] = "trace",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature to the probabilities.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="TOML file; of a table, a page is written beside it."),
    ] = None,
    json: opt.Json = False,
    columns: PredictionColumns,
    name: Annotated[str | None, _table(help="Name of the system; default: the file's.")] = None,
    encoding: opt.Encoding = None,
) -> None:
    """Determine which overrides may be applied, or how good predictions are, with a guarantee."""
    from lastword.trust.terms import Terms

    terms = Terms(alpha, delta, error, promise=promise)
    if runs.is_file() or (runs.suffix and not runs.exists()):
        chosen = {n.removesuffix("_column"): v for n, v in vars(columns).items() if v is not None}
        lines, entries = _of_table((runs, chosen, name, encoding), terms, out)
    else:
        names = None if methods == "all" else tuple(methods.split(","))
        lines, entries = _of_records((runs, benchmark, names), terms, out, calibrate)
    for line in [to_json(entries)] if json else map(printable, lines):
        typer.echo(line)


def _of_records(
    source: tuple[Path, str | None, tuple[str, ...] | None],
    terms: "Terms",
    out: Path | None,
    calibrate: bool,
) -> tuple[list[str], dict[str, Any]]:
    """Certify overrides on records; return the result in words and as JSON."""
    if out is not None:
        check_writable(out)
    runs, *_ = source
    if any(runs.glob("*.probe.safetensors")) and not any(runs.rglob(RUN_FILE)):
        raise InputError(
            f"{runs} answers by a probe, which records of a model do not test. `lastword try FILE "
            f"--error 0.1 --out {runs}` proves which of its answers can be given; so does "
            "`lastword certify ANSWERS.csv` of answers to new texts by `lastword decide`"
        )
    with waiting("reading records"):
        from lastword.trust import calibration
        from lastword.trust.certification import outcome, read_sample
        from lastword.trust.words import summary

        sample = read_sample(*source)
        certified = outcome(sample, terms)
        finding, certificate = certified.finding, certified.certificate
        if calibrate:
            fitted = calibration.calibrate(*sample.shown(finding.policy))
            certificate = replace(certificate, calibration=fitted)
    words = summary(finding, sample.subject.model, sample.cell.benchmark, sample.items.failed)
    if certificate.calibration is not None:
        words.append(calibration.in_words(certificate.calibration))
    entries = _entries(certificate, words, finding.curve) | {"controls": finding.controls}
    return words + _write(certificate, out), entries


def _of_table(
    source: tuple[Path, dict[str, str], str | None, str | None], terms: "Terms", out: Path | None
) -> tuple[list[str], dict[str, Any]]:
    """Certify the predictions of any system; with `out`, also write a page."""
    from lastword.trust.plain_page import write_plain_page
    from lastword.trust.predictions import certify_plain, read_plain
    from lastword.trust.words import of_table

    table = read_plain(*source)
    for note in table.notes:
        say(note)
    finding = certify_plain(table, delta=terms.delta, error=terms.error)
    words, files = of_table(finding), list[str]()
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        files = [*_write(finding.certificate, out), str(page := out.with_suffix(".html"))]
        write_plain_page(finding, words, page)
    entries = _entries(finding.certificate, words, finding.curve)
    return words + files, entries | {"classes": [asdict(one) for one in finding.classes]}


def _write(certificate: "Certificate", out: Path | None) -> list[str]:
    """Write a certificate, and return a line with its path."""
    if out is None:
        return []
    write_lines(out, certificate.to_toml().splitlines())
    return [str(out)]


def _entries(
    certificate: "Certificate", words: list[str], curve: "Sequence[Rung]"
) -> dict[str, Any]:
    """Return a certificate as JSON, with the estimates of the share that can be answered."""
    from lastword.trust.automation import estimates

    shares = [asdict(one) for one in estimates(curve)]
    return certificate.describe() | {"words": words, "estimates": shares}
