"""`lastword try`: tests a model on a table of labelled examples, and prints the verdict."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options, quiet
from lastword.cli.output import printable, say
from lastword.cli.progress import counting, waiting
from lastword.errors import InputError
from lastword.files.strict_json import to_json
from lastword.tryout.table_options import TableOptions

if TYPE_CHECKING:
    from lastword.model.encoder import Encoder
    from lastword.model.options import LoadOptions

_DEFAULT = "minilm"


def try_(
    *,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Labelled examples: CSV, TSV, Excel, JSON lines or Parquet."
        ),
    ],
    model: opt.ModelOrNone = None,
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
        float,
        typer.Option(
            parser=lambda seconds: float(str(seconds).removesuffix("s")),
            metavar="SECONDS",
            help="Seconds for trying other prompts, and for the model's answers if there are more "
            "than 20 options.",
        ),
    ] = 300.0,
    promise: opt.Promise = "gain",
    alpha: opt.Alpha = 0.05,
    delta: opt.Delta = 0.05,
    error: opt.Error = None,
    objective: Annotated[
        str,
        typer.Option(
            help="Fit and rank by accuracy, or balanced: by the mean recall over classes."
        ),
    ] = "accuracy",
    prefer: Annotated[
        str,
        typer.Option(
            help="Recommend the most accurate method, or the cheapest (cheap) of those within "
            "half a standard error of it."
        ),
    ] = "accurate",
    encoder: opt.Contestants = None,
    yes: opt.Yes = False,
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
    """Compare methods on labelled examples: what to run, and how much it answers and gains."""
    table = TableOptions(
        text_column, label_column, choices, describe, instructions, id_column, encoding, group
    )
    with waiting("reading the table"):
        from lastword.probes.probe import encoder_name
        from lastword.trust.policy import CERTIFIABLE
        from lastword.trust.terms import Terms
        from lastword.tryout.material import TryJob
        from lastword.tryout.rounds import read_trial
        from lastword.tryout.run import run
        from lastword.tryout.words import lines

        terms = Terms(alpha, delta, error, methods=CERTIFIABLE, promise=promise)
        labels = read_trial(file, table, out)
        if isinstance(labels, str):
            typer.echo(printable(labels))
            return
    names = encoders(encoder, yes=yes, needed=model is None) if labels.question else []
    tracer = None if model is None else load_decider(load_options(model, loading)).tracer
    with waiting("making ready"):
        loaded = tuple(load_encoders(names, load_options(model or "", loading)))
        named = tuple(encoder_name(one.name) for one in loaded if encoder)
        job = TryJob(tracer, labels, terms, template, budget, loaded, named, objective, prefer)
    for line in (*labels.notes, *filter(None, [job.sample])):
        say(line)
    if encoder and labels.question is None:
        say("Options differ by row, so no sentence encoder takes part")
    elif not loaded and labels.question is not None:
        say("No sentence encoder takes part: `lastword get minilm` fetches one (83 MB)")
    with counting(f"{labels.name} on {model or names[0]}", len(labels.rows)) as countdown:
        verdict = run(job, out, countdown.advance, countdown.stage)
    if json:
        typer.echo(to_json(verdict.to_dict()))
        return
    for line in lines(verdict, verbose=verbose):
        typer.echo(printable(line))
    if out is not None:
        typer.echo(f"\nAll results, with every row: {printable(str(out / 'index.html'))}")


def encoders(names: list[str] | None, *, yes: bool, needed: bool) -> list[str]:
    """Return the names of the encoders that take part: the user's, or else MiniLM.

    If MiniLM is needed and not installed, it is downloaded if the user agrees, or `yes`.

    Raises:
        InputError: The user does not agree, or cannot be asked.
    """
    from lastword.model.encoder import installed

    if names or installed(_DEFAULT):
        return names or [_DEFAULT]
    if not needed:
        return []
    if not yes and sys.stdin.isatty():
        yes = typer.confirm("Download the sentence encoder minilm (83 MB)?", err=True)
    if not yes:
        raise InputError(
            "without a language model (--model) a sentence encoder is needed: --yes downloads "
            "minilm (83 MB), and --encoder names another"
        )
    from lastword.model.named import fetch

    fetch(_DEFAULT, progress=sys.stderr.isatty())
    return [_DEFAULT]


def load_encoders(names: list[str], options: "LoadOptions") -> "list[Encoder]":
    """Return the encoders of some names, loaded under the rules of the model."""
    from lastword.model.encoder import load_encoder

    quiet()
    return [load_encoder(name, options) for name in names]
