"""DoLa and SLED in float64, token by token, in the most direct form.

Written from the published formulas, independent of the package. `positions` runs a model on one
candidate at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import reference
import torch
from reference import log_softmax


@dataclass(frozen=True)
class Position:
    """One predicted token: logits [V] at every depth, with and without the final norm."""

    normed: list[np.ndarray]
    raw: list[np.ndarray]
    token: int


def positions(
    model: torch.nn.Module, blocks: str, cap: float | None, sequence: Sequence[int], boundary: int
) -> list[Position]:
    """Return the logits at the positions that predict a candidate's tokens, in float64.

    Args:
        model: Any model.
        blocks: Path of the list of blocks.
        cap: The soft cap of the model's logits; None without one.
        sequence: The whole text.
        boundary: Position of the candidate's first token.
    """
    normed, tokens = reference.read_candidate(model, blocks, sequence, boundary)
    twin = reference.in_double(model)
    with torch.no_grad():
        raw = torch.cat(reference.states(twin, blocks, sequence[:-1])[:-1])
        z = twin.get_output_embeddings()(raw)[:, boundary - 1 :].numpy()
    z = z if cap is None else cap * np.tanh(z / cap)
    return [Position([*normed[:, at]], [*z[:, at]], token) for at, token in enumerate(tokens)]


def premature(depth: int) -> list[int]:
    start = depth - 20 if depth > 40 else depth // 2
    return [n for n in range(start, depth) if (n - start) % 2 == 0]


def dola_divergence(late: np.ndarray, early: np.ndarray) -> float:
    """Return D_l of two log-distributions."""
    total = 0.0
    for a, b in zip(late, early, strict=True):
        mean = (np.exp(a) + np.exp(b)) / 2
        if mean > 0:
            total += mean * (2 * np.log(mean) - a - b)
    return total / (2 * len(late))


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
