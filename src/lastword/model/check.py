"""The check at load: which road a model takes, and whether its readout gives the model's logits.

A few short random texts run plainly, as in the model itself, and packed. If the packed scores
differ by more than the plain ones differ between batches, the model takes the plain road. If the
readout at depth L differs from the model's logits, the model is refused (method, section 2).
"""

import contextlib
import json
import math
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lastword.errors import InputError, NonFiniteError, TraceError, UnsupportedModelError
from lastword.files.strict_json import to_json
from lastword.model.backbone import Backbone, Road, shrunk_windows
from lastword.model.options import LoadOptions
from lastword.model.parts import FIXED_WINDOWS
from lastword.model.prefixes import Prefixes
from lastword.model.readout import Readout
from lastword.model.weights.identity import cache_folder, store, text_digest
from lastword.text.forest import Branch

NOISE = 1.0  # nats; maximum effect of a batch on a score in any dtype
_LEAST = 10_000_000  # parameters; the check of a smaller model is short, and is not stored
_PACKAGES = ("lastword", "torch", "transformers", "tokenizers")
SHRUNK = 4  # length of the shrunk windows, well below that of the check's texts

LogProbs = Float[np.ndarray, " targets"]


@dataclass(frozen=True)
class Checked:
    """The check's findings; differences are the largest ones, in nats of log-probability."""

    road: Road
    noise: float  # of the plain road, between a batch and one text at a time
    packed: float  # between the packed road and the plain one; nan if packing failed
    readout: float  # between the readout at depth L and the model's logits
    windowed: bool  # the packed road was also checked beyond a shrunk sliding window
    kept: float  # between the packed road with cached prefixes and the plain one; nan if not tried
    keeps: bool  # prefixes may be cached


def check_once(
    backbone: Backbone, readout: Readout, options: LoadOptions, digest: str | None
) -> Checked:
    """Return the stored result of `check` for the same model here, or check it and store that.

    It takes seconds of CPU. Without a digest (`load_digest`), a model is checked each time.
    """
    model = backbone.model
    # The facts below do not cover code and kernels from a hub, nor a model on several devices.
    foreign = options.trust_remote_code or backbone.attention not in ("sdpa", "eager")
    spread = options.device_map is not None or getattr(model, "hf_quantizer", None) is not None
    small = options.embedded is not None or model.num_parameters() < _LEAST
    if digest is None or foreign or spread or small:
        return check(backbone, readout, options.attention)
    facts = {
        "model": digest,
        "packages": [version(name) for name in _PACKAGES],
        "device": [str(model.device), torch.backends.cpu.get_cpu_capability()],
        "cuda": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None,
        "precision": torch.get_float32_matmul_precision(),  # of products, which users may lower
    }
    place = cache_folder() / "checks" / f"{text_digest(to_json(facts))}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # no entry, or a damaged one
        return Checked(**json.loads(place.read_text(encoding="utf-8")))
    checked = check(backbone, readout, options.attention)
    store(place, json.dumps(asdict(checked)))
    return checked


def check(backbone: Backbone, readout: Readout, attention: str = "auto") -> Checked:
    """Try the model's roads, and return the findings; refuse a model that cannot be read."""
    if attention not in ("auto", backbone.attention):
        raise InputError(
            f"the model uses the attention {backbone.attention}, not {attention}: call "
            f"model.set_attn_implementation({attention!r}) first"
        )
    if backbone.attention == "flex_attention":  # its kernel takes no mask
        raise InputError("lastword cannot pack flex attention: choose sdpa or eager")
    plain = _check_plain(backbone.on("plain"), readout)
    packed, windowed, kept = math.nan, False, math.nan
    # Any error while packing means that the model cannot take this road, or cache prefixes.
    with contextlib.suppress(Exception):
        if backbone.config.model_type not in FIXED_WINDOWS:
            packed, windowed = _packed_difference(backbone.on("packed"), readout, plain.alone)
        if packed <= plain.tolerance:
            kept = _cached_difference(backbone, readout, plain.alone)
    road: Road = "packed" if packed <= plain.tolerance else "plain"
    keeps = kept <= plain.tolerance
    return Checked(road, plain.noise, packed, plain.readout, windowed, kept, keeps)


class _Plain(NamedTuple):
    alone: LogProbs
    noise: float  # difference between batched and one text at a time
    readout: float  # difference between the readout at depth L and the model's logits
    ahead: float  # difference of a token's score with and without the tokens after it
    floor: float  # the noise of the dtype's rounding

    @property
    def tolerance(self) -> float:
        return 4 * self.noise + self.floor


