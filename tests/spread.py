"""What Ray's workers load in tests: the tracer double, told to note what it does and to fail."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tracer_double import TracerDouble

import lastword
from lastword.decide.batch import Scope
from lastword.errors import ModelError, NonFiniteError
from lastword.records.decision import Decision
from lastword.records.parts import part_paths
from lastword.text.tokens import EncodedItem

# Ray runs its workers at nice 15, where they wait for every other test.
PRIORITY = {"RAY_worker_niceness": "0"}


class Noting(TracerDouble):
    """Writes a line for every group that it begins: its items, the process first."""

    def __init__(self, load: "Load") -> None:
        super().__init__(pause=load.pause, **load.options)
        self._load = load

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision | NonFiniteError]:
        ids = [str(e.item.id) for e in encoded]
        note(self._load.folder / "begun", os.getpid(), *ids)
        if set(ids) & set(self._load.deadly):
            os.kill(os.getpid(), signal.SIGKILL)
        while set(ids) & set(self._load.held) and not (self._load.folder / "go").exists():
            time.sleep(0.05)
        return super().decide_group(encoded, scope)


@dataclass(frozen=True)
class Load:
    """Makes the tracer in a worker; with `how`, badly.

    Attributes:
        folder: Where lines are written that the test reads.
        pause: Seconds that a group takes.
        deadly: Ids of items that end the process.
        held: Ids of items whose group waits for the file `go`.
        how: "well"; "refuses": there is no such model; "dies": the process ends; "differs": each
            process has a model of its own.
        options: Of the double.
    """

    folder: Path
    pause: float = 0.0
    deadly: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    how: str = "well"
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        note(self.folder / "loaded", os.getpid())
        if self.how == "refuses":
            raise ModelError("there is no such model; name another")
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        double: Any = Noting(self)
        if self.how == "differs":
            double.described = {"dtype": f"float{os.getpid()}"}
        return double


def note(path: Path, *words: object) -> None:
    with path.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def notes(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def ready_for_workers(patch: pytest.MonkeyPatch) -> None:
    """Let workers find this module and this very lastword, and Ray report to nobody."""
    for name, value in (PRIORITY | {"RAY_USAGE_STATS_ENABLED": "0"}).items():
        patch.setenv(name, value)
    places = Path(__file__).parent, Path(lastword.__file__).parents[1]
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))


def assert_same_records(path: Path, other: Path) -> None:
    """Records are equal but for their seconds, and in parts of the same names."""
    mine, theirs = (lastword.load_records(p).drop(columns="seconds") for p in (path, other))
    assert mine.to_json() == theirs.to_json() and mine["id"].is_unique
    assert sorted(part_paths(path)) == sorted(part_paths(other))
