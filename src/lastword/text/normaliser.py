"""Check of the normalisers in a checkpoint's tokenizer, which is not trusted.

Each rule may replace a letter by many, and the next one each of these again. Ten rules can make a
gigabyte of one letter, in a single call of the tokenizers library that cannot be stopped.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lastword.errors import ModelError

_MOST = 16.0  # maximum growth of a text; real checkpoints replace letters by letters
_LETTER = 3  # bytes of U+FDFA, which Unicode normalisation expands most (to 33 bytes)
_LONGEST = 1024  # maximum number of characters put before a text


def require_steady(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer whose normalisers may make a text many times longer.

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
    """Refuse a tokenizer.json with a map of sentencepiece that is shorter than its header says.

    The tokenizers library would allocate the size in the header, which may be gigabytes.

    Raises:
        ModelError: A map is shorter.
    """
    if b"charsmap" not in content and b"\\u00" not in content:  # JSON may escape the word
        return
    try:
        maps = [*_maps(json.loads(content).get("normalizer"))]
    except (ValueError, TypeError, AttributeError):
        return  # the library will report the error
    _require_whole(maps, name)


def require_whole_model(content: bytes, name: str) -> None:
    """Refuse a sentencepiece model with such a map; see `require_whole_maps`.

    Raises:
        ModelError: A map is shorter than its header says.
    """
    try:
        specs = [spec for field, spec in _fields(content) if field in _NORMALISERS]
        fields = [entry for spec in specs for entry in _fields(spec)]
    except (IndexError, ValueError):
        return  # the library will report the error
    # Llama's normaliser "identity" has an empty map, which is not read.
    _require_whole((value for field, value in fields if field == _CHARSMAP and value), name)


# Field numbers of sentencepiece's ModelProto (normalizer_spec, denormalizer_spec), and of
# precompiled_charsmap in NormalizerSpec. The package protobuf is not a dependency of ours.
_NORMALISERS, _CHARSMAP = (3, 5), 2


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field with a length in a protobuf message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == 2:
            size, place = _varint(message, place)
            yield key >> 3, message[place : place + size]
            place += size
        elif key & 7 == 0:
            _, place = _varint(message, place)
        else:  # numbers of fixed size, and the start and end of groups
            place += {1: 8, 5: 4, 3: 0, 4: 0}.get(key & 7, len(message))


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number with seven bits per byte, the lowest first, and the offset after it."""
    value = 0
    for index in range(10):  # the maximum in protobuf
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
    """Return the maximum growth of a text by the rules of a tokenizer.json."""
    factor = 1.0
    for rule in rules.get("normalizers", ()):
        factor *= growth(rule)
    if rules["type"] == "Replace":
        pattern = rules["pattern"].get("String")
        shortest = len(pattern) if pattern else 1  # a regular expression may match one letter
        factor = max(1.0, len(rules["content"]) / shortest)
    if rules["type"] == "Precompiled":
        (charsmap,) = _maps(rules)
        longest = max(map(len, charsmap[_trie_end(charsmap) :].split(b"\0")))  # a replacement
        factor = max(1.0, longest / _LETTER)
    if rules["type"] == "Prepend" and len(rules["prepend"]) > _LONGEST:
        factor = float(len(rules["prepend"]))
    return factor


def _trie_end(charsmap: bytes) -> int:
    """Return the offset after the size and the trie, where the replacements begin."""
    return 4 + int.from_bytes(charsmap[:4], "little")
