"""The options that every command which runs a model shares, and the tracer that they name."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tracelm.cli.output import printable
from tracelm.cli.progress import waiting
from tracelm.model.embedded import EMBEDDED

if TYPE_CHECKING:
    from tracelm.text.tokens import Tokenizer
    from tracelm.theta import Theta
    from tracelm.tracer import Tracer

# How the embedded models are loaded: other values of these options would change nothing.
_EMBEDDED_AS: dict[str, tuple[str | None, ...]] = {
    "revision": (None,),
    "device": ("auto", "cpu"),
    "dtype": ("auto", "float32"),
    "attn": ("auto", "model", "sdpa"),
    "quantize": (None,),
    "device_map": (None,),
}


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded and read."""

    model: Annotated[
        str,
        typer.Option(help="Hub name or folder; tracelm/demo-organism is the embedded one."),
    ]
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")
    ] = "auto"
    head_dtype: Annotated[
        Literal["float32", "model"],
        typer.Option(help="Of the logits; `model` is faster and may tie candidates."),
    ] = "float32"
    attn: Annotated[str, typer.Option(help="auto, model, sdpa, eager, flex_attention.")] = "auto"
    quantize: Annotated[
        Literal["int8", "nf4"] | None,
        typer.Option(help="Quantise the weights while loading them (bitsandbytes)."),
    ] = None
    device_map: Annotated[
        Literal["auto", "balanced", "sequential"] | None,
        typer.Option(help="Spread the model over all devices, the CPU and the disk."),
    ] = None
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most distinct tokens of one batch.")
    ] = None
    theta: Annotated[
        Path | None, typer.Option(help="TOML file that overrides constants of the method.")
    ] = None
    invariant: Annotated[
        float | None, typer.Option(help="I(M), for a model that has none of its own.")
    ] = None
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Put prompts into the tokenizer's template.")
    ] = False
    system: Annotated[str | None, typer.Option(help="System message; needs --chat-template.")] = (
        None
    )
    overflow: Annotated[
        Literal["error", "truncate"],
        typer.Option(help="What to do with a prompt longer than the model's context."),
    ] = "error"
    allow_bin: Annotated[
        bool, typer.Option("--allow-bin", help="Read pytorch_model.bin, as weights only.")
    ] = False
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the checkpoint brings.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse options that do not go together."""
        if self.system is not None and not self.chat_template:
            raise typer.BadParameter("--system needs --chat-template")
        for name, values in _EMBEDDED_AS.items() if self.model.startswith(EMBEDDED) else ():
            if getattr(self, name) not in values:
                option = name.replace("_", "-")
                raise typer.BadParameter(
                    f"the embedded models run in float32 on the CPU: leave --{option} out"
                )

    def read_theta(self) -> "Theta":
        """The constants, with the file's overrides.

        Raises:
            ThetaError: The file cannot be read, or has a name or value that Theta refuses.
        """
        from tracelm.theta import Theta

        return Theta() if self.theta is None else Theta.from_toml(self.theta)

    def load(self) -> "Tracer":
        """The tracer that these options name.

        Raises:
            TraceError: The model or the constants cannot be used.
        """
        theta = self.read_theta()
        quiet()
        with waiting(f"loading {self.model}"):
            from tracelm.model import ranks
            from tracelm.text.tokens import Chat
            from tracelm.tracer import Tracer

            options: dict[str, Any] = {
                "theta": theta,
                "invariant": self.invariant,
                "batch_tokens": self.batch_tokens,
                "head_dtype": self.head_dtype,
                "overflow": self.overflow,
                "chat": Chat(self.system) if self.chat_template else None,
            }
            if self.model.startswith(EMBEDDED):
                return Tracer.demo(self.model.removeprefix(EMBEDDED), **options)
            load: Callable[..., Tracer] = Tracer.from_pretrained
            if ranks.count() > 1:
                from tracelm.engines.torchrun import lead

                load = lead
            return load(
                self.model,
                revision=self.revision,
                device=self.device,
                dtype=self.dtype,
                attention=self.attn,
                quantize=self.quantize,
                device_map=self.device_map,
                allow_bin=self.allow_bin,
                trust_remote_code=self.trust_remote_code,
                **options,
            )

    def load_tokenizer(self) -> "Tokenizer":
        """The model's tokenizer alone, without its weights.

        Raises:
            ModelError: The tokenizer is missing or unreadable.
        """
        quiet()
        with waiting(f"loading the tokenizer of {self.model}"):
            if self.model.startswith(EMBEDDED):
                from tracelm.demo import load

                return load(self.model.removeprefix(EMBEDDED))[1]
            from tracelm.model.loading import load_tokenizer

            return load_tokenizer(
                self.model, revision=self.revision, trust_remote_code=self.trust_remote_code
            )


@dataclass(frozen=True)
class PresetOptions(ModelOptions):
    """One model of a preset: what cannot be loaded here is skipped, and the rest goes on.

    Attributes:
        named: What the preset calls it.
    """

    named: str = ""


def _of_preset(others: dict[str, Any]) -> list[ModelOptions]:
    """The paper's models in order of size, each at its precision unless another is asked for."""
    from tracelm.model.presets import presets

    chosen: list[ModelOptions] = []
    for preset in sorted(presets(), key=lambda p: p.billions):
        own = dict(others)
        if preset.precision in ("int8", "nf4") and own["quantize"] is None:
            own["quantize"] = preset.precision
        if preset.precision == "bfloat16" and own["dtype"] == "auto":
            own["dtype"] = preset.precision
        chosen.append(PresetOptions(preset.hub, **own, named=preset.model))
    return chosen


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `ModelOptions`; it gets them as its first argument."""
    return _with_options(command, str)


def takes_models(command: Callable[..., None]) -> Callable[..., None]:
    """As `takes_model`, with `--model` repeatable: the command gets a list of `ModelOptions`.

    A command with an option `preset` gets the preset's models too, and needs no `--model` then.
    """
    return _with_options(command, list[str])


def _with_options(command: Callable[..., None], kind: Any) -> Callable[..., None]:
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = [
        Parameter(
            f.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if f.default is MISSING else f.default,
            annotation=f.type,
        )
        for f in fields(ModelOptions)
    ]
    model, *rest = shared
    (option,) = get_args(model.annotation)[1:]
    if any(p.name == "preset" for p in own):
        model = model.replace(annotation=Annotated[kind | None, option], default=None)
    else:
        model = model.replace(annotation=Annotated[kind, option])
    parameters = [model, *(p.replace(kind=Parameter.KEYWORD_ONLY) for p in own), *rest]

    @wraps(command)
    def run(**values: Any) -> None:
        names, others = values.pop("model"), {p.name: values.pop(p.name) for p in rest}
        if kind is str:
            command(ModelOptions(names, **others), **values)
            return
        chosen = [ModelOptions(name, **others) for name in names or ()]
        if values.get("preset") is not None:
            chosen += _of_preset(others)
        if not chosen:
            raise typer.BadParameter("give --model, or --preset")
        command(chosen, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def quiet() -> None:
    """Leave stderr to our own progress and errors: a refusal of the hub is told once, by us."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it warns of is said by us, or refused
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    ours = logging.getLogger("tracelm")
    ours.propagate = False
    ours.handlers = [_Told()]


class _Told(logging.Handler):
    """What the library says of a model, as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(printable(f"tracelm: {record.getMessage()}"), err=True)
