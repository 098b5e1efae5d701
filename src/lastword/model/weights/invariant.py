"""The model invariant I(M): four factors from five tensors, without building the model.

    I(M) = phi_N phi_O / (phi_K phi_V)                                   Eq. 16
    phi_N = mean |w_N|          phi_O = rcv(W_O[m])
    phi_K = rcv(W_K[e])         phi_V = rcv(W_V[e]) / rcv(W_V[m])        Eq. 15

e = floor(0.20 L) and m = floor(0.50 L) count blocks from 0. `layouts.py` finds the tensors and
their rows, `checkpoint.py` reads them, and `dequantise.py` makes them dense.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lastword.errors import InvariantError
from lastword.model.weights.checkpoint import Checkpoint, ModelCheckpoint, open_local
from lastword.model.weights.dequantise import WEIGHT_SUFFIXES, read_dense
from lastword.model.weights.identity import is_adapter
from lastword.model.weights.layouts import (
    OFFSET_NORMS,
    Projection,
    find_projections,
    find_stack,
    text_part,
)
from lastword.rule.theta import InvariantTheta, Theta

_ZERO = 1e-12  # norms that are equal except for rounding have an rcv of about 1e-16
_ROWS_A_CHUNK = 4096
_GIVE = "give its value: invariant=VALUE (in a command --load invariant=VALUE)"

Matrix = Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Factors:
    """I(M) and its factors.

    Attributes:
        phi_N: Mean absolute weight of the final norm, Eq. 15; 1 if it has none.
        rcv_V_early: rcv of the value projection of block e.
        blocks: e and m, counted from 0.
        depth: L, the model's number of blocks.
        layout: Layout of K, V and O: `separate`, `fused-rowwise`, `fused-grouped`, `latent`.
        readings: I(M) for each combination of the switches of `Theta.invariant`, by
            `output_rows/block/norm`; nan if undefined, and empty unless requested.
    """

    phi_N: float
    rcv_K_early: float
    rcv_V_early: float
    rcv_V_middle: float
    rcv_O_middle: float
    blocks: tuple[int, int]
    depth: int
    layout: str
    tensors: tuple[str, ...]
    readings: Mapping[str, float] = field(default_factory=dict)

    @property
    def phi_K(self) -> float:
        """phi_K = rcv(W_K[e]), Eq. 15."""
        return self.rcv_K_early

    @property
    def phi_V(self) -> float:
        """phi_V = rcv(W_V[e]) / rcv(W_V[m]), Eq. 15."""
        return self.rcv_V_early / self.rcv_V_middle

    @property
    def phi_O(self) -> float:
        """phi_O = rcv(W_O[m]), Eq. 15."""
        return self.rcv_O_middle

    @property
    def value(self) -> float:
        """I(M) = phi_N phi_O / (phi_K phi_V), Eq. 16."""
        return self.phi_N * self.phi_O / (self.phi_K * self.phi_V)

    def branch(self, tau_I: float) -> Literal["mix", "early"]:
        """Return the scalar regime's branch: `mix` if I(M) > tau_I, else `early`."""
        return "mix" if self.value > tau_I else "early"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, I(M) and the derived factors as JSON values."""
        derived = {"phi_K": self.phi_K, "phi_V": self.phi_V, "phi_O": self.phi_O}
        fields = asdict(self) | {"blocks": list(self.blocks), "tensors": list(self.tensors)}
        return {"invariant": self.value, **derived, **fields}


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
    """Return I(M) of a checkpoint, from its five tensors and its config.

    The model is not loaded. From a hub, only the bytes of these tensors are downloaded.

    Args:
        source: A checkpoint folder, or a hub name.
        theta: Fractions rho_e and rho_m and the switches of `Theta.invariant`.
        revision: Branch, tag or commit on the hub; None for its main branch.
        readings: True to return all readings of I(M), which need up to four more tensors.

    Raises:
        InvariantError: I(M) is undefined for the model, or the format is not supported. Adapters
            and GGUF files have to be loaded first.
        CheckpointError: The checkpoint is missing, damaged or out of reach.
    """
    path = Path(source).expanduser()
    if is_adapter(path) or (path.is_file()):
        raise InvariantError(f"I(M) of {path} needs the model in memory: load it")
    if path.exists():
        return factors(open_local(path), theta=theta, readings=readings)
    from lastword.model.weights import hub  # slow to import, and not needed for local files

    return factors(hub.open_model(str(source), revision), theta=theta, readings=readings)


def model_invariant(model: nn.Module, *, theta: Theta, readings: bool = False) -> Factors:
    """Return I(M) of a transformers model in memory, from its current weights.

    Raises:
        InvariantError: I(M) is undefined for the model, or it has an adapter that is not merged.
    """
    checkpoint = ModelCheckpoint(model)
    if any(".lora_" in name or ".base_layer." in name for name in checkpoint.names):
        raise InvariantError(
            f"{checkpoint.label} carries an adapter beside its weights: merge it first "
            "(model.merge_and_unload())"
        )
    return factors(checkpoint, theta=theta, readings=readings)


def factors(checkpoint: Checkpoint, *, theta: Theta, readings: bool = False) -> Factors:
    """Return the factors of I(M) from a checkpoint's named tensors; see `read_invariant`."""
    statistics = _Statistics(checkpoint)
    report = statistics.factors(theta)
    if not readings:
        return report
    hints = get_type_hints(InvariantTheta)
    values = {}
    for block, norm, rows in product(
        *(get_args(hints[n]) for n in ("block", "norm", "output_rows"))
    ):
        switches = InvariantTheta(output_rows=rows, block=block, norm=norm)
        try:
            value = statistics.factors(replace(theta, invariant=switches)).value
        except InvariantError:
            value = math.nan
        values[f"{rows}/{block}/{norm}"] = value
    return replace(report, readings=values)


