"""GGUF, llama.cpp's format: config, tokenizer and (quantised) tensors in one file.

The header is read by byte range, through the seam of `checkpoint.py`, so that a file on a hub that
cannot be used is not downloaded.
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from lastword.errors import CheckpointError, ModelError
from lastword.model.weights.checkpoint import Files, LocalFiles, TensorInfo

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# A header is its vocabulary: some ten megabytes. A longer one is another file's bytes.
_HEADER_LIMIT = 2**28
_FIRST_PIECE = 2**20
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
# What numbers and types that no header has end in.
_NONSENSE = (struct.error, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
# Families that were held to their logits, each written as llama.cpp's converter does.
ARCHITECTURES = frozenset(
    "bloom gemma2 gemma3 gpt2 llama nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe stablelm "
    "starcoder2".split()
)


@dataclass(frozen=True)
class Header:
    """The header of a file: what stands before its tensors' bytes.

    Attributes:
        values: Its metadata; of an array of strings, their number.
    """

    label: str
    values: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the model's family."""
        return str(self.values.get("general.architecture", "none"))

    @property
    def stop(self) -> int:
        """Count the bytes that the file must have."""
        return max((tensor.stop for tensor in self.tensors.values()), default=0)

    @property
    def quantisation(self) -> str:
        """Name how most of the values are stored: `Q4_1`."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
        return max(counts, key=lambda kind: counts[kind], default="none")

    def number(self, key: str) -> int | None:
        """Return the architecture's number of that key; of one a block, the largest."""
        value = self.values.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            value = max(value, default=None)
        return value if isinstance(value, int) else None


