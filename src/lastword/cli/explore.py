"""`lastword explore`: the explorer's page on this machine."""

from typing import Annotated

import typer

from lastword.cli.model import Model, load_tracer
from lastword.cli.progress import waiting


def explore(
    model: Model,
    port: Annotated[
        int, "Port; 0 takes a free one, named in the log.", typer.Option(min=0, max=65535)
    ] = 7860,
) -> None:
    """Ask a model on a page in the browser, and see why it answers so.

    The page is served on 127.0.0.1 alone; `lastword serve --explorer` serves it elsewhere, with a
    token. Records of a run are shown by the page of `lastword report`.
    """
    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.server import run
        from lastword.service.settings import Settings
    run(create_app(load_tracer(model), Settings(port=port, explorer=True)))
