"""`tracelm serve`: one model over HTTP."""

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated

import typer

from tracelm.cli.engine import (
    AddressOption,
    CpusOption,
    EngineOption,
    GpusOption,
    WorkersOption,
    read_cluster,
)
from tracelm.cli.model import ModelOptions, takes_model

if TYPE_CHECKING:
    from tracelm.engines.ray import Cluster
    from tracelm.service.settings import Settings


@takes_model
def serve(
    model: ModelOptions,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one, named in the log.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="TRACELM_TOKEN", help="What clients send as a Bearer token."),
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option("--shadow", help="Answer with the base; log what correction would change."),
    ] = False,
    explorer: Annotated[
        bool, typer.Option("--explorer", help="Show the explorer's page at /.")
    ] = False,
    batch_items: Annotated[
        int, typer.Option(min=1, help="Most waiting items computed together; 1 is none.")
    ] = 64,
    queue_items: Annotated[int, typer.Option(min=1, help="Most items that wait.")] = 256,
    deadline: Annotated[float, typer.Option(help="Seconds from a request to its answer.")] = 30.0,
    max_body: Annotated[int, typer.Option(min=1, help="Largest body in bytes.")] = 2**20,
    max_candidates: Annotated[int, typer.Option(min=1, help="Most of one item.")] = 64,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most of one item, prompt and candidates together.")
    ] = 16_384,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts and candidates into the log.")
    ] = False,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    gpus_per_worker: GpusOption = None,
    cpus_per_worker: CpusOption = None,
) -> None:
    """Serve corrections over HTTP: /v1/correct, /v1/correct/batch, /v1/ask; /docs has the rest."""
    from tracelm.service.settings import Settings

    cluster = read_cluster(engine, address, workers, gpus_per_worker, cpus_per_worker)
    if cluster is not None and explorer:
        raise typer.BadParameter("--explorer keeps its pages in one process: not with --engine ray")
    settings = Settings(
        host=host,
        port=port,
        token=token,
        shadow=shadow,
        batch_items=batch_items,
        queue_items=queue_items,
        deadline_seconds=deadline,
        body_bytes=max_body,
        candidates=max_candidates,
        tokens=max_tokens,
        log_prompts=log_prompts,
    )
    if cluster is None:
        _serve(model, settings, explorer)
    else:
        _serve_replicas(model, settings, cluster)


def _serve(model: ModelOptions, settings: "Settings", explorer: bool) -> None:
    from tracelm.cli.progress import waiting

    with waiting("loading the server"):
        from tracelm.service.app import create_app
        from tracelm.service.server import run

        if explorer:
            from tracelm.service.explorer import mount
    app = create_app(model.load(), settings)
    if explorer:
        mount(app, {model.model: app.state.service.corrector})
    run(app)


def _serve_replicas(model: ModelOptions, settings: "Settings", cluster: "Cluster") -> None:
    from tracelm.cli.progress import waiting

    with waiting("loading the server"):
        from tracelm.engines.replicas import run
    with redirect_stdout(sys.stderr):  # Ray tells of lost workers on stdout
        run(model.load, settings, cluster)
