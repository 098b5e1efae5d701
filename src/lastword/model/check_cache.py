"""Cache of results of the check at load, which takes seconds of CPU at each start of a model.

The name of an entry is a digest of everything that the check depends on: the model's files and
options, the installed packages, the device, and this package's code that runs models.
"""

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lastword.files.strict_json import to_json
from lastword.model.backbone import Backbone
from lastword.model.check import Checked, check
from lastword.model.layout import LaidOut, parameters_of
from lastword.model.options import LoadOptions
from lastword.model.readout import Readout
from lastword.model.weights.identity import cache_folder, store, text_digest

# Parameters. The check of a smaller model is short. The embedded models have to be smaller: their
# digest does not cover the weights.
_LEAST = 50_000_000
_PACKAGE = Path(__file__).parents[1]


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
    if foreign or quantised or options.device_map is not None or parameters_of(model) < _LEAST:
        return None
    code = sorted(f for room in ("model", "rule", "text") for f in (_PACKAGE / room).rglob("*.py"))
    cuda = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None
    facts = {
        "model": digest,
        "packages": sorted(p.name for root in sys.path for p in Path(root).glob("*-info")),
        "code": text_digest("".join(file.read_text(encoding="utf-8") for file in code)),
        "device": [str(model.device), cuda, torch.backends.cpu.get_cpu_capability()],
        "precision": _precision(),
        "laid out": any(isinstance(module, LaidOut) for module in model.modules()),
    }
    return cache_folder() / "checks" / f"{text_digest(to_json(facts))}.json"


def _precision() -> list[str]:
    """Return the precision of float32 products, which the user may lower (TF32, bfloat16)."""
    backends: Any = torch.backends  # torch's types lack mkldnn.matmul
    if hasattr(backends.cuda.matmul, "fp32_precision"):  # from torch 2.9 on
        return [backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision]
    return [torch.get_float32_matmul_precision()]
