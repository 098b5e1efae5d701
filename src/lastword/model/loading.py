"""A checkpoint by name or folder -> a transformers model and its tokenizer.

Unusable checkpoints are refused before their weights are read: no decoder-only language model, too
few blocks, a missing package for its quantisation, too little memory.
"""

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from lastword.errors import ModelError, TraceError, UnsupportedModelError, one_line
from lastword.files.wording import counted, shorten
from lastword.model import dequantised, embedded, gguf, memory, quantisation
from lastword.model.digest import load_digest
from lastword.model.loaded import Loaded, load_embedded
from lastword.model.options import LoadOptions
from lastword.model.parts import text_config
from lastword.model.reading import dtype_name
from lastword.model.weights import adapter as adapters
from lastword.model.weights import hub
from lastword.model.weights.checkpoint import (
    Checkpoint,
    LocalFiles,
    SafetensorsCheckpoint,
    TorchCheckpoint,
    open_local,
)
from lastword.model.weights.gguf import GgufCheckpoint, open_file
from lastword.model.weights.identity import ADAPTER, is_adapter, model_files
from lastword.model.weights.layouts import HEADS, KV_HEADS
from lastword.rule.theta import Theta
from lastword.text.tokenizer import Tokenizer, as_errors

_log = logging.getLogger("lastword")

_ABSENT = re.compile("module 'torch' has no attribute '(\\w+)'")
_EPSILON = re.compile(r"norm_?eps(ilon)?$")
_MESSAGE_LENGTH = 500  # characters; a tokenizer's error may quote its whole regular expression
# Errors of the libraries whose message is clear without the name of the class.
_CLEAR_ERRORS = (
    OSError,
    ValueError,
    ImportError,
    RuntimeError,
    ArithmeticError,
    SafetensorError,
)
# Tensors that a model may leave unused, since they change no answer: computed buffers, heads that
# draft several tokens, and scales of quantised activations and caches.
_HARMLESS = re.compile(
    r"(rotary_emb\.|\.)inv_freq$|position_ids$|\bh\.\d+\.attn\.(attention\.)?(masked_)?bias$"
    r"|(^|\.)mtp(_\w+)?\.|\.(input_scale|activation_scale|[kvq]_scale|[kv]_zero_point)$"
)


@dataclass(frozen=True)
class _Plan:
    """How a checkpoint is loaded, decided before its weights are read.

    Attributes:
        options: The options, with a full path or a commit.
        method: Its quantisation. It is stored here because loading changes the config.
        checkpoint: Its header; None if its commit is unknown.
        path: The GGUF file on disk; None for other checkpoints.
    """

    options: LoadOptions
    config: Any
    method: str | None
    dtype: torch.dtype
    device: torch.device
    checkpoint: Checkpoint | GgufCheckpoint | None
    path: Path | None = None


def load(options: LoadOptions) -> Loaded:
    """Load a checkpoint from the hub or a local folder, or an embedded model.

    Raises:
        ModelError: It is missing, unreadable, incomplete, or of a type unknown to transformers.
        UnsupportedModelError: It is not a decoder-only language model, or it is too shallow.
        TooLargeError: It does not fit the memory of its device.
    """
    if options.embedded is not None:
        return load_embedded(options)
    file = gguf.find(options)
    loaded = _load_checkpoint(options) if file is None else _load_gguf(options, file)
    return replace(loaded, source=loaded.source | {"asked": load_digest(options)})


def _load_checkpoint(options: LoadOptions) -> Loaded:
    base, adapter = parts_of(options)
    device = device_of(options.device)
    base = pinned(base)
    with in_one_line(base):
        plan = _look_into(base, device)
        model = _load_model(plan)
        if adapter is not None:
            model = _merge(model, adapter, plan)
    source = {
        **options.names(options.label if adapter is None else str(adapter)),
        "revision": base.revision,
        "dtype": dtype_name(plan.dtype),
        "device": _placed(model, device),
        "quantisation": quantisation.describe(model, plan.method),
    }
    if adapter is None:
        return Loaded(model, _load_tokenizer(base, None), source, base)
    return Loaded(model, _load_tokenizer(base, adapter), source | {"base": base.name})


