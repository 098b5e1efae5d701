"""What a command leaves behind: files that appear whole or not at all, printable text."""

from collections.abc import Iterable
from pathlib import Path

from tracelm.errors import InputError
from tracelm.files.writing import open_whole


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
    try:
        with open_whole(path) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
