"""`tracelm serve`: one model over HTTP."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracelm.cli.model import ModelOptions, takes_model

if TYPE_CHECKING:
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
) -> None:
    """Serve corrections over HTTP: /v1/correct, /v1/correct/batch, /v1/ask; /docs has the rest."""
    from tracelm.service.settings import Settings

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
    _serve(model, settings, explorer)


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
