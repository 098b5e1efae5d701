"""A slow TRACE, with which the fast one must agree.

Written from the method page alone, without code of lastword, and always in the direct form:
float64, every candidate as a separate sequence, every depth read by the model's last steps, loops
over positions, eigenvalues instead of traces. `theta` is any object with the names of
method, section 8.
"""

import copy
import math
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


class InDouble(TorchFunctionMode):
    """Replace every float32 in a model's code (norms, rotary tables, softmax) by float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace dtypes in arguments, and `.float()` by `.double()`."""
        kwargs = kwargs or {}
        if func is torch.Tensor.float:
            return args[0].double()
        swap = {torch.float32: torch.float64}
        args = tuple(swap.get(a, a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {k: swap.get(v, v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
        return func(*args, **kwargs)


def in_double(model: Any) -> Any:
    """Return a float64 copy of a model with eager attention, without state of earlier passes."""
    twin = copy.deepcopy(model).double()
    for setter in ("set_attn_implementation", "set_experts_implementation"):
        getattr(twin, setter, str)("eager")
    return twin.eval()


@contextmanager
def _replaced_output(block: Any, state: torch.Tensor) -> Any:
    """Make the block return `state`."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handle = block.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def states(model: Any, blocks: str, fed: Sequence[int]) -> list[torch.Tensor]:
    """Return h_0 .. h_L of one sequence, each [1, tokens, width].

    These are the inputs of all blocks (`blocks` is the path of their list in a model from
    `in_double`), and the output of the last one.
    """
    collected: list[torch.Tensor] = []
    layers = list(model.get_submodule(blocks))

    def before(module: Any, args: Any, kwargs: Any) -> None:
        collected.append((args[0] if args else kwargs["hidden_states"]).clone())

    def after(module: Any, args: Any, output: Any) -> None:
        collected.append((output[0] if isinstance(output, tuple) else output).clone())

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    handles.append(layers[-1].register_forward_hook(after))
    try:
        _logits(model, fed)
    finally:
        for handle in handles:
            handle.remove()
    return collected


def _logits(model: Any, fed: Sequence[int], copies: int = 1) -> torch.Tensor:
    with torch.no_grad(), InDouble():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(fed)] * copies)).logits
    assert logits.dtype == torch.float64
    return logits


def depth_logits(model: Any, blocks: str, fed: Sequence[int]) -> np.ndarray:
    """Return z_l of one sequence at every depth, [depths, tokens, vocab], float64.

    The model itself reads them in one more pass over L + 1 copies of the sequence. There the last
    block returns h_0 .. h_L, so all further steps to the logits are the model's (method,
    section 1). The model is copied, so earlier passes have no effect.
    """
    model = in_double(model)
    last = list(model.get_submodule(blocks))[-1]
    stacked = torch.cat(states(model, blocks, fed))
    with _replaced_output(last, stacked):
        return _logits(model, fed, copies=len(stacked)).numpy()


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Return log p over the last axis."""
    shifted = z - z.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def read_candidate(
    model: Any, blocks: str, sequence: Sequence[int], boundary: int
) -> tuple[np.ndarray, list[int]]:
    """Return the logits that predict a candidate's tokens, and these tokens.

    The logits are [depths, tokens of the candidate, vocab]. The last token is never fed.
    """
    z = depth_logits(model, blocks, sequence[:-1])
    return z[:, boundary - 1 :, :], list(sequence[boundary:])


def candidate_scores(z: np.ndarray, tokens: Sequence[int]) -> list[float]:
    """Return s_l for every depth: the mean log-probability of the tokens (method, section 2)."""
    scores: list[float] = log_softmax(z)[:, range(len(tokens)), tokens].mean(axis=1).tolist()
    return scores


# --- method, sections 3 and 4: geometry -------------------------------------------------------


def window(theta: Any, L: int) -> list[int]:
    """Return the depths l_minus <= l < l_plus."""
    l_minus = math.floor(theta.rho_minus * L + 1e-6)
    l_plus = L - 1 if theta.rho_plus is None else math.floor(theta.rho_plus * L + 1e-6)
    return [depth for depth in range(L + 1) if l_minus <= depth < l_plus]


def effective_dimension(S_mid: np.ndarray) -> float:
    """Return (sum of eigenvalues)^2 / sum of squares, of the centred window's Gram matrix."""
    X = S_mid - np.mean(S_mid, axis=0)
    if len(X) <= 2 or not X.any():
        return 1.0
    eigenvalues = np.linalg.eigvalsh(X @ X.T)
    return float(sum(eigenvalues) ** 2 / sum(e * e for e in eigenvalues))


def margin(v: Sequence[float]) -> float:
    """Return the largest minus the second largest value."""
    ordered = sorted(v, reverse=True)
    return float(ordered[0] - ordered[1])


def entropy(v: np.ndarray) -> float:
    """Return the entropy of softmax(v) in nats, with 0 log 0 = 0."""
    pairs = [(math.exp(log_pi), log_pi) for log_pi in log_softmax(v)]
    return -sum(pi * log_pi for pi, log_pi in pairs if pi > 0)


def first_argmax(v: Sequence[float]) -> int:
    """Return the lowest position of the largest value."""
    return max(range(len(v)), key=lambda i: v[i])


# --- method, section 5: the trajectory scorer ---------------------------------------------------


def depths_of(fractions: Sequence[float], L: int) -> list[int]:
    """Return the set of min(L, ceil(f L)), ascending."""
    return sorted({min(L, math.ceil(f * L - 1e-6)) for f in fractions})


def cutoff(scorer: Any, V: int) -> int:
    """Return k = min(V, max(50, ceil(0.005 V)))."""
    return min(V, max(scorer.k_min, math.ceil(scorer.k_fraction * V - 1e-9)))


def quorum_gap(z: np.ndarray, scorer: Any) -> float:
    """Return the minimum distance of the k-th logit from the next, over anchors and rows."""
    L, V = len(z) - 1, z.shape[-1]
    k = cutoff(scorer, V)
    if k == V:
        return math.inf
    ordered = -np.sort(-z[depths_of(scorer.anchors, L)], axis=-1)
    return float((ordered[..., k - 1] - ordered[..., k]).min())


def recurring(z: np.ndarray, scorer: Any) -> np.ndarray:
    """Return Omega of one position as a mask, from its logits at every depth [depths, vocab]."""
    A, V = depths_of(scorer.anchors, len(z) - 1), z.shape[1]
    # The k largest of each anchor; ties at the k-th go to the lowest token id.
    tops = [np.argsort(-z[depth], kind="stable")[: cutoff(scorer, V)] for depth in A]
    votes = np.bincount(np.concatenate(tops), minlength=V)
    return votes >= math.ceil(scorer.quorum * len(A) - 1e-9)


def evidence(p: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Return h of every token: the weighted positive parts of slope, jump and curv along G."""
    slope = jump = curv = np.zeros(p.shape[1])
    if len(p) >= 2:
        slope = np.polyfit(np.linspace(0, 1, len(p)), p, 1)[0]
        jump = np.diff(p, axis=0).max(axis=0)
    if len(p) >= 3:
        curv = np.diff(p, n=2, axis=0).mean(axis=0)
    features = (slope, jump, curv)
    return np.sum([a * f.clip(min=0) for a, f in zip(weights, features, strict=True)], axis=0)


def mixing_weights(h: np.ndarray, omega: np.ndarray, scorer: Any) -> np.ndarray:
    """Return alpha of every token, under both switches of the scorer."""
    over = omega | (not omega.any())
    low, high = h[over].min(), h[over].max()
    h = np.zeros(len(h)) if high == low else ((h - low) / (high - low)).clip(0, 1)
    if scorer.outside == "floor":
        h[~over] = 0.0
    floor = scorer.lambda_0 if scorer.floor == "anchor" else 0.0
    alpha = floor + (1 - scorer.lambda_0) / (1 + np.exp(-scorer.gamma_alpha * (h - 0.5)))
    return np.where(over | (scorer.outside != "final"), alpha, 0.0)


def mixed_logits(z: np.ndarray, scorer: Any) -> np.ndarray:
    """Return z_T of one position from its logits at every depth, [depths, vocab] -> [vocab]."""
    L = len(z) - 1
    A, G = depths_of(scorer.anchors, L), depths_of(scorer.features, L)
    h = evidence(np.stack([log_softmax(z[depth]) for depth in G]), scorer.weights)
    alpha = mixing_weights(h, recurring(z, scorer), scorer)
    z_bar = np.average(z[A], axis=0, weights=[math.exp(depth / L) for depth in A])
    mixed: np.ndarray = (1 - alpha) * z[L] + alpha * z_bar
    return mixed


def trajectory_score(z: np.ndarray, tokens: Sequence[int], scorer: Any) -> float:
    """Return t of one candidate: mean log-softmax(z_T) at its tokens."""
    mixed = [log_softmax(mixed_logits(z[:, place], scorer)) for place in range(len(tokens))]
    return float(sum(row[v] for row, v in zip(mixed, tokens, strict=True)) / len(tokens))


# --- method, section 7: the invariant -----------------------------------------------------------


def rcv(rows: np.ndarray) -> float:
    """Return the population standard deviation over the mean of the row norms."""
    norms = [float(np.linalg.norm(row)) for row in rows]
    return pstdev(norms) / fmean(norms)


def invariant(weights: dict[str, np.ndarray], L: int, theta: Any, *, offset: float = 0.0) -> float:
    """Return I(M) of Llama-style tensors ([out, in], `layers.{i}.self_attn.{k,v,o}_proj`).

    `offset` is the family's offset of stored norm weights (Gemma: 1).
    """
    e, m = math.floor(theta.rho_e * L + 1e-6), math.floor(theta.rho_m * L + 1e-6)
    if theta.invariant.block == "depth":
        e, m = max(e - 1, 0), max(m - 1, 0)
    norm = weights["norm"] + (offset if theta.invariant.norm == "effective" else 0.0)
    output = weights[f"layers.{m}.self_attn.o_proj"]
    if theta.invariant.output_rows == "input":
        output = output.T
    phi_N = float(np.abs(norm).mean())
    phi_K = rcv(weights[f"layers.{e}.self_attn.k_proj"])
    early, middle = (weights[f"layers.{i}.self_attn.v_proj"] for i in (e, m))
    return phi_N * rcv(output) / (phi_K * rcv(early) / rcv(middle))


# --- method, section 9: Algorithm 1 -------------------------------------------------------------


@dataclass
class Answer:
    """The result of Algorithm 1, with all compared quantities and their distances.

    Attributes:
        slack: Distance from its threshold of every comparison made, by name.
        quorum_gap: Minimum distance between the k-th and the next logit at any anchor read. If it
            is rounding noise, Omega and t may differ.
    """

    regime: str
    operator: str
    scores: np.ndarray
    index: int
    base_index: int
    tied: bool
    d_eff: float
    trajectory: np.ndarray
    t_scores: np.ndarray | None = None
    mixing: float | None = None
    decisive_layer: int | None = None
    gates: dict[str, tuple[Any, bool]] = field(default_factory=dict)
    slack: dict[str, float] = field(default_factory=dict)
    quorum_gap: float = math.inf

    def near(self, band: float = 1e-4) -> bool:
        """Return True if any comparison lies in the rounding band (method, section 9)."""
        return any(distance < band for distance in self.slack.values())


def decide(S: np.ndarray, t: np.ndarray | None, theta: Any, I_M: float) -> Answer:
    """Apply Algorithm 1 to a whole trajectory [candidates, L + 1] and t [candidates]."""
    n, L = S.shape[0], S.shape[1] - 1
    base = S[:, L]
    mid = window(theta, L)
    d_eff = effective_dimension(S[:, mid])
    answer = Answer("scalar", "base", base, 0, first_argmax(base), False, d_eff, S, t)
    if n == 1:
        return answer
    answer.slack["base"] = margin(base)
    if n > 2:
        answer.slack["d_eff"] = abs(d_eff - theta.tau_dim)
    if d_eff > theta.tau_dim:
        _candidate_space(answer, theta, mid)
    elif theta.tau_I < I_M:
        _mix(answer, theta)
    else:
        _early(answer, theta)
    answer.index = first_argmax(answer.scores)
    answer.tied = sum(value == max(answer.scores) for value in answer.scores) > 1
    answer.slack["top"] = margin(answer.scores)
    return answer


def _candidate_space(answer: Answer, theta: Any, mid: list[int]) -> None:
    S = answer.trajectory
    n, L = S.shape[0], S.shape[1] - 1
    D = [margin(S[:, d]) / (entropy(S[:, d]) + theta.eps_H) for d in range(1, L + 1)]
    star = 1 + first_argmax(D)
    q = log_softmax(S[:, star])
    widest = max(margin(S[:, depth]) for depth in mid)
    ratio = widest / max(abs(margin(S[:, L])), theta.delta_r)
    log_ratio = math.log(ratio) if ratio > 0 else -math.inf
    spread = entropy(S[:, L]) / math.log(n)
    changes = first_argmax(q) != answer.base_index
    answer.regime, answer.decisive_layer = "candidate-space", star
    answer.gates = {
        "changes": (changes, changes),
        "log_margin_ratio": (log_ratio, log_ratio > theta.tau_logr),
        "entropy": (spread, spread > theta.tau_H),
    }
    answer.slack |= {
        "log_margin_ratio": abs(log_ratio - theta.tau_logr),
        "entropy": abs(spread - theta.tau_H),
        "decisive_layer": margin(D) if len(D) > 1 else math.inf,
        "changes": margin(q),
    }
    if all(holds for _, holds in answer.gates.values()):
        answer.operator, answer.scores = "decisive", q


def _mix(answer: Answer, theta: Any) -> None:
    base, t = answer.trajectory[:, -1], answer.t_scores
    assert t is not None
    sharper = margin(t) - margin(base)
    shift = float(t[answer.base_index] - base[answer.base_index])
    answer.gates = {"sharper": (sharper, sharper > 0), "shift": (shift, shift > 0)}
    answer.slack["sharper"] = abs(sharper)
    answer.mixing = 0.0
    if sharper > 0:
        answer.slack["shift"] = abs(shift)
        answer.mixing = theta.eta if shift > 0 else -theta.eta
    if answer.mixing != 0:
        answer.operator = "mix"
        answer.scores = (1 - answer.mixing) * base + answer.mixing * t


def _early(answer: Answer, theta: Any) -> None:
    highest = float(max(answer.trajectory[:, -1]))
    answer.gates = {"confidence": (highest, highest < theta.gamma)}
    answer.slack["confidence"] = abs(highest - theta.gamma)
    if highest < theta.gamma:
        answer.operator, answer.scores = "early", answer.trajectory[:, 0]


def read_item(
    model: Any, blocks: str, sequences: Sequence[Sequence[int]], boundaries: Sequence[int]
) -> list[tuple[np.ndarray, list[int]]]:
    """Return logits [depths, tokens, vocab] and tokens of each candidate."""
    pairs = zip(sequences, boundaries, strict=True)
    return [read_candidate(model, blocks, *pair) for pair in pairs]


# --- method, section 2: text to tokens ----------------------------------------------------------


def tokenise(
    tokenizer: Any, prompt: str, candidate: str, separator: str = " ", join: str = "text"
) -> tuple[list[int], int]:
    """Return the ids of prompt + separator + candidate, and the number of the prompt's ids."""
    if prompt and prompt[-1].isspace():
        stripped = prompt.rstrip()
        continuation = prompt[len(stripped) :] + candidate
    else:
        stripped, continuation = prompt, separator + candidate
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    head = _ids(tokenizer, stripped) if stripped else [start]
    if join == "ids":
        return head + tokenizer(continuation, add_special_tokens=False)["input_ids"], len(head)
    whole = _ids(tokenizer, stripped + continuation)
    if not stripped and whole[0] != start:
        whole = [start, *whole]
    common = 0
    while common < min(len(head), len(whole) - 1) and head[common] == whole[common]:
        common += 1
    return whole, common


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids = list(tokenizer(text)["input_ids"])
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]
    return ids
