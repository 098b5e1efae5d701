"""A GGUF file -> a transformers model and its tokenizer, both made of that file alone.

transformers dequantises the weights. What it would leave out without a word is handled here: the
keys of `_LEFT_OUT` are put into its config, llama.cpp's rotary factors into the model, and a file
that holds anything else that it does not read is refused.
"""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from lastword.errors import CheckpointError, ModelError, UnsupportedModelError
from lastword.files.wording import counted
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.model.splitters import require_merges, settle_splitter
from lastword.model.weights import hub
from lastword.model.weights.gguf import ARCHITECTURES, GgufCheckpoint, Header, is_gguf, open_file
from lastword.model.weights.identity import file_digest
from lastword.text.tokens import Tokenizer

# What a header says and transformers' reader does not take over, by the config's names.
_LEFT_OUT = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "context_length": "n_positions",
}
# Gemma's largest models divide scores by the width of an even share, not of a head (llama.cpp's
# loader tells them by their number of blocks too: the header does not say).
_SHARED_SCALE = {("gemma2", 46), ("gemma3", 62)}
_ROTARY_FACTORS = "rope_freqs.weight"
_LONG_FACTORS = "rope_factors_long.weight"
_GATE_AND_UP = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj")
_PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
_LOADING = threading.Lock()


def find(options: LoadOptions) -> LoadOptions | None:
    """Return the options with a folder or hub name and a file in it; None if no GGUF file is meant.

    Raises:
        CheckpointError: There is no such file.
        InputError: An unknown name that begins with `lastword/`.
        ModelError: A model that lastword can fetch was not fetched, or is a sentence encoder.
    """
    path = Path(options.name).expanduser()
    if options.gguf is not None:
        if not path.is_dir():
            return options
        path /= options.gguf
    elif options.name.startswith(named.OWN):
        if named.entry(options.name).zipped:
            raise ModelError(f"{options.name} is a sentence encoder: name it as a reader")
        path = named.locate(options.name)
    elif not is_gguf(path) or path.is_dir():
        return None
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: check its name")
    return replace(options, model=str(path.parent), gguf=path.name)


def open_checkpoint(base: LoadOptions) -> GgufCheckpoint:
    """Read a file's header; refuse what cannot be loaded before anything else of it is read.

    Raises:
        ModelError: The file cannot be used, or an option that it does not go with was given.
        UnsupportedModelError: transformers does not read its architecture, or not all of it.
    """
    assert base.gguf is not None
    if Path(base.name).is_dir():
        checkpoint = open_file(path_of(base))
    else:
        checkpoint = hub.open_gguf(base.name, base.gguf, base.revision)
    header = checkpoint.header
    if base.quantize is not None:
        raise ModelError(
            f"{header.label} is quantised already ({header.quantisation}): leave quantize out"
        )
    _refuse_unread(header)
    return checkpoint


def _refuse_unread(header: Header) -> None:
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    kind = header.architecture
    architectures = {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_ARCHS, *ARCHITECTURES} - {
        "general",
        "tokenizer",
    }
    if not architectures & {kind, kind.replace("-", "_"), kind.replace("moe", "_moe")}:
        raise UnsupportedModelError(
            f"{header.label} has architecture {kind}, which transformers does not read from GGUF: "
            "take the model's safetensors"
        )
    scaling = header.values.get(f"{kind}.rope.scaling.type", "none")
    if _LONG_FACTORS in header.tensors or scaling != "none" and kind != "gpt-oss":
        raise UnsupportedModelError(
            f"{header.label} scales its positions ({scaling}), which transformers does not read "
            "from GGUF: take the model's safetensors"
        )


def path_of(base: LoadOptions) -> Path:
    """Return the path of a file that is on disk."""
    assert base.gguf is not None
    return Path(base.name) / base.gguf


def download(base: LoadOptions) -> LoadOptions:
    """Return the options with the file on disk, of the commit that they name then.

    Raises:
        CheckpointError: It cannot be downloaded.
    """
    assert base.gguf is not None
    if Path(base.name).is_dir():
        return base
    path, commit = hub.download(base.name, base.gguf, base.revision)
    return replace(base, model=path.parent, gguf=path.name, revision=commit)


def read_config(path: Path, header: Header) -> Any:
    """Return transformers' config of a file, with what its reader leaves out."""
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    if header.architecture not in ARCHITECTURES:
        return config
    for key, name in _LEFT_OUT.items():
        if (value := header.number(key)) is not None and hasattr(config, name):
            setattr(config, name, value)
    rotary = getattr(config, "rope_parameters", None) or {}
    base = header.values.get(f"{header.architecture}.rope.freq_base")
    if base is not None and "rope_theta" in rotary:
        rotary["rope_theta"] = base
    if (header.architecture, config.num_hidden_layers) in _SHARED_SCALE:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    return config


