"""The contenders of the bench: plain base scoring, plain TRACE, lm-evaluation-harness, ours.

Every contender takes the same encoded items and returns the sum of log-probabilities of each
candidate's tokens, so that their agreement is checked before their speed.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from lastword.decide.batch import Read
from lastword.decide.decider import Decider
from lastword.decide.tracer import Tracer, sound
from lastword.errors import InputError
from lastword.model.check import model_scores
from lastword.model.readout import Readout
from lastword.records.decision import Decision
from lastword.rule.tile import Tile
from lastword.text.tokens import EncodedItem

Sums = list[list[float]]
LM_EVAL_BATCHES = (1, 4, 16, 64)


def ours(decider: Decider, encoded: Sequence[EncodedItem], read: Read) -> list[Decision]:
    """Return the decisions on encoded items, planned and computed as in `correct_many`."""
    return [*map(sound, decider.correct_encoded(encoded, decider.scope(read)))]


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


def lm_eval(tracer: Tracer, batch_size: int) -> Callable[[Sequence[EncodedItem]], Sums]:
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
