"""Text of a file: UTF-8, UTF-16 with a byte-order mark, or an encoding named by the user."""

import codecs

from lastword.errors import InputError
from lastword.files.wording import shorten

_SAMPLE = 2**16  # bytes for guessing an encoding
# Common encodings of tables; among all of Python's, guesses are often rare ones.
_USUAL = [f"cp{page}" for page in (*range(1250, 1259), 932, 949)]
_USUAL += ["gb18030", "big5", "euc_jp", "koi8_r", "mac_roman"]


def decode(raw: bytes, encoding: str | None = None) -> tuple[str, str]:
    """Return a file's text, and the usual name of its encoding.

    Raises:
        ValueError: It is in another encoding; the message has line, byte and a guess.
        InputError: No encoding has that name.
    """
    if encoding is not None:
        try:
            return raw.decode(encoding).lstrip("\ufeff"), encoding
        except LookupError as error:
            raise InputError(
                f"--encoding {encoding}: no such encoding; known ones are utf-8, cp1252, gb18030"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{_place(raw, error)} is not valid {encoding}") from error
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise ValueError("it looks like UTF-32: pass --encoding utf-32")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16"), "UTF-16"
    if raw.count(b"\0") > len(raw) / 4:
        name = "utf-16-be" if raw.startswith(b"\0") else "utf-16-le"
        raise ValueError(f"it looks like UTF-16 without a mark: pass --encoding {name}")
    try:
        # A file that was exported twice has two byte-order marks.
        return raw.decode().lstrip("\ufeff"), "UTF-8"
    except UnicodeDecodeError as error:
        raise ValueError(_advice(raw, error)) from error


def _place(raw: bytes, error: UnicodeDecodeError) -> str:
    """Return line and place of a byte, counted from 1."""
    start = raw.rfind(b"\n", 0, error.start) + 1
    line = raw.count(b"\n", 0, error.start) + 1
    return f"line {line}: byte {error.start - start + 1} (0x{raw[error.start]:02X})"


def _advice(raw: bytes, error: UnicodeDecodeError) -> str:
    where = f"{_place(raw, error)} is not valid UTF-8"
    beyond = [c for c in raw[:_SAMPLE].decode("utf-8", "replace") if not c.isascii()]
    if beyond.count("\ufffd") < len(beyond) / 2:
        return f"{where}, while other lines are. Correct it, and save the file as UTF-8"
    from charset_normalizer import from_bytes

    begin = max(0, error.start - _SAMPLE // 2)
    best = from_bytes(raw[begin : begin + _SAMPLE], cp_isolation=_USUAL).best()
    if best is None:
        return f"{where}. Save the file as UTF-8, or pass its encoding: --encoding cp1252"
    line = raw[raw.rfind(b"\n", 0, error.start) + 1 :].partition(b"\n")[0]
    sample = shorten(line.decode(best.encoding, "replace").strip(), 60)
    return (
        f"{where}. Save the file as UTF-8, or pass its encoding. A guess, which may be wrong, is "
        f"--encoding {best.encoding}: it reads this line as {sample!r}"
    )
