"""A checkpoint by name or folder -> a transformers model and its tokenizer.

Unusable checkpoints are refused before their weights are read: no decoder-only language model, too
few blocks, too little memory.
"""

import atexit
import contextlib
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
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

from lastword.errors import ModelError, TraceError, UnsupportedModelError, one_line
from lastword.files.wording import shorten
from lastword.model import embedded, gguf, memory, quantisation
from lastword.model.digest import load_digest
from lastword.model.loaded import Loaded, load_embedded
from lastword.model.options import LoadOptions
from lastword.model.parts import text_config
from lastword.model.reading import dtype_name
from lastword.model.weights import adapter as adapters
from lastword.model.weights import hub
from lastword.model.weights.checkpoint import (
    Checkpoint,
    SafetensorsCheckpoint,
    TorchCheckpoint,
    open_local,
)
from lastword.model.weights.identity import ADAPTER, is_adapter
from lastword.model.whole import require_whole
from lastword.rule.theta import Theta
from lastword.text.tokenizer import Tokenizer, as_errors

_log = logging.getLogger("lastword")

_MESSAGE_LENGTH = 500  # characters; a tokenizer's error may quote its whole regular expression


@dataclass(frozen=True)
class Plan:
    """How a checkpoint is loaded, decided before its weights are read.

    Attributes:
        options: The options, with a full path or a commit.
        method: Its quantisation. It is stored here because loading changes the config.
        checkpoint: Its header.
        need: The memory that it takes; None if its header does not tell.
    """

    options: LoadOptions
    config: Any
    method: str | None
    dtype: torch.dtype
    device: torch.device
    checkpoint: Checkpoint
    need: memory.Footprint | None


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
    base, adapter = parts_of(options, file)
    with in_one_line(base):
        plan = plan_load(base)
        if plan.need is not None and base.device_map is None:
            memory.refuse_too_large(options.label, plan.need, plan.device)
        model = _load_model(plan)
        if adapter is not None:
            model = _merge(model, adapter, plan)
    source: dict[str, Any] = {
        **options.names(options.label if adapter is None else str(adapter)),
        "revision": plan.options.revision,
        "dtype": dtype_name(plan.dtype),
        "device": _placed(model, plan.device),
        "quantisation": quantisation.describe(model, plan.method),
        "asked": load_digest(options),
    }
    if file is not None:
        source |= gguf.describe(Path(base.name), file)
    if adapter is not None:
        source["base"] = base.name
    tokenizer = _load_tokenizer(plan.options, adapter)
    return Loaded(model, tokenizer, source, plan.options if adapter is None else None)


def load_tokenizer(options: LoadOptions) -> Tokenizer:
    """Return the tokenizer of a checkpoint, without its weights.

    Raises:
        ModelError: Missing or unreadable.
    """
    if options.embedded is not None:
        return embedded.load(options.embedded)[1]
    return _load_tokenizer(*parts_of(options, gguf.find(options)))


def parts_of(options: LoadOptions, file: gguf.GgufFile | None) -> tuple[LoadOptions, Path | None]:
    """Return the options of the base model, with its full path, and the adapter's folder if any.

    Raises:
        ModelError: There is no such folder, the name or revision is not valid on a hub, or the GGUF
            file cannot be converted.
    """
    if file is not None:
        with in_one_line(options):
            return gguf.folder_options(options, file), None
    folder = Path(options.name).expanduser()
    if not options.name.startswith((".", "/", "~")):
        if not folder.is_dir():
            hub.require_name(options.name, options.revision)
        return options, None
    base = replace(options, model=str(folder))
    if not is_adapter(folder):
        if not (folder / "config.json").is_file():
            raise ModelError(f"no model at {folder}: expected a folder with config.json")
        return base, None
    if options.quantize is not None:
        raise ModelError(
            f"{folder} is an adapter, which cannot be merged into quantised weights: merge it and "
            "save the model, then quantise that"
        )
    config = adapters.read_config(folder)
    base = replace(options, model=config[adapters.BASE], revision=config.get("revision"))
    if not Path(base.name).is_dir():
        hub.require_name(base.name, base.revision)
    return base, folder


