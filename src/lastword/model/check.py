"""The check at load: which road a model takes, and whether its readout gives the model's logits.

A few short random texts run as the model itself would run them, then packed. Where the packed
scores differ by more than the plain ones differ among themselves, the model takes the plain road;
where the readout at depth L is not the model's logits, it is refused (method, section 2).
On a CUDA device flex attention is tried on packed forests, and taken where it is as right and
faster.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lastword.errors import InputError, NonFiniteError, TraceError, UnsupportedModelError
from lastword.model.backbone import Backbone, Road, shrunk_windows, watching
from lastword.model.families import OWN_WINDOWS
from lastword.model.prefixes import Prefixes
from lastword.model.reading import States
from lastword.model.readout import Readout
from lastword.text.branch import Branch
from lastword.text.forest import Reads, lay_out

ROADS: tuple[Road, ...] = ("packed", "masked")
NOISE = 1.0  # nats; most that a batch may move a score in any dtype
SHRUNK = 4  # well below the length of the check's texts
KERNEL_DEVICES = ("cuda",)  # where flex attention is compiled
TIMED = 512  # tokens that the length of the texts of a timed batch comes from
FASTER = 0.9  # of the time of the usual way: what a kernel in its place must stay below

LogProbs = Float[np.ndarray, " targets"]


@dataclass(frozen=True)
class Trial:
    """The trial of a kernel in the place of the usual way, and so why it was taken or not.

    Attributes:
        taken: Whether it was as right as the usual way, and faster.
        difference: Largest difference of a score from what it should be, in nats.
        seconds: Of a batch by the kernel, compiled before.
        own_seconds: Of the same batch the usual way.
        raised: What it raised; else nothing.
    """

    taken: bool = False
    difference: float = math.nan
    seconds: float = math.nan
    own_seconds: float = math.nan
    raised: str = ""


@dataclass(frozen=True)
class Checked:
    """The check's findings; all differences are in nats of log-probability.

    Attributes:
        noise: Largest difference between the plain road batched and one text at a time.
        packed: Largest difference between the packed road and the plain one; nan where it raised.
        readout: Largest difference between the readout at depth L and the model's logits.
        windowed: Whether the packed road was also checked past a shrunk sliding window.
        kept: Largest difference between the packed road on kept prefixes and the plain one; nan
            where it was not tried.
        keeps: Whether prefixes may be kept.
        flex: What came of flex attention on packed forests, where it was tried.
    """

    road: Road
    attention: str
    noise: float
    packed: float
    readout: float
    windowed: bool
    kept: float = math.nan
    keeps: bool = False
    flex: Trial | None = None


def check(backbone: Backbone, readout: Readout, attention: str = "auto") -> Checked:
    """Try the model's roads, and on a CUDA device flex attention, and say which it takes.

    Raises:
        InputError: The attention named is not the model's.
        UnsupportedModelError: The model cannot be run so, its answers move with what else is in the
            batch or with what comes after, or the readout at depth L is not the model's logits.
    """
    _require_attention(backbone, attention)
    branches = random_texts(readout.vocabulary)
    plain, tolerance = _check_plain(backbone.on("plain"), readout, branches)
    best: Road = "plain"
    packed, windowed = np.nan, False
    for road in () if backbone.config.model_type in OWN_WINDOWS else ROADS:
        try:
            packed, windowed = _packed_difference(backbone.on(road), readout, plain.alone)
        except Exception:  # noqa: BLE001 - whatever packing raises, the model is not packable so
            continue
        if packed <= tolerance:
            best = road
            break
    flex = None
    compiles = backbone.device.type in KERNEL_DEVICES
    if attention == "auto" and best == "packed" and compiles:
        flex = try_flex(backbone, readout, plain.alone, tolerance)
    used = "flex_attention" if flex and flex.taken else backbone.attention
    prefixes = math.nan
    if best == "packed":
        with contextlib.suppress(Exception):  # the model's prefixes are not kept, whatever it is
            prefixes = _kept_difference(backbone.on(best, used), readout, plain.alone)
    differences = plain.noise, packed, plain.readout, windowed, prefixes
    return Checked(best, used, *differences, keeps=prefixes <= tolerance, flex=flex)


def _require_attention(backbone: Backbone, attention: str) -> None:
    """Refuse an attention that a model in memory would have to be given."""
    if attention not in ("auto", "model", backbone.attention):
        raise InputError(
            f"the model attends by {backbone.attention}, not by {attention}: give it that by "
            f"model.set_attn_implementation({attention!r}) first"
        )


def try_flex(backbone: Backbone, readout: Readout, alone: LogProbs, tolerance: float) -> Trial:
    """Hold flex attention on packed forests to the model's attention: is it right, and faster."""
    flex = backbone.on("packed", "flex_attention")
    try:
        batch = _batch(readout.vocabulary, backbone.context)
        own_seconds, expected = _timed(backbone.on("packed"), readout, batch)
        difference, _ = _packed_difference(flex, readout, alone)
        seconds, scores = _timed(flex, readout, batch)
    except Exception as error:  # noqa: BLE001 - whatever compiling or running it raises
        return Trial(raised=_line(error))
    difference = max(difference, _difference(scores, expected))
    better = difference <= tolerance and seconds < FASTER * own_seconds
    return Trial(better, difference, seconds, own_seconds)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


