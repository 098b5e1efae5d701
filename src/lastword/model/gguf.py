"""GGUF files: each is converted once into a folder that is loaded like any other checkpoint.

transformers dequantises the weights, but silently ignores parts of a file. This module puts the
ignored keys (`_IGNORED`) and llama.cpp's rotary factors into the config, and splits text as
llama.cpp does. It refuses files with other contents that transformers does not read.
"""

import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from lastword.errors import CheckpointError, ModelError, UnsupportedModelError
from lastword.files.wording import counted
from lastword.model import memory, named
from lastword.model.options import LoadOptions
from lastword.model.weights import hub
from lastword.model.weights.identity import cache_folder, file_digest, text_digest
from lastword.model.whole import require_whole

# Families whose logits were compared with the original, in files as llama.cpp's converter writes.
ARCHITECTURES = frozenset(
    "bloom gemma2 gemma3 gpt2 llama nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe stablelm "
    "starcoder2".split()
)
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
_MERGES = "tokenizer.ggml.merges"
_LONG_FACTORS = "rope_factors_long.weight"
_GATE_AND_UP = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj")
_MALFORMED = (struct.error, ValueError, TypeError, ArithmeticError, LookupError, MemoryError)
_FACTS = "gguf.json"  # in a converted folder: what the record says about the file
_FORMAT = 3  # raise it if the contents of converted folders change

# Rules for splitting text before the merges apply, by the name in the file. Names and expressions
# are those of llama.cpp (`llm_tokenizer_bpe` in src/llama-vocab.cpp); each expression splits the
# pieces of the one before it. transformers would use GPT-2's rule for the names that it lacks.
_PRE = "tokenizer.ggml.pre"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RULES = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "stablelm2": (_QWEN2,),
}


@dataclass(frozen=True)
class Header:
    """The header of a file."""

    path: Path
    values: dict[str, Any]  # metadata; for an array of strings, their number
    # Shape, type, first byte and number of bytes of each tensor, by llama.cpp's name.
    tensors: dict[str, tuple[tuple[int, ...], str, int, int]]
    dtype: torch.dtype

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model's family."""
        return str(self.values["general.architecture"])

    @property
    def quantisation(self) -> str:
        """The type of most values, such as `Q4_1`."""
        counts: Counter[str] = Counter()
        for shape, kind, *_ in self.tensors.values():
            counts[kind] += math.prod(shape)
        return counts.most_common(1)[0][0] if counts else "none"

    def number(self, key: str) -> int | None:
        """Return the number of a key of the architecture; of a list over blocks, the largest."""
        value = self.values.get(f"{self.architecture}.{key}")
        value = max(value, default=None) if isinstance(value, list) else value
        return value if isinstance(value, int) else None


def read_header(path: Path) -> Header:
    """Return the header of a file; a CheckpointError if it is not GGUF, or damaged."""
    from gguf import GGMLQuantizationType
    from transformers.integrations.gguf.reader import GgufHeader, read_gguf_metadata

    try:
        table = GgufHeader.from_file(str(path))
        values, _ = read_gguf_metadata(str(path))
        tensors = {}
        for t in table.tensors:
            kind, start = GGMLQuantizationType(t.ggml_type).name, table.data_start + t.offset
            tensors[t.name] = (t.shape, kind, start, t.nbytes)
        stop = max((start + size for *_, start, size in tensors.values()), default=0)
    except _MALFORMED as error:
        raise CheckpointError(f"{path} has no readable GGUF header: {error!r:.200}") from error
    if path.stat().st_size < stop:
        raise CheckpointError(
            f"{path} is cut short: its header expects {stop} bytes; get the file again"
        )
    return Header(path, values, tensors, table.dtype or torch.float32)


def convert(options: LoadOptions) -> tuple[LoadOptions, dict[str, str | None]] | None:
    """Return the options with the folder of their GGUF file, converted if need be, as the model.

    Beside them are the file's name, commit, SHA-256 and quantisation. None for other models.
    """
    path, commit = Path(options.name).expanduser(), None
    if options.gguf is not None and not path.is_dir():
        path, commit = hub.download(options.name, options.gguf, options.revision)
    elif options.gguf is not None:
        path /= options.gguf
    elif options.name.startswith(named.PREFIX):
        if named.entry(options.name).zipped:
            raise ModelError(f"{options.name} is a sentence encoder: name it as a reader")
        path = named.locate(options.name)
    elif path.suffix.lower() != ".gguf" or path.is_dir():
        return None
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: check its name")
    if absent := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise ModelError(f'{path} needs {" and ".join(absent)}: pip install "lastword[gguf]"')
    versions = f"{_FORMAT} {version('gguf')} {version('transformers')}"
    place = cache_folder() / "gguf" / f"{file_digest(path)[:32]}-{text_digest(versions)[:8]}"
    if not place.is_dir():
        _convert(read_header(path), place)
    facts = json.loads((place / _FACTS).read_text(encoding="utf-8"))
    folder = replace(options, model=place, gguf=None, revision=None)
    return folder, {"gguf": path.name, "revision": commit, **facts}


