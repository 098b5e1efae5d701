"""A checkpoint by name or folder -> a transformers model, its tokenizer and its I(M).

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
    PretrainedConfig,
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
from lastword.model.options import LoadOptions
from lastword.model.parts import text_config
from lastword.model.readout import dtype_name
from lastword.model.weights import hub
from lastword.model.weights.checkpoint import SafetensorsCheckpoint as Checkpoint
from lastword.model.weights.checkpoint import local_files, open_local, read_json
from lastword.model.weights.identity import ADAPTER, is_adapter
from lastword.model.weights.invariant import Factors, model_invariant, read_invariant
from lastword.model.whole import require_whole
from lastword.rule.theta import Theta
from lastword.text.tokenizer import Tokenizer, as_errors

_log = logging.getLogger("lastword")

_MESSAGE_LENGTH = 500  # characters; a tokenizer's error may quote its whole regular expression
_BASE = "base_model_name_or_path"  # in an adapter's config, beside `revision`
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_TOKENIZER_FILES = ("*token*", "vocab*", "*.model")


@dataclass(frozen=True)
class Loaded:
    """A model in memory with its origin."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    source: dict[str, Any]  # name, revision, dtype, device and the like, as plain JSON values
    origin: LoadOptions | None = None  # of the safetensors with exactly these weights

    def invariant(self, options: LoadOptions) -> Factors | float:
        """Return I(M) from the options, else from the checkpoint's tensors, else from the model."""
        if options.invariant is not None:
            return options.invariant
        theta = options.theta or Theta()
        if (origin := self.origin) is None:
            return model_invariant(self.model, theta=theta, readings=True)
        return read_invariant(origin.name, theta=theta, revision=origin.revision, readings=True)


@dataclass(frozen=True)
class _Plan:
    base: LoadOptions  # with the folder or the commit of the weights
    adapter: Path | None  # to merge into them
    config: PretrainedConfig
    dtype: torch.dtype
    device: torch.device
    method: str | None  # of a stored quantisation

    @property
    def dequantised(self) -> bool:
        return quantisation.is_dequantised(self.method, self.device)


def load(options: LoadOptions) -> Loaded:
    """Load a checkpoint from the hub or a local folder, or an embedded model."""
    if options.embedded is not None:
        source = options.names(options.name) | {"asked": load_digest(options)}
        return Loaded(*embedded.load(options.embedded), source)
    base, adapter, facts = _find(options)
    with in_one_line(base.label):
        plan = _plan(base, adapter)
        checkpoint = _open_checkpoint(plan.base)
        if checkpoint is not None:
            _require_fit(plan, checkpoint)
        model = _load_model(plan)
    source = options.names(options.label if adapter is None else str(adapter)) | {
        "revision": plan.base.revision,
        "dtype": dtype_name(plan.dtype),
        "device": _placed(model, plan.device),
        "quantisation": quantisation.describe(model, plan.method),
        "asked": load_digest(options),
        **facts,
    }
    if adapter is not None:
        source["base"] = plan.base.name
    exact = checkpoint is not None and adapter is None
    tokenizer = _load_tokenizer(plan.base, adapter)
    return Loaded(model, tokenizer, source, plan.base if exact else None)


def load_tokenizer(options: LoadOptions) -> Tokenizer:
    """Return the tokenizer of a checkpoint, without its weights."""
    if options.embedded is not None:
        return embedded.load(options.embedded)[1]
    base, adapter, _ = _find(options)
    return _load_tokenizer(base, adapter)


def _find(options: LoadOptions) -> tuple[LoadOptions, Path | None, dict[str, str | None]]:
    """Return the options of the weights, an adapter to merge, and the facts of a GGUF file."""
    with in_one_line(options.label):
        if (converted := gguf.convert(options)) is not None:
            return converted[0], None, converted[1]
    folder = Path(options.name).expanduser()
    if not options.name.startswith((".", "/", "~")):
        if not folder.is_dir():
            hub.require_name(options.name, options.revision)
        return options, None, {}
    base = replace(options, model=str(folder))
    if is_adapter(folder):
        return _base_of(folder, base), folder, {}
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model at {folder}: expected a folder with config.json")
    return base, None, {}


def _base_of(adapter: Path, options: LoadOptions) -> LoadOptions:
    if options.quantize is not None:
        raise ModelError(
            f"{adapter} is an adapter, which cannot be merged into quantised weights: merge it and "
            "save the model, then quantise that"
        )
    config = read_json(local_files(adapter), ADAPTER) or {}
    name, revision = config.get(_BASE), config.get("revision")
    weights = (adapter / _ADAPTER_WEIGHTS).is_file()  # without it, PEFT would read a pickle
    if not (weights and isinstance(name, str) and isinstance(revision, str | None)):
        raise ModelError(
            f"{adapter} needs {_ADAPTER_WEIGHTS} and, in {ADAPTER}, {_BASE}: get it whole, or "
            "merge it and save the model"
        )
    if not Path(name).is_dir():
        hub.require_name(name, revision)
    return replace(options, model=name, revision=revision)