def on_both_sides(values: Iterable[float], tau_I: float) -> bool:
    """Return True if some values of I(M) select `mix` and others `early`."""
    return len({value > tau_I for value in values if not math.isnan(value)}) > 1


class _Statistics:
    """Statistics of a checkpoint's projections with the names of their tensors, each read once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._config = checkpoint, text_part(checkpoint.config)
        modules = frozenset(
            name.removesuffix(form)
            for name in checkpoint.names
            for form in WEIGHT_SUFFIXES
            if name.endswith(form)
        )
        self._stack = find_stack(modules, self._config)
        # The rows' and the columns' rcv of a projection: both are computed as soon as it is read.
        self._rcvs: dict[Projection, tuple[float, float, tuple[str, ...]]] = {}

    def factors(self, theta: Theta) -> Factors:
        """Return the factors by one reading of I(M)."""
        switches, depth = theta.invariant, self._stack.depth
        e, m = theta.invariant_blocks(depth)
        early, middle = (find_projections(self._stack, block, self._config) for block in (e, m))
        values = [
            self._norm(switches.norm == "effective"),
            *(self._divisor(part) for part in (early.key, early.value, middle.value)),
            self._rcv(middle.output, switches.output_rows == "input"),
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
        return self._finite(float(weight.abs().mean()), name), (name,)

    def _divisor(self, projection: Projection) -> tuple[float, tuple[str, ...]]:
        """Return rcv of a key or value projection, which I(M) divides by, if it is not zero."""
        value, names = self._rcv(projection)
        if value <= _ZERO:
            raise InvariantError(
                f"the rows of {projection.module}.weight in {self._checkpoint.label} have equal "
                f"norms, so I(M) divides by zero; {_GIVE}"
            )
        return value, names

    def _rcv(self, projection: Projection, columns: bool = False) -> tuple[float, tuple[str, ...]]:
        """Return rcv of a projection's rows, or of its columns."""
        if projection not in self._rcvs:
            matrix, names = read_dense(self._checkpoint, projection.module)
            matrix = matrix.T if projection.transposed else matrix
            if projection.split is not None:
                matrix = projection.split.select(matrix, projection.module)
            self._rcvs[projection] = rcv(matrix), rcv(matrix.T), names
        rows, across, names = self._rcvs[projection]
        return self._finite(across if columns else rows, f"{projection.module}.weight"), names

    def _finite(self, value: float, name: str) -> float:
        if not math.isfinite(value):
            raise InvariantError(
                f"{name} in {self._checkpoint.label} is all zeros or not finite: check the "
                f"checkpoint, or {_GIVE}"
            )
        return value
