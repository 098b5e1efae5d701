"""The model invariant I(M): four factors from five tensors, without building the model.

    I(M) = phi_N phi_O / (phi_K phi_V)                                   Eq. 16
    phi_N = mean |w_N|          phi_O = rcv(W_O[m])
    phi_K = rcv(W_K[e])         phi_V = rcv(W_V[e]) / rcv(W_V[m])        Eq. 15

e = floor(0.20 L) and m = floor(0.50 L) count blocks from 0. `layouts.py` finds the tensors and
their rows, `checkpoint.py` reads them, and `dequantise.py` makes them dense.
"""

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.errors import InvariantError
from lastword.model.weights.checkpoint import Checkpoint, ModelCheckpoint, open_local
from lastword.model.weights.dequantise import modules_of, read_dense
from lastword.model.weights.identity import is_adapter
from lastword.model.weights.layouts import (
    GIVE,
    OFFSET_NORMS,
    Projection,
    find_projections,
    find_stack,
    text_part,
)
from lastword.rule.theta import InvariantTheta, Theta

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ZERO = 1e-12  # norms that are equal except for rounding have an rcv of about 1e-16
_ROWS_A_CHUNK = 4096

Matrix = Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Factors:
    """I(M) and its factors (Eq. 15)."""

    phi_N: float  # 1 if there is no final norm
    phi_K: float
    rcv_V_early: float
    rcv_V_middle: float
    phi_O: float
    blocks: tuple[int, int]  # e and m, counted from 0
    depth: int  # L, the model's number of blocks
    layout: str  # of K, V and O: `separate`, `fused-rowwise`, `fused-grouped`, `latent`
    tensors: tuple[str, ...]
    # I(M) for each combination of the switches of `Theta.invariant`, by `output_rows/block/norm`;
    # nan if undefined, and empty unless requested.
    readings: Mapping[str, float] = field(default_factory=dict)

    @property
    def phi_V(self) -> float:
        """phi_V = rcv(W_V[e]) / rcv(W_V[m]), Eq. 15."""
        return self.rcv_V_early / self.rcv_V_middle

    @property
    def value(self) -> float:
        """I(M) = phi_N phi_O / (phi_K phi_V), Eq. 16."""
        return self.phi_N * self.phi_O / (self.phi_K * self.phi_V)

    def branch(self, tau_I: float) -> Literal["mix", "early"]:
        """Return the scalar regime's branch: `mix` if I(M) > tau_I, else `early`."""
        return "mix" if self.value > tau_I else "early"

    def to_dict(self) -> dict[str, Any]:
        """Return I(M), phi_V and the fields as JSON values."""
        fields = asdict(self) | {"blocks": list(self.blocks), "tensors": list(self.tensors)}
        return {"invariant": self.value, "phi_V": self.phi_V, **fields}


def rcv(matrix: Matrix) -> float:
    """Return the relative coefficient of variation of row norms, Eq. 14, in float64.

    rcv(A) = sd_j ||A_j|| / mean_j ||A_j||, with the population's sd: at least 0, scale-free, and 0
    exactly if all row norms are equal (Lemma 2). nan for a matrix of zeros.
    """
    chunks = matrix.split(_ROWS_A_CHUNK)
    norms = torch.cat([torch.linalg.vector_norm(c.double(), dim=1) for c in chunks])
    mean = norms.mean()
    if mean == 0:
        return math.nan
    # After the shift, equal norms give exactly 0, although their mean is rounded.
    return float((norms - norms[0]).std(correction=0) / mean)


def read_invariant(
    source: str | Path, *, theta: Theta, revision: str | None = None, readings: bool = False
) -> Factors:
    """Return I(M) of a checkpoint folder or a hub's model, from its five tensors and its config.

    The model is not loaded. From a hub, only the bytes of these tensors are downloaded. All
    readings of I(M) need up to four more. Adapters and GGUF files have to be loaded first.

    Raises:
        InvariantError: I(M) is undefined for the model, or the format is not supported.
    """
    path = Path(source).expanduser()
    if is_adapter(path) or path.is_file():
        raise InvariantError(f"I(M) of {path} needs the model in memory: load it")
    if path.exists():
        return factors(open_local(path), theta=theta, readings=readings)
    from lastword.model.weights import hub  # slow to import, and not needed for local files

    return factors(hub.open_model(str(source), revision), theta=theta, readings=readings)


