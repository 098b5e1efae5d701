"""`lastword try`: tests a model on a table of labelled examples, and prints the verdict."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options
from lastword.cli.output import printable, say
from lastword.cli.progress import counting, waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.tryout.table_options import TableOptions

if TYPE_CHECKING:
    from lastword.model.encoder import Encoder


def try_(
    *,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Labelled examples: CSV, TSV, Excel, JSON lines or Parquet."
        ),
    ],
    model: opt.Model,
    text_column: opt.TextColumn = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of the right answer; guessed if left out.")
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            help="Column with each row's options, or the options of all rows: a file, or a,b,c. "
            "Default: the labels that occur."
        ),
    ] = None,
    describe: opt.Describe = None,
    instructions: opt.Instructions = None,
    id_column: opt.IdColumn = None,
    group: opt.Group = None,
    encoding: opt.Encoding = None,
    template: opt.Template = None,
    budget: Annotated[
        str, typer.Option(help="Time for trying other prompts: 90s, 10m, 1h.")
    ] = "5m",
    promise: opt.Promise = "gain",
    alpha: opt.Alpha = 0.05,
    delta: opt.Delta = 0.05,
    objective: Annotated[
        str,
        typer.Option(
            help="Fit and rank by accuracy, or balanced: by the mean recall over classes."
        ),
    ] = "accuracy",
    encoder: opt.Contestants = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for all results, and for labels.csv, the rows to label next."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every contestant and every detail.")
    ] = False,
    json: opt.Json = False,
    loading: opt.Loading,
) -> None:
    """Test a model on labelled examples, and report what to run and how much it gains."""
    options = load_options(model, loading)
    table = TableOptions(
        text_column, label_column, choices, describe, instructions, id_column, encoding, group
    )
    with waiting("reading the table"):
        from lastword.tryout.rounds import POLICY, begun, finish, read_trial

        labels = read_trial(file, table, out)
        if isinstance(labels, str):
            typer.echo(printable(labels))
            return
        second = None if out is None else begun(out, labels)
        seconds = _seconds(budget)
    if second is not None and out is not None:
        if objective != "accuracy":
            raise InputError("a second round tests accuracy only: run it without --objective")
        options = replace(options, probes=(out / POLICY,))  # so that they take its data type
        proof = finish(out, load_decider(replace(options, probes=())).tracer, second, labels)
        words = f"{proof.words} {proof.advice}".rstrip()
        typer.echo(to_json(asdict(proof.drawn)) if json else printable(words))
        return
    decider = load_decider(options)
    with waiting("making ready"):
        from lastword.trust.policy import CERTIFIABLE
        from lastword.trust.terms import Terms
        from lastword.tryout.run import ready
        from lastword.tryout.words import lines

        terms = Terms(alpha=alpha, delta=delta, methods=CERTIFIABLE, promise=promise)
        readers = [] if labels.question is None else load_readers(encoder, loading.device)
        job = ready(
            decider.tracer,
            labels,
            terms,
            template=template,
            budget=seconds,
            readers=readers,
            objective=objective,
        )
        plan = job.plan()
    for line in plan:
        say(line)
    if encoder and labels.question is None:
        say("Options differ by row, so no sentence encoder takes part")
    elif not readers and labels.question is not None:
        say("No sentence encoder takes part: `lastword get minilm` fetches one (83 MB)")
    with counting(f"{labels.name} on {options.label}", job.items) as countdown:
        verdict = job.run(out, countdown.advance, countdown.stage)
    if json:
        typer.echo(to_json(verdict.to_dict()))
        return
    for line in lines(verdict, verbose=verbose):
        typer.echo(printable(line))
    if out is not None:
        typer.echo(f"\nAll results, with every row: {printable(str(out / 'index.html'))}")


def load_readers(names: list[str] | None, device: str) -> "list[Encoder]":
    """Return the encoders that the user named; by default MiniLM, if it is installed."""
    from lastword.model.encoder import Encoder, installed

    default = ["minilm"] if installed("minilm") else []
    return [Encoder(name, device) for name in names or default]


def _seconds(budget: str) -> float:
    import pandas as pd

    try:
        return float(pd.Timedelta(budget).total_seconds())
    except ValueError as error:
        raise InputError(f"--budget is a time as 90s, 10m or 1h, not {budget!r}") from error
