"""Measures the speed of a model with and without correction, compared with other programs.

Every contender takes the same encoded items and returns the sum of log-probabilities of each
candidate's tokens, so that agreement is checked before speed. Rounds of all contenders are
interleaved. To warm up, every contender first answers one item in eight, untimed.
"""

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch.nn import functional as F

from lastword.decide.batch import Read
from lastword.decide.decider import Decider
from lastword.decide.tracer import Tracer, sound
from lastword.errors import InputError
from lastword.model.check import model_scores, rounding_dtype
from lastword.model.readout import Readout
from lastword.records.decision import Decision
from lastword.rule.tile import Tile
from lastword.text.tokens import EncodedItem

T = TypeVar("T")
Sums = list[list[float]]
Contender = Callable[[Sequence[EncodedItem]], Sums]
Clock = Callable[[], float]  # in seconds: time.perf_counter, or time.process_time if busy

LM_EVAL_BATCHES = (1, 4, 16, 64)
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
        """Return one contender's seconds divided by another's; None if either one disagrees."""
        both = self.agrees(name) and self.agrees(other)
        return self.seconds[name] / self.seconds[other] if both else None

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
    clock: Clock = time.perf_counter,
) -> Bench:
    """Time the contenders on one set of items, in turn, for `rounds` rounds."""
    sample = encoded[: max(1, len(encoded) // 8)]
    others = {name: _other(decider.tracer, name, sample, clock) for name in against}
    mine = {name: partial(ours, decider, read=read) for read, name in NAMES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in [*mine, *others]}
    decisions: dict[str, list[Decision]] = {}
    sums: dict[str, Sums] = {}
    for items in [sample, *[encoded] * rounds]:
        for name, decide in mine.items():
            taken, decisions[name] = _timed(partial(decide, items), clock)
            seconds[name].append(taken)
        for name, run in others.items():
            taken, sums[name] = _timed(partial(run, items), clock)
            seconds[name].append(taken)
    sums = {name: sums_of(encoded, made) for name, made in decisions.items()} | sums
    base = sums[NAMES["base"]]
    answers = {name: [(d.index, d.operator) for d in made] for name, made in decisions.items()}
    return Bench(
        items=len(encoded),
        seconds={name: statistics.median(taken[1:]) for name, taken in seconds.items()},
        agreement={name: _difference(of, base) for name, of in sums.items()},
        tolerance=TOLERANCE.get(rounding_dtype(decider.tracer.backbone), _float32_tolerance(base)),
        same_decisions=answers[NAMES["decide"]] == answers[NAMES["all"]],
    )


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


def ours(decider: Decider, encoded: Sequence[EncodedItem], read: Read) -> list[Decision]:
    """Return the decisions on encoded items, planned and computed as in `correct_many`."""
    return [*map(sound, decider.tracer.correct_encoded(encoded, decider.scope(read)))]


def sums_of(encoded: Sequence[EncodedItem], decisions: Sequence[Decision]) -> Sums:
    """Return the base scores of decisions as sums over each candidate's tokens."""
    return [
        [float(s * m) for s, m in zip(d.base_scores, e.prompt.candidate_tokens, strict=True)]
        for e, d in zip(encoded, decisions, strict=True)
    ]


def plain_base(tracer: Tracer, encoded: Sequence[EncodedItem]) -> Sums:
    """Return scores from one pass per candidate: logits, float32 log-softmax, gather, sum."""
    backbone = tracer.backbone
    return [[float(model_scores(backbone, b).sum()) for b in e.prompt.branches] for e in encoded]


@torch.inference_mode()
def plain_trace(tracer: Tracer, encoded: Sequence[EncodedItem]) -> Sums:
    """Return scores from one pass per candidate, with every depth through the head, and T."""
    model, device, last = tracer.backbone.model, tracer.backbone.device, tracer.backbone.depth
    readout = Readout(model, tracer.backbone.parts, "model")  # the model's head, unchanged

    def one(sequence: tuple[int, ...], boundary: int) -> float:
        ids = torch.tensor([sequence], device=device)
        fed, one = ids[:, :-1], _only(model, 1)
        output = model(input_ids=fed, use_cache=False, output_hidden_states=True, **one)
        token = ids[0, boundary:]
        tile = Tile({}, {}, {}, torch.arange(len(token), device=device), token)
        for depth, states in enumerate(output.hidden_states):
            # transformers returns the last state after the norm
            logits = readout.logits(states[0, boundary - 1 :], norm=depth < last)
            log_probs = F.log_softmax(logits, dim=-1)
            if depth in tracer.scorer.depths:
                tile.logits[depth], tile.log_z[depth] = logits, logits[:, :1] - log_probs[:, :1]
        tracer.scorer.log_probs(tile)
        return float(log_probs.gather(1, token[:, None]).sum())

    return [[one(b.tokens, b.boundary) for b in e.prompt.branches] for e in encoded]


PLAIN = {"plain base": plain_base, "plain trace": plain_trace}


def _only(model: Any, rows: int) -> dict[str, int]:
    """Return the argument that limits logits to the last rows, if the model supports it."""
    supports = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": rows} if supports else {}


def lm_eval(tracer: Tracer, batch_size: int) -> Contender:
    """Return a contender that runs lm-evaluation-harness's `hf` on the same weights and tokens."""
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError(
            'lm-evaluation-harness is not installed; pip install "lastword[lab]"'
        ) from error
    harness: Any = HFLM(
        pretrained=tracer.backbone.model,
        tokenizer=tracer.tokenizer,
        batch_size=batch_size,
        softmax_dtype="float32",
        max_length=tracer.backbone.context,
    )

    def score(encoded: Sequence[EncodedItem]) -> Sums:
        branches = [branch for e in encoded for branch in e.prompt.branches]
        pairs = [(branch.tokens, branch.boundary) for branch in branches]
        requests = [(None, list(s[:b]), list(s[b:])) for s, b in pairs]
        answers = iter(harness._loglikelihood_tokens(requests, disable_tqdm=True))
        return [[float(next(answers)[0]) for _ in e.prompt.sequences] for e in encoded]

    return score


def _other(tracer: Tracer, name: str, sample: Sequence[EncodedItem], clock: Clock) -> Contender:
    if name in PLAIN:
        return partial(PLAIN[name], tracer)
    # lm-evaluation-harness gets the batch size with which it is fastest here.
    sizes = {size: lm_eval(tracer, size) for size in LM_EVAL_BATCHES}
    return sizes[min(sizes, key=lambda size: _timed(partial(sizes[size], sample), clock)[0])]