def _load_gguf(options: LoadOptions, base: LoadOptions) -> Loaded:
    with in_one_line(base):
        checkpoint = gguf.open_checkpoint(base)
        header, device = checkpoint.header, device_of(options.device)
        dtype = dtype_of(base, gguf.dtype_of(header), device)
        if base.device_map is None:
            weights = memory.weights_of(checkpoint, memory.Storage(dtype)) or 0
            memory.refuse_too_large(checkpoint.label, memory.Footprint(weights, 0, 0), device)
        base = gguf.download(base)  # only now, as the header shows that the file can be used
        path = gguf.path_of(base)
        place = dequantised.place(path, header, dtype)
        # The cached folder has the config too: transformers takes seconds to read a GGUF file's.
        with gguf.read_once():
            config = _cached_config(place) or gguf.read_config(path, header)
            _require_decoder(checkpoint.label, config, base.theta or Theta())
            plan = _Plan(base, config, None, dtype, device, checkpoint, path)
            _refuse_too_large(plan)
            if (model := _load_cached(plan, place)) is None:
                model = _load_model(plan)
                if place is not None:
                    dequantised.keep(place, path.name, model)
            gguf.settle(model, checkpoint)
            tokenizer = gguf.read_tokenizer(path, header)
    source = {
        **options.names(options.label),
        "revision": base.revision,
        "dtype": dtype_name(dtype),
        "device": _placed(model, device),
        **gguf.describe(path, header),
    }
    return Loaded(model, tokenizer, source)


def _cached_config(place: Path | None) -> Any:
    # A damaged cache is written again.
    with contextlib.suppress(TypeError, KeyError, *_CLEAR_ERRORS):
        return place and place.is_dir() and AutoConfig.from_pretrained(str(place))


def _load_cached(plan: _Plan, place: Path | None) -> PreTrainedModel | None:
    """Load the dequantised copy of a GGUF file; return None, and remove it, if it is damaged."""
    if place is None or not place.is_dir():
        return None
    with contextlib.suppress(OSError):  # the folder may belong to another user
        os.utime(place)  # the least recently used copies are removed first
    with contextlib.suppress(ModelError, TypeError, KeyError, *_CLEAR_ERRORS):
        options = replace(plan.options, model=place, gguf=None)
        model = _load_model(replace(plan, options=options, path=None))
        model.name_or_path = model.config.name_or_path = str(cast(Path, plan.path).parent)
        return model
    shutil.rmtree(place, ignore_errors=True)
    return None


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
            return gguf.read_tokenizer(path, open_file(path).header)
    return _load_tokenizer(*parts_of(options))


def parts_of(options: LoadOptions) -> tuple[LoadOptions, Path | None]:
    """Return the options of the base model, with its full path, and the adapter's folder if any.

    Raises:
        ModelError: There is no such folder, or the name or revision is not valid on a hub.
    """
    base, adapter = options, None
    if options.name.startswith((".", "/", "~")):
        folder = Path(options.name).expanduser()
        base = replace(options, model=str(folder))
        if is_adapter(folder):
            if options.quantize is not None:
                raise ModelError(
                    f"{folder} is an adapter, which cannot be merged into quantised weights: merge "
                    "it and save the model, then quantise that"
                )
            config, adapter = adapters.read_config(folder), folder
            base = replace(options, model=config[adapters.BASE], revision=config.get("revision"))
        elif not (folder / "config.json").is_file():
            raise ModelError(f"no model at {folder}: expected a folder with config.json")
    if not Path(base.name).is_dir():
        hub.require_name(base.name, base.revision)
    for place in filter(None, (Path(base.name), adapter)):
        for path in sorted(chain.from_iterable(model_files(place).values())):
            LocalFiles(path.parent).read(path.name, 0, 8)  # refuses a pointer of Git LFS
    return base, adapter