def model_invariant(model: "PreTrainedModel", *, theta: Theta, readings: bool = False) -> Factors:
    """Return I(M) of a transformers model in memory, from its current weights."""
    checkpoint = ModelCheckpoint(model)
    if any(".lora_" in name or ".base_layer." in name for name in checkpoint.names):
        raise InvariantError(
            f"{checkpoint.label} carries an adapter beside its weights: merge it first "
            "(model.merge_and_unload())"
        )
    return factors(checkpoint, theta=theta, readings=readings)


def factors(checkpoint: Checkpoint, *, theta: Theta, readings: bool = False) -> Factors:
    """Return the factors of I(M) from a checkpoint's named tensors; see `read_invariant`."""
    statistics, values = _Statistics(checkpoint), {}
    report = statistics.factors(theta)
    hints = get_type_hints(InvariantTheta)
    choices = (get_args(hints[name]) for name in ("block", "norm", "output_rows"))
    for block, norm, rows in product(*choices) if readings else ():
        switches = InvariantTheta(output_rows=rows, block=block, norm=norm)
        value = math.nan
        with contextlib.suppress(InvariantError):
            value = statistics.factors(replace(theta, invariant=switches)).value
        values[f"{rows}/{block}/{norm}"] = value
    return replace(report, readings=values)


def on_both_sides(values: Iterable[float], tau_I: float) -> bool:
    """Return True if some values of I(M) select `mix` and others `early`."""
    return len({value > tau_I for value in values if not math.isnan(value)}) > 1


class _Statistics:
    """Statistics of a checkpoint's projections with the names of their tensors, each read once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._config = checkpoint, text_part(checkpoint.config)
        self._stack = find_stack(modules_of(checkpoint.names), self._config)
        # The rows' and the columns' rcv of a projection: both are computed as soon as it is read.
        self._rcvs: dict[Projection, tuple[float, float, tuple[str, ...]]] = {}

    def factors(self, theta: Theta) -> Factors:
        """Return the factors by one reading of I(M)."""
        switches, depth = theta.invariant, self._stack.depth
        e, m = theta.invariant_blocks(depth)
        early, middle = (find_projections(self._stack, block, self._config) for block in (e, m))
        values = [
            self._norm(switches.norm == "effective"),
            *(self._rcv(part, divides=True) for part in (early.key, early.value, middle.value)),
            self._rcv(middle.output, columns=switches.output_rows == "input"),
        ]
        tensors = tuple(dict.fromkeys(name for _, names in values for name in names))
        norm, key, value, other, output = (value for value, _ in values)
        return Factors(norm, key, value, other, output, (e, m), depth, early.layout, tensors)

    def _norm(self, effective: bool) -> tuple[float, tuple[str, ...]]:
        """Return phi_N: mean |w|, or mean |1 + w| if the model applies that; 1 without a norm."""
        if self._stack.norm is None:
            return 1.0, ()
        name = f"{self._stack.norm}.weight"
        offset = effective and str(self._config.get("model_type")) in OFFSET_NORMS
        weight = self._checkpoint.read(name).double() + (1.0 if offset else 0.0)
        return self._sound(float(weight.abs().mean()), name), (name,)

    def _rcv(
        self, projection: Projection, *, columns: bool = False, divides: bool = False
    ) -> tuple[float, tuple[str, ...]]:
        """Return rcv of a projection's rows or columns; not zero if I(M) divides by it."""
        if projection not in self._rcvs:
            stored, names = read_dense(self._checkpoint, projection.module)
            matrix = projection.select(stored)
            self._rcvs[projection] = rcv(matrix), rcv(matrix.T), names
        rows, across, names = self._rcvs[projection]
        value = self._sound(across if columns else rows, f"{projection.module}.weight")
        if divides and value <= _ZERO:
            raise InvariantError(
                f"the rows of {projection.module}.weight in {self._checkpoint.label} have equal "
                f"norms, so I(M) divides by zero; {GIVE}"
            )
        return value, names

    def _sound(self, value: float, name: str) -> float:
        if not math.isfinite(value):
            raise InvariantError(
                f"{name} in {self._checkpoint.label} is all zeros or not finite: check the "
                f"checkpoint, or {GIVE}"
            )
        return value
