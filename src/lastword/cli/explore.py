"""`lastword explore`: the explorer's page on this machine."""

from typing import Annotated

import typer

from lastword.cli.model import Models, load_tracer
from lastword.cli.progress import waiting


def explore(
    models: Models,
    runs: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Folder of `lastword eval`, whose records it shows."),
    ] = None,
    port: Annotated[
        int, "Port; 0 takes a free one, named in the log.", typer.Option(min=0, max=65535)
    ] = 7860,
) -> None:
    """Ask models on a page in the browser, see why they answer so, look into a run's records.

    The page is served on 127.0.0.1 alone; `lastword serve --explorer` serves it elsewhere, with a
    token. `--model` may be given more than once; the service's own routes answer by the first.
    """
    with waiting("loading the server"):
        from lastword.files.folder import locate
        from lastword.service.app import create_app
        from lastword.service.correction import Corrector
        from lastword.service.explorer.page import mount
        from lastword.service.server import run
        from lastword.service.settings import Settings
    settings = Settings(port=port)
    first, *others = models
    app = create_app(load_tracer(first), settings)
    service = app.state.service
    correctors = {first.alias or first.label: service.corrector}
    for other in others:
        tracer = load_tracer(other)
        correctors[other.label] = Corrector(tracer, settings, service.metrics, service.log)
    mount(app, correctors, None if runs is None else locate(runs))
    run(app)
