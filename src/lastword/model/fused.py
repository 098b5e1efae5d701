"""A product of states with a head's weight that keeps log-sum-exps and never writes the logits.

One kernel of Triton's, for GPUs: a logit that is written, normalised and read again costs 16 bytes
of traffic; here it lives in registers. The sums do not depend on what other rows there are.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# Tokens whose logits one program adds up for its rows; another one adds up the next.
SHARE = 2048
# What it has before it at a time: rows, tokens, and bytes of the width.
ROWS, TOKENS, WIDTH_BYTES = 128, 128, 128
LAUNCH = {"num_warps": 8, "num_stages": 3}


def log_sum_exp(
    hidden: Float[Tensor, "rows width"], weight: Float[Tensor, "vocab width"]
) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Log-sum-exp over the vocabulary of `hidden @ weight.T`, and each row's least logit, float32.

    Args:
        hidden: States after the final norm.
        weight: Of the head, in the same dtype; both on a GPU.
    """
    hidden, weight = hidden.contiguous(), weight.contiguous()
    rows, width = hidden.shape
    shares = triton.cdiv(len(weight), SHARE)
    largest, total, least = hidden.new_empty((3, shares, rows), dtype=torch.float32)
    blocks = {"ROWS": ROWS, "TOKENS": TOKENS, "WIDTH": WIDTH_BYTES // hidden.element_size()}
    add_up[(triton.cdiv(rows, ROWS), shares)](
        hidden, weight, largest, total, least, rows, len(weight), width, SHARE, **blocks, **LAUNCH
    )
    return (largest + total.log()).logsumexp(dim=0), least.amin(dim=0)


@triton.jit
def add_up(
    hidden,
    weight,
    largest,
    total,
    least,
    rows,
    vocabulary,
    width,
    SHARE: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Of some rows and one share of the tokens: the largest logit, sum exp(z - largest), least."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    share = tl.program_id(1)
    states = hidden + row.to(tl.int64)[:, None] * width
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    low = tl.full((ROWS,), float("inf"), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    for start in range(share * SHARE, tl.minimum((share + 1) * SHARE, vocabulary), TOKENS):
        token = start + tl.arange(0, TOKENS)
        inside = (token < vocabulary)[None, :]
        columns = weight + token.to(tl.int64)[None, :] * width
        logits = tl.zeros((ROWS, TOKENS), tl.float32)
        for first in range(0, width, WIDTH):
            at = first + tl.arange(0, WIDTH)
            mask = (row < rows)[:, None] & (at < width)[None, :]
            h = tl.load(states + at[None, :], mask=mask, other=0.0)
            w = tl.load(columns + at[:, None], mask=inside & (at < width)[:, None], other=0.0)
            logits = tl.dot(h, w, logits, input_precision="ieee")
        low = tl.minimum(low, tl.min(tl.where(inside, logits, float("inf")), 1))
        logits = tl.where(inside, logits, float("-inf"))
        above = tl.maximum(top, tl.max(logits, 1))
        sums = sums * tl.exp(top - above) + tl.sum(tl.exp(logits - above[:, None]), 1)
        top = above
    place = share * rows + row
    tl.store(largest + place, top, mask=row < rows)
    tl.store(total + place, sums, mask=row < rows)
    tl.store(least + place, low, mask=row < rows)