def _check_plain(backbone: Backbone, readout: Readout) -> _Plain:
    """Return the plain road's scores; an UnsupportedModelError if they are not the model's."""
    name = type(backbone.model).__name__
    try:
        plain = _plain(backbone, readout)
    except (TraceError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a model's code may raise any error
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnsupportedModelError(f"lastword cannot read {name}: {why}") from error
    # The noise itself has a fixed limit. Otherwise a model that attends to padding would have a
    # large noise, and pass every comparison.
    for what, moves, limit in (
        ("with what else is in its batch", plain.noise, min(32 * plain.floor, NOISE)),
        ("where lastword reads its last depth", plain.readout, plain.tolerance),
        ("with the tokens after it: lastword reads causal models", plain.ahead, plain.tolerance),
    ):
        if not moves <= limit:
            raise UnsupportedModelError(
                f"lastword cannot read {name}: its score of a token moves by {moves:.2g} nats "
                f"(allowed {limit:.2g}) {what}"
            )
    return plain


def _plain(backbone: Backbone, readout: Readout) -> _Plain:
    branches = random_texts(readout.vocabulary)
    alone = np.concatenate([_scores(backbone, readout, [b]) for b in branches])
    noise = _difference(_scores(backbone, readout, branches), alone)
    rows = cache(partial(_model_rows, backbone))  # candidates of one prompt share its rows
    scores = np.concatenate([_predicted(rows(b.fed, b.boundary), b) for b in branches])
    # A causal model scores a candidate's first token the same if the rest is not fed.
    sizes = np.array([len(b.tokens) - b.boundary for b in branches])
    firsts = scores[np.cumsum(sizes) - sizes][sizes > 1]
    cut = [Branch(b.tokens[: b.boundary + 1], b.boundary) for b in compress(branches, sizes > 1)]
    firsts_alone = np.concatenate([_predicted(rows(b.fed, b.boundary), b) for b in cut])
    ahead = _difference(firsts_alone, firsts)
    floor = rounding(rounding_dtype(backbone), scores)
    return _Plain(alone, noise, _difference(alone, scores), ahead, floor)


def _packed_difference(backbone: Backbone, readout: Readout, alone: LogProbs) -> tuple[float, bool]:
    branches = random_texts(readout.vocabulary)
    difference = _difference(_scores(backbone, readout, branches), alone)
    # A mask may be right within a sliding window and wrong beyond it, so the windows are shrunk
    # below the length of the texts.
    with shrunk_windows(backbone, SHRUNK) as windowed:
        if windowed:
            roads = (_scores(b, readout, branches) for b in (backbone, backbone.on("plain")))
            difference = max(difference, _difference(*roads))
    return difference, windowed


def _cached_difference(backbone: Backbone, readout: Readout, alone: LogProbs) -> float:
    caching = backbone.on("packed", Prefixes(2**30, block=2))
    branches = random_texts(readout.vocabulary)
    runs = [_scores(caching, readout, branches) for _ in range(2)]  # the second uses the cache
    assert caching.prefixes, "the cache is empty, so the second run did not use it"
    return max(_difference(run, alone) for run in runs)


def _scores(backbone: Backbone, readout: Readout, branches: list[Branch]) -> LogProbs:
    states = backbone.states(branches, [backbone.depth])
    every = np.arange(len(states.reads.token))
    reading = readout.read(states, every, [backbone.depth])
    if (reading.faults >= 0).any():
        raise NonFiniteError(backbone.depth)
    return reading.log_probs[backbone.depth]


def model_scores(backbone: Backbone, branch: Branch) -> LogProbs:
    """Return the model's log-probabilities of a branch's predicted tokens."""
    return _predicted(_model_rows(backbone, branch.fed, branch.boundary), branch)


@torch.inference_mode()
def _model_rows(backbone: Backbone, fed: tuple[int, ...], boundary: int) -> Tensor:
    ids = torch.tensor([fed], device=backbone.device)
    logits = backbone.model(input_ids=ids, use_cache=False).logits[0, boundary - 1 :]
    return F.log_softmax(logits.float(), dim=-1)


def _predicted(rows: Tensor, branch: Branch) -> LogProbs:
    tokens = torch.tensor(branch.tokens[branch.boundary :], device=rows.device)
    scores: LogProbs = rows.gather(1, tokens[:, None])[:, 0].cpu().numpy()
    return scores


def random_texts(vocabulary: int) -> list[Branch]:
    """Draw three random prompts with a common preamble, and three random candidates of each."""
    draw = np.random.default_rng(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(int(t) for t in draw.integers(vocabulary, size=count))

    common = tokens(6)
    contexts = [common + tokens(length) for length in (2, 4, 5)]
    return [Branch(p + tokens(length), len(p)) for p in contexts for length in (1, 2, 3)]


def rounding_dtype(backbone: Backbone) -> torch.dtype:
    """Return the dtype that determines a model's rounding."""
    # Kernels for quantised weights round activations as much as bfloat16 does.
    quantised = getattr(backbone.model, "hf_quantizer", None) is not None
    return torch.bfloat16 if quantised else backbone.model.dtype


def rounding(dtype: torch.dtype, scores: LogProbs) -> float:
    """Return the allowed effect of a dtype's rounding on a log-probability."""
    steps = 64 if dtype in (torch.float32, torch.float64) else 4
    return steps * torch.finfo(dtype).eps * max(1.0, float(np.abs(scores).max()))


def _difference(a: LogProbs, b: LogProbs) -> float:
    return float(np.abs(a - b).max())