def _plan(base: LoadOptions, adapter: Path | None) -> _Plan:
    device = device_of(base.device)
    if not Path(base.name).is_dir():  # one commit for a branch or tag, so that all files are of it
        base = replace(base, revision=hub.download(base.name, "config.json", base.revision)[1])
    try:
        config = AutoConfig.from_pretrained(
            base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
        )
    except AttributeError as error:  # transformers looks a dtype up in torch
        if "module 'torch'" not in str(error):
            raise
        raise ModelError(
            f"cannot load {base.label}: the config's dtype is wrong: {error}"
        ) from error
    _require_decoder(base, config)
    method = quantisation.stored_method(config)
    if method and base.quantize:
        raise ModelError(f"{base.label} is quantised already ({method}): leave quantize out")
    return _Plan(base, adapter, config, _dtype_of(base, config, device), device, method)


def _require_decoder(base: LoadOptions, config: PretrainedConfig) -> None:
    """Refuse a model that is not a decoder-only language model, or too shallow for the window."""
    kind, text = config.model_type, text_config(config)
    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or hasattr(config, "text_config") or remote
    if config.is_encoder_decoder or not causal:
        what = "an encoder-decoder" if config.is_encoder_decoder else "not a language model"
        raise UnsupportedModelError(
            f"{base.label} is {what} ({kind}): lastword reads decoder-only language models"
        )
    if (depth := getattr(text, "num_hidden_layers", None)) is not None:
        (base.theta or Theta()).window(depth)
    # transformers would fetch and run a kernel that the config names.
    kernels = [str(getattr(part, "_attn_implementation", "")) for part in (config, text)]
    if not base.trust_remote_code and (kernel := next((k for k in kernels if "/" in k), None)):
        raise ModelError(_contains_code(f"{base.name} (attention {kernel!r:.60})"))


def _contains_code(subject: str) -> str:
    return (
        f"{subject} contains code, which lastword does not run: read that code, and if you trust "
        "it, pass --trust-remote-code (trust_remote_code=True)"
    )


def _open_checkpoint(base: LoadOptions) -> Checkpoint | None:
    folder = Path(base.name)
    if not folder.is_dir():
        return hub.open_model(base.name, base.revision)
    if (folder / ADAPTER).is_file():
        advice = "put each in a separate folder"
        raise ModelError(f"{base.name} has weights and an adapter ({ADAPTER}): {advice}")
    if any(folder.glob("*.safetensors")):
        return open_local(folder)
    if not base.allow_bin:
        raise ModelError(
            f"{base.name} has no safetensors: convert it, or allow its pytorch_model.bin, "
            "weights only: allow_bin=True (in a command --load allow_bin=true)"
        )
    return None


def _require_fit(plan: _Plan, checkpoint: Checkpoint) -> None:
    if plan.method is None:
        quantisation.refuse_unscaled(checkpoint)
    depth = getattr(text_config(plan.config), "num_hidden_layers", 0)
    if depth > len(checkpoint.names):  # transformers would make all of them
        raise ModelError(
            f"the config of {plan.base.label} has {depth} blocks, and its checkpoint only "
            f"{len(checkpoint.names)} tensors: correct the config"
        )
    if plan.base.device_map is None and plan.base.quantize is None:
        size = memory.weight_bytes(checkpoint, plan.dtype, plan.dequantised)
        memory.refuse_too_large(plan.base.label, size, plan.device)


def _load_model(plan: _Plan) -> PreTrainedModel:
    base, placement = plan.base, _placement(plan)
    quantisation.drop_outliers(plan.config)
    # bitsandbytes logs the dtype of its rounding at every matrix product.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if plan.dequantised:
        words = (base.label, plan.method, dtype_name(plan.dtype), plan.device)
        _log.warning("%s is stored as %s, which becomes %s on %s", *words)
    if base.attention != "auto":
        placement["attn_implementation"] = base.attention
    if base.quantize is not None:
        placement["quantization_config"] = quantisation.options_for(base.quantize, plan.dtype)
    # A multimodal wrapper has no causal class.
    wrapper = plan.config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    wraps = wrapper and hasattr(plan.config, "text_config")
    auto: Any = AutoModelForImageTextToText if wraps else AutoModelForCausalLM
    model, info = auto.from_pretrained(
        base.name,
        config=plan.config,
        dtype=plan.dtype,
        revision=base.revision,
        trust_remote_code=base.trust_remote_code,
        use_safetensors=None if base.allow_bin else True,
        ignore_mismatched_sizes=True,  # reported as `mismatched_keys`, and refused
        output_loading_info=True,
        **placement,
    )
    require_whole(base.label, model, info)
    replaced = any(type(m).__module__.startswith("bitsandbytes") for m in model.modules())
    if base.quantize is not None and not replaced:
        raise ModelError(
            f"{base.label} ({plan.config.model_type}) has no linear layers that bitsandbytes "
            "quantises: leave quantize out"
        )
    if plan.method is not None:
        _cast_rest(model, plan.dtype)
    if plan.adapter is not None:
        model = _merge(model, plan.adapter, base)
    return cast(PreTrainedModel, model if "device_map" in placement else model.to(plan.device))


