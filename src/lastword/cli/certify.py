"""`lastword certify`: makes a certificate from labelled records, or advises against one."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.output import check_writable, printable, say, write_lines
from lastword.cli.progress import waiting
from lastword.files.strict_json import to_json
from lastword.trust.policy import Promise

_table = partial(typer.Option, rich_help_panel="Table of predictions (guessed if left out)")

if TYPE_CHECKING:
    from lastword.trust.certification import Outcome
    from lastword.trust.terms import Terms


def certify(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Results folder from `lastword eval` or `try`; or a table of predictions: CSV, "
            "TSV, Excel, JSON lines or Parquet.",
        ),
    ],
    alpha: Annotated[
        float | None,
        typer.Option(help="Maximum share of all answers that may be broken. Default: 0.02."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Maximum probability that the guarantee does not hold. Default: 0.05."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(help="Defer answers, so that at most this share of the others is wrong."),
    ] = None,
    promise: Annotated[
        Promise | None,
        typer.Option(
            help="gain: accuracy higher than the model's. breaks: also, at most alpha of all "
            "answers broken. Default: that of RUNS/certificate.toml, with its alpha and delta; "
            "else breaks."
        ),
    ] = None,
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
    prediction_column: Annotated[str | None, _table(help="Column of the prediction.")] = None,
    truth_column: Annotated[str | None, _table(help="Column of the right answer.")] = None,
    confidence_column: Annotated[str | None, _table(help="Column of the confidence.")] = None,
    rival_column: Annotated[
        str | None, _table(help="Column of another system's prediction.")
    ] = None,
    group: Annotated[
        str | None, _table(help="Column whose equal values belong together, such as an author.")
    ] = None,
    text_column: Annotated[str | None, _table(help="Column of the text.")] = None,
    name: Annotated[str | None, _table(help="Name of the system; default: the file's.")] = None,
    encoding: Annotated[
        str | None, _table(help="Encoding of the table, such as cp1252. Default: UTF-8.")
    ] = None,
) -> None:
    """Determine which overrides may be applied, or how good predictions are, with a guarantee."""
    if runs.is_file() or (runs.suffix and not runs.exists()):
        from lastword.cli.certify_table import certify_table

        named = {
            "prediction": prediction_column,
            "truth": truth_column,
            "confidence": confidence_column,
            "rival": rival_column,
            "group": group,
            "text": text_column,
        }
        columns = {meaning: column for meaning, column in named.items() if column is not None}
        shares = 0.05 if delta is None else delta, error
        certify_table(runs, columns, name, encoding, *shares, out, json=json)
        return
    from lastword.trust.terms import Terms

    default = _terms_of_try(runs) if promise is None else Terms(promise=promise)
    terms = Terms(
        alpha=default.alpha if alpha is None else alpha,
        delta=default.delta if delta is None else delta,
        error=error,
        promise=default.promise,
    )
    family = None if methods == "all" else tuple(methods.split(","))
    if out is not None:
        check_writable(out)
    with waiting("reading records"):
        from lastword.trust import calibration
        from lastword.trust.certification import outcome, read_sample

        sample = read_sample(runs, benchmark or (), family)
        certified = outcome(sample, terms)
        certificate, policy = certified.certificate, certified.finding.policy
        if calibrate:
            fitted = calibration.calibrate(*sample.shown(policy))
            certificate = replace(certificate, calibration=fitted)
    if out is not None:
        write_lines(out, certificate.to_toml().splitlines())
    if json:
        entries = _to_dict(certified)
        if certificate.calibration is not None:
            entries["calibration"] = asdict(certificate.calibration)
        typer.echo(to_json(entries))
        return
    lines = _lines(certified)
    if certificate.calibration is not None:
        lines.append(calibration.in_words(certificate.calibration))
    for line in [*lines, *([] if out is None else [str(out)])]:
        typer.echo(printable(line))


def _terms_of_try(runs: Path) -> "Terms":
    """Return the terms of the certificate that `lastword try` wrote to a folder, or the default."""
    from lastword.trust.terms import Terms

    path = runs / "certificate.toml"
    if not path.is_file():
        return Terms()
    from lastword.trust.certificate import Certificate

    certificate = Certificate.read(path)
    terms = certificate.terms
    if certificate.probe is not None:
        say(
            f"{path} allows {certificate.policy.method}, which these records do not test: label "
            "texts that did not train it, answer them by `lastword decide --out ANSWERS.csv`, "
            "add the right answers as a column truth, and certify that table"
        )
    say(f"the promise is that of {path}: {terms.promise}; --promise asks for another")
    return Terms(terms.alpha, terms.delta, promise=terms.promise)


def _lines(certified: "Outcome") -> list[str]:
    from lastword.trust.words import summary

    sample = certified.sample
    subject = sample.subject.model, list(sample.benchmarks), sample.failed
    return summary(certified.finding, *subject, certified.controls)


def _to_dict(certified: "Outcome") -> dict[str, Any]:
    from lastword.trust.automation import estimates

    finding, rung = certified.finding, None
    if finding.automation is not None:
        rung = finding.automation.rung(finding.terms.delta)
    return {
        "model": certified.sample.subject.model,
        "controls": asdict(certified.controls),
        "terms": asdict(finding.terms),
        "items": finding.items,
        "groups": finding.groups,
        "worth": finding.worth,
        "base_right": finding.base_right,
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
