"""Options of loading a model, for Python, commands, Ray and lm-evaluation-harness."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from annotated_types import Ge

from lastword.errors import InputError
from lastword.model.embedded import EMBEDDED
from lastword.text.tokenizer import Overflow

if TYPE_CHECKING:
    from lastword.rule.theta import Theta
    from lastword.text.chat import Chat

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
HeadDtype = Literal["float32", "model"]
Quantize = Literal["int8", "nf4"]

# Options that the embedded models lack, with the values that change nothing.
_NOT_EMBEDDED: dict[str, tuple[str | None, ...]] = {
    **{"device": ("auto", "cpu"), "dtype": ("auto", "float32"), "attention": ("auto", "sdpa")},
    **dict.fromkeys(("revision", "gguf", "quantize", "device_map"), (None,)),
}

# Options that do not affect records.
_WITHOUT_EFFECT = "model alias device device_map batch_tokens prefix_cache allow_bin".split()


@dataclass(frozen=True)
class LoadOptions:
    """Options of loading and reading a model.

    Attributes:
        model: Hub name, folder of a model or of a LoRA adapter, GGUF file, or a name of lastword:
            lastword/demo-organism is embedded, `lastword get` downloads lastword/smollm2-135m.
        alias: Name of the model in records and tables, instead of its name or path.
        revision: Branch, tag or commit on the hub.
        gguf: Name of a GGUF file in the folder, or among the model's files on the hub.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        dtype: Data type of the weights. `auto` keeps the checkpoint's, but uses float32 instead of
            float16 on the CPU.
        head_dtype: Data type of the logits; `model` is faster, but may give equal scores.
        attention: `auto` leaves the choice to transformers; `sdpa` and `eager` force one.
        quantize: Quantise the weights while loading them (bitsandbytes).
        device_map: `auto` spreads the model over all devices, the CPU and the disk (accelerate); a
            mapping places each module.
        batch_tokens: Maximum number of distinct tokens in a batch. Default: as memory allows, and
            at most 1,024 in a service on a CPU.
        prefix_cache: MiB for repeated beginnings of prompts (a system prompt, a text); 0 stores
            nothing. Default: 256, but 0 in evaluations, and 144 in a service on a CPU.
        theta: Constants and switches of the method.
        invariant: I(M), for a model from which it cannot be computed.
        chat: Put prompts into the tokenizer's chat template.
        overflow: What to do with a prompt that is longer than the model's context.
        allow_bin: Read pytorch_model.bin, as weights only.
        trust_remote_code: Run Python code from the checkpoint.

    Raises:
        InputError: An option that an embedded model does not have, or an unknown value.
    """

    model: str | Path
    _: KW_ONLY
    alias: str | None = None
    revision: str | None = None
    gguf: str | None = None
    device: str = "auto"
    dtype: Dtype = "auto"
    head_dtype: HeadDtype = "float32"
    attention: str = "auto"
    quantize: Quantize | None = None
    device_map: str | Mapping[str, object] | None = None
    batch_tokens: Annotated[int, Ge(1)] | None = None
    prefix_cache: Annotated[int, Ge(0)] | None = None
    theta: "Theta | None" = None
    invariant: float | None = None
    chat: "Chat | None" = None
    overflow: Overflow = "error"
    allow_bin: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown values, and options that would have no effect."""
        if not re.match(r"(auto|sdpa|eager)$|flash_attention_|.*/", self.attention):
            raise InputError(
                f"unknown attention {self.attention!r:.40}: expected auto, sdpa, eager or, where "
                "it is installed, flash_attention_2"
            )
        if self.dtype not in get_args(Dtype):
            expected = ", ".join(get_args(Dtype))
            raise InputError(f"unknown dtype {self.dtype!r:.40}: expected {expected}")
        for name, values in _NOT_EMBEDDED.items() if self.embedded else ():
            if getattr(self, name) not in values:
                raise InputError(f"the embedded models run in float32 on the CPU: leave {name} out")

    def facts(self) -> dict[str, Any]:
        """Return the options that affect records, as plain JSON values."""
        from lastword.rule.theta import Theta

        names = (f.name for f in fields(LoadOptions) if f.name not in _WITHOUT_EFFECT)
        theta, chat = self.theta or Theta(), self.chat
        own = {"theta": theta.to_dict(), "chat": None if chat is None else asdict(chat)}
        return {name: getattr(self, name) for name in names} | own

    @property
    def name(self) -> str:
        """The model as text."""
        return str(self.model)

    @property
    def label(self) -> str:
        """The model's name in messages, with the GGUF file if there is one."""
        return self.name if self.gguf is None else f"{self.name.rstrip('/')}/{self.gguf}"

    def names(self, name: str) -> dict[str, str | None]:
        """Return the model's name for a record, or its alias and the name as path."""
        return {"model": name} if self.alias is None else {"model": self.alias, "path": name}

    @property
    def embedded(self) -> str | None:
        """The name of an embedded model without its prefix; None for other models."""
        return self.name.removeprefix(EMBEDDED) if self.name.startswith(EMBEDDED) else None


def refuse_unknown(function: str, names: Iterable[str], kind: type | None = None) -> None:
    """Refuse a keyword that is not an option, and suggest a similar one."""
    options = [f.name for f in fields(kind or LoadOptions)][1:]  # without `model`
    for name in (name for name in names if name not in options):
        near = difflib.get_close_matches(name, options, n=1)
        advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}"
        raise InputError(f"{function} has no option {name}: {advice}")
