"""`lastword serve`: one model over HTTP."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.engine import EngineOptions
from lastword.cli.groups import Group, options_of
from lastword.cli.model import Model, load_tracer
from lastword.cli.vllm import VllmOptions, loader
from lastword.model.options import LoadOptions
from lastword.service.settings import Settings

if TYPE_CHECKING:
    from lastword.engines.ray import Cluster
    from lastword.tracer import Tracer

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
    "drain_seconds": None,
}


def serve(
    model: Model,
    settings: Annotated[Settings, Group(Settings, options_of(Settings, _ANNOTATIONS))],
    engine: EngineOptions,
    vllm: VllmOptions,
    explorer: Annotated[
        bool, typer.Option("--explorer", help="Show the explorer's page at /.")
    ] = False,
) -> None:
    """Serve corrections over HTTP: /v1/decisions, /v1/correct; /docs has the rest."""
    if settings.questions is not None:
        from lastword.decisions.file import named_probes

        model = replace(model, probes=(*model.probes, *named_probes(settings.questions)))
    cluster, served = engine.cluster(), vllm.settings(engine.engine)
    if cluster is None:
        _serve(loader(served), model, settings, explorer)
    elif explorer:
        raise typer.BadParameter("--explorer keeps its pages in one process: not with --engine ray")
    else:
        _serve_replicas(model, settings, cluster)


def _serve(
    load: "Callable[[LoadOptions], Tracer]", model: LoadOptions, settings: Settings, explorer: bool
) -> None:
    from lastword.cli.progress import waiting

    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.log import Log
        from lastword.service.server import require_address, run
        from lastword.service.tracing import trace_if_asked

        if explorer:
            from lastword.service.explorer.page import mount
    require_address(settings.host, settings.port)
    log = Log(prompts=settings.log_prompts)
    log.event("loading", model=model.label)
    app = create_app(load(model), settings, log)
    if explorer:
        corrector = app.state.service.corrector
        mount(app, {corrector.name: corrector})
    trace_if_asked(app)
    run(app)


def _serve_replicas(model: LoadOptions, settings: Settings, cluster: "Cluster") -> None:
    from lastword.cli.progress import waiting

    if (model.correction or "").startswith("batch-calibrated") and model.certificate is None:
        raise typer.BadParameter(
            f"replicas would each learn by themselves: --correction {model.correction} needs a "
            "certificate, which freezes the mean"
        )
    with waiting("loading the server"):
        from lastword.engines.replicas import run
        from lastword.service.log import Log
    Log().event("loading", model=model.label)
    with redirect_stdout(sys.stderr):  # Ray tells of lost workers on stdout
        run(partial(load_tracer, model), settings, cluster)
