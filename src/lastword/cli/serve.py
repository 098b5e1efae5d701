"""`lastword serve`: one model over HTTP."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

from lastword.cli.groups import Group, options_of
from lastword.cli.model import Model
from lastword.cli.progress import waiting
from lastword.cli.vllm import VllmOptions, loader
from lastword.service.settings import Settings

# What the command line writes otherwise than Python does.
_ANNOTATIONS = {
    "port": Annotated[int, typer.Option(min=0, max=65535)],
    "token": Annotated[str | None, typer.Option(envvar="LASTWORD_TOKEN")],
    "label_token": Annotated[str | None, typer.Option(envvar="LASTWORD_LABEL_TOKEN")],
    "batch_items": Annotated[int, typer.Option(min=1)],
    "requests": Annotated[int, typer.Option("--max-requests", min=1)],
    "deadline_seconds": Annotated[float, typer.Option("--deadline")],
    "entries": Annotated[int, typer.Option("--max-entries", min=1)],
    "body_bytes": Annotated[int, typer.Option("--max-body", min=1)],
    "flight_bytes": Annotated[int, typer.Option("--max-bodies", min=1)],
    "batch_limit": Annotated[int, typer.Option("--batch-limit", min=1)],
    "connections": Annotated[int, typer.Option("--max-connections", min=1)],
    "header_bytes": Annotated[int, typer.Option("--max-headers", min=1)],
    "header_seconds": Annotated[float, typer.Option("--header-timeout")],
    "candidates": Annotated[int, typer.Option("--max-candidates", min=1)],
    "characters": Annotated[int, typer.Option("--max-characters", min=1)],
    "tokens": Annotated[int, typer.Option("--max-tokens", min=1)],
    "state": Annotated[str | None, typer.Option(metavar="FILE|ADDRESS")],
    "drain_seconds": None,
}


def serve(
    model: Model,
    settings: Annotated[Settings, Group(Settings, options_of(Settings, _ANNOTATIONS))],
    vllm: VllmOptions,
    engine: Annotated[
        Literal["local", "vllm"], typer.Option(help="This process, or vLLM in one of its own.")
    ] = "local",
) -> None:
    """Answer questions over HTTP: /v1/decisions, chat, corrections; /docs has the rest."""
    if settings.questions is not None:
        from lastword.decide.file import named_probes

        model = replace(model, probes=(*model.probes, *named_probes(settings.questions)))
    load = loader(vllm.settings(engine))
    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.log import Log
        from lastword.service.server import free_address, run
    free_address(settings.host, settings.port)  # one that is taken is told before a model loads
    log = Log(prompts=settings.log_prompts)
    log.event("loading", model=model.label)
    run(create_app(load(model), settings, log))