@dataclass(frozen=True)
class _Plain:
    """The plain road's scores of the check's texts, and how far off they were."""

    alone: LogProbs
    noise: float  # batched against one text at a time
    readout: float  # the readout at depth L against the model's logits
    ahead: float  # a token's score with the tokens after it against without them


def _check_plain(
    backbone: Backbone, readout: Readout, branches: list[Branch]
) -> tuple[_Plain, float]:
    """Run the plain road, refuse what is wrong with it; also the difference that noise allows."""
    name = type(backbone.model).__name__
    try:
        plain, scores = _plain(backbone, readout, branches)
    except (TraceError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a model raises when it is read so
        raise UnsupportedModelError(f"lastword cannot read {name}: {_line(error)}") from error
    noise_floor = rounding(rounding_dtype(backbone), scores)
    tolerance = 4 * plain.noise + noise_floor
    # Noise measures all the rest, so it has a separate limit: a model that sees its neighbours'
    # padding would else pass every comparison.
    for what, moves, limit in (
        ("with what else is in its batch", plain.noise, min(32 * noise_floor, NOISE)),
        ("where lastword reads its last depth", plain.readout, tolerance),
        ("with the tokens after it: lastword reads causal models", plain.ahead, tolerance),
    ):
        if not moves <= limit:
            raise UnsupportedModelError(
                f"lastword cannot read {name}: its score of a token moves by {moves:.2g} nats "
                f"(allowed {limit:.2g}) {what}"
            )
    return plain, tolerance


def _plain(backbone: Backbone, readout: Readout, branches: list[Branch]) -> tuple[_Plain, LogProbs]:
    runs = cache(partial(_model_run, backbone))  # candidates of one prompt share its run

    def rows(branch: Branch) -> Tensor:
        return runs(branch.fed, branch.boundary)[1]

    scores = np.concatenate([_predicted(rows(b), b) for b in branches])
    states = [States(runs(b.fed, b.boundary)[0], _own_rows(b)) for b in branches]
    alone = np.concatenate([_read(backbone, readout, each) for each in states])
    noise = _difference(_scores(backbone, readout, branches), alone)
    return _Plain(
        alone, noise, _difference(alone, scores), _ahead_difference(rows, branches, scores)
    ), scores


@torch.inference_mode()
def _model_run(
    backbone: Backbone, fed: tuple[int, ...], boundary: int
) -> tuple[dict[int, Tensor], Tensor]:
    """Return the last state and the model's log-probabilities of the same rows, of one run."""
    hidden: dict[int, Tensor] = {}

    def see(depth: int, state: Tensor) -> None:
        hidden[depth] = state.flatten(0, 1)[boundary - 1 :].clone()

    with watching(backbone.parts, [backbone.depth], see):
        rows = _model_rows(backbone, fed, boundary)
    return hidden, rows


def _own_rows(branch: Branch) -> Reads:
    """Return the reads of a branch whose states are those of its rows, in order."""
    reads = lay_out([branch])[1]
    return replace(reads, rows=np.arange(len(reads.rows)))


def _ahead_difference(
    rows: Callable[[Branch], Tensor], branches: list[Branch], scores: LogProbs
) -> float:
    """Measure how far first tokens' scores move where the tokens after them are not fed."""
    sizes = np.array([len(b.tokens) - b.boundary for b in branches])
    firsts = scores[np.cumsum(sizes) - sizes][sizes > 1]  # nothing is after a token alone
    cut = [Branch(b.tokens[: b.boundary + 1], b.boundary) for b in compress(branches, sizes > 1)]
    alone = np.concatenate([_predicted(rows(b), b) for b in cut])
    return _difference(alone, firsts)


def _packed_difference(backbone: Backbone, readout: Readout, alone: LogProbs) -> tuple[float, bool]:
    branches = random_texts(readout.vocabulary)
    difference = _difference(_scores(backbone, readout, branches), alone)
    with shrunk_windows(backbone, SHRUNK) as windowed:
        if windowed:
            plain = _scores(backbone.on("plain"), readout, branches)
            past = _difference(_scores(backbone, readout, branches), plain)
            difference = max(difference, past)
    return difference, windowed


def _kept_difference(backbone: Backbone, readout: Readout, alone: LogProbs) -> float:
    """Measure how far scores on kept prefixes are from plain ones: the second run has them."""
    keeping = backbone.on("packed", backbone.packed_attention, Prefixes(2**30, block=2))
    branches = random_texts(readout.vocabulary)
    runs = [_scores(keeping, readout, branches) for _ in range(2)]
    assert keeping.prefixes, "nothing was kept: the second run has shown nothing"
    return max(_difference(run, alone) for run in runs)


def _scores(backbone: Backbone, readout: Readout, branches: list[Branch]) -> LogProbs:
    return _read(backbone, readout, backbone.states(branches, [backbone.depth]))


def _read(backbone: Backbone, readout: Readout, states: States) -> LogProbs:
    every = np.arange(len(states.reads.token))
    reading = readout.read(states, every, [backbone.depth])
    if (reading.faults >= 0).any():
        raise NonFiniteError(backbone.depth)
    return reading.log_probs[backbone.depth]


def own_scores(backbone: Backbone, branch: Branch) -> LogProbs:
    """Return the model's log-probabilities of a branch's predicted tokens: one plain call."""
    return _predicted(_model_rows(backbone, branch.fed, branch.boundary), branch)


@torch.inference_mode()
def _model_rows(backbone: Backbone, fed: tuple[int, ...], boundary: int) -> Tensor:
    """Return the model's log-probabilities after a prompt and each token fed after it."""
    ids = torch.tensor([fed], device=backbone.device)
    logits = backbone.model(input_ids=ids, use_cache=False).logits[0, boundary - 1 :]
    return F.log_softmax(logits.float(), dim=-1)


def _predicted(rows: Tensor, branch: Branch) -> LogProbs:
    tokens = torch.tensor(branch.tokens[branch.boundary :], device=rows.device)
    scores: LogProbs = rows.gather(1, tokens[:, None])[:, 0].cpu().numpy()
    return scores


def random_texts(
    vocabulary: int,
    preamble: int = 6,
    prompts: Sequence[int] = (2, 4, 5),
    candidates: Sequence[int] = (1, 2, 3),
) -> list[Branch]:
    """Draw random prompts with a common beginning, and random candidates of each, by lengths."""
    draw = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in draw.integers(vocabulary, size=count))

    common = tokens(preamble)
    contexts = [common + tokens(length) for length in prompts]
    return [Branch(p + tokens(length), len(p)) for p in contexts for length in candidates]


