"""Options of loading a model, typed once for Python, commands, Ray and the harness.

A new option is a field here, its help beside its type: `Tracer.from_pretrained` takes it
as a keyword and tells of it in its help, and the commands that run a model have it as an option.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from lastword.errors import InputError
from lastword.model.embedded import EMBEDDED
from lastword.rule.theta import Theta
from lastword.text.tokens import Chat, Overflow

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
HeadDtype = Literal["float32", "model"]
Layout = Literal["auto", "stored", "onednn"]
Quantize = Literal["int8", "nf4"]

T = TypeVar("T")

# How the embedded models are loaded: other values of these options would change nothing.
_EMBEDDED_AS: dict[str, tuple[str | None, ...]] = {
    "revision": (None,),
    "gguf": (None,),
    "device": ("auto", "cpu"),
    "dtype": ("auto", "float32"),
    "attention": ("auto", "model", "sdpa"),
    "quantize": (None,),
    "device_map": (None,),
}

# Where the model is and how it gets there: no record depends on these; a cell has the name.
_FREE = (
    *("model", "alias", "device", "device_map", "layout"),
    *("batch_tokens", "prefix_cache", "blind_cache", "allow_bin"),
)

# What other libraries call it, and what to do here.
_FOREIGN = {
    "attn_implementation": "attention is meant",
    "cache_dir": "the variable HF_HOME says where the hub's files are kept",
    "chat_template": "chat=Chat() is meant",
    "gguf_file": "gguf is meant",
    "load_in_4bit": "quantize='nf4' is meant",
    "load_in_8bit": "quantize='int8' is meant",
    "local_files_only": "the variable HF_HUB_OFFLINE=1 is meant",
    "quantization_config": "quantize is meant",
    "system": "chat=Chat(system) is meant",
    "token": "log in to the hub, or set the variable HF_TOKEN",
    "torch_dtype": "dtype is meant",
}


def strict_keywords(kind: type[T]) -> type[T]:
    """Let a misspelt keyword of the class be an `InputError` with what is meant."""
    made = kind.__init__

    @wraps(made)
    def init(self: T, *args: Any, **given: Any) -> None:
        refuse_unknown(kind.__name__, (name for name in given if name != "model"), kind)
        made(self, *args, **given)

    kind.__init__ = init  # type: ignore[assignment, method-assign]
    return kind


@strict_keywords
@dataclass(frozen=True)
class LoadOptions:
    """Which model, how it is loaded, and how it is read.

    Raises:
        InputError: An option that an embedded model does not have, or an unknown value.
    """

    model: Annotated[
        str | Path,
        "Hub name, folder of a model or of a LoRA adapter, GGUF file, or a name of our own: "
        "lastword/demo-organism is embedded, `lastword get` fetches lastword/smollm2-135m.",
    ]
    _: KW_ONLY
    alias: Annotated[
        str | None, "What records and tables call the model, in place of its own name."
    ] = None
    revision: Annotated[str | None, "Branch, tag or commit on the hub."] = None
    gguf: Annotated[
        str | None, "Name of a GGUF file in the folder, or among the model's files on the hub."
    ] = None
    device: Annotated[str, "auto, cpu, cuda, cuda:1, mps."] = "auto"
    dtype: Annotated[
        Dtype, "Of the weights; auto is the checkpoint's, and float32 for float16 on the CPU."
    ] = "auto"
    head_dtype: Annotated[HeadDtype, "Of the logits; `model` is faster and may tie candidates."] = (
        "float32"
    )
    attention: Annotated[
        str,
        "auto, model, sdpa, eager, flex_attention; with auto and model transformers chooses, and "
        "auto takes flex on a GPU where that is faster.",
    ] = "auto"
    layout: Annotated[
        Layout, "Of a float32 trunk on the CPU; auto lays it out for oneDNN where that is faster."
    ] = "auto"
    quantize: Annotated[
        Quantize | None, "Quantise the weights while loading them (bitsandbytes)."
    ] = None
    device_map: Annotated[
        str | Mapping[str, Any] | None,
        "`auto` spreads the model over all devices, the CPU and the disk (accelerate); a mapping "
        "says where each module goes.",
    ] = None
    batch_tokens: Annotated[
        int | None,
        "Most distinct tokens of one batch; as memory allows if left out, and in a service on a "
        "CPU 1,024 at most.",
    ] = None
    prefix_cache: Annotated[
        int,
        "MiB that keep what comes back at the beginning of prompts, such as a system prompt or a "
        "text, and what probes read of a text: computed once; 0 keeps nothing.",
    ] = 256
    blind_cache: Annotated[
        int,
        "MiB that keep what candidates score without the input, which corrections that read the "
        "question take off: an option of a frame is read once; 0 keeps nothing.",
    ] = 16
    theta: Annotated[Theta | None, "Constants and switches of the method."] = None
    invariant: Annotated[float | None, "I(M), for a model that has none of its own."] = None
    chat: Annotated[Chat | None, "Put prompts into the tokenizer's template."] = None
    overflow: Annotated[Overflow, "What to do with a prompt longer than the model's context."] = (
        "error"
    )
    allow_bin: Annotated[bool, "Read pytorch_model.bin, as weights only."] = False
    trust_remote_code: Annotated[bool, "Run code that the checkpoint brings."] = False

    def __post_init__(self) -> None:
        """Refuse options that would change nothing."""
        if self.layout not in get_args(Layout):
            raise InputError(f"no layout {self.layout!r}: it has {', '.join(get_args(Layout))}")
        for name, values in _EMBEDDED_AS.items() if self.embedded else ():
            if getattr(self, name) not in values:
                raise InputError(f"the embedded models run in float32 on the CPU: leave {name} out")

    def facts(self) -> dict[str, Any]:
        """Return the options that a record depends on, as plain JSON values."""
        facts = {f.name: getattr(self, f.name) for f in fields(LoadOptions) if f.name not in _FREE}
        facts["theta"] = (self.theta or Theta()).to_dict()
        facts["chat"] = None if self.chat is None else asdict(self.chat)
        return facts

    @property
    def name(self) -> str:
        """Return the model as text."""
        return str(self.model)

    @property
    def label(self) -> str:
        """Name the model as messages do: by the file, if it is one of a folder's or a hub's."""
        return self.name if self.gguf is None else f"{self.name.rstrip('/')}/{self.gguf}"

    def names(self, own: str) -> dict[str, str]:
        """Return the model's name in a record: the alias with its own beside it, or its own."""
        return {"model": own} if self.alias is None else {"model": self.alias, "path": own}

    @property
    def embedded(self) -> str | None:
        """Return which of the embedded models is meant; None where it is none."""
        return self.name.removeprefix(EMBEDDED) if self.name.startswith(EMBEDDED) else None


def helps(kind: type) -> dict[str, str]:
    """Return the help of each field of a dataclass: the text beside its type, by its name."""
    marks = {f.name: get_args(f.type)[1:] for f in fields(kind)}
    return {name: mark for name, some in marks.items() for mark in some if isinstance(mark, str)}


def refuse_unknown(function: str, names: Iterable[str], kind: type[Any] | None = None) -> None:
    """Refuse a keyword that is not an option, before anything is loaded.

    Raises:
        InputError: The keyword, with the option that is meant if one is near.
    """
    options = [f.name for f in fields(kind or LoadOptions)][1:]
    for name in names:
        if name in options:
            continue
        near = difflib.get_close_matches(name, options, n=1)
        advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}"
        raise InputError(f"{function} has no option {name}: {_FOREIGN.get(name, advice)}")
