"""`lastword monitor`: tests if a guarantee about predictions still holds on a stream."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.files.strict_json import to_json

_ALARM = 3  # exit code


def monitor(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="File of `lastword certify TABLE --out`.")
    ],
    stream: Annotated[
        Path,
        typer.Argument(
            metavar="STREAM",
            help="A table as for `lastword certify`; - reads JSON lines from stdin as they come. "
            "Rows without a truth are counted only.",
        ),
    ] = Path("-"),
    json: opt.Json = False,
) -> None:
    """Monitor a guarantee about predictions; exit with status 3 on an alarm."""
    from lastword.trust.certificate import Certificate
    from lastword.trust.predictions import PredictionMonitor

    watch = PredictionMonitor(Certificate.read(certificate))
    watch.watch(stream)
    state, drifted = watch.state, bool(watch.drift.warned)
    counts = {"read": watch.read, "given": watch.given}
    counts |= {"labelled": state.labelled, "wrong": state.broken}
    flags = {"alarm": state.alarm, "slipping": state.slipping, "drifted": drifted}
    verdict = "the guarantee still holds as far as these labels show"
    if state.alarm:
        verdict = f"ALARM: more than {100 * state.alpha:.3g}% of the answers are wrong"
    shares = ", ".join(f"{value} {key}" for key, value in counts.items())
    typer.echo(to_json(counts | flags) if json else f"{verdict} ({shares})")
    if drifted and not json:
        typer.echo("Warning: the confidences are unlike those of the labelled rows")
    if state.alarm:
        raise typer.Exit(_ALARM)
