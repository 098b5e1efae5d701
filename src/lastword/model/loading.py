"""A checkpoint by name or folder -> a transformers model and its tokenizer.

What can be known before the weights are read is refused before: no decoder-only language model, too
few blocks, a package that its quantisation needs, more memory than there is.
"""

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import (
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from lastword.errors import ModelError, TraceError, UnsupportedModelError
from lastword.files.wording import counted, shorten
from lastword.model import dequantised, embedded, gguf, memory, quantisation
from lastword.model.digest import load_digest
from lastword.model.loaded import Loaded, carried
from lastword.model.options import LoadOptions
from lastword.model.parts import text_config
from lastword.model.weights import hub
from lastword.model.weights.adapter import (
    BASE,
    is_adapter,
    open_weights,
    read_config,
    require_bounded_patterns,
)
from lastword.model.weights.adapter import CONFIG as ADAPTER
from lastword.model.weights.checkpoint import (
    Checkpoint,
    SafetensorsCheckpoint,
    TorchCheckpoint,
    open_local,
)
from lastword.model.weights.gguf import GgufCheckpoint, open_file
from lastword.model.weights.invariant import Factors, model_invariant, read_invariant
from lastword.rule.theta import Theta
from lastword.text.chat_template import require_bounded
from lastword.text.normaliser import require_steady, require_whole_maps, require_whole_model
from lastword.text.tokens import Tokenizer, as_errors

_log = logging.getLogger("lastword")
# What transformers' tokenizers call a model of sentencepiece.
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")

_ABSENT = re.compile("module 'torch' has no attribute '(\\w+)'")
_LONGEST = 500  # characters of a library's message: a tokenizer's regex may come with its pattern
# What the libraries raise for a checkpoint that they cannot read.
_TROUBLE = (
    OSError,
    ValueError,
    KeyError,
    ImportError,
    RuntimeError,
    NotImplementedError,
    ArithmeticError,  # a config with none of what it divides by
    SafetensorError,
)


# Tensors without a place that change no answer: buffers that are computed, heads for drafts of
# several tokens, and scales that quantisers keep for activations and caches.
_HARMLESS = re.compile(
    r"(rotary_emb\.|\.)inv_freq$|position_ids$|\bh\.\d+\.attn\.(attention\.)?(masked_)?bias$"
    r"|(^|\.)mtp(_\w+)?\.|\.(input_scale|activation_scale|[kvq]_scale|[kv]_zero_point)$"
)


@dataclass(frozen=True)
class _Plan:
    """Plan of how a checkpoint is loaded, before its weights are read.

    Attributes:
        options: What was asked for, the name a full path or the revision a commit.
        method: What it is quantised as; asked once, since loading writes into the config.
        checkpoint: Its header; None where nothing tells which commit it is.
        path: The GGUF file on disk; None for any other checkpoint.
        place: Where the GGUF file's model is kept dequantised; None where it is not.
    """

    options: LoadOptions
    config: Any
    method: str | None
    dtype: torch.dtype
    device: torch.device
    checkpoint: Checkpoint | GgufCheckpoint | None
    path: Path | None = None
    place: Path | None = None


def load(options: LoadOptions) -> Loaded:
    """Load a checkpoint from the hub or a local folder, or a model that the package carries.

    Raises:
        ModelError: Missing, unreadable, of a type that transformers does not know, or not whole.
        UnsupportedModelError: No decoder-only language model, or too shallow.
        TooLargeError: It does not fit the memory of its device.
    """
    if options.embedded is not None:
        return carried(options)
    loaded = _load(options)
    return replace(loaded, source=loaded.source | {"asked": load_digest(options)})


def _load(options: LoadOptions) -> Loaded:
    if (file := gguf.find(options)) is not None:
        return _load_gguf(options, file)
    base, adapter = parts_of(options)
    device = device_of(options.device)
    base = pinned(base)
    with in_one_line(base):
        plan = _look_into(base, device)
        model = _load_model(plan)
        if adapter is not None:
            model = _merge(model, adapter, plan)
    tokenizer = _tokenizer(base, adapter)
    source = {
        **options.names(options.label if adapter is None else str(adapter)),
        "revision": base.revision,
        "dtype": _word(plan.dtype),
        "device": _where(model, device),
        "quantisation": quantisation.describe(model, plan.method),
        **({} if adapter is None else {"base": base.name}),
    }
    return Loaded(model, tokenizer, source, base if adapter is None else None)


def _load_gguf(options: LoadOptions, base: LoadOptions) -> Loaded:
    label = base.label
    with in_one_line(base):
        checkpoint = gguf.open_checkpoint(base)
        header, device = checkpoint.header, device_of(options.device)
        dtype = dtype_of(base, gguf.dtype_of(header), device)
        if base.device_map is None:
            weights = memory.weights_of(checkpoint, memory.Storage(dtype)) or 0
            memory.refuse_too_large(checkpoint.label, memory.Footprint(weights, 0, 0), device)
        base = gguf.download(base)  # only now: its header says that it can be used
        path = gguf.path_of(base)
        place = dequantised.place(path, header, dtype)
        with gguf.read_once():
            config = _kept_config(place) or gguf.read_config(path, header)
            _refuse_others(checkpoint.label, config, base.theta or Theta())
            plan = _Plan(base, config, None, dtype, device, checkpoint, path, place)
            _refuse_too_large(plan)
            if (model := _again(plan)) is None:
                model = _load_model(plan)
                if place is not None:
                    dequantised.keep(place, path.name, model)
            gguf.settle(model, checkpoint)
            tokenizer = _bounded(gguf.read_tokenizer(path, header), label)
    source = {
        **options.names(options.label),
        "revision": base.revision,
        "dtype": _word(dtype),
        "device": _where(model, device),
        **gguf.describe(path, header),
    }
    return Loaded(model, tokenizer, source)


def _again(plan: _Plan) -> PreTrainedModel | None:
    """Load what was kept of a GGUF file; None where nothing was, or it cannot be read any more."""
    assert plan.path is not None
    if plan.place is None or not plan.place.is_dir():
        return None
    with contextlib.suppress(OSError):  # a folder of others can be read all the same
        os.utime(plan.place)  # used now
    options = replace(plan.options, model=plan.place, gguf=None)
    with contextlib.suppress(ModelError, TypeError, *_TROUBLE):  # damaged, or not whole
        model = _load_model(replace(plan, options=options, path=None))
        model.name_or_path = model.config.name_or_path = str(plan.path.parent)
        return model
    shutil.rmtree(plan.place, ignore_errors=True)
    return None


def _kept_config(place: Path | None) -> Any:
    with contextlib.suppress(TypeError, *_TROUBLE):  # damaged
        return place and place.is_dir() and AutoConfig.from_pretrained(str(place))


def invariant_of(loaded: Loaded, options: LoadOptions) -> Factors | float:
    """Return I(M) as given, else of the checkpoint that stores these weights, else of the model.

    Raises:
        InvariantError: It is undefined.
    """
    if options.invariant is not None:
        return options.invariant
    theta = options.theta or Theta()
    if (origin := loaded.origin) is None:
        return model_invariant(loaded.model, theta=theta, readings=True)
    return read_invariant(origin.name, theta=theta, revision=origin.revision, readings=True)


def load_tokenizer(options: LoadOptions) -> Tokenizer:
    """Return the tokenizer of a checkpoint, without its weights.

    Raises:
        ModelError: Missing or unreadable.
    """
    if options.embedded is not None:
        return embedded.load(options.embedded)[1]
    if (file := gguf.find(options)) is not None:
        with in_one_line(file, "the tokenizer of "):
            path = gguf.path_of(gguf.download(file))
            header = open_file(path).header
            return _bounded(gguf.read_tokenizer(path, header), file.label)
    base, adapter = parts_of(options)
    return _tokenizer(base, adapter)


def parts_of(options: LoadOptions) -> tuple[LoadOptions, Path | None]:
    """Return the named model, its path in full, and the adapter's folder, if one is named.

    Raises:
        ModelError: There is no such folder, or no model of that name and revision can be on a hub.
    """
    base, adapter = _parts(options)
    if not Path(base.name).is_dir():
        hub.require_name(base.name, base.revision)
    return base, adapter


def _parts(options: LoadOptions) -> tuple[LoadOptions, Path | None]:
    if not options.name.startswith((".", "/", "~")):
        return options, None
    folder = Path(options.name).expanduser()
    if is_adapter(folder):
        if options.quantize is not None:
            raise ModelError(
                f"{folder} is an adapter, which cannot be merged into quantised weights: merge it "
                "and save the model, then quantise that"
            )
        config = read_config(folder)
        return replace(options, model=config[BASE], revision=config.get("revision")), folder
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model at {folder}: expected a folder with config.json")
    return replace(options, model=str(folder)), None


def pinned(base: LoadOptions) -> LoadOptions:
    """Return the options with a branch or tag resolved once: all files come from one commit."""
    if Path(base.name).is_dir():
        return base
    return replace(base, revision=hub.find_commit(base.name, base.revision) or base.revision)


def _look_into(base: LoadOptions, device: torch.device) -> _Plan:
    """Read what is known before the weights are, and refuse here what cannot be used."""
    config = AutoConfig.from_pretrained(
        base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
    )
    _refuse_others(base.label, config, base.theta or Theta())
    _refuse_kernels(base, config)
    dtype, method = dtype_of(base, stored_dtype(config), device), quantisation.stored_method(config)
    plan = _Plan(base, config, method, dtype, device, open_checkpoint(base))
    if method and base.quantize:
        raise ModelError(f"{base.label} is quantised already ({method}): leave quantize out")
    if (quantiser := "bitsandbytes" if base.quantize else method) is not None:
        quantisation.require(base.name, quantiser, device)
        quantisation.quieten()
    _refuse_too_large(plan)
    return plan


def _refuse_others(name: str, config: Any, theta: Theta) -> None:
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder ({kind}): lastword reads decoder-only language models"
        )
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "text_config")
    if not (causal or remote):
        raise UnsupportedModelError(
            f"{name} is no language model with a head ({kind}): lastword reads decoder-only ones"
        )
    depth = getattr(text_config(config), "num_hidden_layers", None)
    if depth is not None:
        theta.window(depth)


