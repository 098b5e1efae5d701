"""The options of the commands that can have vLLM compute."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.model import load_decider, quiet
from lastword.cli.progress import waiting
from lastword.decide.options import DecideOptions
from lastword.engines.vllm.settings import Settings

if TYPE_CHECKING:
    from lastword.decide.decider import Decider


@dataclass(frozen=True)
class VllmOptions:
    """Which vLLM computes: with --engine vllm here, with --engine ray in each worker."""

    vllm_python: Annotated[
        Path | None, "Python of the environment that has vLLM; this one if left out."
    ] = None
    tensor_parallel: Annotated[
        int | None, "Ranks of vLLM that share the model; 1 if left out.", typer.Option(min=1)
    ] = None
    vllm_options: Annotated[str | None, "Further arguments of vLLM's LLM, as JSON."] = None

    def settings(self, engine: str) -> Settings | None:
        """Return vLLM's settings; None where models are of transformers.

        Raises:
            typer.BadParameter: Options of vLLM without it, or what is no JSON object.
        """
        options = {name: value for name, value in vars(self).items() if value is not None}
        if engine == "local":
            for name in options:
                raise typer.BadParameter(f"--{name.replace('_', '-')} needs --engine vllm")
        if engine != "vllm" and not options:
            return None
        renamed = {name.removeprefix("vllm_"): value for name, value in options.items()}
        if "options" in renamed:
            renamed["options"] = _json_object(renamed["options"])
        return Settings(**renamed)


def loader(settings: Settings | None) -> "Callable[[DecideOptions], Decider]":
    """Return a function that makes a decider: in this process, or in vLLM if settings are given."""
    return load_decider if settings is None else partial(_load_served, settings=settings)


def _load_served(options: DecideOptions, settings: Settings) -> "Decider":
    quiet()
    with waiting(f"loading {options.label} in vLLM"):
        from lastword.engines.vllm.backend import open_decider

        return open_decider(options, settings)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--vllm-options is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter('--vllm-options is a JSON object: {"block_size": 32}')
    return value