def pinned(base: LoadOptions) -> LoadOptions:
    """Return the options with a commit for a branch or tag, so that all files are of one commit."""
    if Path(base.name).is_dir():
        return base
    return replace(base, revision=hub.find_commit(base.name, base.revision) or base.revision)


def _look_into(base: LoadOptions, device: torch.device) -> _Plan:
    """Plan from config and header, and refuse a checkpoint that cannot be used."""
    # Transformers divides by some values of a config when it makes the object.
    values, _ = PreTrainedConfig.get_config_dict(base.name, revision=base.revision)
    for part in (values, values.get("text_config")):
        _require_counts(base.label, part if isinstance(part, dict) else {})
    config = AutoConfig.from_pretrained(
        base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
    )
    _require_decoder(base.label, config, base.theta or Theta())
    _refuse_kernels(base, config)
    dtype, method = dtype_of(base, stored_dtype(config), device), quantisation.stored_method(config)
    plan = _Plan(base, config, method, dtype, device, open_checkpoint(base))
    if isinstance(plan.checkpoint, SafetensorsCheckpoint):
        quantisation.require_scales(plan.checkpoint, method)
    if method and base.quantize:
        raise ModelError(f"{base.label} is quantised already ({method}): leave quantize out")
    if (quantiser := "bitsandbytes" if base.quantize else method) is not None:
        quantisation.require(base.name, quantiser, device)
        # bitsandbytes logs the dtype of its rounding at every matrix product.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    _refuse_too_large(plan)
    return plan


def _require_decoder(name: str, config: Any, theta: Theta) -> None:
    """Refuse a model that is not a decoder-only language model, or too shallow for the window."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder ({kind}): lastword reads decoder-only language models"
        )
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "text_config")
    if not (causal or remote):
        raise UnsupportedModelError(
            f"{name} is not a language model with a head ({kind}): lastword reads decoder-only ones"
        )
    _require_counts(name, vars(text_config(config)))
    depth = getattr(text_config(config), "num_hidden_layers", None)
    if depth is not None:
        theta.window(depth)


def _require_counts(name: str, values: Mapping[str, Any]) -> None:
    """Refuse a config without attention heads, or with a large epsilon."""
    for key, value in values.items():
        no_heads = key in (*HEADS, *KV_HEADS) and isinstance(value, int) and value < 1
        # With a large epsilon, every text has the same states.
        if no_heads or isinstance(value, float) and _EPSILON.search(key) and not 0 <= value < 1:
            raise ModelError(f"the config of {name} says {key} = {value:g}: correct it")


def _refuse_kernels(base: LoadOptions, config: Any) -> None:
    """Refuse a config that names attention on a hub, which transformers would fetch and run."""
    for part in (config, text_config(config)):
        attention = getattr(part, "_attn_implementation", None)
        if not base.trust_remote_code and "/" in str(attention):
            raise ModelError(_contains_code(f"{base.name} (attention {attention!r:.60})"))


def _contains_code(subject: str) -> str:
    return (
        f"{subject} contains code, which lastword does not run: read that code, and if you trust "
        "it, pass --trust-remote-code (trust_remote_code=True)"
    )


def open_checkpoint(base: LoadOptions) -> Checkpoint | None:
    """Return a checkpoint's header, local or remote; None if its commit is not known."""
    folder = Path(base.name)
    if folder.is_dir():
        checkpoint = open_local(folder)
        if (folder / ADAPTER).is_file():
            raise ModelError(
                f"{base.name} has weights and an adapter ({ADAPTER}): put each in a separate folder"
            )
        if isinstance(checkpoint, TorchCheckpoint) and not base.allow_bin:
            raise ModelError(
                f"{base.name} has no safetensors: convert it, or allow its pytorch_model.bin, "
                "weights only: allow_bin=True (in a command --load allow_bin=true)"
            )
    elif hub.is_commit(base.revision):
        checkpoint = hub.open_model(base.name, base.revision)
    else:
        return None
    if isinstance(checkpoint, SafetensorsCheckpoint):
        for _ in checkpoint.tensors():  # reading every header refuses names that are stored twice
            pass
    return checkpoint


