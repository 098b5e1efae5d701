"""Text of a file: UTF-8, UTF-16 with a byte-order mark, or an encoding named by the user."""

import codecs

from lastword.errors import InputError
from lastword.files.wording import counted, shorten

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SAMPLE = 2**16  # bytes for guessing an encoding
_SURE = 20  # a guess from fewer bytes beyond ASCII is often wrong
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
            return raw.decode(codecs.lookup(encoding).name).removeprefix("\ufeff"), encoding
        except LookupError as error:
            raise InputError(
                f"--encoding {encoding}: no such encoding; known ones are utf-8, cp1252, gb18030"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{_place(raw, error)} is not valid {encoding}") from error
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        raise ValueError("it looks like UTF-32: pass --encoding utf-32")
    if raw.startswith(UTF16):
        return raw.decode("utf-16"), "UTF-16"
    refuse_utf16(raw)
    try:
        return raw.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError as error:
        raise ValueError(_advice(raw, error)) from error


def refuse_utf16(raw: bytes, share: float = 0.25) -> None:
    """Raise a ValueError if more than a share of the bytes are zeros, as in UTF-16."""
    if raw.count(b"\0") > len(raw) * share:
        # The right byte order gives more ASCII: spaces, digits and line ends in every language.
        texts = {name: raw[:SAMPLE].decode(name, "replace") for name in ("utf-16-le", "utf-16-be")}
        name = max(texts, key=lambda name: sum(map(str.isascii, texts[name])))
        raise ValueError(f"it looks like UTF-16 without a mark: pass --encoding {name}")


def refuse_other(raw: bytes) -> None:
    """Raise a ValueError with a guess if three characters, and most beyond ASCII, are not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        if raw.decode("utf-8", "replace").count("\ufffd") > 2 and not _is_mostly_utf8(raw):
            raise ValueError(_advice(raw, error)) from error


def _place(raw: bytes, error: UnicodeDecodeError) -> str:
    """Return line and place of a byte, counted from 1."""
    start = raw.rfind(b"\n", 0, error.start) + 1
    line = raw.count(b"\n", 0, error.start) + 1
    return f"line {line}: byte {error.start - start + 1} (0x{raw[error.start]:02X})"


def _advice(raw: bytes, error: UnicodeDecodeError) -> str:
    where = f"{_place(raw, error)} is not valid UTF-8"
    if _is_mostly_utf8(raw):
        return f"{where}, while other lines are. Correct it, and save the file as UTF-8"
    refuse_utf16(raw, share=0.02)
    from charset_normalizer import from_bytes

    begin = max(0, error.start - SAMPLE // 2)
    part = raw[begin : begin + SAMPLE]
    best = from_bytes(part, cp_isolation=_USUAL).best()
    if best is None:
        return f"{where}. Save the file as UTF-8, or pass its encoding: --encoding cp1252"
    end = raw.find(b"\n", error.start)
    line = raw[raw.rfind(b"\n", 0, error.start) + 1 : end if end > 0 else None]
    sample = shorten(line.decode(best.encoding, "replace").strip(), 60)
    beyond = sum(byte > 127 for byte in part)
    doubt = f" from only {counted(beyond, 'byte')}, often wrong," if beyond < _SURE else ""
    return (
        f"{where}. Save the file as UTF-8, or pass its encoding. A guess{doubt} is --encoding "
        f"{best.encoding}, which reads this line as {sample!r}"
    )


def _is_mostly_utf8(raw: bytes) -> bool:
    characters = [c for c in raw[:SAMPLE].decode("utf-8", "replace") if not c.isascii()]
    return characters.count("\ufffd") < len(characters) / 2
