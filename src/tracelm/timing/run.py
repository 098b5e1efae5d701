"""One bench: agreement first, then interleaved rounds of every contender, then the floor."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tracelm.model.check import rounding_dtype
from tracelm.text.tokens import Encoded
from tracelm.timing import contenders
from tracelm.timing.contenders import Sums
from tracelm.timing.floor import Floor, floors
from tracelm.timing.meter import Meter, metered, peak_bytes, synchronise
from tracelm.tracer import Read, Tracer

AGAINST = ("lm-eval hf", "plain base", "plain trace")
# Nats a candidate. Half-precision contenders round their logits, ours by default do not.
TOLERANCE = {torch.float16: 0.125, torch.bfloat16: 1.0}
NAMES: dict[Read, str] = {
    "base": "ours, base only",
    "decide": "ours, staged",
    "all": "ours, everything read",
}


@dataclass(frozen=True)
class Bench:
    """What one bench saw.

    Attributes:
        items: Number of items.
        seconds: Median seconds of each contender, over the rounds.
        agreement: Largest difference of a candidate's log-likelihood sum from that of ours, base
            only, in nats, by contender.
        tolerance: How much that may be, in nats.
        same_decisions: Whether staged and everything-read decisions are the same.
        meters: Tokens, reads and seconds by stage, of ours in the last round.
        floors: The floor of each of ours; empty where the trunk's products are no plain ones.
        peak_bytes: Most memory above the loaded model while ours ran.
    """

    items: int
    seconds: dict[str, float]
    agreement: dict[str, float]
    tolerance: float
    same_decisions: bool
    meters: dict[str, Meter]
    floors: dict[str, Floor]
    peak_bytes: int

    def ratio(self, name: str, other: str) -> float | None:
        """Seconds of one contender over another's; None where a speed may not be told.

        It may where the sums of both agree with ours, and reading less decides the same.
        """
        if not (self.agrees(name) and self.agrees(other)):
            return None
        return self.seconds[name] / self.seconds[other]

    def agrees(self, name: str) -> bool:
        """Whether a contender's speed may be told."""
        return self.same_decisions and self.agreement[name] <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def bench(
    tracer: Tracer,
    encoded: Sequence[Encoded],
    *,
    rounds: int = 3,
    against: Sequence[str] = AGAINST,
    progress: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Time the contenders on one set of items, in turn, `rounds` times over.

    Args:
        tracer: The model.
        encoded: The items.
        rounds: How often each contender runs; the median counts.
        against: The others to run.
        progress: Called with the name of what runs next.
    """
    peak = peak_bytes(lambda: contenders.ours(tracer, encoded, "all"), tracer.backbone.device)
    others = {name: _other(tracer, name, encoded) for name in against}
    timed = [_round(tracer, encoded, others, progress) for _ in range(rounds)]
    last = timed[-1]
    base = last.sums[NAMES["base"]]
    return Bench(
        items=len(encoded),
        seconds={name: statistics.median(r.seconds[name] for r in timed) for name in last.seconds},
        agreement={name: _difference(sums, base) for name, sums in last.sums.items()},
        tolerance=TOLERANCE.get(rounding_dtype(tracer.backbone), 1e-4),
        same_decisions=last.chosen["decide"] == last.chosen["all"],
        meters=last.meters,
        floors=floors(tracer, encoded, {name: m.reads for name, m in last.meters.items()}),
        peak_bytes=peak,
    )


@dataclass(frozen=True)
class _Round:
    """Every contender once: how long it took, its sums, and of ours the meter and what it chose."""

    seconds: dict[str, float]
    sums: dict[str, Sums]
    meters: dict[str, Meter]
    chosen: dict[Read, list[tuple[int, str]]]


def _round(
    tracer: Tracer,
    encoded: Sequence[Encoded],
    others: Mapping[str, Callable[[Sequence[Encoded]], Sums]],
    progress: Callable[[str], None],
) -> _Round:
    done = _Round({}, {}, {}, {})
    for read, name in NAMES.items():
        progress(name)
        with metered(tracer) as done.meters[name]:
            decisions = contenders.ours(tracer, encoded, read)
        done.seconds[name] = done.meters[name].total
        done.sums[name] = contenders.sums_of(encoded, decisions)
        done.chosen[read] = [(d.index, d.operator) for d in decisions]
    for name, run in others.items():
        progress(name)
        start = time.perf_counter()
        done.sums[name] = run(encoded)
        synchronise()
        done.seconds[name] = time.perf_counter() - start
    return done


def _other(
    tracer: Tracer, name: str, encoded: Sequence[Encoded]
) -> Callable[[Sequence[Encoded]], Sums]:
    if name == "plain base":
        return lambda items: contenders.plain_base(tracer, items)
    if name == "padded base":
        return lambda items: contenders.padded_base(tracer, items)
    if name == "plain trace":
        return lambda items: contenders.plain_trace(tracer, items)
    sample = encoded[: max(1, len(encoded) // 8)]
    sizes = {b: contenders.lm_eval(tracer, b) for b in contenders.LM_EVAL_BATCHES}
    return sizes[min(sizes, key=lambda b: _seconds(lambda: sizes[b](sample)))]


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def _difference(a: Sums, b: Sums) -> float:
    return max(abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
