"""Pace: the size of a part follows the duration of the last batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tracer_double import TracerDouble, dataset

from lastword.decide import pace
from lastword.decide.batch import Scope
from lastword.decide.pace import Pace
from lastword.errors import NonFiniteError
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Work
from lastword.records.decision import Decision
from lastword.text.tokens import EncodedItem

TOKENS = 8  # per item of the double, roughly


class Clocked(TracerDouble):
    """A double with a simulated clock that advances for each token."""

    def __init__(self, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.seconds, self.now = seconds, 0.0

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision | NonFiniteError]:
        self.now += self.seconds * TOKENS * len(encoded)
        return super().decide_group(encoded, scope)


def parts_of(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Any:
    double: Any = Clocked(seconds, size=30)
    monkeypatch.setattr("lastword.decide.pace.time.perf_counter", lambda: double.now)
    monkeypatch.setattr(pace, "FIRST_TOKENS", 3 * TOKENS)
    data = dataset(folder, 30)
    job = runner.prepare(double, Work(data, data.benchmark.template()))
    clock: list[float] = []
    runner.execute(double, job, folder, advance=lambda _: clock.append(double.now))
    double.waits = [later - earlier for earlier, later in zip(clock, clock[1:], strict=False)]
    return double


def test_a_part_is_saved_at_least_every_thirty_seconds(tmp_path, monkeypatch):
    double = parts_of(tmp_path, monkeypatch, seconds=0.5)
    assert sum(double.waits) == pytest.approx(0.5 * TOKENS * 30)
    assert max(double.waits) <= 30 and len(double.waits) < 12
    assert len(double.groups[0]) <= 3 < len(double.groups[1])


def test_a_fast_model_computes_a_group_as_one_batch(tmp_path, monkeypatch):
    double = parts_of(tmp_path, monkeypatch, seconds=0.01)
    first, whole = double.groups
    assert len(first) <= 3 and len(whole) == 30 and whole[: len(first)] == first


@pytest.mark.parametrize(("tokens", "items"), [([300, 5], 1), ([100, 100, 100], 2), ([0, 0], 2)])
def test_the_first_piece_is_small(tokens, items):
    assert Pace().items(tokens) == items
