"""Normalisers, which a checkpoint's tokenizer.json brings: those that make text grow are refused.

Each may replace a letter by many, and the next one each of these again: ten rules make a gigabyte
of a letter, in one step of the tokenizers library that nothing can end.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lastword.errors import ModelError

_MOST = 16.0  # times as long as it was, at most; real checkpoints put a letter for a letter
_LETTER = 3  # bytes of the letter that Unicode makes longest: U+FDFA becomes 33 of them
_LONGEST = 1024  # characters put before a text, at most


def require_steady(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer whose normalisers may make text many times as long.

    Raises:
        ModelError: They may.
    """
    normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normaliser is None:
        return
    rules = json.loads(normaliser.__getstate__())
    if growth(rules) > _MOST:
        raise ModelError(
            f"{name} has a tokenizer whose normalizer makes text more than {_MOST:g} times as "
            "long: take another copy of the model, or mend its tokenizer.json"
        )


def require_whole_maps(content: bytes, name: str) -> None:
    """Refuse a tokenizer.json whose maps of sentencepiece are shorter than they say.

    The tokenizers library makes room for what they say, gigabytes, before it looks.

    Raises:
        ModelError: One is.
    """
    if b"charsmap" not in content and b"\\u00" not in content:  # nor the word in escapes
        return
    try:
        maps = [*_maps(json.loads(content).get("normalizer"))]
    except (ValueError, TypeError, AttributeError):
        return  # the library says what is wrong with it
    _require_whole(maps, name)


def require_whole_model(content: bytes, name: str) -> None:
    """Refuse the same of a model of sentencepiece, which stands in for a tokenizer.json.

    Raises:
        ModelError: A map is shorter than it says.
    """
    try:
        specs = [spec for field, spec in _fields(content) if field in _NORMALISERS]
        fields = [found for spec in specs for found in _fields(spec)]
    except (IndexError, ValueError):
        return  # the library says what is wrong with it
    # What normalises nothing ("identity", as Llama's) has a map of no bytes, which nobody reads.
    _require_whole((value for field, value in fields if field == _CHARSMAP and value), name)


# Fields of sentencepiece's ModelProto (normalizer_spec, denormalizer_spec) and NormalizerSpec.
_NORMALISERS, _CHARSMAP = (3, 5), 2


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and contents of the fields of a protobuf message that have a length."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == 2:
            size, place = _varint(message, place)
            yield key >> 3, message[place : place + size]
            place += size
        elif key & 7 == 0:
            _, place = _varint(message, place)
        else:  # fixed numbers, and the marks around a group, whose fields come as any
            place += {1: 8, 5: 4, 3: 0, 4: 0}.get(key & 7, len(message))


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for index in range(10):  # as many bytes as protobuf takes
        byte = message[place + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, place + index + 1
    raise ValueError("a number of more than ten bytes")


def _require_whole(maps: Iterable[bytes], name: str) -> None:
    if any(len(charsmap) < _trie_end(charsmap) for charsmap in maps):
        raise ModelError(
            f"{name} has a tokenizer whose normalizer has a map that is shorter than it says: "
            "take another copy of the model"
        )


def _maps(rules: Any) -> Iterator[bytes]:
    """Yield every map of sentencepiece among rules."""
    if isinstance(rules, Mapping):
        for rule in rules.get("normalizers", ()):
            yield from _maps(rule)
        if "precompiled_charsmap" in rules:
            yield base64.b64decode(rules["precompiled_charsmap"])


def growth(rules: Mapping[str, Any]) -> float:
    """Return how many times as long a text may become by the rules of a tokenizer.json."""
    factor = 1.0
    for rule in rules.get("normalizers", ()):
        factor *= growth(rule)
    if rules["type"] == "Replace":
        pattern = rules["pattern"].get("String")
        shortest = len(pattern) if pattern else 1  # a regular expression may match one letter
        factor = max(1.0, len(rules["content"]) / shortest)
    if rules["type"] == "Precompiled":
        (charsmap,) = _maps(rules)
        factor = max(1.0, _longest(charsmap) / _LETTER)
    if rules["type"] == "Prepend" and len(rules["prepend"]) > _LONGEST:
        factor = float(len(rules["prepend"]))
    return factor


def _longest(charsmap: bytes) -> int:
    """Return bytes of the longest text that a map of sentencepiece puts for something."""
    return max(map(len, charsmap[_trie_end(charsmap) :].split(b"\0")))


def _trie_end(charsmap: bytes) -> int:
    """Return where texts begin, each with a zero behind it: after a trie and its size."""
    return 4 + int.from_bytes(charsmap[:4], "little")
