"""What a command leaves behind: JSON, files that appear whole or not at all, printable text."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracelm.errors import InputError


def to_json(value: Any) -> str:
    """One line of strict JSON; text stays readable."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def printable(text: str) -> str:
    """Text of a model or a user without the characters that would drive the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def check_writable(path: Path) -> None:
    """Refuse a place for a file before the work that fills it.

    Raises:
        InputError: Its folder is missing, or something that is no file stands there.
    """
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.absolute().parent}")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: expected a file, found something else")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file that appears whole or, if anything fails on the way, not at all.

    Raises:
        InputError: The file cannot be written.
    """
    check_writable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