def _convert(header: Header, place: Path) -> None:
    """Write the dequantised model and its tokenizer into a folder, which appears whole."""
    path, kind = header.path, header.quantisation
    _require_supported(header)
    values = sum(math.prod(shape) for shape, *_ in header.tensors.values())
    memory.refuse_too_large(str(path), values * header.dtype.itemsize, torch.device("cpu"))
    model = _dequantise(header)
    plain = kind in ("F32", "F16", "BF16")
    facts = {
        "gguf_sha256": file_digest(path),
        "quantisation": kind if plain else f"{kind} (GGUF), dequantised",
    }
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name)
    settle_splitter(tokenizer, header.values, str(path))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=place.parent, prefix=".", ignore_cleanup_errors=True) as draft:
            model.save_pretrained(draft)
            tokenizer.save_pretrained(draft)
            (Path(draft) / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
            for file in Path(draft).iterdir():
                with file.open("rb") as written:  # written to disk before the rename
                    os.fsync(written.fileno())
            if not place.exists():  # another process may have converted the same file
                Path(draft).rename(place)
    except OSError as error:
        raise ModelError(
            f"the dequantised weights of {path} cannot be written to {place.parent}: {error}; set "
            "LASTWORD_CACHE to another folder"
        ) from error


def _require_supported(header: Header) -> None:
    kind = header.architecture
    scaling = header.values.get(f"{kind}.rope.scaling.type", "none")
    why = None
    if kind not in ARCHITECTURES:
        why = f"has architecture {kind}, which is not read from GGUF here"
    elif _LONG_FACTORS in header.tensors or scaling != "none":
        why = f"scales its positions ({scaling}), which transformers does not read from GGUF"
    elif _is_bpe(header.values) and _MERGES not in header.values:
        why = f"has no {_MERGES}, without which its text cannot be split into tokens"
    if why is not None:
        raise UnsupportedModelError(f"{header.path} {why}: take the model's safetensors")


def _dequantise(header: Header) -> PreTrainedModel:
    from transformers import GgufConfig, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    # transformers can switch its own progress bars off, but not the one of this module.
    modeling_gguf_pytorch_utils.tqdm = logging.tqdm
    path, auto = header.path, cast(Any, AutoModelForCausalLM)
    model, info = auto.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        config=_read_config(header),
        dtype=header.dtype,
        quantization_config=GgufConfig(dequantize=True),
        ignore_mismatched_sizes=True,  # reported as `mismatched_keys`, and refused
        output_loading_info=True,
    )
    require_whole(str(path), model, info)
    _require_read(model, header)
    _scale_rotary(model.config, header)
    return cast(PreTrainedModel, model)


def _read_config(header: Header) -> PretrainedConfig:
    path = header.path
    config: PretrainedConfig = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
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


def _require_read(model: PreTrainedModel, header: Header) -> None:
    """Refuse a file with tensors that transformers did not read."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == header.architecture)
    names = get_tensor_name_map(kind, header.number("block_count") or 0)
    read = {_ROTARY_FACTORS}  # by llama.cpp's names; of experts without `.weight`
    for name in model.state_dict():
        module = name.removesuffix(".weight").removesuffix(".bias")
        path = names.get_name(module) or names.get_name(module.removeprefix("transformer."))
        read.add(f"{path}{name.removeprefix(module)}")
        if match := _GATE_AND_UP.fullmatch(name):  # one tensor in the model, two in the file
            read |= {f"blk.{match[1]}.ffn_{part}_exps" for part in ("gate", "up")}
    if left := sorted({*header.tensors} - read - {f"{name}.weight" for name in read}):
        raise UnsupportedModelError(
            f"{header.path} holds {counted(len(left), 'tensor')} that transformers does not read "
            f"from GGUF ({', '.join(left[:3])}): take the model's safetensors"
        )


def _scale_rotary(config: PretrainedConfig, header: Header) -> None:
    """Divide the rotary frequencies by the file's factors, as llama.cpp does (Llama 3.1)."""
    if _ROTARY_FACTORS not in header.tensors:
        return
    _, kind, start, size = header.tensors[_ROTARY_FACTORS]
    with header.path.open("rb") as file:
        file.seek(start)
        factors = np.frombuffer(file.read(size), np.float32).tolist() if kind == "F32" else []
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if len(factors) != head // 2:
        raise UnsupportedModelError(
            f"{header.path} has {len(factors)} rotary factors for {head // 2} frequencies: take "
            "the model's safetensors"
        )
    # Longrope divides by one list of factors within the original context, and by another beyond.
    config.rope_parameters |= {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
    }


def _is_bpe(values: Mapping[str, object]) -> bool:
    return values.get("tokenizer.ggml.model") == "gpt2"


def settle_splitter(
    tokenizer: PreTrainedTokenizerFast, values: Mapping[str, object], label: str
) -> None:
    """Make a tokenizer split text as llama.cpp does for a file with this metadata."""
    if not _is_bpe(values):
        return
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name = values.get(_PRE)
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if (rules := _RULES.get(str(name))) is None:
        rule = f"as {name!r:.60}, which is not known here" if name else "by a rule that it omits"
        raise CheckpointError(
            f"{label} splits its text {rule} ({_PRE}): take the model's safetensors"
        )
    splits = [Split(Regex(rule), "isolated") for rule in rules]
    last = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([*splits, last])
