"""A correction is a value that a tracer is given: what it needs of an item, and what it decides.

TRACE is one (`trace.Trace`), and reads as little as its rule allows. A method that only scores is
made one by `Scored`. Each stands in a file of its own in this folder, or in a user's package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from lastword.errors import InputError, ItemError
from lastword.methods.contract import Evidence, Facts, Method, Needs
from lastword.rule import operators
from lastword.rule.operators import Step
from lastword.rule.router import Ruling


@runtime_checkable
class Correction(Protocol):
    """Decides items, asking for what it needs as it goes."""

    @property
    def name(self) -> str:
        """Return its name in decisions and records."""

    @property
    def needs(self) -> Needs:
        """Return all that it may ask for."""

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Return what must still be read of an item, or the verdict.

        Raises:
            ItemError: The item lacks what the correction reads.
        """


@runtime_checkable
class Learning(Correction, Protocol):
    """A correction that learns of the items that come: an answer depends on those before it."""

    def changes(self) -> dict[str, Any]:
        """Return what it has learned since it was last asked, by name as JSON has it.

        None stands where it has forgotten.
        """

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Go on from what `changes` gave, the oldest first."""


@dataclass(frozen=True)
class Scored:
    """The answer with the highest score of a method."""

    name: str
    facts: Facts
    method: Method

    @property
    def needs(self) -> Needs:
        """Return the method's, and depth L: the base's answer stands beside every other."""
        needs = self.method.needs
        return replace(needs, depths=needs.depths | {self.facts.depth})

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Ask for everything at once, then give the method's scores."""
        needs, trajectory, blind = self.needs, evidence.trajectory, evidence.blind
        if lacking := lacks(needs, blind=blind is not None, free=evidence.content_free is not None):
            raise ItemError(f"{self.name} reads {lacking}, and the item has none")
        unfree = evidence.content_free
        free = needs.content_free and unfree is not None and bool(np.isnan(unfree).any())
        missing = frozenset(d for d in needs.depths if not trajectory.has([d]))
        unseen = frozenset(d for d in needs.blind if blind is not None and not blind.has([d]))
        lacks_t = needs.t and trajectory.t is None
        if missing or unseen or lacks_t or free:
            t_depths = self._t_depths() if lacks_t else ()
            missing = missing.union(t_depths)
            return Step(missing, scorer=lacks_t, blind=unseen, content_free=free)
        scores = self.method.scores(evidence)
        if scores is None:
            raise ItemError(f"{self.name} does not apply to the item")
        return Ruling("scalar", np.nan, operators.OperatorScores(self.name, scores))

    def _t_depths(self) -> frozenset[int]:
        theta, depth = self.facts.theta, self.facts.depth
        return frozenset([*theta.anchor_depths(depth), *theta.feature_depths(depth), depth])


def require_pure(correction: Correction) -> None:
    """Refuse what learns of the items as they come, where an answer is to be the same anywhere.

    Raises:
        InputError: It does.
    """
    if isinstance(correction, Learning):
        name = correction.name
        raise InputError(
            f"{name} goes by the items that came before, which nothing here may depend on: "
            f"`lastword compare --method {name}` takes the mean of all, a certificate freezes one"
        )


def lacks(needs: Needs, *, blind: bool, free: bool) -> str | None:
    """Return what an item lacks of the prompts that are needed, or None."""
    if needs.blind and not blind:
        return "a blind_prompt"
    return "content_free prompts" if needs.content_free and not free else None
