"""Folders on this machine and on object storage.

fsspec reaches folders such as `s3://bucket/runs`, which are used like a `pathlib.Path`. Endpoint,
region and credentials are configured as for other clients of the storage. An object appears
completely or not at all, so that no rename is necessary.
"""

import sys
from pathlib import Path

from upath import UPath

from lastword.errors import RecordError
from lastword.files.writing import open_whole

Folder = Path | UPath


def locate(name: str | Folder) -> Folder:
    """Return a folder by its path or URL, and make sure that the storage can be reached.

    Raises:
        RecordError: The storage's package is missing, there is no such bucket, or it cannot be
            reached or accessed.
    """
    if not isinstance(name, str):
        return name
    if "://" not in name:
        return Path(name)
    try:
        place = UPath(name, use_listings_cache=False)  # other processes may write there
        _reach(place)
    except ImportError as error:
        extra = 'pip install "lastword[s3]"' if name.startswith("s3://") else error
        raise RecordError(f"{name} needs a package that is not installed: {extra}") from error
    except failures(ValueError) as error:
        raise RecordError(f"cannot reach {name}: {reason(error)}") from error
    return place


def _reach(place: UPath) -> None:
    try:
        place.fs.ls(place.path)
    except FileNotFoundError:  # nothing is there yet, or no bucket
        bucket = place.path.partition("/")[0]
        try:
            place.fs.info(bucket)
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no bucket {bucket}") from None


def write_whole(path: Folder, content: bytes) -> None:
    """Write a file completely or not at all, also after a crash.

    Raises:
        OSError: The disk is full or refuses; or another of the `failures`.
    """
    if isinstance(path, Path):
        with open_whole(path) as file:
            file.write(content)
    else:
        path.fs.pipe_file(path.path, content)


def failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the errors of reading and writing: those of the system, of S3's client, and others."""
    client = sys.modules.get("botocore.exceptions")
    return (OSError, *others, *([] if client is None else [client.BotoCoreError]))


def inside(root: Folder, path: Folder) -> str:
    """Return a path relative to a folder above it."""
    return "/".join(path.parts[len(root.parts) :])


def reason(error: Exception) -> str:
    """Return the message of a failure in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())