def dtype_of(header: Header) -> torch.dtype:
    """Return the dtype where none is asked for: of quantised weights float32."""
    return _PLAIN.get(header.quantisation, torch.float32)


def choices(path: Path) -> dict[str, Any]:
    """Return the options by which transformers loads the file, every weight dequantised."""
    from transformers import GgufConfig, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    # The reader's bar is out of reach of transformers' switch; this one obeys it.
    modeling_gguf_pytorch_utils.tqdm = logging.tqdm
    return {
        "gguf_file": path.name,
        "quantization_config": GgufConfig(dequantize=True),
        "ignore_mismatched_sizes": True,  # they are told, and refused
    }


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Let transformers read a file on disk once while it loads a model; one model at a time.

    It opens the file for the config and again for the weights, and makes the map of tensor names
    anew for each module of the model.
    """
    import gguf
    from transformers.integrations.gguf import reader

    own_reader: Any = gguf.GGUFReader
    opened: Any = reader._mapped

    def plain_reader(path: str) -> Any:
        class Reader(own_reader):  # type: ignore[misc]
            """A reader of plain arrays: slices of a memory map take three times as long."""

            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, np.asarray(value) if name == "data" else value)

        return Reader(path)

    with (
        _LOADING,
        _replaced(gguf, "GGUFReader", cache(plain_reader)),
        _replaced(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        _replaced(reader, "_mapped", lambda path: np.asarray(opened(path))),
    ):
        yield


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def settle(model: PreTrainedModel, checkpoint: GgufCheckpoint) -> None:
    """Hold what transformers loaded to the file: nothing left out, positions as llama.cpp has them.

    Raises:
        UnsupportedModelError: The file holds tensors that transformers left out.
    """
    header = checkpoint.header
    if header.architecture not in ARCHITECTURES:
        return
    names = _places(model, header) | {_ROTARY_FACTORS}
    if left := sorted({*header.tensors} - names - {f"{name}.weight" for name in names}):
        raise UnsupportedModelError(
            f"{header.label} holds {counted(len(left), 'tensor')} that transformers does not read "
            f"from GGUF ({', '.join(left[:3])}): take the model's safetensors"
        )
    _scale_rotary(model, checkpoint)


def _places(model: PreTrainedModel, header: Header) -> set[str]:
    """Return llama.cpp's names of all that the model has; of experts without `.weight`."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == header.architecture)
    names = get_tensor_name_map(kind, header.number("block_count") or 0)
    places = set()
    for name in model.state_dict():
        if match := _GATE_AND_UP.fullmatch(name):
            places |= {f"blk.{match[1]}.ffn_{part}_exps" for part in ("gate", "up")}
            continue
        module = name.removesuffix(".weight").removesuffix(".bias")
        stored = names.get_name(module) or names.get_name(module.removeprefix("transformer."))
        places.add(f"{stored}{name.removeprefix(module)}")
    return places


def _scale_rotary(model: PreTrainedModel, checkpoint: GgufCheckpoint) -> None:
    """Divide the rotary frequencies by the file's factors, as llama.cpp does (Llama 3.1)."""
    if _ROTARY_FACTORS not in checkpoint.header.tensors:
        return
    factors = checkpoint.read_stored(_ROTARY_FACTORS)
    decoder: Any = model.get_decoder()
    rotary = decoder.rotary_emb
    if factors.shape != rotary.inv_freq.shape:
        raise UnsupportedModelError(
            f"{checkpoint.label} has {len(factors)} rotary factors for {len(rotary.inv_freq)} "
            "frequencies: take the model's safetensors"
        )
    for name in ("inv_freq", "original_inv_freq"):
        getattr(rotary, name).div_(factors.to(rotary.inv_freq.device))


def read_tokenizer(path: Path, header: Header) -> Tokenizer:
    """Return the tokenizer and chat template of a file.

    Raises:
        CheckpointError: It has no merges, or splits its text in a way that is not known here.
    """
    require_merges(header)
    whole: Any = PreTrainedTokenizerFast
    tokenizer: Tokenizer = whole.from_pretrained(str(path.parent), gguf_file=path.name)
    settle_splitter(tokenizer, header)
    return tokenizer


def describe(path: Path, header: Header) -> dict[str, str]:
    """Return what a record keeps of the file: its name, how it is quantised, and its SHA-256."""
    kind = header.quantisation
    quantisation = kind if kind in ("F32", "F16", "BF16") else f"{kind} (GGUF), dequantised"
    return {"gguf": path.name, "gguf_sha256": file_digest(path), "quantisation": quantisation}