def _cast_rest(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Cast the unquantised tensors of a quantised checkpoint, which transformers does not cast."""
    plain = (torch.float32, torch.bfloat16, torch.float16)
    for name, parameter in model.named_parameters():
        if parameter.dtype in plain and "scale" not in name and not parameter.is_meta:
            parameter.data = parameter.data.to(dtype)


def _placement(plan: _Plan) -> dict[str, Any]:
    base, accelerate = plan.base, find_spec("accelerate") is not None
    if (where := base.device_map) is not None:
        if not accelerate:
            raise ModelError('device_map needs accelerate: pip install "lastword[large]"')
        folder = tempfile.mkdtemp(prefix="lastword-offload-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        where = where if isinstance(where, str) else dict(where)
        return {"device_map": where, "offload_folder": folder}
    quantised = base.quantize is not None or plan.method is not None
    if quantised or (plan.device.type != "cpu" and accelerate):
        return {"device_map": {"": plan.device}}  # without a copy of the weights on the CPU
    return {}


def _merge(model: PreTrainedModel, adapter: Path, base: LoadOptions) -> PreTrainedModel:
    if find_spec("peft") is None:
        raise ModelError(f"{adapter} is an adapter, and merging it needs peft: pip install peft")
    from peft import PeftModel

    try:
        # `safe_merge` refuses NaN and infinity in the adapter and in the merged weights.
        merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # PEFT does not check the adapter's config: any error may come
        why = f"does not fit {base.name}: {one_line(error)[:200]}"
        raise ModelError(f"the adapter {adapter} {why}") from error
    return cast(PreTrainedModel, merged)


def _load_tokenizer(base: LoadOptions, adapter: Path | None) -> Tokenizer:
    """Load the adapter's tokenizer if it has one, else the model's, of the loaded commit."""
    if adapter is not None and (adapter / "tokenizer_config.json").is_file():
        base = replace(base, model=str(adapter), revision=None)
    folder = Path(base.name)
    files = (file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern))
    if folder.is_dir() and next(files, None) is None:
        raise ModelError(
            f"{folder} has no files of a tokenizer: expected tokenizer.json or tokenizer.model. "
            "Copy them from where the model comes from"
        )
    with in_one_line(f"the tokenizer of {base.label}"):
        # Without `trust_remote_code`, transformers would ask the user on the terminal.
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(
            base.name, revision=base.revision, trust_remote_code=base.trust_remote_code
        )
    return tokenizer


@contextlib.contextmanager
def in_one_line(subject: str) -> Iterator[None]:
    """Turn a library's error about a subject into a ModelError of one line."""
    try:
        with as_errors(f"cannot load {subject}"):
            yield
    except TraceError:
        raise
    except Exception as error:  # config and files are not trusted: any error may come
        # Without the codes that colour a terminal.
        text = one_line(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
        text = shorten(f"{type(error).__name__}: {text}", _MESSAGE_LENGTH)
        code = "custom code" in str(error)
        why = _contains_code(subject) if code else f"cannot load {subject}: {text}"
        raise ModelError(why) from error


def device_of(name: str) -> torch.device:
    """Return the device of a name, which this machine must have."""
    here = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return here or torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        expected = "expected auto, cpu, cuda, cuda:1 or mps"
        raise ModelError(f"unknown device {name}: {expected}") from error
    count = torch.accelerator.device_count() if here and device.type == here.type else 0
    if device.type != "cpu" and (device.index or 0) >= count:
        raise ModelError(f"there is no {device} here: leave the device out, or use cpu")
    return device


def _dtype_of(base: LoadOptions, config: PretrainedConfig, device: torch.device) -> torch.dtype:
    if base.dtype != "auto":
        return cast(torch.dtype, getattr(torch, base.dtype))
    name = getattr(text_config(config), "dtype", None) or getattr(config, "dtype", None)
    stored = getattr(torch, name, None) if isinstance(name, str) else name or torch.float32
    if not isinstance(stored, torch.dtype):
        raise ModelError(f"the config says dtype {name!r:.40}, which torch does not have")
    if device.type == "cpu" and stored == torch.float16:
        # CPUs multiply float16 slowly, and with needless rounding.
        _log.warning("%s is stored in float16, which becomes float32 on the CPU", base.label)
        return torch.float32
    return stored


def _placed(model: PreTrainedModel, device: torch.device) -> str:
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    return ", ".join(sorted(places)) if len(places) > 1 else str(device)
