"""Whose turn it is with the model, as a value: no clock, no lock and no thread is in it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# A class of work, from the widest name to the narrowest: ("item", "batch").
Lane = tuple[str, ...]


@dataclass(frozen=True)
class Turns:
    """The model's time by lanes, which says who goes next.

    Lanes are the leaves of a tree. At each fork the branch that has had less time goes next, of
    equals the first. A branch in which nobody waits saves nothing up: whoever comes to it later
    begins level with the others.

    Attributes:
        seconds: What each branch has had, in the order in which equals go.
    """

    seconds: Mapping[Lane, float]

    @classmethod
    def of(cls, *lanes: Lane) -> "Turns":
        """The turns of lanes none of which has had any."""
        return cls(dict.fromkeys((branch for lane in lanes for branch in _branches(lane)), 0.0))

    def next(self, waiting: Collection[Lane]) -> tuple[Lane, "Turns"]:
        """The lane whose turn it is, and the turns from which the savings of the absent are gone.

        Args:
            waiting: Lanes in which somebody waits; at least one.
        """
        assert waiting, "nobody waits"
        seconds = dict(self.seconds)
        lane: Lane = ()
        while lane not in waiting:
            fork = [branch for branch in seconds if branch[:-1] == lane]
            present = [b for b in fork if any(other[: len(b)] == b for other in waiting)]
            least = min(seconds[branch] for branch in present)
            seconds |= {b: max(seconds[b], least) for b in fork if b not in present}
            lane = min(present, key=seconds.__getitem__)
        return lane, Turns(seconds)

    def after(self, lane: Lane, seconds: float) -> "Turns":
        """The turns once a lane has had the model for some seconds more."""
        had = dict.fromkeys(_branches(lane), seconds)
        return Turns({b: before + had.get(b, 0.0) for b, before in self.seconds.items()})


def _branches(lane: Lane) -> list[Lane]:
    return [lane[:length] for length in range(1, len(lane) + 1)]
