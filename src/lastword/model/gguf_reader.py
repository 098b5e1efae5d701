"""The reader that transformers is given for a GGUF file: no object a string of the vocabulary.

It asks the package gguf for a reader, which makes two arrays of every string and number of the
header, three times over, and turns each back into Python twice. Of all that a config and weights
need the numbers, a few names and how many tokens there are: the header as it is read here.

Three names of that package are patched while a file is opened. They earn it: SmolLM2's config takes
6.3 CPU seconds by the package's reader and 0.05 by this one at every start, also where weights are
kept, and a first start as a whole 30 and 7.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from lastword.weights.gguf import Count, Header, dequantise, open_file

# The format's numbers of types, as transformers looks at them.
_INTEGER, _BOOLEAN, _STRING, _ARRAY, _FLOAT = 11, 7, 8, 9, 12
_VOCABULARY = "tokenizer.ggml.tokens"
_PLAIN = {"F32": np.float32, "F16": np.float16}
_READING = RLock()  # of `read_lightly`, which changes what all threads see of the package gguf


@dataclass(frozen=True)
class Field:
    """A value of the header as the package has it: `parts[i]` for each `i` of `data`."""

    parts: list[Any]
    data: list[int]
    types: list[int]

    @classmethod
    def of(cls, value: Any) -> "Field":
        """The field of a value; of strings as many numbers."""
        if isinstance(value, Count):
            return cls([(0,)], [0] * value, [_INTEGER])  # gone through for its length alone
        if isinstance(value, str):
            return cls([value.encode()], [0], [_STRING])
        if isinstance(value, tuple):
            kind = _kind(value[0]) if value else _INTEGER
            return cls([np.array([own]) for own in value], list(range(len(value))), [_ARRAY, kind])
        return cls([np.array([value])], [0], [_kind(value)])


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOLEAN
    return _FLOAT if isinstance(value, float) else _INTEGER


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of the file as the package has it."""

    name: str
    data: np.ndarray
    tensor_type: Any


class Reader:
    """A file as transformers asks for it: its fields and its tensors.

    Attributes:
        fields: By key; of the vocabulary only how many tokens there are.
        tensors: In the file's order, none of them read yet.
    """

    fields: Mapping[str, Field]
    tensors: list[Stored]

    def __init__(self, path: str | Path) -> None:
        header = open_file(Path(path)).header
        self.fields = {
            key: Field.of(value)
            for key, value in header.values.items()
            if key == _VOCABULARY or not (key.startswith("tokenizer.") and _is_long(value))
        }
        self.tensors = _tensors(Path(path), header)


def _is_long(value: Any) -> bool:
    """True if a value is one a token or a merge."""
    return isinstance(value, tuple | Count)


def _tensors(path: Path, header: Header) -> list[Stored]:
    from gguf import GGMLQuantizationType

    whole = np.asarray(np.memmap(path, mode="r"))
    tensors = []
    for name, own in header.tensors.items():
        stored = whole[own.start : own.stop]
        if own.kind in _PLAIN:
            data = stored.view(_PLAIN[own.kind]).reshape(own.shape)
        else:
            data = stored.reshape(*own.shape[:-1], -1)
        tensors.append(Stored(name, data, GGMLQuantizationType[own.kind]))
    return tensors


@contextmanager
def read_lightly() -> Iterator[None]:
    """A block in which transformers reads config and weights of GGUF files by `Reader`.

    The file is gone through once in it, and llama.cpp's names are made once, not anew for every
    module of the model. A tokenizer is read by transformers itself.
    """
    package: Any = import_module("gguf")
    ours = {
        "GGUFReader": cache(Reader),
        "get_tensor_name_map": cache(package.get_tensor_name_map),
        "dequantize": dequantise,
    }
    with _READING:
        theirs = {name: getattr(package, name) for name in ours}
        try:
            for name, own in ours.items():
                setattr(package, name, own)
            yield
        finally:
            for name, own in theirs.items():
                setattr(package, name, own)