def _load_model(plan: _Plan) -> PreTrainedModel:
    """Return the model on its devices, from the commit of the config; refuse an incomplete one."""
    base, config, placement = plan.options, plan.config, _placement(plan)
    quantisation.drop_outliers(config)
    if quantisation.is_dequantised(plan.method, plan.device):
        words = (base.label, plan.method, dtype_name(plan.dtype), plan.device)
        _log.warning("%s is stored as %s, which becomes %s on %s", *words)
    model, info = _auto_class(config).from_pretrained(
        base.name if plan.path is None else str(plan.path.parent),
        config=config,
        dtype=plan.dtype,
        output_loading_info=True,
        **placement,
        **_arguments(plan),
    )
    # transformers only warns about tensors that do not fit, and fills gaps with random weights.
    if wrong := sorted(name for name, *_ in info["mismatched_keys"]):
        raise ModelError(
            f"{base.label} has {counted(len(wrong), 'tensor')} of other shapes than its config "
            f"says ({', '.join(wrong[:3])}): the config is not that of these weights, or "
            f"transformers does not read this {config.model_type} whole"
        )
    if absent := sorted(info["missing_keys"]):
        raise ModelError(
            f"{base.label} lacks {counted(len(absent), 'tensor')} of {type(model).__name__} "
            f"({', '.join(absent[:3])}): it is not a complete language model"
        )
    if unused := sorted(name for name in info["unexpected_keys"] if not _HARMLESS.search(name)):
        raise ModelError(
            f"{base.label} stores {counted(len(unused), 'tensor')} that {type(model).__name__} "
            f"does not use ({', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}): its "
            "config is not that of these weights, or it is not a plain language model. Correct the "
            "config, or remove the tensors"
        )
    if base.quantize is not None and not quantisation.has_replaced_layers(model):
        raise ModelError(
            f"{base.label} ({config.model_type}) has no linear layers that bitsandbytes quantises: "
            "leave quantize out"
        )
    if plan.method is not None:
        _cast_rest(model, plan.dtype)
    return cast(PreTrainedModel, model if placement else model.to(plan.device))


def _arguments(plan: _Plan) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that select files, attention and quantisation."""
    base = plan.options
    arguments: dict[str, Any] = {
        "revision": base.revision,
        "trust_remote_code": base.trust_remote_code,
        "use_safetensors": None if base.allow_bin else True,
        "ignore_mismatched_sizes": True,  # reported as `mismatched_keys`, and refused
    }
    if plan.path is not None:
        arguments = gguf.arguments(plan.path)
    if base.attention != "auto":
        arguments["attn_implementation"] = base.attention
    if base.quantize is not None:
        arguments["quantization_config"] = quantisation.options_for(base.quantize, plan.dtype)
    return arguments


def _cast_rest(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the unquantised tensors of a quantised checkpoint, which transformers does not cast."""
    plain = (torch.float32, torch.bfloat16, torch.float16)
    for name, parameter in model.named_parameters():
        if parameter.dtype in plain and "scale" not in name and not parameter.is_meta:
            parameter.data = parameter.data.to(dtype)


def _refuse_too_large(plan: _Plan) -> None:
    """Refuse a model that needs more memory than its device has, unless accelerate spreads it."""
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
        return {"device_map": {"": device}}  # weights go to the device without a copy on the CPU
    return {}


def _offload_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lastword-offload-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _merge(model: PreTrainedModel, adapter: Path, plan: _Plan) -> PreTrainedModel:
    """Return the model with an adapter merged into its weights by PEFT."""
    if find_spec("peft") is None:
        raise ModelError(f"{adapter} is an adapter, and merging it needs peft: pip install peft")
    from peft import PeftModel

    size = memory.weights_of(adapters.open_weights(adapter), memory.Storage(plan.dtype)) or 0
    memory.refuse_too_large(str(adapter), memory.Footprint(size, 0, 0), plan.device)
    try:
        # `safe_merge` refuses NaN and infinity in the adapter and in the merged weights.
        merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # PEFT does not check the adapter's config: any error may come
        why = f"does not fit {plan.options.name}: {one_line(error)[:200]}"
        raise ModelError(f"the adapter {adapter} {why}") from error
    return cast(PreTrainedModel, merged)


