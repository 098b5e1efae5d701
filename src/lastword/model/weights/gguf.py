"""GGUF, llama.cpp's format: config, tokenizer and (quantised) tensors in one file.

The header is read by byte range (`Files` of `checkpoint.py`), so that an unusable file on a hub is
not downloaded. The readers of gguf and of transformers need a whole local file, take seconds for a
large vocabulary, and accept a key that is stored duplicates.
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
_HEADER_LIMIT = 2**28  # bytes; most of a header is the vocabulary, about ten megabytes
_FIRST_PIECE = 2**20
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
# Errors while a malformed header is parsed.
_MALFORMED = (struct.error, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError)
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
# Families whose logits were compared with the original, in files as llama.cpp's converter writes.
ARCHITECTURES = frozenset(
    "bloom gemma2 gemma3 gpt2 llama nemotron phi3 qwen2 qwen2moe qwen3 qwen3moe stablelm "
    "starcoder2".split()
)


@dataclass(frozen=True)
class Header:
    """The header of a file.

    Attributes:
        values: Its metadata; for an array of strings, their number.
    """

    label: str
    values: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model's family."""
        return str(self.values.get("general.architecture", "none"))

    @property
    def stop(self) -> int:
        """Number of bytes that the file must have."""
        return max((tensor.stop for tensor in self.tensors.values()), default=0)

    @property
    def quantisation(self) -> str:
        """The dtype of most values, such as `Q4_1`."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            counts[tensor.dtype] += math.prod(tensor.shape)
        return max(counts, key=lambda kind: counts[kind], default="none")

    def number(self, key: str) -> int | None:
        """Return the number of a key of the architecture; of a list over blocks, the largest."""
        value = self.values.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            value = max(value, default=None)
        return value if isinstance(value, int) else None


def is_gguf(name: str | Path) -> bool:
    """Return True if a name is that of a GGUF file."""
    return str(name).lower().endswith(SUFFIX)


def read_header(files: Files, file: str) -> Header:
    """Return the header of a file.

    Raises:
        CheckpointError: The file is missing, incomplete, not GGUF, or one part of several.
        ModelError: A package is missing.
    """
    label = f"{files.label}/{file}"
    if absent := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise ModelError(f'{label} needs {" and ".join(absent)}: pip install "lastword[gguf]"')
    if (part := _PART.search(file)) and int(part[1]) > 1:
        raise _split(label, int(part[1]))
    try:
        header = _parse(_Cursor(files, file, label), label)
        alignment = header.values.get("general.alignment", 32)
        end = files.read(file, header.stop - 1, header.stop + alignment) if header.tensors else None
    except _MALFORMED as error:
        raise CheckpointError(f"{label} has no readable GGUF header: {error!r}") from error
    parts = header.values.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise _split(label, parts)
    if header.tensors and not end:
        raise CheckpointError(
            f"{label} is cut short: its header expects {header.stop} bytes; get the file again"
        )
    if end and len(end) > alignment:  # the last tensor may be padded
        raise CheckpointError(
            f"{label} is damaged: bytes follow the last tensor that its header names; get the file "
            "again"
        )
    return header


def _split(label: str, parts: int) -> CheckpointError:
    return CheckpointError(
        f"{label} is one of {parts} parts, and transformers reads whole files: join them with "
        "llama.cpp's `llama-gguf-split --merge`"
    )


class _Cursor:
    """A position in a header, which is fetched as far as it is parsed."""

    def __init__(self, files: Files, file: str, label: str) -> None:
        self._files, self._file, self._label = files, file, label
        self._data = bytearray()
        self.place = 0

    def skip(self, size: int) -> int:
        """Move on by `size` bytes, fetch them if needed, and return where they begin."""
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
        """Move past strings; a vocabulary and its merges have hundreds of thousands."""
        size, data, place = struct.Struct("<Q").unpack_from, self._data, self.place
        for _ in range(count):
            if place + 8 > len(data):
                self.skip(place + 8 - self.place)
            place += 8 + size(data, place)[0]
        self.skip(place - self.place)

    def _fetch(self) -> None:
        """Fetch as many bytes again, so that a large vocabulary takes few requests."""
        size = len(self._data)
        piece = None
        if self.place <= _HEADER_LIMIT:
            stop = max(self.place, 2 * size, _FIRST_PIECE)
            piece = self._files.read(self._file, size, stop)
        if piece is None and size == 0:
            raise CheckpointError(f"there is no file {self._label}: check its name")
        if not piece:
            raise CheckpointError(f"{self._label} is cut short in its header; get the file again")
        self._data += piece


def _parse(cursor: _Cursor, label: str) -> Header:
    if cursor.take(4) != _MAGIC:
        raise CheckpointError(f"{label} is not a GGUF file: its first bytes are of another format")
    (version,) = cursor.unpack("I")
    if version not in _VERSIONS:
        raise CheckpointError(f"{label} is GGUF of version {version}; versions 2 and 3 are read")
    tensors, keys = cursor.unpack("QQ")
    pairs = [(cursor.string(), _value(cursor, cursor.unpack("I")[0])) for _ in range(keys)]
    values = _unique(pairs, "values", label)
    table = [_entry(cursor) for _ in range(tensors)]
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{label} has the alignment {alignment!r}, expected one such as 32")
    origin = -(-cursor.place // alignment) * alignment
    stored = _unique([(n, _tensor(rest, origin, label)) for n, *rest in table], "tensors", label)
    by_place = sorted(stored, key=lambda name: stored[name].start)
    for name, other in pairwise(by_place):
        if stored[other].start < stored[name].stop:
            raise CheckpointError(f"{label} is damaged: the bytes of {name} and {other} overlap")
    return Header(label, values, stored)


def _unique(pairs: Sequence[tuple[str, Any]], noun: str, label: str) -> dict[str, Any]:
    """Return pairs as a dictionary; readers differ on which of two equal names counts."""
    counts = Counter(name for name, _ in pairs)
    if duplicates := [name for name, count in counts.items() if count > 1]:
        raise CheckpointError(f"{label} is damaged: it has two {noun} named {duplicates[0]!r:.80}")
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
    """A GGUF file with its header.

    Raises:
        CheckpointError: See `read_header`.
    """

    def __init__(self, files: Files, file: str) -> None:
        self.header = read_header(files, file)
        self.label = self.header.label
        self._files, self._file = files, file

    def read_stored(self, name: str) -> Float32[Tensor, "..."]:
        """Return the dequantised tensor with llama.cpp's name.

        Raises:
            CheckpointError: It is incomplete.
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
    """Return the checkpoint of a file on disk; see `GgufCheckpoint`."""
    return GgufCheckpoint(LocalFiles(path.parent), path.name)
