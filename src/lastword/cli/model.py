"""Options of a command's model and engine, and functions that load its decider."""

import logging
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lastword.cli.options import LOAD, AnswerOptions, Loading, read_pairs
from lastword.cli.output import say
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.model.options import LoadOptions

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.engines.ray import Cluster


def load_decider(options: DecideOptions) -> "Decider":
    """Return the decider of the options."""
    quiet()
    with waiting(f"loading {options.label or 'the encoder'}"):
        from lastword.decide.decider import Decider

        return Decider.from_pretrained(options)


def quiet() -> None:
    """Silence other libraries on stderr; lastword reports progress and errors itself."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # its warnings are reported, or refused, by lastword
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    ours = logging.getLogger("lastword")
    ours.propagate = False
    ours.handlers = [_LinesOnStderr()]


class _LinesOnStderr(logging.Handler):
    """A log handler that writes the library's messages as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"lastword: {record.getMessage()}")


def load_options(
    model: str | None,
    loading: Loading,
    answers: AnswerOptions = AnswerOptions(),  # noqa: B008 - frozen
    questions: Sequence[Path] = (),
) -> DecideOptions:
    """Return the options of a command's model, and of what answers; None for no model.

    Questions files may name probes too.
    """
    if loading.system is not None and not loading.chat_template:
        raise typer.BadParameter("--system needs --chat-template")
    from lastword.decide.questions_file import named_probes
    from lastword.rule.theta import Theta
    from lastword.text.chat import Chat

    pairs = dict(pair.partition("=")[::2] for pair in loading.load or ())
    day, theta = pairs.pop("date", None), pairs.pop("theta", None)
    if day is not None and not loading.chat_template:
        raise typer.BadParameter("--load date needs --chat-template")
    others = read_pairs("--load", map("=".join, pairs.items()), LoadOptions, LOAD)
    if theta is not None:
        others["theta"] = Theta.from_toml(theta)
    probes = [path for file in questions for path in named_probes(file)]
    try:
        return DecideOptions(
            model or "",
            device=loading.device,
            dtype=loading.dtype,
            chat=Chat(loading.system, day) if loading.chat_template else None,
            trust_remote_code=loading.trust_remote_code,
            certificate=answers.certificate,
            correction=answers.correction,
            probes=(*(answers.probe or ()), *probes),
            encoders=answers.encoder or (),
            novelty=answers.novelty,
            **others,
        )
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def read_engine(engine: str, options: list[str] | None) -> "Cluster | None":
    """Return Ray's cluster; None for this process."""
    if engine == "local":
        if options:
            raise typer.BadParameter("--engine-options goes with --engine ray")
        return None
    with waiting("loading Ray"):
        from lastword.engines.ray import Cluster
    names = [each.name for each in fields(Cluster)]
    values = read_pairs("--engine-options", options, Cluster, names)
    return Cluster(**{"address": os.environ.get("RAY_ADDRESS") or "local"} | values)
