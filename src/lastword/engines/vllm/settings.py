"""Settings of vLLM, read before slow imports."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastword.errors import InputError, ModelError

HOOKS_VERSION = "0.32"  # the version of vLLM with which the hooks were tested

# Arguments that lastword sets, or that its hooks depend on.
_OURS = (
    *("additional_config", "async_scheduling", "compilation_config", "disable_log_stats", "dtype"),
    *("model", "revision", "skip_tokenizer_init", "tensor_parallel_size", "trust_remote_code"),
    *("worker_cls", "worker_extension_cls"),
)
_VERSION = """
from importlib.metadata import packages_distributions, version
print(version(packages_distributions()["vllm"][0]))
"""


@dataclass(frozen=True)
class VllmSettings:
    """vLLM's interpreter, and its arguments besides the model.

    Attributes:
        python: vLLM's interpreter.
        tensor_parallel: Number of ranks that share the model.
        options: Further arguments of `vllm.LLM`.

    Raises:
        InputError: An argument is set by lastword, or its hooks do not work with it.
    """

    python: Path = Path(sys.executable)
    tensor_parallel: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse arguments that lastword sets, or that do not work."""
        for name in self.options:
            if name in _OURS:
                raise InputError(f"lastword sets {name} itself: leave it out of vLLM's options")
        if self.options.get("pipeline_parallel_size", 1) != 1:
            raise InputError(
                "lastword needs all layers in each rank: use tensor parallelism, not pipeline "
                "parallelism"
            )

    def describe(self) -> dict[str, Any]:
        """Return the description of the engine in `run.json`: name, version and settings.

        Raises:
            ModelError: The interpreter does not exist, or has no vLLM.
        """
        return {
            "name": "vllm",
            "version": self.version(),
            "tensor_parallel": self.tensor_parallel,
            "options": dict(self.options),
        }

    def version(self) -> str:
        """Return vLLM's version from its environment, without importing it.

        Raises:
            ModelError: The interpreter does not exist, or has no vLLM.
        """
        command = [str(self.python), "-I", "-c", _VERSION]
        try:
            process = subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError as error:
            raise ModelError(
                f"no Python at {self.python}: give --engine-options vllm_python=PATH"
            ) from error
        except subprocess.CalledProcessError as error:
            raise ModelError(
                f"no vLLM for {self.python}: give --engine-options vllm_python=PATH, the Python of "
                "an environment that has it"
            ) from error
        version: str = process.stdout.strip()
        return version
