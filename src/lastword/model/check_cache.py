"""Cache of results of the check at load, which takes seconds of CPU at each start of a model.

An entry's name has everything that the check depends on: the model's files and options, the
versions of the libraries, the device, and this package's code that runs models.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lastword.files.strict_json import to_json
from lastword.files.writing import write_text
from lastword.model.backbone import Backbone
from lastword.model.check import Checked, check
from lastword.model.options import LoadOptions
from lastword.model.readout import Readout
from lastword.model.weights.identity import cache_folder, files_digest, text_digest

_LEAST = 50_000_000  # parameters; the check of a smaller model is short
_PACKAGE = Path(__file__).parents[1]


def check_once(
    backbone: Backbone, readout: Readout, options: LoadOptions, source: Mapping[str, Any]
) -> Checked:
    """Return the stored result of `check` for the same model here, or check it and store that.

    A model in memory is checked each time, and so are adapters, small or quantised models and those
    with code from their checkpoint.

    Raises:
        InputError: As `check`.
        UnsupportedModelError: As `check`; this is not stored.
    """
    place = _place(backbone, options, source)
    if place is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):  # no entry, or a damaged one
            return Checked(**json.loads(place.read_text(encoding="utf-8")))
    checked = check(backbone, readout, options.attention)
    if place is not None:
        with contextlib.suppress(OSError):  # the cache may be read-only
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, json.dumps(asdict(checked)))
    return checked


def _place(backbone: Backbone, options: LoadOptions, source: Mapping[str, Any]) -> Path | None:
    """Return the file for a model's result; None if it is checked each time."""
    model, asked = backbone.model, source.get("asked")
    quantised = getattr(model, "hf_quantizer", None) is not None
    if asked is None or quantised or options.trust_remote_code or model.num_parameters() < _LEAST:
        return None
    cuda = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None
    code = [file for room in ("model", "text") for file in (_PACKAGE / room).glob("*.py")]
    facts = {
        "asked": asked,
        "versions": [version(name) for name in ("torch", "transformers")],
        "code": files_digest(sorted(code)),
        "device": [str(model.device), cuda, torch.backends.cpu.get_cpu_capability()],
        "attention": backbone.attention,
        "map": str(options.device_map),
    }
    return cache_folder() / "checks" / f"{text_digest(to_json(facts))}.json"
