"""The place where a command computes: this process, Ray or vLLM."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lastword.cli.model import load_decider, quiet
from lastword.cli.options import read_pairs
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.engines.ray import Cluster
    from lastword.engines.vllm.settings import VllmSettings

_RAY = {"address": str, "workers": int, "gpus_per_worker": float, "cpus_per_worker": float}
_VLLM = {"vllm_python": Path, "tensor_parallel": int}


def read_engine(
    engine: str, options: list[str] | None
) -> "tuple[Cluster | None, VllmSettings | None]":
    """Return Ray's cluster and vLLM's settings; each is None if --engine does without it.

    Every option that is not Ray's or ours is an argument of `vllm.LLM`. Ray's workers use vLLM if
    `vllm_python` is given.

    Raises:
        BadParameter: Options that the engine does not have.
    """
    keys = [option.partition("=")[0] for option in options or ()]
    if engine == "local" and keys:
        raise typer.BadParameter("--engine-options goes with --engine ray or vllm")
    with_vllm = engine == "vllm" or "vllm_python" in keys
    readers = {**(_RAY if engine == "ray" else {}), **(_VLLM if with_vllm else {})}
    others = [key for key in keys if key not in _RAY | _VLLM] if with_vllm else []
    values = read_pairs("--engine-options", options, readers | dict.fromkeys(others, _from_json))
    cluster, settings = None, None
    if engine == "ray":
        with waiting("loading Ray"):
            from lastword.engines.ray import Cluster
        given = {key: values[key] for key in _RAY if key in values}
        cluster = Cluster(**{"address": os.environ.get("RAY_ADDRESS") or "local", **given})
    if with_vllm:
        from lastword.engines.vllm.settings import VllmSettings

        ours = {key.removeprefix("vllm_"): values[key] for key in _VLLM if key in values}
        settings = VllmSettings(**ours, options={key: values[key] for key in others})
    return cluster, settings


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def loader(settings: "VllmSettings | None") -> "Callable[[DecideOptions], Decider]":
    """Return a function that makes a decider: in this process, or in vLLM if settings are given."""
    return load_decider if settings is None else partial(_load_served, settings=settings)


def _load_served(options: DecideOptions, settings: "VllmSettings") -> "Decider":
    quiet()
    with waiting(f"loading {options.label} in vLLM"):
        from lastword.engines.vllm.backend import open_decider

        return open_decider(options, settings)
