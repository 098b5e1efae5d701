"""Corrections: each requests readings of an item and then decides its answer.

TRACE (`trace.Trace`) reads only as much as its rule needs. `Scored` turns a method that only scores
into a correction. Each correction is in a separate file in this folder.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from lastword.errors import InputError, ItemError
from lastword.methods.contract import Evidence, Facts, Method, Needs
from lastword.rule import operators
from lastword.rule.operators import Step
from lastword.rule.router import Ruling


@runtime_checkable
class Correction(Protocol):
    """Decides items, and requests readings step by step."""

    @property
    def name(self) -> str:
        """The name in decisions and records."""

    @property
    def needs(self) -> Needs:
        """All readings that it may need."""

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Return the next step to read, or the ruling.

        Raises:
            ItemError: The item lacks a prompt that the correction needs.
        """


@runtime_checkable
class Learning(Correction, Protocol):
    """A correction that changes with the items it answers, so that their order matters."""

    learns: Literal[True]


@dataclass(frozen=True)
class Scored:
    """A correction that chooses the candidate with the highest score by a method."""

    name: str
    facts: Facts
    method: Method

    @property
    def needs(self) -> Needs:
        """The method's needs, and depth L, because every decision includes the model's answer."""
        needs = self.method.needs
        return replace(needs, depths=needs.depths | {self.facts.depth})

    def next(self, evidence: Evidence) -> Step | Ruling:
        """Request every reading at once, then return the method's scores."""
        # A method declares its needs in advance, so one step reads everything.
        needs, trajectory, blind = self.needs, evidence.trajectory, evidence.blind
        free = evidence.content_free
        if lacking := lacks(needs, blind=blind is not None, free=free is not None):
            raise ItemError(f"{self.name} reads {lacking}, and the item has none")
        step = Step(
            frozenset(d for d in needs.depths if not trajectory.has([d])),
            t=needs.t and trajectory.t is None,
            blind=frozenset(d for d in needs.blind if blind is not None and not blind.has([d])),
            content_free=needs.content_free and free is not None and bool(np.isnan(free).any()),
        )
        if step.t:  # T is computed from the logits at several depths, so these are read too
            scorer_depths = self.facts.theta.scorer_depths(self.facts.depth)
            step = replace(step, depths=step.depths.union(scorer_depths))
        if step != Step(frozenset()):
            return step
        scores = self.method.scores(evidence)
        if scores is None:
            raise ItemError(f"{self.name} does not apply to the item")
        return Ruling("scalar", np.nan, operators.OperatorScores(self.name, scores))


def require_pure(correction: Correction) -> None:
    """Check that a correction's answers do not depend on earlier items.

    Raises:
        InputError: They do, so that batches and shards would change the answers.
    """
    if isinstance(correction, Learning):
        name = correction.name
        raise InputError(
            f"{name} depends on earlier items, which is not possible here: "
            f"`lastword compare --method {name}` uses the mean of all, a certificate a fixed one"
        )


def lacks(needs: Needs, *, blind: bool, free: bool) -> str | None:
    """Return a description of the needed prompts that an item lacks, or None."""
    if needs.blind and not blind:
        return "a blind_prompt"
    return "content_free prompts" if needs.content_free and not free else None
