"""The checkpoint for vLLM: unchanged, or converted to a plain one if vLLM cannot read it."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import AutoConfig

from lastword.engines.vllm.settings import VllmSettings
from lastword.errors import InputError
from lastword.model import gguf, loading, memory
from lastword.model.loaded import invariant_of
from lastword.model.options import LoadOptions
from lastword.model.parts import context_length
from lastword.model.reading import dtype_name
from lastword.model.weights.invariant import Factors, read_invariant
from lastword.rule.theta import Theta
from lastword.text.tokenizer import Tokenizer

REFERENCE_BYTES = 2**30  # checkpoints up to this size are also loaded here, for the check

# Options that apply only to models run by transformers.
_LOCAL = {"device": "auto", "attention": "auto", "quantize": None, "device_map": None}


@dataclass(frozen=True)
class VllmCheckpoint:
    """A checkpoint that vLLM can load, with properties that are known before loading.

    Attributes:
        dtype: Data type of the weights, unless vLLM's device needs another.
        config: transformers' config.
        invariant: I(M), with its factors if they were read.
        small: True if it may be loaded here too.
        folder: Folder of the converted checkpoint; None if it was not converted.
        source: Origin of a converted checkpoint in `run.json`: name and digest of file or base.
    """

    name: str
    revision: str | None
    dtype: torch.dtype
    config: Any
    tokenizer: Tokenizer
    invariant: Factors | float
    small: bool
    folder: "tempfile.TemporaryDirectory[str] | None" = None
    source: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, options: LoadOptions, settings: VllmSettings) -> dict[str, Any]:
        """Return the keyword arguments for `vllm.LLM`."""
        context = context_length(self.config)
        head = {"hf_overrides": {"head_dtype": "float32"}}
        return {
            # One more than the context, because vLLM counts the token that it samples.
            **({} if context is None else {"max_model_len": context + 1}),
            **(head if options.head_dtype == "float32" else {}),
            **settings.options,
            "model": self.name,
            "revision": self.revision,
            "dtype": dtype_name(self.dtype),
            "tensor_parallel_size": settings.tensor_parallel,
            "trust_remote_code": options.trust_remote_code,
        }


def find(options: LoadOptions) -> VllmCheckpoint:
    """Return the checkpoint of the options.

    Raises:
        InputError: An option applies only to transformers.
        ModelError: The checkpoint is missing or unreadable.
    """
    for name, default in _LOCAL.items():
        if getattr(options, name) != default:
            raise InputError(
                f"{name} is an option of transformers, and vLLM runs the model: leave it out; "
                "arguments of vLLM go into --engine-options"
            )
    if options.embedded is None and gguf.find(options) is None:
        base, adapter = loading.parts_of(options)
        if adapter is None:
            return _as_it_is(options, loading.pinned(base))
    return _dense_copy(options)


def _as_it_is(options: LoadOptions, base: LoadOptions) -> VllmCheckpoint:
    """Return a checkpoint that vLLM reads unchanged; only the weights for I(M) are read here."""
    with loading.in_one_line(base):
        config = AutoConfig.from_pretrained(
            base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
        )
    dtype = loading.stored_dtype(config) if base.dtype == "auto" else getattr(torch, base.dtype)
    tensors = loading.open_checkpoint(base)
    weights = None if tensors is None else memory.weights_of(tensors, memory.Storage(dtype))
    plain = getattr(config, "quantization_config", None) is None
    invariant: Factors | float | None = options.invariant
    if invariant is None:
        theta = options.theta or Theta()
        invariant = read_invariant(base.name, theta=theta, revision=base.revision)
    return VllmCheckpoint(
        name=base.name,
        revision=base.revision,
        dtype=dtype,
        config=config,
        tokenizer=loading.load_tokenizer(options),
        invariant=invariant,
        small=plain and weights is not None and weights <= REFERENCE_BYTES,
    )


def _dense_copy(options: LoadOptions) -> VllmCheckpoint:
    """Load an embedded model, a GGUF file or an adapter, and write it as a dense checkpoint."""
    original = loading.load(replace(options, device="cpu"))
    invariant = invariant_of(original, options)
    folder = tempfile.TemporaryDirectory(prefix="lastword-dense-")
    original.model.save_pretrained(folder.name)
    weights = sum(p.numel() * p.element_size() for p in original.model.parameters())
    return VllmCheckpoint(
        name=folder.name,
        revision=None,
        dtype=original.model.dtype,
        config=original.model.config,
        tokenizer=original.tokenizer,
        invariant=invariant,
        small=weights <= REFERENCE_BYTES,
        folder=folder,
        source=original.source,
    )