def _refuse_kernels(base: LoadOptions, config: Any) -> None:
    """Refuse a config that names attention on a hub, which transformers would fetch and run."""
    for part in (config, text_config(config)):
        attention = getattr(part, "_attn_implementation", None)
        if not base.trust_remote_code and "/" in str(attention):
            raise ModelError(_brings_code(f"{base.name} (attention {attention!r:.60})"))


def _brings_code(what: str) -> str:
    return (
        f"{what} contains code, which lastword does not run: read that code, and if you trust it, "
        "pass --trust-remote-code (trust_remote_code=True)"
    )


def open_checkpoint(base: LoadOptions) -> Checkpoint | None:
    """Return a checkpoint's header, local or remote; None if its commit is not known."""
    if Path(base.name).is_dir():
        checkpoint = open_local(Path(base.name))
        if (Path(base.name) / ADAPTER).is_file():
            raise ModelError(
                f"{base.name} has weights and an adapter ({ADAPTER}): put each in a separate folder"
            )
        if isinstance(checkpoint, TorchCheckpoint) and not base.allow_bin:
            raise ModelError(
                f"{base.name} has no safetensors: convert it, or allow its pytorch_model.bin, "
                "weights only: allow_bin=True (in a command --load allow_bin=true)"
            )
        _read_headers(checkpoint)
        return checkpoint
    if base.revision is None or not hub.is_commit(base.revision):
        return None
    checkpoint = hub.open_model(base.name, base.revision)
    _read_headers(checkpoint)
    return checkpoint


