"""`lastword serve`: serves one model over HTTP."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options, with_answers
from lastword.cli.options import Fields, keys, read_pairs
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions
from lastword.service.settings import LIMITS, Settings

if TYPE_CHECKING:
    from lastword.decide.decider import Decider

_FLAGS = Fields(
    "Service",
    leave_out=(*LIMITS, "drain_seconds"),
    names={"deadline_seconds": "deadline"},
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
    answers: opt.Answers,
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
    """Answer questions over HTTP: decisions, chat and corrections (/docs lists all routes)."""
    settings = replace(settings, **read_pairs("--limits", limits, Settings, LIMITS))
    options = load_options(model, loading)
    options = with_answers(options, answers, [settings.questions] if settings.questions else [])
    with waiting("loading the server"):
        from lastword.service.app import create_app
        from lastword.service.log import Log
        from lastword.service.server import free_address, run
    free_address(settings.host, settings.port)  # raises for a port in use before a model is loaded
    log = Log(prompts=settings.log_prompts)
    log.event("loading", model=options.label)
    alone = _without_model(options, settings) if folder is not None else None
    run(create_app(alone or load_decider(options), settings, log))


def _without_model(options: DecideOptions, settings: Settings) -> "Decider | None":
    """Return a decider of encoders alone, if probes that read nothing else answer all questions."""
    from lastword.decide.decider import Decider
    from lastword.decide.questions_file import read_questions
    from lastword.probes.probe import Probe

    read = [one if isinstance(one, Probe) else Probe.read(one) for one in options.probes]
    if not read or options.correction or any(probe.needs_model for probe in read):
        return None
    names = ("certificate", "probes", "encoders", "unlike", "template")
    with waiting("loading the encoder"):
        decider = Decider(**{name: getattr(options, name) for name in names})
    questions = {} if settings.questions is None else read_questions(settings.questions)
    answered = all(decider.probe_of(question) is not None for question in questions.values())
    return decider if answered else None
