"""A LoRA adapter folder read as the merged weights: W + scale B A, for the tensors that are read.

PEFT's layout: `adapter_config.json` beside `adapter_model.safetensors`, whose names are
`base_model.model.` and the module's path, then `lora_A.weight` [rank, in] and `lora_B.weight`
[out, rank]. Modules that were trained whole stand there as they are.

A model in memory is merged by PEFT (`model.loading`), which knows every kind of adapter and needs
the whole model; here the five tensors of I(M) are, without one. Both read the config by
`read_config`.
"""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

from jaxtyping import Shaped
from torch import Tensor

from lastword.errors import CheckpointError
from lastword.weights.checkpoint import (
    Checkpoint,
    Config,
    LocalFiles,
    SafetensorsCheckpoint,
    read_json,
)
from lastword.weights.dequantise import read_dense

CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"  # in the config, beside `revision`
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_CHOICE = re.compile(r"[*+?{|]")  # a pattern without any is matched in one way or none
_SECONDS = 10.0  # for all patterns and all names, of which PEFT matches most more than once
# Patterns matched to names in each way that PEFT has.
_TRIAL = r"""
import contextlib, json, re, sys
patterns, names = json.load(sys.stdin)
ways = ("{}", r"(.*\.)?({})$", r".*\.{}$", r"(^|.*\.){}($|\..*)", r"(?:^|.*?\.){}\.(?P<idx>\d+)\.")
for place, pattern in enumerate(patterns):
    print(place, flush=True)
    for way in ways:
        with contextlib.suppress(Exception):  # PEFT says what is wrong with it
            whole = re.compile(way.replace("{}", pattern))
            for name in names:
                whole.fullmatch(name) if way == "{}" else whole.match(name)
"""
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class AdaptedCheckpoint(Checkpoint):
    """A base checkpoint with a LoRA adapter merged into what is read of it."""

    def __init__(self, base: Checkpoint, adapter: Checkpoint, options: Config) -> None:
        """Pair the adapter's modules with the base's.

        Args:
            base: The checkpoint that was adapted.
            adapter: The adapter's own tensors.
            options: Its `adapter_config.json`.

        Raises:
            CheckpointError: It is no plain LoRA, or adapts what the base does not have.
        """
        super().__init__(adapter.label, base.config)
        self._base, self._adapter, self._options = base, adapter, options
        names = {n.removeprefix(_PREFIX) for n in adapter.names}
        self._modules = {n.removesuffix(_DOWN) for n in names if n.endswith(_DOWN)}
        self._whole = {n for n in names if ".lora_" not in n and n in base.names}
        kind = "DoRA" if options.get("use_dora") else str(options.get("peft_type"))
        if kind != "LORA":
            raise CheckpointError(f"{self.label} is a {kind} adapter: merge it and save the model")
        if strange := {m for m in self._modules if f"{m}.weight" not in base.names}:
            raise CheckpointError(
                f"{self.label} adapts {min(strange)}, which {base.label} does not name so: merge "
                "it and save the model"
            )
        require_bounded_patterns(options, self._modules, self.label)

    @cached_property
    def names(self) -> frozenset[str]:
        """The base's names, without the scales of weights that are merged and so dense."""
        return frozenset(
            n for n in self._base.names if n.endswith(".weight") or not self._is_merged(n)
        )

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """The merged tensor where the adapter changes it, else the base's."""
        module = name.removesuffix(".weight")
        if name in self._whole:
            return self._adapter.read(_PREFIX + name)
        if module not in self._modules:
            return self._base.read(name)
        dense, _ = read_dense(self._base, module)
        down = self._adapter.read(_PREFIX + module + _DOWN).double()
        up = self._adapter.read(_PREFIX + module + _UP).double()
        change = self._scale(module, len(down)) * (up @ down)
        return dense.double() + (change.T if self._options.get("fan_in_fan_out") else change)

    def _is_merged(self, name: str) -> bool:
        return any(name.startswith(f"{module}.") for module in self._modules)

    def _scale(self, module: str, rank: int) -> float:
        alpha = float(self._options["lora_alpha"])
        for pattern, value in (self._options.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                alpha = float(value)
                break
        return alpha / (math.sqrt(rank) if self._options.get("use_rslora") else rank)


def is_adapter(folder: Path) -> bool:
    """True if a folder holds an adapter in place of a model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def read_config(folder: Path) -> Config:
    """The config of the adapter in a folder, which names its base.

    Raises:
        CheckpointError: It names none.
    """
    options: Config = read_json(LocalFiles(folder), CONFIG) or {}
    if not isinstance(options.get(BASE), str):
        raise _not_whole(folder)
    return options


def open_adapter(folder: Path, open_base: Callable[[str, str | None], Checkpoint]) -> Checkpoint:
    """The adapter in a folder, merged into its base.

    Args:
        folder: Where the adapter is.
        open_base: Opens the base from its name or folder and its revision.

    Raises:
        CheckpointError: The adapter is not whole, or as `AdaptedCheckpoint`.
    """
    options, adapter = read_config(folder), open_own(folder)
    return AdaptedCheckpoint(open_base(options[BASE], options.get("revision")), adapter, options)


def open_own(folder: Path) -> SafetensorsCheckpoint:
    """The adapter's own tensors; a pickle is none, whatever it is called.

    Raises:
        CheckpointError: There is no safetensors file, or what its config says cannot be merged.
    """
    files = LocalFiles(folder)
    if files.read(WEIGHTS, 0, 8) is None:
        raise _not_whole(folder)
    adapter = SafetensorsCheckpoint(files, {}, WEIGHTS)
    _require_ranks(read_config(folder), adapter)
    return adapter


def _require_ranks(options: Config, adapter: SafetensorsCheckpoint) -> None:
    """Refuse a config that asks for more than the tensors hold: memory is taken by its word."""
    if options.get("num_virtual_tokens") is not None:
        kind = str(options.get("peft_type"))[:40]
        raise CheckpointError(f"{adapter.label} is a {kind} adapter, which no weights can take in")
    most = max((size for _, info in adapter.tensors() for size in info.shape), default=0)
    pattern = options.get("rank_pattern") or {}
    ranks = [options.get("r", 0), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
    if strange := [rank for rank in ranks if not isinstance(rank, int) or not 0 <= rank <= most]:
        raise CheckpointError(
            f"{adapter.label} has the rank {strange[0]!r:.40} in {CONFIG}, and no tensor with more "
            f"than {most} rows: get it again"
        )


def require_bounded_patterns(options: Config, names: Collection[str], label: str) -> None:
    """Refuse regular expressions that names of modules are matched to for very long.

    Nothing ends a match in this process: they are tried in one of their own.

    Args:
        options: The adapter's config.
        names: Of the modules.
        label: The adapter, for the error.

    Raises:
        CheckpointError: One is.
    """
    fields = [own for field, own in options.items() if "pattern" in field or "modules" in field]
    texts = [str(one) for own in fields for one in (own if isinstance(own, list | dict) else [own])]
    patterns = [text for text in texts if _CHOICE.search(text)]
    if not patterns:
        return
    command, stdin = [sys.executable, "-I", "-c", _TRIAL], json.dumps([patterns, [*names]])
    try:
        subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        endless = patterns[int((error.stdout or b"0").split()[-1])]
        raise CheckpointError(
            f"{label} has the pattern {endless!r:.80} in {CONFIG}, which takes more than "
            f"{_SECONDS:g} s to match: expected one without repeats of what repeats; name "
            "the modules there"
        ) from error


def _not_whole(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder} needs {WEIGHTS} and, in {CONFIG}, {BASE}: get it whole, or merge it and save "
        "the model"
    )