def _read_headers(checkpoint: Checkpoint) -> None:
    """Read the headers of all shards, which refuses names that are stored twice."""
    if isinstance(checkpoint, SafetensorsCheckpoint):
        for _ in checkpoint.tensors():
            pass


def _load_model(plan: _Plan) -> PreTrainedModel:
    """Return the model on its devices, from the very commit that its config came from."""
    base, config, placement = plan.options, plan.config, _placement(plan)
    quantisation.drop_outliers(config)
    if quantisation.is_dequantised(plan.method, plan.device):
        words = (base.label, plan.method, _word(plan.dtype), plan.device)
        _log.warning("%s is stored as %s, which becomes %s on %s", *words)
    model, info = _auto(config).from_pretrained(
        base.name if plan.path is None else str(plan.path.parent),
        config=config,
        dtype=plan.dtype,
        output_loading_info=True,
        **placement,
        **_choices(plan),
    )
    if wrong := sorted(name for name, *_ in info["mismatched_keys"]):
        raise ModelError(
            f"{base.label} has {counted(len(wrong), 'tensor')} of other shapes than its config "
            f"says ({', '.join(wrong[:3])}): transformers does not read this {config.model_type} "
            "whole"
        )
    if absent := sorted(info["missing_keys"]):
        raise ModelError(
            f"{base.label} lacks {counted(len(absent), 'tensor')} of {type(model).__name__} "
            f"({', '.join(absent[:3])}): it is no whole language model"
        )
    _refuse_unused(base.label, type(model).__name__, info["unexpected_keys"])
    if base.quantize is not None and not quantisation.took_hold(model):
        raise ModelError(
            f"{base.label} ({config.model_type}) has no linear layers that bitsandbytes quantises: "
            "leave quantize out"
        )
    if plan.method is not None:
        _cast_rest(model, plan.dtype)
    return cast(PreTrainedModel, model if placement else model.to(plan.device))