def _load_tokenizer(base: LoadOptions, adapter: Path | None) -> Tokenizer:
    """Load the adapter's tokenizer if it has one, else the model's, of the loaded commit."""
    if adapter is not None and (adapter / "tokenizer_config.json").is_file():
        base = replace(base, model=str(adapter), revision=None)
    with in_one_line(base, "the tokenizer of "):
        # Without `trust_remote_code`, transformers would ask the user on the terminal.
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
        )
        return tokenizer


@contextlib.contextmanager
def in_one_line(base: LoadOptions, prefix: str = "") -> Iterator[None]:
    """Turn a library's error into a ModelError of one line; `prefix` names a part of the model."""
    subject = f"{prefix}{base.label}"
    try:
        with as_errors(f"cannot load {subject}"):
            yield
    except torch.OutOfMemoryError as error:
        raise ModelError(f"{base.label} does not fit its device: {_message(error)}") from error
    except TraceError:
        raise
    except Exception as error:  # config and files are not trusted: any error may come
        if isinstance(error.__cause__, RepositoryNotFoundError | RevisionNotFoundError):
            hub.open_model(base.name, base.revision)  # raises an error that says what to do
        if "custom code" in str(error):
            raise ModelError(_contains_code(subject)) from error
        reachable = not constants.HF_HUB_OFFLINE or Path(base.name).exists()
        why = "" if reachable else " (HF_HUB_OFFLINE is set: no hub was asked)"
        clear = isinstance(error, _CLEAR_ERRORS) or _ABSENT.search(str(error))
        kind = "" if clear else f"{type(error).__name__}: "
        raise ModelError(f"cannot load {subject}: {kind}{_message(error)}{why}") from error


def _auto_class(config: Any) -> Any:
    """Return the class to load with: a multimodal wrapper has no causal one."""
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
    """Return the device of a name.

    Raises:
        ModelError: This machine has no such device.
    """
    here = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return here or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"unknown device {name}: {_message(error)}") from error
    if device.type == "cpu":
        return device
    if here is None or device.type != here.type:
        raise ModelError(f"there is no {device.type} device here: leave the device out, or use cpu")
    if (count := torch.accelerator.device_count()) <= (device.index or 0):
        raise ModelError(f"there is no {device} here: the last one is {here.type}:{count - 1}")
    return device


def dtype_of(base: LoadOptions, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of a model's loaded weights, from the options and the stored dtype.

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
        # CPUs multiply float16 slowly, and with needless rounding.
        _log.warning("%s is stored in float16, which becomes float32 on the CPU", base.label)
        return torch.float32
    return stored


def stored_dtype(config: Any) -> torch.dtype:
    """Return the dtype of the weights by the config; float32 if it gives none."""
    name = getattr(text_config(config), "dtype", None) or getattr(config, "dtype", None)
    kind = getattr(torch, name, None) if isinstance(name, str) else name or torch.float32
    if not isinstance(kind, torch.dtype):
        raise ModelError(f"the config says dtype {name!r:.40}, which torch does not have")
    return kind


def _placed(model: PreTrainedModel, device: torch.device) -> str:
    """Return the device, or the number of modules per device if accelerate spread the model."""
    places = getattr(model, "hf_device_map", None)
    if not places or len(set(map(str, places.values()))) == 1:
        return str(device)
    names = [str(p) if not isinstance(p, int) else f"cuda:{p}" for p in places.values()]
    return ", ".join(f"{name} ({names.count(name)} modules)" for name in sorted(set(names)))


def _message(error: BaseException) -> str:
    """Return a library's message in one line, without the codes that colour a terminal."""
    text = one_line(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
    if absent := _ABSENT.search(text):
        return f"its config says dtype {absent[1]!r}, which torch does not have"
    return shorten(text or type(error).__name__, _MESSAGE_LENGTH)