def _batch(vocabulary: int, context: int | None) -> list[Branch]:
    """Return a batch of a benchmark's shape: a preamble, 16 prompts, four candidates each."""
    unit = min(TIMED, context or TIMED) // 32
    return random_texts(
        vocabulary, 16 * unit, [4 * unit] * 16, [1 + unit // 2] * 2 + [1 + unit] * 2
    )


def _timed(backbone: Backbone, readout: Readout, branches: list[Branch]) -> tuple[float, LogProbs]:
    def once() -> float:
        start = time.perf_counter()
        states = backbone.states(branches, [backbone.depth])
        states.hidden[backbone.depth].cpu()  # waits for the device
        return time.perf_counter() - start

    scores = _scores(backbone, readout, branches)  # also compiles what is compiled
    return min(once() for _ in range(3)), scores


def rounding_dtype(backbone: Backbone) -> torch.dtype:
    """Return the dtype by which a model's rounding counts."""
    if getattr(backbone.model, "hf_quantizer", None) is not None:
        # Weights of 8 bits and fewer: kernels round activations as far as bfloat16 does.
        return torch.bfloat16
    return backbone.model.dtype


def rounding(dtype: torch.dtype, scores: LogProbs) -> float:
    """Return how far a dtype alone may move a log-probability."""
    steps = 64 if dtype in (torch.float32, torch.float64) else 4
    return steps * torch.finfo(dtype).eps * max(1.0, float(np.abs(scores).max()))


def _difference(a: LogProbs, b: LogProbs) -> float:
    return float(np.abs(a - b).max())