def _refuse_unused(label: str, kind: str, names: Iterable[str]) -> None:
    if unused := sorted(name for name in names if not _HARMLESS.search(name)):
        raise ModelError(
            f"{label} stores {counted(len(unused), 'tensor')} that {kind} does not use "
            f"({', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}): its config is not "
            "that of these weights, or it is no plain language model. Correct the config, or "
            "remove the tensors"
        )


def _choices(plan: _Plan) -> dict[str, Any]:
    """Choose the files that transformers takes, and what it is told where it was asked for."""
    base = plan.options
    arguments: dict[str, Any] = {
        "revision": base.revision,
        "trust_remote_code": base.trust_remote_code,
        "use_safetensors": None if base.allow_bin else True,
    }
    if plan.path is not None:
        arguments = gguf.choices(plan.path)
    if base.attention not in ("auto", "model"):
        arguments["attn_implementation"] = base.attention
    if base.quantize is not None:
        arguments["quantization_config"] = quantisation.options_for(base.quantize, plan.dtype)
    return arguments


def _cast_rest(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give what a quantised checkpoint stores unquantised the dtype of the rest.

    transformers leaves embeddings, norms and the head of one in the dtype that they are stored in,
    where it casts those of a plain checkpoint.
    """
    plain = (torch.float32, torch.bfloat16, torch.float16)
    for name, parameter in model.named_parameters():
        if parameter.dtype in plain and "scale" not in name and not parameter.is_meta:
            parameter.data = parameter.data.to(dtype)


def _refuse_too_large(plan: _Plan) -> None:
    """Estimate what the model takes; one that accelerate spreads is not held to one device."""
    base, device = plan.options, plan.device
    if plan.checkpoint is None or base.device_map is not None:
        return
    dense = quantisation.is_dequantised(plan.method, device)
    storage = memory.Storage(plan.dtype, base.quantize, dense)
    need = memory.footprint(plan.checkpoint, plan.config, storage, device, base.batch_tokens)
    if need is not None:
        memory.refuse_too_large(base.label, need, device)


def _placement(plan: _Plan) -> dict[str, Any]:
    base, device = plan.options, plan.device
    if base.device_map is not None:
        if find_spec("accelerate") is None:
            raise ModelError('device_map needs accelerate: pip install "lastword[large]"')
        where = base.device_map if isinstance(base.device_map, str) else dict(base.device_map)
        return {"device_map": where, "offload_folder": str(_offload_folder())}
    quantised = base.quantize is not None or plan.method is not None
    if quantised or (device.type != "cpu" and find_spec("accelerate") is not None):
        return {"device_map": {"": device}}  # no detour by the CPU's memory
    return {}


def _offload_folder() -> Path:
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="lastword-offload-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _merge(model: PreTrainedModel, adapter: Path, plan: _Plan) -> PreTrainedModel:
    """Return the model with an adapter's weights merged into its weights, by PEFT.

    It knows every kind of adapter, and needs the whole model: `weights.adapter` merges plain LoRA
    into the five tensors of I(M) without one, and reads the config for both.
    """
    if find_spec("peft") is None:
        raise ModelError(f"{adapter} is an adapter, and merging it needs peft: pip install peft")
    from peft import PeftModel

    size = memory.weights_of(open_weights(adapter), memory.Storage(plan.dtype)) or 0
    memory.refuse_too_large(str(adapter), memory.Footprint(size, 0, 0), plan.device)
    names = [name for name, _ in model.named_modules()]
    require_bounded_patterns(read_config(adapter), names, str(adapter))
    try:
        # Safely: what is no number is refused, in an adapter and in what it makes.
        merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # its config is taken by PEFT's classes as it comes
        why = " ".join(str(error).split())[:200]
        raise ModelError(
            f"the adapter {adapter} does not fit {plan.options.name}: {why}"
        ) from error
    return cast(PreTrainedModel, merged)


def _tokenizer(base: LoadOptions, adapter: Path | None) -> Tokenizer:
    """Load the adapter's tokenizer if it brings one, else the model's, of the loaded commit."""
    if adapter is not None and (adapter / "tokenizer_config.json").is_file():
        base = replace(base, model=str(adapter), revision=None)
    with in_one_line(base, "the tokenizer of "):
        _require_whole_maps(base)
        # Said outright: where nothing is said transformers asks on the terminal, and reads stdin.
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
        )
        return _bounded(tokenizer, base.name)


def _require_whole_maps(base: LoadOptions) -> None:
    """Look into tokenizer.json, or what it is made from, before the library does."""
    offline = False
    for file in ("tokenizer.json", *_SENTENCEPIECE):
        path = Path(base.name) / file
        if not Path(base.name).is_dir():
            try:
                path = Path(
                    hf_hub_download(
                        base.name, file, revision=base.revision, local_files_only=offline
                    )
                )
            except RemoteEntryNotFoundError:
                continue
            except Exception:  # the library asks again, and says why not; what is here it takes
                offline = True
                continue
        if path.is_file():
            require_whole = require_whole_model if file in _SENTENCEPIECE else require_whole_maps
            require_whole(path.read_bytes(), base.label)
            return


def _bounded(tokenizer: Tokenizer, name: str) -> Tokenizer:
    require_bounded(tokenizer.chat_template, name)
    require_steady(tokenizer, name)
    return tokenizer


@contextlib.contextmanager
def in_one_line(base: LoadOptions, what: str = "") -> Iterator[None]:
    """Tell a library's error in one line; what the hub refuses, in the hub module's words."""
    try:
        with as_errors(f"cannot load {what}{base.label}"):
            yield
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{base.label} does not fit its device: {_first_line(error)}") from error
    except TraceError:
        raise
    except Exception as error:  # a stranger's config and files: whatever they make libraries raise
        if isinstance(error.__cause__, RepositoryNotFoundError | RevisionNotFoundError):
            hub.open_model(base.name, base.revision)  # refuses, and says what to do
        if "custom code" in str(error):
            raise ModelError(_brings_code(f"{what}{base.label}")) from error
        reachable = not constants.HF_HUB_OFFLINE or Path(base.name).exists()
        why = "" if reachable else " (HF_HUB_OFFLINE is set: no hub was asked)"
        plain = isinstance(error, _TROUBLE) and not isinstance(error, KeyError)
        kind = "" if plain or _ABSENT.search(str(error)) else f"{type(error).__name__}: "
        raise ModelError(
            f"cannot load {what}{base.label}: {kind}{_first_line(error)}{why}"
        ) from error


def _auto(config: Any) -> Any:
    """Return the class to load by: a multimodal wrapper has no causal one."""
    if config.model_type == "jev":
        raise ModelError(
            "lastword cannot read a decision model's trained head (jev): name the language model "
            "that it was trained on"
        )
    wrapper = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    if wrapper and hasattr(config, "text_config"):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def device_of(name: str) -> torch.device:
    """Return the device of a name, which is here: torch may be compiled for one that is not."""
    here = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return here or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"unknown device {name}: {_first_line(error)}") from error
    if device.type == "cpu":
        return device
    if here is None or device.type != here.type:
        raise ModelError(f"there is no {device.type} device here: leave the device out, or say cpu")
    if (count := torch.accelerator.device_count()) <= (device.index or 0):
        raise ModelError(f"there is no {device} here: the last one is {here.type}:{count - 1}")
    return device


def dtype_of(base: LoadOptions, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype that a model's weights get, from what is asked for and what is stored.

    Raises:
        ModelError: An unknown dtype.
    """
    if base.dtype != "auto":
        kind = getattr(torch, base.dtype, None)
        if kind not in (torch.float32, torch.bfloat16, torch.float16):
            raise ModelError(
                f"unknown dtype {base.dtype}: expected auto, float32, bfloat16 or float16"
            )
        return cast(torch.dtype, kind)
    if device.type == "cpu" and stored == torch.float16:
        # The CPU multiplies float16 slowly and rounds more than it needs to.
        _log.warning("%s is stored in float16, which becomes float32 on the CPU", base.label)
        return torch.float32
    return stored


def stored_dtype(config: Any) -> torch.dtype:
    """Return the dtype that a config says of its weights; float32 where it says none."""
    name = getattr(text_config(config), "dtype", None) or getattr(config, "dtype", None)
    kind = getattr(torch, name, None) if isinstance(name, str) else name or torch.float32
    if not isinstance(kind, torch.dtype):
        raise ModelError(f"the config says dtype {name!r:.40}, which torch does not have")
    return kind


def _where(model: PreTrainedModel, device: torch.device) -> str:
    placed = getattr(model, "hf_device_map", None)
    if not placed or len(set(map(str, placed.values()))) == 1:
        return str(device)
    names = [str(p) if not isinstance(p, int) else f"cuda:{p}" for p in placed.values()]
    return ", ".join(f"{name} ({names.count(name)} modules)" for name in sorted(set(names)))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: BaseException) -> str:
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split()[:_LONGEST])
    if absent := _ABSENT.search(text):
        return f"its config says dtype {absent[1]!r}, which torch does not have"
    return shorten(text or type(error).__name__, _LONGEST)
