"""The model of a command: its options, and the decider that they name."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from lastword.cli.options import at_least, one_of, read_pairs
from lastword.cli.output import say
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.model.options import Dtype, HeadDtype, Quantize
from lastword.rule.theta import Theta
from lastword.text.tokens import Chat, Overflow

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


def _true_or_false(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


# The keys of --load are the fields of `LoadOptions` that have no option of their own.
_LOAD: dict[str, Callable[[str], Any]] = {
    "alias": str,
    "revision": str,
    "gguf": str,
    "head_dtype": one_of(*get_args(HeadDtype)),
    "attention": str,
    "quantize": one_of(*get_args(Quantize)),
    "device_map": one_of("auto", "balanced", "sequential"),
    "batch_tokens": at_least(1),
    "prefix_cache": at_least(0),
    "blind_cache": at_least(0),
    "theta": Theta.from_toml,
    "invariant": float,
    "overflow": one_of(*get_args(Overflow)),
    "allow_bin": _true_or_false,
    "date": str,  # of the chat
}


def load_options(
    model: str,
    device: str,
    dtype: Dtype,
    chat_template: bool,
    system: str | None,
    trust_remote_code: bool,
    load: list[str] | None,
) -> DecideOptions:
    """Return the options of a command's model.

    Raises:
        BadParameter: Options that do not go together, or that the model does not have.
    """
    if system is not None and not chat_template:
        raise typer.BadParameter("--system needs --chat-template")
    others = read_pairs("--load", load, _LOAD)
    day = others.pop("date", None)
    if day is not None and not chat_template:
        raise typer.BadParameter("--load date needs --chat-template")
    try:
        chat = Chat(system, day) if chat_template else None
        return DecideOptions(
            model,
            device=device,
            dtype=dtype,
            chat=chat,
            trust_remote_code=trust_remote_code,
            **others,
        )
    except InputError as error:
        raise typer.BadParameter(str(error)) from error


def with_answers(
    options: DecideOptions,
    questions: Sequence[str | Path],
    probes: Sequence[str | Path] | None,
    certificate: Any,
    correction: str | None,
    readers: Sequence[str] | None,
    unlike: float,
) -> DecideOptions:
    """Return the options with what answers beside the model.

    Args:
        options: Of the model.
        questions: Questions files; the probes that they name are added to `probes`.
        probes: Probe files, or None.
        certificate: The certificate, or its file.
        correction: Name of the correction to apply.
        readers: Sentence encoders that probes read, or None.
        unlike: P-value below which a probe's answer is deferred.

    Raises:
        InputError: A questions file cannot be read.
        CertificateError: The certificate cannot be read.
    """
    from lastword.decide.file import named_probes

    named = [path for file in questions for path in named_probes(file)]
    return replace(
        options,
        certificate=certificate,
        correction=correction,
        probes=(*(probes or ()), *named),
        readers=readers or (),
        unlike=unlike,
    )
