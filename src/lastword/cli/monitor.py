"""`lastword monitor`: tests if a guarantee about predictions still holds on a stream."""

import json as json_
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.errors import InputError
from lastword.files.cells import cell_text
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
            help="JSON lines with prediction, confidence and truth; - is stdin. Lines without a "
            "truth are counted only.",
        ),
    ] = Path("-"),
    json: opt.Json = False,
) -> None:
    """Monitor a guarantee about predictions; exit with status 3 on an alarm."""
    from lastword.trust.certificate import Certificate

    watch = Certificate.read(certificate).monitor()
    count = allowed = 0
    with _opened(stream) as file:
        for place, line in enumerate(file, start=1):
            if not line.strip():
                continue
            prediction, confidence, truth = _entry(line, place)
            count += 1
            allowed += watch.allows(prediction, confidence)
            if truth is not None and watch.observe(prediction, confidence, truth):
                break
    state = watch.state
    counts = {"read": count, "given": allowed, "labelled": state.labelled, "wrong": state.broken}
    if json:
        typer.echo(to_json(counts | {"alarm": state.alarm, "slipping": state.slipping}))
    else:
        shares = ", ".join(f"{value} {key}" for key, value in counts.items())
        verdict = "the guarantee still holds as far as these labels show"
        if state.alarm:
            verdict = f"ALARM: more than {100 * state.alpha:.3g}% of the answers are wrong"
        typer.echo(f"{verdict} ({shares})")
    if state.alarm:
        raise typer.Exit(_ALARM)


def _opened(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if path == Path("-"):
        return nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def _entry(line: bytes, place: int) -> tuple[str, float | None, str | None]:
    try:
        value = json_.loads(line.decode())
        prediction, confidence = value["prediction"], value.get("confidence")
        confidence = None if confidence is None else float(confidence)
        truth = value.get("truth")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        form = '{"prediction": "a", "confidence": 0.9, "truth": "a"}'
        raise InputError(f"line {place} is not a JSON object in UTF-8 such as {form}") from error
    return cell_text(prediction), confidence, None if truth in (None, "") else cell_text(truth)
