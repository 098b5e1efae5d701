"""`lastword serve`: serves one model over HTTP."""

from dataclasses import replace
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options
from lastword.cli.options import Fields, keys, read_pairs
from lastword.cli.progress import waiting
from lastword.service.settings import LIMITS, Settings

_FLAGS = Fields(
    "Service",
    leave_out=(*LIMITS, "drain_seconds"),
    settings={
        "port": {"min": 0, "max": 65535},
        "token": {"envvar": "LASTWORD_TOKEN"},
        "label_token": {"envvar": "LASTWORD_LABEL_TOKEN"},
        "state": {"metavar": "FILE|ADDRESS"},
    },
)


def serve(
    *,
    folder: opt.Trial = None,
    model: opt.ModelOrNone = None,
    answers: opt.AnswerOptions,
    settings: Annotated[Settings, _FLAGS],
    limits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            rich_help_panel="Service",
            help=f"Further limits. Repeatable. {keys(Settings, LIMITS)}",
        ),
    ] = None,
    loading: opt.Loading,
) -> None:
    """Answer questions over HTTP: decisions, chat, corrections (/openapi.json has all routes)."""
    settings = replace(settings, **read_pairs("--limits", limits, Settings, LIMITS))
    questions = [settings.questions] if settings.questions else []
    options = load_options(model, loading, answers, questions)
    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.log import Log
        from lastword.service.server import free_address, run
    free_address(settings.host, settings.port)  # raises for a port in use before a model is loaded
    log = Log()
    log.event("loading", model=options.label)
    run(create_app(load_decider(options), settings, log))
