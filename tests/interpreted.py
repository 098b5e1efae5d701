"""The fused kernel under Triton's interpreter, which is chosen before Triton is imported.

    TRITON_INTERPRET=1 python tests/interpreted.py

prints what it gave as JSON, for `test_fused.py`.
"""

import json
import math
import warnings
from typing import Any

import torch
from families import build, random_items, tokenizer

from lastword import Theta, Tracer
from lastword.model import check
from lastword.model.fused import log_sum_exp
from lastword.model.readout import _Float32Head

# Rows, vocabulary and width: less than a block of each, more than one, no multiple of any.
SHAPES = ((5, 331, 32), (130, 2500, 72), (1, 2049, 130))
DTYPES = (torch.float32, torch.float16)  # Triton's interpreter has no product of bfloat16
ODD = {"nan": (math.nan, 1.0), "inf": (1e30, 3e38), "-inf": (1e30, -3e38)}


def farthest() -> dict[str, float]:
    """Nats between the kernel and float64, by shape and dtype."""
    found = {}
    for shape in SHAPES:
        for dtype in DTYPES:
            hidden, weight = drawn(*shape, dtype)
            exact = hidden.double() @ weight.double().T
            log_z, least = log_sum_exp(hidden, weight)
            apart = (log_z - exact.logsumexp(-1)).abs().max(), (least - exact.amin(-1)).abs().max()
            found[f"{shape}, {dtype}"] = float(max(apart))
    return found


def drawn(
    rows: int, vocabulary: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    drawn = (torch.randn(n, width, generator=generator) for n in (rows, vocabulary))
    hidden, weight = (x.to(dtype) for x in drawn)
    return hidden, weight


def alone_as_in_company() -> bool:
    """Whether rows have the same sums to the last bit, whatever rows are beside them."""
    hidden, weight = drawn(200, 400, 48, torch.float32)
    together = log_sum_exp(hidden, weight)[0]
    alone = log_sum_exp(hidden[150:153], weight)[0]
    return bool((together[150:153] == alone).all())


def rows_seen(state: float, weight: float) -> list[bool]:
    """Of three rows, whether what comes back is finite, where one logit of the second is odd."""
    hidden, weights = drawn(3, 2500, 32, torch.float32)
    hidden[:, 0], weights[:, 0] = torch.tensor([0.0, state, 0.0]), 0.0
    weights[2200, 0] = weight
    log_z, least = log_sum_exp(hidden, weights)
    finite: list[bool] = (log_z.isfinite() & least.isfinite()).tolist()
    return finite


def corrected() -> dict[str, Any]:
    """Decisions of a model whose check took the kernel, beside those without."""
    items = random_items(3, 5)
    theta = Theta.from_dict({"tau_I": 1.0})
    usual = Tracer(build("llama"), tokenizer(), theta=theta, invariant=2.0)
    usual.readout._alone = None
    check.KERNEL_DEVICES, check.FASTER, check.TIMED = ("cpu",), math.inf, 64
    _Float32Head._added_up = _Float32Head._fused  # type: ignore[method-assign]
    asked: dict[str, Any] = {"attention": "model", "fused": True}
    tracer = Tracer(build("llama"), tokenizer(), theta=theta, invariant=2.0, **asked)
    tried = tracer.checked.fused
    assert tried is not None
    staged, whole = (
        list(zip(tracer.correct_many(items, read), usual.correct_many(items, read), strict=True))
        for read in ("decide", "all")
    )
    apart = [abs(a.trajectory - b.trajectory).max() for a, b in whole]
    apart += [abs(a.t_scores - b.t_scores).max() for a, b in whole]
    return {
        "taken": tried.taken,
        "difference": tried.difference,
        "same": all(a.index == b.index for a, b in (*staged, *whole)),
        "nats": float(max(apart)),
    }


def main() -> None:
    warnings.simplefilter("ignore")  # numpy's, about the values that are not finite
    told = {
        "farthest": farthest(),
        "alone": alone_as_in_company(),
        "finite": {name: rows_seen(*odd) for name, odd in ODD.items()},
        "corrected": corrected(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
