"""`lastword certify`: makes a certificate from labelled records or predictions, or refuses."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.output import check_writable, printable, say, write_csv, write_lines
from lastword.cli.progress import waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.records.info import RUN_FILE

if TYPE_CHECKING:
    from lastword.trust.certificate import Certificate
    from lastword.trust.certification import Outcome
    from lastword.trust.predictions import PlainFinding
    from lastword.trust.terms import Terms

_table = partial(typer.Option, rich_help_panel="Table of predictions (guessed if left out)")


@dataclass(frozen=True)
class Table:
    """Options of reading a table of predictions."""

    prediction_column: Annotated[str | None, _table(help="Column of the prediction.")] = None
    truth_column: Annotated[str | None, _table(help="Column of the right answer.")] = None
    confidence_column: Annotated[str | None, _table(help="Column of the confidence.")] = None
    rival_column: Annotated[str | None, _table(help="Column of another system's prediction.")] = (
        None
    )
    group: Annotated[
        str | None, _table(help="Column whose equal values belong together, such as an author.")
    ] = None
    text_column: Annotated[str | None, _table(help="Column of the text.")] = None
    name: Annotated[str | None, _table(help="Name of the system; default: the file's.")] = None
    encoding: Annotated[
        str | None, _table(help="Encoding of the table, such as cp1252. Default: UTF-8.")
    ] = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns that were named, by meaning."""
        entries = {name.removesuffix("_column"): value for name, value in vars(self).items()}
        return {n: v for n, v in entries.items() if v is not None and n not in ("name", "encoding")}


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
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Benchmark whose items count; repeatable.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(help="Methods to choose from: trace, names with commas (pmi@0.5), or all."),
    ] = "trace",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature to the probabilities.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="TOML file for the certificate. For a table of predictions, a page and next.csv "
            "are written beside it."
        ),
    ] = None,
    json: opt.Json = False,
    table: Table,
) -> None:
    """Determine which overrides may be applied, or how good predictions are, with a guarantee."""
    from lastword.trust.terms import Terms

    terms = Terms(alpha, delta, error, promise=promise)
    if runs.is_file() or (runs.suffix and not runs.exists()):
        lines, entries = _of_table(runs, table, terms, out)
    else:
        names = None if methods == "all" else tuple(methods.split(","))
        lines, entries = _of_records(runs, benchmark or [], names, terms, out, calibrate)
    if json:
        typer.echo(to_json(entries))
        return
    for line in lines:
        typer.echo(printable(line))


def _of_records(
    runs: Path,
    benchmarks: list[str],
    methods: tuple[str, ...] | None,
    terms: "Terms",
    out: Path | None,
    calibrate: bool,
) -> tuple[list[str], dict[str, Any]]:
    """Certify overrides on records; return the result in words and as JSON."""
    if out is not None:
        check_writable(out)
    if any(runs.glob("*.probe.safetensors")):
        note = (
            f"{runs} answers by a probe, which records of a model do not test. `lastword try FILE "
            f"--error 0.1 --out {runs}` proves which of its answers can be given. So does "
            f"`lastword certify ANSWERS.csv`: answer texts that did not train it by `lastword "
            f"decide {runs} --input TEXTS --out ANSWERS.csv`, and add the right answers as a "
            "column truth"
        )
        if not any(runs.rglob(RUN_FILE)):
            raise InputError(note)
        say(note)
    with waiting("reading records"):
        from lastword.trust import calibration
        from lastword.trust.certification import outcome, read_sample

        sample = read_sample(runs, benchmarks, methods)
        certified = outcome(sample, terms)
        certificate = certified.certificate
        if calibrate:
            fitted = calibration.calibrate(*sample.shown(certified.finding.policy))
            certificate = replace(certificate, calibration=fitted)
    lines, entries = _lines(certified), _to_dict(certified)
    if certificate.calibration is not None:
        lines.append(calibration.in_words(certificate.calibration))
        entries["calibration"] = asdict(certificate.calibration)
    return lines + _write(certificate, out), entries


def _of_table(
    path: Path, table: Table, terms: "Terms", out: Path | None
) -> tuple[list[str], dict[str, Any]]:
    """Certify the predictions of any system; with `out`, also write a page and rows to label."""
    from lastword.trust.plain_page import write_plain_page
    from lastword.trust.predictions import certify_plain, next_rows, read_plain
    from lastword.trust.words import of_table

    read = read_plain(path, table.columns, table.name, table.encoding)
    for note in read.notes:
        say(note)
    finding = certify_plain(read, delta=terms.delta, error=terms.error)
    words, rows = of_table(finding), next_rows(read)
    lines = list(words)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        page, after = out.with_suffix(".html"), out.with_name("next.csv")
        lines += _write(finding.certificate, out)
        write_plain_page(finding, words, page)
        lines.append(str(page))
        if rows:
            names = list(dict.fromkeys(key for row in read.rows for key in row))
            write_csv(after, [names, *([row.get(key, "") for key in names] for row in rows)])
            lines.append(f"{after}: {len(rows)} rows to label next")
    return lines, _table_to_dict(finding, words, len(rows))


def _write(certificate: "Certificate", out: Path | None) -> list[str]:
    """Write a certificate, and return a line with its path."""
    if out is None:
        return []
    write_lines(out, certificate.to_toml().splitlines())
    return [str(out)]


def _lines(certified: "Outcome") -> list[str]:
    from lastword.trust.words import summary

    sample = certified.sample
    subject = sample.subject.model, list(sample.benchmarks), sample.items.failed
    return summary(certified.finding, *subject)


def _to_dict(certified: "Outcome") -> dict[str, Any]:
    from lastword.trust.automation import estimates

    finding, rung = certified.finding, None
    if finding.automation is not None:
        rung = finding.automation.rung(finding.terms.delta)
    return {
        "model": certified.sample.subject.model,
        "controls": {"worth": finding.controls, "flips": finding.flips},
        "terms": asdict(finding.terms),
        "items": finding.most.items,
        "groups": finding.most.groups,
        "worth": finding.worth,
        "base_right": finding.most.base_right,
        "policy": asdict(finding.policy),
        "needed": finding.needed,
        "estimates": [asdict(one) for one in estimates(finding.curve)],
        "threshold": None if rung is None else asdict(rung),
        "trials": [
            {"policy": asdict(trial.policy), "certified": trial.passes(finding.terms)}
            | asdict(trial.evidence)
            for trial in finding.trials
        ],
    }


def _table_to_dict(finding: "PlainFinding", words: list[str], following: int) -> dict[str, Any]:
    from lastword.trust.automation import estimates

    proven, errors = finding.certificate, finding.errors
    rung = None if proven.automation is None else proven.automation.rung(proven.terms.delta)
    return {
        "name": finding.table.name,
        "words": words,
        "accuracy": 1 - errors.rate,
        "accuracy_at_least": proven.worth.get("accuracy_at_least"),
        "gain_at_least": proven.worth.get("net_at_least"),
        "estimates": [asdict(one) for one in estimates(finding.curve)],
        "threshold": None if rung is None else asdict(rung),
        "labelled": errors.items,
        "groups": errors.groups,
        "classes": [asdict(one) for one in finding.classes],
        "next": following,
    }
