"""A folder of an adapter, as PEFT writes it: its base, and what is refused before PEFT merges it.

`adapter_config.json` stands beside `adapter_model.safetensors`. `model.loading` merges the two.
"""

import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from lastword.errors import CheckpointError
from lastword.model.weights.checkpoint import Config, LocalFiles, SafetensorsCheckpoint, read_json

CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"  # in the config, beside `revision`
WEIGHTS = "adapter_model.safetensors"
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


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter in place of a model."""
    return (folder / CONFIG).is_file() and not any(folder.glob("model*.safetensors*"))


def read_config(folder: Path) -> Config:
    """Return the config of the adapter in a folder, which names its base.

    Raises:
        CheckpointError: It names none, or a revision that is no text.
    """
    options: Config = read_json(LocalFiles(folder), CONFIG) or {}
    named = isinstance(options.get(BASE), str)
    if not named or not isinstance(options.get("revision"), str | None):
        raise _not_whole(folder)
    return options


def open_weights(folder: Path) -> SafetensorsCheckpoint:
    """Return the adapter's tensors; a pickle is none, whatever it is called.

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

    Nothing ends a match in this process: they are tried in a separate one.

    Raises:
        CheckpointError: One is.
    """
    fields = [value for field, value in options.items() if "pattern" in field or "modules" in field]
    texts = [
        str(one)
        for value in fields
        for one in (value if isinstance(value, list | dict) else [value])
    ]
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
