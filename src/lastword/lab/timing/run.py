"""Runs a bench: checks agreement, then times interleaved rounds of every contender.

To warm up, every contender first answers one item in eight, untimed.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from lastword.decide.batch import Read
from lastword.decide.decider import Decider
from lastword.lab.timing import contenders
from lastword.lab.timing.contenders import Sums
from lastword.model.check import rounding_dtype
from lastword.text.tokens import EncodedItem

T = TypeVar("T")
Clock = Callable[[], float]  # in seconds: time.perf_counter, or time.process_time if busy

AGAINST = ("lm-eval hf", "plain base", "plain trace")
# Nats per candidate. Contenders in half precision round their logits, ours does not by default. The
# float32 sum of a long candidate is rounded too.
TOLERANCE = {torch.float16: 0.125, torch.bfloat16: 1.0}
LEAST_TOLERANCE, ROUNDINGS = 1e-4, 4
# The cost of correction as ratios of contenders: first of the same kind, then of different kinds.
COSTS = {
    "packed TRACE / packed base": ("ours, staged", "ours, base only"),
    "plain TRACE / plain base": ("plain trace", "plain base"),
    "packed TRACE / plain base": ("ours, staged", "plain base"),
}
NAMES: dict[Read, str] = {
    "base": "ours, base only",
    "decide": "ours, staged",
    "all": "ours, everything read",
}


@dataclass(frozen=True)
class Bench:
    """The result of one bench.

    Attributes:
        seconds: Median seconds over the rounds, by contender.
        agreement: Largest difference, in nats, of a candidate's log-likelihood sum from ours, by
            contender.
    """

    items: int
    seconds: dict[str, float]
    agreement: dict[str, float]
    tolerance: float
    same_decisions: bool

    def ratio(self, name: str, other: str) -> float | None:
        """Return one contender's seconds divided by another's; None if either one disagrees.

        Both must agree with our sums, and staged reading must give the same decisions.
        """
        if not (self.agrees(name) and self.agrees(other)):
            return None
        return self.seconds[name] / self.seconds[other]

    @property
    def costs(self) -> dict[str, float | None]:
        """The ratios of `COSTS`; None if a contender was not timed, or disagrees."""
        return {
            words: self.ratio(*pair) if {*pair} <= {*self.seconds} else None
            for words, pair in COSTS.items()
        }

    def agrees(self, name: str) -> bool:
        """Return True if a contender agrees well enough for its speed to be reported."""
        return self.same_decisions and self.agreement[name] <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self) | {"costs": self.costs}


def bench(
    decider: Decider,
    encoded: Sequence[EncodedItem],
    *,
    rounds: int = 3,
    against: Sequence[str] = AGAINST,
    progress: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> Bench:
    """Time the contenders on one set of items, in turn, for `rounds` rounds."""
    sample = encoded[: max(1, len(encoded) // 8)]
    others = {name: _other(decider, name, sample, clock) for name in against}
    _round(decider, sample, others, lambda name: progress(f"{name}, not counted"), clock)
    turns = [_round(decider, encoded, others, progress, clock) for _ in range(rounds)]
    last = turns[-1]
    base = last.sums[NAMES["base"]]
    return Bench(
        items=len(encoded),
        seconds={name: statistics.median(r.seconds[name] for r in turns) for name in last.seconds},
        agreement={name: _difference(sums, base) for name, sums in last.sums.items()},
        tolerance=TOLERANCE.get(rounding_dtype(decider.tracer.backbone), _float32_tolerance(base)),
        same_decisions=last.decisions["decide"] == last.decisions["all"],
    )


@dataclass(frozen=True)
class _Round:
    """One round: seconds and sums of every contender, and the decisions of ours."""

    seconds: dict[str, float]
    sums: dict[str, Sums]
    decisions: dict[Read, list[tuple[int, str]]]


def _round(
    decider: Decider,
    encoded: Sequence[EncodedItem],
    others: Mapping[str, Callable[[Sequence[EncodedItem]], Sums]],
    progress: Callable[[str], None],
    clock: Clock,
) -> _Round:
    outcome = _Round({}, {}, {})
    for read, name in NAMES.items():
        progress(name)
        outcome.seconds[name], decisions = _timed(
            partial(contenders.ours, decider, encoded, read), clock
        )
        outcome.sums[name] = contenders.sums_of(encoded, decisions)
        outcome.decisions[read] = [(d.index, d.operator) for d in decisions]
    for name, run in others.items():
        progress(name)
        outcome.seconds[name], outcome.sums[name] = _timed(partial(run, encoded), clock)
    return outcome


def _other(
    decider: Decider, name: str, sample: Sequence[EncodedItem], clock: Clock
) -> Callable[[Sequence[EncodedItem]], Sums]:
    if name in contenders.PLAIN:
        return partial(contenders.PLAIN[name], decider.tracer)
    # lm-evaluation-harness gets the batch size with which it is fastest here.
    sizes = {b: contenders.lm_eval(decider.tracer, b) for b in contenders.LM_EVAL_BATCHES}
    return sizes[min(sizes, key=lambda b: _timed(partial(sizes[b], sample), clock)[0])]


def _timed(run: Callable[[], T], clock: Clock) -> tuple[float, T]:
    """Return the seconds of a call, until all GPUs are idle, and its result."""
    start = clock()
    result = run()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    return clock() - start, result


def _float32_tolerance(sums: Sums) -> float:
    largest = max(abs(x) for candidates in sums for x in candidates)
    return max(LEAST_TOLERANCE, ROUNDINGS * torch.finfo(torch.float32).eps * largest)


def _difference(a: Sums, b: Sums) -> float:
    return max(abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
