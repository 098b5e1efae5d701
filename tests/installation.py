"""Installations of lastword with its requirements, and nothing else of this environment."""

import subprocess
import sys
from collections.abc import Sequence, Set
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

COMMAND = "from lastword.__main__ import main; main()"


def needed(requires: Sequence[str], extras: Set[str]) -> set[str]:
    """Return the packages that pip installs for these requirements with extras of lastword."""
    names: set[str] = set()
    waiting = [(Requirement(line), extras) for line in requires]
    while waiting:
        line, chosen = waiting.pop()
        name, marker = str(canonicalize_name(line.name)), line.marker
        if marker is not None and not any(marker.evaluate({"extra": e}) for e in ("", *chosen)):
            continue
        if name == "lastword":
            waiting += [(Requirement(more), line.extras) for more in requires]
        elif name not in names:
            names.add(name)
            waiting += [(Requirement(more), set()) for more in distribution(name).requires or ()]
    return names


def required(installed: Path) -> Sequence[str]:
    (info,) = installed.glob("*.dist-info")
    return Distribution.at(info).requires or ()


def environment(installed: Path, folder: Path, *extras: str) -> Path:
    """Fill a folder with the packages of `pip install "lastword[EXTRAS]"`."""
    for name in needed(required(installed), set(extras)):
        package = distribution(name)
        tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", ".")}
        for top in tops - {"__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
    for path in installed.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def isolated(folder: Path, program: str, *arguments: object) -> list[str]:
    """Return the command that runs a program with only Python and the packages of a folder."""
    lines = f"import sys; sys.path.append({str(folder)!r}); sys.argv[0] = 'lastword'\n{program}"
    return [sys.executable, "-I", "-S", "-c", lines, *map(str, arguments)]


def alone(folder: Path, place: Path, program: str, *arguments: object):
    """Run a program with only Python and the packages of a folder."""
    command = isolated(folder, program, *arguments)
    return subprocess.run(command, cwd=place, capture_output=True, text=True)
