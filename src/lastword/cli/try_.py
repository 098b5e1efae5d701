"""`lastword try`: a table of labelled examples becomes a verdict on this model and this job."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lastword.cli.model import Model, load_decider, refuse_certificate, refuse_correction
from lastword.cli.output import printable
from lastword.cli.progress import counting, waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.tryout.named import Named

if TYPE_CHECKING:
    from lastword.tryout.verdict import Verdict


@dataclass(frozen=True)
class PromiseOptions:
    """The terms that a certificate has to promise."""

    promise: Annotated[
        Literal["gain", "breaks"],
        "gain: more right answers than the model's own; breaks: that, and at most alpha of all "
        "answers broken.",
    ] = "gain"
    alpha: Annotated[
        float, "Largest share of answers that may be broken, where few breaks are promised."
    ] = 0.05
    delta: Annotated[float, "Largest chance that the labels mislead."] = 0.05


def try_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV, TSV, JSON lines or Parquet.")],
    model: Model,
    *,
    table: Named,
    template: Annotated[
        str | None, typer.Option(help="decide/plain, decide/listed, decide/chat or a Jinja file.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Time that other prompts may take: 90s, 10m, 1h.")
    ] = "5m",
    promised: PromiseOptions,
    sets: Annotated[
        float | None, "Prediction sets that hold the right option in this share, such as 0.9."
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for records, certificate, questions.yaml and a page."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Try a model on a table of labelled examples: what to run there, what it gains, how surely."""
    refuse_certificate(model, "what it allows is found here")
    refuse_correction(model, "every correction is tried")
    with waiting("reading the table"):
        from lastword.tryout.labels import read_labels

        labels = read_labels(file, table)
        seconds = _seconds(budget)
    decider = load_decider(model)
    with waiting("making ready"):
        from lastword.trust.policy import METHODS
        from lastword.trust.terms import Terms
        from lastword.tryout.run import ready

        terms = Terms(**vars(promised), methods=METHODS)
        job = ready(decider.tracer, labels, terms, template=template, budget=seconds, sets=sets)
        plan = job.plan()
    with counting(f"{labels.name} on {model.label}", job.items, plan) as countdown:
        verdict = job.run(out, countdown.advance)
    if as_json:
        typer.echo(to_json(verdict.to_dict()))
        return
    classes = ["", *verdict.by_class()] if verdict.classes else []
    first, *words = verdict.words()
    lines = [first, "", *verdict.picture(), *classes, "", *words]
    for line in (*lines, *_next(verdict, model.label, out, template)):
        typer.echo(printable(line))


def _seconds(budget: str) -> float:
    import pandas as pd

    try:
        return float(pd.Timedelta(budget).total_seconds())
    except ValueError as error:
        raise InputError(f"--budget is a time as 90s, 10m or 1h, not {budget!r}") from error


def _next(verdict: "Verdict", model: str, out: Path | None, template: str | None) -> list[str]:
    from lastword.tryout.run import CERTIFICATE, PROBE, QUESTIONS

    asked = f"--model {model}" if template is None else f"--model {model} --template {template}"
    if verdict.certified is None:
        return [f"To serve the model's own answers: lastword serve {asked}"]
    if out is None:
        return ["Run it again with --out FOLDER: the certificate is written there."]
    asked += f" --certificate {out / CERTIFICATE}"
    if verdict.method != verdict.probe:
        return [f"lastword serve {asked}"]
    if not verdict.classes:  # options differ by row
        return [f"lastword serve {asked} --probe {out / PROBE}"]
    asked += f" --questions {out / QUESTIONS}"
    return [f"lastword decide {asked} --text 'A NEW TEXT'", f"lastword serve {asked}"]