def plan_load(base: LoadOptions) -> Plan:
    """Return the plan from config and header, and refuse a checkpoint that cannot be used.

    Raises:
        ModelError: It is missing or unreadable.
        UnsupportedModelError: It is not a decoder-only language model, or too shallow.
    """
    device = device_of(base.device)
    if not Path(base.name).is_dir():  # one commit for a branch or tag, so that all files are of it
        base = replace(base, revision=hub.find_commit(base.name, base.revision))
    config = AutoConfig.from_pretrained(
        base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
    )
    _require_decoder(base.label, config, base.theta or Theta())
    _refuse_kernels(base, config)
    dtype, method = dtype_of(base, stored_dtype(config), device), quantisation.stored_method(config)
    checkpoint = open_checkpoint(base)
    if method is None and isinstance(checkpoint, SafetensorsCheckpoint):
        quantisation.refuse_unscaled(checkpoint)
    if method and base.quantize:
        raise ModelError(f"{base.label} is quantised already ({method}): leave quantize out")
    dense = quantisation.is_dequantised(method, device)
    storage = memory.Storage(dtype, base.quantize, dense)
    need = memory.footprint(checkpoint, config, storage, device, base.batch_tokens)
    return Plan(base, config, method, dtype, device, checkpoint, need)


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
    depth = getattr(text_config(config), "num_hidden_layers", None)
    if depth is not None:
        theta.window(depth)


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


def open_checkpoint(base: LoadOptions) -> Checkpoint:
    """Return a checkpoint's header, in a folder or of a commit on the hub."""
    folder = Path(base.name)
    if not folder.is_dir():
        return hub.open_model(base.name, base.revision)
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
    return checkpoint


def _load_model(plan: Plan) -> PreTrainedModel:
    """Return the model on its devices; refuse an incomplete one."""
    base, placement = plan.options, _placement(plan)
    quantisation.drop_outliers(plan.config)
    # bitsandbytes logs the dtype of its rounding at every matrix product.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if quantisation.is_dequantised(plan.method, plan.device):
        words = (base.label, plan.method, dtype_name(plan.dtype), plan.device)
        _log.warning("%s is stored as %s, which becomes %s on %s", *words)
    model, info = _auto_class(plan.config).from_pretrained(
        base.name,
        config=plan.config,
        dtype=plan.dtype,
        output_loading_info=True,
        **placement,
        **_arguments(plan),
    )
    require_whole(base.label, model, info)
    if base.quantize is not None and not quantisation.has_replaced_layers(model):
        raise ModelError(
            f"{base.label} ({plan.config.model_type}) has no linear layers that bitsandbytes "
            "quantises: leave quantize out"
        )
    if plan.method is not None:
        _cast_rest(model, plan.dtype)
    return cast(PreTrainedModel, model if placement else model.to(plan.device))


def _arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that select files, attention and quantisation."""
    base = plan.options
    arguments: dict[str, Any] = {
        "revision": base.revision,
        "trust_remote_code": base.trust_remote_code,
        "use_safetensors": None if base.allow_bin else True,
        "ignore_mismatched_sizes": True,  # reported as `mismatched_keys`, and refused
    }
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


def _placement(plan: Plan) -> dict[str, Any]:
    base, device = plan.options, plan.device
    if base.device_map is not None:
        if find_spec("accelerate") is None:
            raise ModelError('device_map needs accelerate: pip install "lastword[large]"')
        where = base.device_map if isinstance(base.device_map, str) else dict(base.device_map)
        folder = tempfile.mkdtemp(prefix="lastword-offload-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return {"device_map": where, "offload_folder": folder}
    quantised = base.quantize is not None or plan.method is not None
    if quantised or (device.type != "cpu" and find_spec("accelerate") is not None):
        return {"device_map": {"": device}}  # weights go to the device without a copy on the CPU
    return {}


def _merge(model: PreTrainedModel, adapter: Path, plan: Plan) -> PreTrainedModel:
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
        raise ModelError(f"{base.label} does not fit its device: {one_line(error)}") from error
    except TraceError:
        raise
    except Exception as error:  # config and files are not trusted: any error may come
        if "custom code" in str(error):
            raise ModelError(_contains_code(subject)) from error
        raise ModelError(f"cannot load {subject}: {_message(error)}") from error


def _message(error: Exception) -> str:
    """Return a library's message in one line, without the codes that colour a terminal."""
    text = one_line(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
    if absent := re.search(r"module 'torch' has no attribute '(\w+)'", text):
        return f"its config says dtype {absent[1]!r}, which torch does not have"
    return shorten(f"{type(error).__name__}: {text}", _MESSAGE_LENGTH)


def _auto_class(config: Any) -> Any:
    """Return the class to load with: a multimodal wrapper has no causal one."""
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
        raise ModelError(
            f"unknown device {name}: expected auto, cpu, cuda, cuda:1 or mps"
        ) from error
    count = torch.accelerator.device_count() if here and device.type == here.type else 0
    if device.type != "cpu" and (device.index or 0) >= count:
        raise ModelError(f"there is no {device} here: leave the device out, or use cpu")
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