def is_gguf(name: str | Path) -> bool:
    """Return True if a name is that of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def require(label: str) -> None:
    """Refuse a file where the package that reads it is not installed.

    Raises:
        ModelError: Says what to install.
    """
    absent = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if absent:
        raise ModelError(f'{label} needs {" and ".join(absent)}: pip install "lastword[gguf]"')


def read_header(files: Files, file: str) -> Header:
    """Return the header of a file, and nothing behind it.

    Raises:
        CheckpointError: The file is missing, no GGUF, one part of several, or cut short.
    """
    label = f"{files.label}/{file}"
    require(label)
    if (part := _PART.search(file)) and int(part[1]) > 1:
        raise _split(label, int(part[1]))
    try:
        header = _parse(_Cursor(files, file, label), label)
        whole = not header.tensors or files.read(file, header.stop - 1, header.stop)
    except _NONSENSE as error:
        raise CheckpointError(f"{label} has no readable GGUF header: {error!r}") from error
    parts = header.values.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise _split(label, parts)
    if not whole:
        raise CheckpointError(
            f"{label} is cut short: its header tells of {header.stop} bytes; get the file again"
        )
    return header


def _split(label: str, parts: int) -> CheckpointError:
    return CheckpointError(
        f"{label} is one of {parts} parts, and transformers reads whole files: join them with "
        "llama.cpp's `llama-gguf-split --merge`"
    )


class _Cursor:
    """Numbers and strings of a header one after another; the file is read as far as needed."""

    def __init__(self, files: Files, file: str, label: str) -> None:
        self._files, self._file, self._label = files, file, label
        self._data = bytearray()
        self.place = 0

    def skip(self, size: int) -> int:
        """Go `size` bytes on, all of which are here then; where they begin."""
        start = self.place
        self.place += size
        while self.place > len(self._data):
            self._fetch()
        return start

    def take(self, size: int) -> bytes:
        return bytes(self._data[(start := self.skip(size)) : start + size])

    def unpack(self, letters: str) -> tuple[Any, ...]:
        layout = f"<{letters}"
        start = self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, start)

    def string(self) -> str:
        return self.take(self.unpack("Q")[0]).decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        """Go past so many strings: a vocabulary and its merges have hundreds of thousands."""
        size, data, place = struct.Struct("<Q").unpack_from, self._data, self.place
        for _ in range(count):
            if place + 8 > len(data):
                self.skip(place + 8 - self.place)
            place += 8 + size(data, place)[0]
        self.skip(place - self.place)

    def _fetch(self) -> None:
        """Read on, twice as far each time: few requests, whatever the vocabulary."""
        have = len(self._data)
        piece = None
        if self.place <= _HEADER_LIMIT:
            stop = max(self.place, 2 * have, _FIRST_PIECE)
            piece = self._files.read(self._file, have, stop)
        if piece is None and have == 0:
            raise CheckpointError(f"there is no file {self._label}: check its name")
        if not piece:
            raise CheckpointError(f"{self._label} is cut short in its header; get the file again")
        self._data += piece


def _parse(cursor: _Cursor, label: str) -> Header:
    if cursor.take(4) != _MAGIC:
        raise CheckpointError(f"{label} is no GGUF file: its first bytes are another format's")
    (version,) = cursor.unpack("I")
    if version not in _VERSIONS:
        raise CheckpointError(f"{label} is GGUF of version {version}; versions 2 and 3 are read")
    tensors, keys = cursor.unpack("QQ")
    pairs = [(cursor.string(), _value(cursor, cursor.unpack("I")[0])) for _ in range(keys)]
    values = _once(pairs, "values", label)
    table = [_entry(cursor) for _ in range(tensors)]
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{label} has an alignment of {alignment!r}, expected 32 or the like")
    origin = -(-cursor.place // alignment) * alignment
    stored = _once([(n, _tensor(rest, origin, label)) for n, *rest in table], "tensors", label)
    by_place = sorted(stored, key=lambda name: stored[name].start)
    for name, other in pairwise(by_place):
        if stored[other].start < stored[name].stop:
            raise CheckpointError(f"{label} is damaged: the bytes of {name} and {other} overlap")
    return Header(label, values, stored)


def _once(pairs: Sequence[tuple[str, Any]], what: str, label: str) -> dict[str, Any]:
    """Return pairs by name; readers differ on which counts of two with one name."""
    counts = Counter(name for name, _ in pairs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise CheckpointError(f"{label} is damaged: it has two {what} named {twice[0]!r:.80}")
    return dict(pairs)


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind in _NUMBERS:
        return cursor.unpack(_NUMBERS[kind])[0]
    if kind != _ARRAY:
        raise CheckpointError(f"a GGUF header has a value of type {kind}, which is not known")
    inner, count = cursor.unpack("IQ")
    if inner in _NUMBERS:
        return cursor.unpack(f"{count}{_NUMBERS[inner]}")
    if inner != _STRING:
        return tuple(_value(cursor, inner) for _ in range(count))
    cursor.skip_strings(count)
    return count


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    shape = cursor.unpack(f"{cursor.unpack('I')[0]}Q")
    kind, offset = cursor.unpack("IQ")
    return name, tuple(reversed(shape)), kind, offset


def _tensor(entry: list[Any], origin: int, label: str) -> TensorInfo:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    shape, number, offset = entry
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise CheckpointError(f"{label} has tensors of type {number}, not known here") from error
    values, size = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % values:
        raise CheckpointError(
            f"{label} is damaged: a row of {shape[-1]} values cannot be stored as {kind.name}"
        )
    start = origin + offset
    return TensorInfo(kind.name, shape, start, start + math.prod(shape) // values * size)


class GgufCheckpoint:
    """A GGUF file, of which its header has been read."""

    def __init__(self, files: Files, file: str) -> None:
        """Read the header.

        Raises:
            CheckpointError: As `read_header`.
        """
        self.header = read_header(files, file)
        self.label = self.header.label
        self._files, self._file = files, file

    def read_stored(self, name: str) -> Float32[Tensor, "..."]:
        """Return the tensor of llama.cpp's name, dequantised.

        Raises:
            CheckpointError: It is cut short.
        """
        from gguf import GGMLQuantizationType, dequantize

        info = self.header.tensors[name]
        data = self._files.read(self._file, info.start, info.stop)
        if data is None or len(data) != info.stop - info.start:
            raise CheckpointError(f"{self.label} is cut short at {name}; get the file again")
        rows = np.frombuffer(data, dtype=np.uint8).reshape(*info.shape[:-1], -1)
        dense = dequantize(rows, GGMLQuantizationType[info.dtype])
        return torch.tensor(dense).reshape(info.shape)


def open_file(path: Path) -> GgufCheckpoint:
    """Return the checkpoint of a file on disk.

    Raises:
        CheckpointError: As `GgufCheckpoint`.
    """
    return GgufCheckpoint(LocalFiles(path.parent), path.name)
