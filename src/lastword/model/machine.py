"""Description of this machine: versions, devices, extras and models."""

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from lastword.model.named import PREFIX, PUBLISHED

# Packages whose versions are shown besides lastword's.
_PACKAGES = ("torch", "transformers", "tokenizers", "huggingface-hub", "datasets", "lm_eval")


def describe_machine() -> dict[str, Any]:
    """Return everything that `lastword doctor` prints, as plain JSON values."""
    extras = metadata.metadata("lastword").get_all("Provides-Extra") or ()
    return {
        "versions": {
            "lastword": _version("lastword"),
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "devices": list(_devices()),
        "extras": {name: missing(name) for name in extras if name not in ("docs", "dev")},
        # The place of each model of `lastword get`; None if it has to be downloaded.
        "models": {f"{PREFIX}{m.name}": m.place and str(m.place) for m in PUBLISHED.values()},
    }


def missing(extra: str) -> list[str]:
    """List the requirements of an extra that are not met."""
    from packaging.requirements import Requirement

    unmet = []
    for requirement in map(Requirement, metadata.requires("lastword") or ()):
        marker = requirement.marker
        if marker is not None and "extra" in str(marker) and marker.evaluate({"extra": extra}):
            installed = _version(requirement.name)
            if installed is None or not requirement.specifier.contains(installed, prereleases=True):
                unmet.append(f"{requirement.name}{requirement.specifier}")
    return list(dict.fromkeys(unmet))  # an included extra may repeat a requirement


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _devices() -> Iterator[dict[str, Any]]:
    if find_spec("torch") is None:
        yield {"name": "cpu", "is": f"{platform.machine()}, without torch", "free_gb": None}
        return
    import torch

    from lastword.model.memory import available

    names = {"cpu": f"{platform.machine()}, {torch.get_num_threads()} threads"}
    if (kind := torch.accelerator.current_accelerator(check_available=True)) is not None:
        name_of = getattr(torch.get_device_module(kind), "get_device_name", lambda _: kind.type)
        for index in range(torch.accelerator.device_count()):
            names[f"{kind.type}:{index}"] = name_of(index)
    for name, what in names.items():
        free = available(torch.device(name))
        yield {"name": name, "is": what, "free_gb": None if free is None else round(free / 1e9, 1)}
