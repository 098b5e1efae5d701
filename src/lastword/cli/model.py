"""The options of the commands that run a model, and the decider that they make."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from lastword.cli.groups import Group, options_of, parameter
from lastword.cli.output import say
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.rule.theta import Theta
from lastword.text.tokens import Chat

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.text.tokens import Tokenizer


def load_decider(options: DecideOptions) -> "Decider":
    """Return the decider that the options name.

    Raises:
        TraceError: The model cannot be used.
    """
    quiet()
    with waiting(f"loading {options.label}"):
        from lastword.decide.decider import Decider

        return Decider.from_pretrained(options)


def load_tokenizer(options: DecideOptions) -> "Tokenizer":
    """Return the model's tokenizer alone, without its weights.

    Raises:
        ModelError: The tokenizer is missing or unreadable.
    """
    quiet()
    with waiting(f"loading the tokenizer of {options.label}"):
        from lastword.model import loading

        return loading.load_tokenizer(options)


def quiet() -> None:
    """Leave stderr to our own progress and errors: a refusal of the hub is told once, by us."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it warns of is said by us, or refused
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    ours = logging.getLogger("lastword")
    ours.propagate = False
    ours.handlers = [_LinesOnStderr()]


class _LinesOnStderr(logging.Handler):
    """Writes what the library says of a model as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"lastword: {record.getMessage()}")


def refuse_certificate(options: DecideOptions, why: str) -> None:
    """Refuse a certificate where nothing would obey it.

    Raises:
        BadParameter: One is given.
    """
    if options.certificate is not None:
        raise typer.BadParameter(f"--certificate goes with TRACE's own answers: {why}")


def refuse_correction(options: DecideOptions, why: str) -> None:
    """Refuse another correction than TRACE where it would change nothing.

    Raises:
        BadParameter: One is given.
    """
    if options.correction not in (None, "trace"):
        raise typer.BadParameter(f"--correction {options.correction}: {why}")


def _read(
    model: str,
    *,
    theta: Path | None,
    certificate: Path | None,
    chat: bool | None,
    system: str | None,
    probes: Sequence[Path],
    **others: Any,
) -> DecideOptions:
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat-template")
    constants = None if theta is None else Theta.from_toml(theta)
    try:
        options = DecideOptions(
            model,
            theta=constants,
            chat=Chat(system) if chat else None,
            probes=tuple(probes),
            **others,
        )
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    return replace(options, certificate=certificate)


def _read_several(model: list[str], **others: Any) -> list[DecideOptions]:
    if others["alias"] is not None and len(model) > 1:
        raise typer.BadParameter("--name is that of one model: give one --model with it")
    return [_read(name, **others) for name in model]


# What the command line writes otherwise than Python does.
_ANNOTATIONS = {
    "model": Annotated[
        str,
        "Hub name, folder or GGUF file; lastword/demo-organism is embedded, and "
        "`lastword get` fetches lastword/smollm2-135m.",
    ],
    "alias": Annotated[str | None, typer.Option("--name")],
    "attention": Annotated[str, typer.Option("--attn")],
    "device_map": Annotated[
        Literal["auto", "balanced", "sequential"] | None,
        "Spread the model over all devices, the CPU and the disk.",
    ],
    "batch_tokens": Annotated[int | None, typer.Option(min=1)],
    "prefix_cache": Annotated[int, typer.Option(min=0)],
    "blind_cache": Annotated[int, typer.Option(min=0)],
    "theta": Annotated[Path | None, "TOML file that overrides constants of the method."],
    "certificate": Annotated[Path | None, "Of `lastword certify`: which overrides are allowed."],
    "probes": Annotated[
        list[Path],
        typer.Option("--probe", help="File of a probe, which answers its question; repeatable."),
    ],
    "unlike": Annotated[float, typer.Option(min=0, max=1)],
    "chat": Annotated[bool, typer.Option("--chat-template")],
}
_SYSTEM = parameter("system", Annotated[str | None, "System message; needs --chat-template."])


def _group(read: Callable[..., Any], kind: Any) -> Group:
    """Group the options of `DecideOptions`, `--model` in the command's own order."""
    model, *others = options_of(DecideOptions, _ANNOTATIONS)
    others.insert([p.name for p in others].index("chat") + 1, _SYSTEM)
    annotation = Annotated[kind, *get_args(model.annotation)[1:]]
    model = model.replace(annotation=annotation, default=Parameter.empty)
    return Group(read, (model, *others), leading=1)


Model = Annotated[DecideOptions, _group(_read, str)]
Models = Annotated[list[DecideOptions], _group(_read_several, list[str])]
