"""DoLa and SLED in float64, token by token, in the most direct form.

Written from the published formulas, independent of the package. `positions` runs a model on one
candidate at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Position:
    """One predicted token: logits [V] at every depth, with and without the final norm."""

    normed: list[np.ndarray]
    raw: list[np.ndarray]
    token: int


def positions(
    model: PreTrainedModel,
    norm: torch.nn.Module,
    after: Callable[[torch.Tensor], torch.Tensor],
    sequence: Sequence[int],
    boundary: int,
) -> list[Position]:
    """Return the logits of a float64 model at the positions that predict a candidate's tokens.

    Args:
        model: The model, in float64.
        norm: The model's final norm.
        after: The model's change to its head's output (a soft-cap, or nothing).
        sequence: The whole text.
        boundary: Position of the candidate's first token.
    """
    with torch.inference_mode():
        output = model(torch.tensor([sequence]), output_hidden_states=True, use_cache=False)
        head = model.get_output_embeddings()
        early = [h[0] for h in output.hidden_states[:-1]]  # the last entry is already normed
        normed = [after(head(norm(h))) for h in early] + [output.logits[0]]
        raw = [after(head(h)) for h in early]
    return [
        Position(
            [z[at - 1].double().numpy() for z in normed],
            [z[at - 1].double().numpy() for z in raw],
            sequence[at],
        )
        for at in range(boundary, len(sequence))
    ]


def premature(depth: int) -> list[int]:
    start = depth - 20 if depth > 40 else depth // 2
    return [n for n in range(start, depth) if (n - start) % 2 == 0]


def log_softmax(z: np.ndarray) -> np.ndarray:
    return z - z.max() - np.log(np.sum(np.exp(z - z.max())))


def dola_divergence(late: np.ndarray, early: np.ndarray) -> float:
    """Return D_l of two log-distributions."""
    total = 0.0
    for a, b in zip(late, early, strict=True):
        mean = (np.exp(a) + np.exp(b)) / 2
        if mean > 0:
            total += mean * (2 * np.log(mean) - a - b)
    return total / (2 * len(late))


def jensen_shannon(late: np.ndarray, early: np.ndarray) -> float:
    """Return the true divergence: KL(p_L || M) / 2 + KL(p_l || M) / 2."""
    mean = (np.exp(late) + np.exp(early)) / 2
    return float(sum(np.sum(np.exp(p) * (p - np.log(mean))) for p in (late, early)) / 2)


def contrast(at: Position) -> np.ndarray:
    """Return S of every token: log p_L - log p_l*."""
    late = log_softmax(at.normed[-1])
    best, chosen = -np.inf, None
    for layer in premature(len(at.normed) - 1):
        early = log_softmax(at.raw[layer])
        divergence = dola_divergence(late, early)
        if divergence > best:
            best, chosen = divergence, early
    assert chosen is not None
    return late - chosen


def evolved(at: Position, k: int = 75, alpha: float = 2.5, steps: int = 10) -> np.ndarray:
    """Return SLED's h of every token, from every earlier depth."""
    depth = len(at.normed) - 1
    z = at.normed[depth]
    inside = sorted(range(len(z)), key=lambda v: (-z[v], v))[:k]
    m: dict[tuple[int, int], float] = {}
    for n in range(depth):
        p, d = np.exp(log_softmax(at.raw[n])), at.raw[n] - z
        for i in inside:
            one_hot = np.zeros(len(z))
            one_hot[i] = 1.0
            # The cosine of (p_n - e_i) and d_n.
            size = np.linalg.norm(p - one_hot) * np.linalg.norm(d)
            cosine = np.dot(p - one_hot, d) / max(size, 1e-8)
            m[n, i] = max(cosine, 0.0) ** 2
    total = sum(m.values())
    q = np.zeros(len(z))
    for (_, i), value in m.items():
        q[i] += value / total if total else 0.0
    h = z.copy()
    for t in range(steps):
        h = h - alpha * (1 - t / steps) * (np.exp(log_softmax(h)) - q)
    outside = np.ones(len(z), dtype=bool)
    outside[inside] = False
    h[outside] = -100.0
    return h


# Scores of every token [V] at a position.
PEERS: dict[str, Callable[[Position], np.ndarray]] = {
    "dola": contrast,
    "sled": lambda at: log_softmax(evolved(at)),
}
