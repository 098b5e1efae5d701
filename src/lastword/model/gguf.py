"""A GGUF file -> a transformers model and its tokenizer.

transformers dequantises the weights, but silently ignores parts of a file. This module sets the
ignored keys (`_IGNORED`) in the config, and llama.cpp's rotary factors in the model. It refuses
files with other contents that transformers does not read.
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
from lastword.text.tokenizer import Tokenizer

# Keys of a header that transformers ignores, with their names in the config.
_IGNORED = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "context_length": "n_positions",
}
# Gemma's largest models scale attention by hidden size / heads instead of the size of a head. The
# header does not say so; llama.cpp's loader recognises them by the number of blocks too.
_SHARED_SCALE = {("gemma2", 46), ("gemma3", 62)}
_ROTARY_FACTORS = "rope_freqs.weight"
_LONG_FACTORS = "rope_factors_long.weight"
_GATE_AND_UP = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj")
_PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
_LOADING = threading.Lock()  # `read_once` replaces functions in modules of other packages


def find(options: LoadOptions) -> LoadOptions | None:
    """Return the options with the folder or hub name, and file, of a GGUF model; else None.

    Raises:
        CheckpointError: There is no such file.
        InputError: An unknown name that begins with `lastword/`.
        ModelError: The model has to be downloaded with `lastword get`, or is a sentence encoder.
    """
    path = Path(options.name).expanduser()
    if options.gguf is not None:
        if not path.is_dir():
            return options
        path /= options.gguf
    elif options.name.startswith(named.PREFIX):
        if named.entry(options.name).zipped:
            raise ModelError(f"{options.name} is a sentence encoder: name it as a reader")
        path = named.locate(options.name)
    elif not is_gguf(path) or path.is_dir():
        return None
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: check its name")
    return replace(options, model=str(path.parent), gguf=path.name)


def open_checkpoint(base: LoadOptions) -> GgufCheckpoint:
    """Read the header of a file, and refuse a file that cannot be loaded.

    Raises:
        ModelError: The file is damaged, or an option does not apply to it.
        UnsupportedModelError: transformers does not support its architecture or positions.
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
    _require_supported(header)
    return checkpoint


def _require_supported(header: Header) -> None:
    from transformers.integrations.gguf.gguf_conversion_mapping import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    kind = header.architecture
    architectures = {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_ARCHS, *ARCHITECTURES}
    architectures -= {"general", "tokenizer"}  # sections of a header
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
    count = header.values.get("tokenizer.ggml.tokens")
    for key in (f"tokenizer.ggml.{kind}_token_id" for kind in ("bos", "eos", "unknown")):
        token = header.values.get(key, 0)
        if isinstance(count, int) and not (isinstance(token, int) and 0 <= token < count):
            raise CheckpointError(
                f"{header.label} is damaged: {key} is {token}, and it has {count} tokens"
            )


def path_of(base: LoadOptions) -> Path:
    """Return the path of a file on disk."""
    assert base.gguf is not None
    return Path(base.name) / base.gguf


def download(base: LoadOptions) -> LoadOptions:
    """Return the options with the downloaded file and its commit.

    Raises:
        CheckpointError: The file cannot be downloaded.
    """
    assert base.gguf is not None
    if Path(base.name).is_dir():
        return base
    path, commit = hub.download(base.name, base.gguf, base.revision)
    return replace(base, model=path.parent, gguf=path.name, revision=commit)


def read_config(path: Path, header: Header) -> Any:
    """Return transformers' config of a file, with the keys that it ignores."""
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    if header.architecture not in ARCHITECTURES:
        return config
    for key, name in _IGNORED.items():
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
    """Return the default dtype of a file's weights: float32 if they are quantised."""
    return _PLAIN.get(header.quantisation, torch.float32)


def arguments(path: Path) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a file, with all weights dequantised."""
    from transformers import GgufConfig, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    # transformers can switch its own progress bars off, but not the one of this module.
    modeling_gguf_pytorch_utils.tqdm = logging.tqdm
    return {
        "gguf_file": path.name,
        "quantization_config": GgufConfig(dequantize=True),
        "ignore_mismatched_sizes": True,  # reported as `mismatched_keys`, and refused
    }


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Make transformers read a file only once while it loads a model; one model at a time.

    Without this, the first load of SmolLM2's file takes four times as long. transformers reads the
    file for the config and again for the weights. It makes the map of tensor names once per module,
    and it slices a memory map per string, which takes three times as long as slicing an array.
    """
    import gguf
    from transformers.integrations.gguf import reader

    original: Any = gguf.GGUFReader
    mapped: Any = reader._mapped

    def array_reader(path: str) -> Any:
        class Reader(original):  # type: ignore[misc]
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, np.asarray(value) if name == "data" else value)

        return Reader(path)

    with (
        _LOADING,
        _replaced(gguf, "GGUFReader", cache(array_reader)),
        _replaced(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        _replaced(reader, "_mapped", lambda path: np.asarray(mapped(path))),
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
    """Refuse a file with tensors that the model lacks, and scale its positions as llama.cpp does.

    Raises:
        UnsupportedModelError: transformers did not read some tensors of the file.
    """
    header = checkpoint.header
    if header.architecture not in ARCHITECTURES:
        return
    names = _stored_names(model, header) | {_ROTARY_FACTORS}
    if left := sorted({*header.tensors} - names - {f"{name}.weight" for name in names}):
        raise UnsupportedModelError(
            f"{header.label} holds {counted(len(left), 'tensor')} that transformers does not read "
            f"from GGUF ({', '.join(left[:3])}): take the model's safetensors"
        )
    _scale_rotary(model, checkpoint)


def _stored_names(model: PreTrainedModel, header: Header) -> set[str]:
    """Return llama.cpp's names of the model's tensors; for experts without `.weight`."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == header.architecture)
    names = get_tensor_name_map(kind, header.number("block_count") or 0)
    stored_names = set()
    for name in model.state_dict():
        if match := _GATE_AND_UP.fullmatch(name):  # one tensor in the model, two in the file
            stored_names |= {f"blk.{match[1]}.ffn_{part}_exps" for part in ("gate", "up")}
            continue
        module = name.removesuffix(".weight").removesuffix(".bias")
        stored = names.get_name(module) or names.get_name(module.removeprefix("transformer."))
        stored_names.add(f"{stored}{name.removeprefix(module)}")
    return stored_names


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
        CheckpointError: It has no merges, or an unknown rule for splitting text.
    """
    require_merges(header)
    fast: Any = PreTrainedTokenizerFast
    tokenizer: Tokenizer = fast.from_pretrained(str(path.parent), gguf_file=path.name)
    settle_splitter(tokenizer, header)
    return tokenizer


def describe(path: Path, header: Header) -> dict[str, str]:
    """Return the file's name, SHA-256 and quantisation for the record."""
    kind = header.quantisation
    quantisation = kind if kind in ("F32", "F16", "BF16") else f"{kind} (GGUF), dequantised"
    return {"gguf": path.name, "gguf_sha256": file_digest(path), "quantisation": quantisation}
