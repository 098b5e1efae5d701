"""Cache of results of the check at load, which takes seconds of CPU at each start of a model.

The name of an entry is a digest of what the check depends on: the model's files and options, the
packages that run models, and the device.
"""

import contextlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from lastword.files.strict_json import to_json
from lastword.model.backbone import Backbone
from lastword.model.check import Checked, check
from lastword.model.options import LoadOptions
from lastword.model.readout import Readout
from lastword.model.weights.identity import cache_folder, store, text_digest

_LEAST = 10_000_000  # parameters; the check of a smaller model is short
_PACKAGES = ("lastword", "torch", "transformers", "tokenizers")


def check_once(
    backbone: Backbone, readout: Readout, options: LoadOptions, digest: str | None
) -> Checked:
    """Return the stored result of `check` for the same model here, or check it and store that.

    Args:
        backbone: As `check`.
        readout: As `check`.
        options: The options of the load.
        digest: The digest of the model's files and options (`load_digest`). If there is none, as
            for a model in memory or an adapter, the model is checked each time.

    Raises:
        InputError: As `check`.
        UnsupportedModelError: As `check`; this is not stored.
    """
    place = None if digest is None else _place(backbone, options, digest)
    if place is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):  # no entry, or a damaged one
            return Checked(**json.loads(place.read_text(encoding="utf-8")))
    checked = check(backbone, readout, options.attention)
    if place is not None:
        store(place, json.dumps(asdict(checked)))
    return checked


def _place(backbone: Backbone, options: LoadOptions, digest: str) -> Path | None:
    """Return the file for a model's result; None if it is checked each time."""
    model = backbone.model
    # The facts below do not cover code and kernels from a hub, nor a model on several devices.
    foreign = options.trust_remote_code or backbone.attention not in ("sdpa", "eager")
    quantised = getattr(model, "hf_quantizer", None) is not None
    small = options.embedded is not None or model.num_parameters() < _LEAST
    if foreign or quantised or options.device_map is not None or small:
        return None
    facts = {
        "model": digest,
        "packages": [version(name) for name in _PACKAGES],
        "device": [str(model.device), torch.backends.cpu.get_cpu_capability()],
        "cuda": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None,
        "precision": torch.get_float32_matmul_precision(),  # of products, which users may lower
    }
    return cache_folder() / "checks" / f"{text_digest(to_json(facts))}.json"
