"""Labelled items of a few kinds, their evidence, and certificates of such items."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lastword.trust.automation import Automation, Errors, Rung
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Trial
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled, MethodAnswers
from lastword.trust.policy import TRACE, Policy, family
from lastword.trust.subject import Subject
from lastword.trust.terms import Terms


@dataclass(frozen=True)
class Kind:
    """One type of item: its share of a population, its answers and its override."""

    share: float
    base: bool
    shown: bool
    operator: str = "base"
    margin: float = 5.0
    confidence: float = 0.6
    base_confidence: float = 0.5


def changed(items: Labelled, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the items that a policy fixes and of those that it breaks."""
    base, right = items.mc1_base > 0, items.right(policy)
    return ~base & right, base & ~right


def labelled(kinds: list[Kind]) -> Labelled:
    """Return one item of each kind."""
    answers = MethodAnswers(
        mc1=np.array([k.shown for k in kinds], dtype=float),
        confidence=np.array([k.confidence for k in kinds], dtype=float),
        overrides=np.array([k.operator != "base" for k in kinds], dtype=bool),
        operators=np.array([k.operator for k in kinds], dtype=str),
        margins=np.array([k.margin for k in kinds], dtype=float),
    )
    return Labelled(
        mc1_base=np.array([k.base for k in kinds], dtype=float),
        base_confidence=np.array([k.base_confidence for k in kinds], dtype=float),
        methods={TRACE: answers},
        groups=np.arange(len(kinds)),
    )


def counted(items: int, fixed: int, broken: int) -> Evidence:
    """Return the evidence of single items, of which the model answers about three in five right."""
    right, place = min(max(int(0.6 * items), broken), items - fixed), np.arange(items)
    shown = (place >= broken) & (place < right + fixed)
    return Evidence.of(place < right, shown, place)


def certificate(
    subject: Subject,
    policy: Policy,
    terms: Terms,
    fixed: int,
    broken: int = 0,
    items: int = 400,
    **more: Any,
) -> Certificate:
    """Return a certificate of single items on which every other policy changes nothing."""
    scalar = "early" if "early" in policy.operators else "mix"
    trials = tuple(
        Trial(p, share, counted(items, *((fixed, broken) if p == policy else (0, 0))))
        for p, share in family(scalar, terms.methods, terms.promise).items()
    )
    return Certificate(subject, terms, policy, trials, **more)


def above(threshold: float, answerers: int = 5) -> Automation:
    """Return the proof that at most 10% of the answers at or above a threshold are wrong."""
    return Automation(0.1, (Rung(threshold, 0.8, Errors(300, 300, 0.03)),), answerers)


def at(items: Labelled, places: np.ndarray) -> Labelled:
    """Return the items at these positions as independent draws."""
    answers = MethodAnswers(
        **{n: values[places] for n, values in vars(items.methods[TRACE]).items()}
    )
    base = items.mc1_base[places], items.base_confidence[places]
    return Labelled(*base, {TRACE: answers}, np.arange(len(places)))


def in_groups(items: Labelled, size: int) -> Labelled:
    """Return copies of every item, each item's copies in one group."""
    copies = np.repeat(np.arange(len(items)), size)
    return replace(at(items, copies), groups=copies)
