"""Text of a file: UTF-8, UTF-16 with a byte-order mark, or an encoding named by the user."""

import codecs

from lastword.errors import InputError


def decode(raw: bytes, encoding: str | None = None) -> tuple[str, str]:
    """Return a file's text, and the name of its encoding; a ValueError names the wrong byte."""
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    name = encoding or ("UTF-16" if marked else "UTF-8")
    try:
        # A file that was exported twice has two byte-order marks.
        text = raw.decode(name).lstrip("\ufeff")
    except LookupError as error:
        raise InputError(
            f"--encoding {name}: no such encoding; known ones are utf-8, cp1252, gb18030"
        ) from error
    except UnicodeDecodeError as error:
        start = raw.rfind(b"\n", 0, error.start) + 1
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line}: byte {error.start - start + 1} (0x{raw[error.start]:02X}) is not valid "
            f"{name}. Correct it, save the file as UTF-8, or pass its encoding: --encoding cp1252"
        ) from error
    if encoding is None and text.count("\0") > len(text) / 4:
        raise ValueError("it looks like UTF-16 or UTF-32: pass its encoding: --encoding utf-16-le")
    return text, name
