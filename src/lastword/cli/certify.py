"""`lastword certify`: labelled records become a certificate, or the advice to keep it off."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.groups import Group, options_of
from lastword.errors import InputError
from lastword.trust.terms import Terms

if TYPE_CHECKING:
    from lastword.trust.certify import Finding


def certify(
    runs: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of `lastword eval`, of one model.")
    ],
    promised: Annotated[Terms, Group(Terms, options_of(Terms, {"methods": None}))],
    benchmark: Annotated[
        list[str] | None, typer.Option(help="Whose items count together; repeat it.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="What to choose among: trace, names by commas (pmi@0.5), or all that was read."
        ),
    ] = "trace",
    by: Annotated[
        str | None,
        typer.Option(help="Slices: truth, answer, group, benchmark, or a field of --items."),
    ] = None,
    items: Annotated[
        Path | None, typer.Option(help="File that the items came from, for --by FIELD.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a temperature for decisions' probabilities.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="TOML file for the certificate.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Find which overrides may be let through, with a guarantee, from labelled items alone."""
    from lastword.cli.output import check_writable, printable, write_lines
    from lastword.cli.progress import waiting

    chosen = None if methods == "all" else tuple(methods.split(","))
    if items is not None and by is None:
        raise InputError("--items goes with --by FIELD, a field of its rows")
    if out is not None:
        check_writable(out)
    with waiting("reading records"):
        from lastword.evaluation.certification import outcome, read_sample, slice_names
        from lastword.files.folder import locate
        from lastword.files.strict_json import to_json
        from lastword.trust.calibration import curves
        from lastword.trust.calibration import told as in_words
        from lastword.trust.slices import slices
        from lastword.trust.summary import sliced, summary

        sample = read_sample(locate(runs), benchmark or (), chosen)
        certified = outcome(sample, promised)
        finding, controls = certified.finding, certified.controls
        names = None if by is None else slice_names(sample.cells, by, items)
        parts = [] if names is None else slices(sample.items, names, finding)
        certificate = certified.certificate
        shown = sample.shown(finding.policy) if calibrate else None
        if shown is not None:
            certificate = certificate.calibrated(*shown)
    if out is not None:
        write_lines(out, certificate.to_toml().splitlines())
    if as_json:
        told: dict[str, Any] = {"model": sample.subject.model, "controls": asdict(controls)}
        told |= {} if by is None else {"by": by, "slices": [asdict(part) for part in parts]}
        if certificate.calibration is not None:
            told["calibration"] = asdict(certificate.calibration)
        typer.echo(to_json(_to_dict(finding) | told))
        return
    named = (sample.subject.model, list(sample.benchmarks), sample.failed)
    lines = summary(finding, *named, controls)
    lines += [] if by is None else [sliced(parts, by, finding.terms)]
    if certificate.calibration is not None and shown is not None:
        lines += in_words(certificate.calibration, *curves(*shown))
    for line in [*lines, *([] if out is None else [str(out)])]:
        typer.echo(printable(line))


def _to_dict(finding: "Finding") -> dict[str, Any]:
    deferral = finding.deferral
    curves = {} if deferral is None else {"before": deferral.before, "after": deferral.after}
    return {
        "terms": asdict(finding.terms),
        "items": finding.items,
        "groups": finding.groups,
        "worth": finding.worth,
        "base_right": finding.base_right,
        "policy": asdict(finding.policy),
        "needed": finding.needed,
        "deferral": None
        if deferral is None
        else {
            "error": deferral.error,
            "threshold": deferral.threshold,
            "answered": deferral.answered,
            "wrong": deferral.wrong,
            "area": {name: drawn.area for name, drawn in curves.items()},
        },
        "trials": [
            {
                "policy": asdict(trial.policy),
                "certified": trial.certified,
                **asdict(trial.evidence),
            }
            for trial in finding.trials
        ],
    }
