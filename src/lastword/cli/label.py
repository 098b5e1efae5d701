"""`lastword label`: serves a page to label texts, and trains and tests a probe meanwhile."""

import threading
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_options, quiet
from lastword.cli.output import printable
from lastword.cli.progress import waiting
from lastword.cli.try_ import encoders, load_encoders
from lastword.tryout.table_options import TableOptions

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer


def label(
    *,
    file: Annotated[
        str,
        typer.Argument(
            metavar="TEXTS", help="Texts without labels: CSV, TSV, Excel, JSON lines or Parquet."
        ),
    ],
    model: opt.ModelOrNone = None,
    choices: Annotated[str, typer.Option(help="The options: a,b,c, or a file with one per line.")],
    instructions: opt.Instructions = None,
    describe: opt.Describe = None,
    text_column: opt.TextColumn = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column for the labels in the written files.")
    ] = None,
    id_column: opt.IdColumn = None,
    group: opt.Group = None,
    encoding: opt.Encoding = None,
    template: opt.Template = None,
    encoder: opt.Contestants = None,
    yes: opt.Yes = False,
    promise: opt.Promise = "gain",
    alpha: opt.Alpha = 0.05,
    delta: opt.Delta = 0.05,
    error: opt.Error = None,
    out: Annotated[
        Path, typer.Option(help="Folder for labels and results; a restart continues from it.")
    ] = Path("labelled"),
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the page on 127.0.0.1; 0 takes a free one."),
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    loading: opt.Loading,
) -> None:
    """Label texts on a local page; about 100 labels train a probe and prove its gain."""
    options = None if model is None else load_options(model, loading)
    names = encoders(encoder, yes=yes, needed=model is None)
    table = TableOptions(
        text_column, label_column, choices, describe, instructions, id_column, encoding, group
    )
    with waiting("reading the table"):
        from lastword.service.labelling import LabelService, create_label_app
        from lastword.service.server import run
        from lastword.trust.policy import CERTIFIABLE
        from lastword.trust.terms import Terms
        from lastword.tryout.label_job import LabelJob

        def load_model() -> "Tracer | None":
            from lastword.decide.tracer import Tracer

            quiet()
            return None if options is None else Tracer.from_pretrained(options)

        terms = Terms(alpha, delta, error, methods=CERTIFIABLE, promise=promise)
        loading_encoders = partial(load_encoders, names, load_options(model or "", loading))
        job = LabelJob(file, table, out, load_model, terms, template, loading_encoders)

    def started(address: str) -> None:
        typer.echo(f"Label at {address}\nCtrl+C stops; the same command continues.")
        if browser:
            # A text-mode browser would block the server until it is closed.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    service = LabelService(job, port, started)
    run(create_label_app(service))
    labelling, progress = job.labelling, job.progress
    if service.error is not None:
        raise service.error
    for line in (progress.words, *progress.commands):
        typer.echo(printable(line))
    if not progress.ended:
        typer.echo(
            f"{len(labelling.done)} of {len(labelling.rows)} rows of this round are labelled."
        )
    if progress.page is not None:
        typer.echo(f"All results, with every row: {printable(str(progress.page))}")
