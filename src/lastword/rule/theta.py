"""Theta: every constant and switch of the method, and the depths that follow from them.

Depths are counted as here everywhere: depth 0 is the input of block 0, depth l the output of
block l-1, and depth L the output of the last block, before the final norm.
"""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from lastword.errors import ThetaError, UnsupportedModelError
from lastword.files.fields import CONFIG, Number, Whole, checked, shown

# Depths are products of floating-point fractions: floor(0.29 * 100) has to be 29, not 28.
_ROUNDING = 1e-6


@dataclass(frozen=True, config=CONFIG)
class ScorerTheta:
    """Constants of the trajectory scorer T (Appendix, table of scorer constants)."""

    anchors: tuple[Number, ...] = (0.2692, 0.5769, 0.8461, 1.0)  # A
    features: tuple[Number, ...] = (0.50, 0.6923, 0.8461, 1.0)  # G
    k_min: Whole = 50
    k_fraction: Number = 0.005
    quorum: Number = 0.75  # r_Omega = ceil(quorum |A|)
    weights: tuple[Number, Number, Number] = (0.3, 0.5, 0.2)  # a_s, a_j, a_c
    lambda_0: Number = 0.5
    gamma_alpha: Number = 5.0
    outside: Literal["clip", "floor", "final"] = "clip"
    floor: Literal["anchor", "final"] = "anchor"

    @property
    def reading(self) -> str:
        """The name of this reading of the paper, as in records: `floor-anchor`."""
        return f"{self.outside}-{self.floor}"


@dataclass(frozen=True, config=CONFIG)
class InvariantTheta:
    """Switches of the model invariant I(M) (method, section 7)."""

    output_rows: Literal["stored", "input"] = "stored"
    block: Literal["zero", "depth"] = "zero"
    norm: Literal["stored", "effective"] = "stored"


@dataclass(frozen=True, config=CONFIG)
class TokensTheta:
    """Switch of how prompt and candidate are joined (method, section 2)."""

    join: Literal["text", "ids"] = "text"


@dataclass(frozen=True, config=CONFIG)
class Theta:
    """The frozen hyperparameters of TRACE: the same for every model and every benchmark.

    Raises:
        ThetaError: A value outside its range, or (in `from_toml`) an unknown name.
    """

    rho_minus: Number = 0.50
    rho_plus: Number | None = None  # None is 1 - 1/L
    rho_e: Number = 0.20
    rho_m: Number = 0.50
    tau_dim: Number = 1.0015
    tau_I: Number = 1.0
    tau_logr: Number = 1.0
    tau_H: Number = 0.7
    eps_H: Number = 0.10
    delta_r: Number = 1e-12
    eta: Number = 1.0
    gamma: Number = -1.0
    scorer: ScorerTheta = ScorerTheta()
    invariant: InvariantTheta = InvariantTheta()
    tokens: TokensTheta = TokensTheta()

    _check = checked(lambda fault: ThetaError(f"Theta: {fault}"))

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        end = 1.0 if self.rho_plus is None else self.rho_plus
        _require(0 <= self.rho_minus < end <= 1, "0 <= rho_minus < rho_plus <= 1")
        _require(0 <= self.rho_e <= self.rho_m < 1, "0 <= rho_e <= rho_m < 1")
        _require(self.eps_H > 0 and self.delta_r > 0, "eps_H and delta_r above 0")
        _require(math.isfinite(self.eta) and self.eta >= 0, "eta at least 0")
        s = self.scorer
        _require(bool(s.anchors) and bool(s.features), "at least one anchor and one feature depth")
        _require(all(0 < f <= 1 for f in s.anchors + s.features), "depth fractions in (0, 1]")
        _require(s.k_min >= 1 and 0 <= s.k_fraction <= 1, "k_min at least 1, k_fraction in [0, 1]")
        _require(0 < s.quorum <= 1 and 0 <= s.lambda_0 <= 1, "quorum in (0, 1], lambda_0 in [0, 1]")

    @property
    def outside_paper(self) -> bool:
        """True if eta lies outside the paper's range (0, 1]."""
        return not 0 < self.eta <= 1

    def differences(self, other: "Theta") -> dict[str, Any]:
        """Return the values that differ from those of another Theta, by dotted name."""
        return dict(_differences(self.to_dict(), other.to_dict(), ""))

    def window(self, depth: int) -> range:
        """Return the interior window l_minus <= l < l_plus of `depth` blocks (Eq. 3).

        Raises:
            UnsupportedModelError: The window is empty: the model is too shallow.
        """
        last = depth - 1 if self.rho_plus is None else _floor(self.rho_plus, depth)
        window = range(_floor(self.rho_minus, depth), last)
        if not window:
            raise UnsupportedModelError(
                f"the model has {depth} blocks and its interior window is empty; "
                "TRACE needs at least 3 blocks"
            )
        return window

    def anchor_depths(self, depth: int) -> tuple[int, ...]:
        """Return A, the scorer's anchor depths, ascending, without repeats (method, section 5)."""
        return tuple(sorted({depth_of(f, depth) for f in self.scorer.anchors}))

    def feature_depths(self, depth: int) -> tuple[int, ...]:
        """Return G, the scorer's feature depths, ascending, without repeats (method, section 5)."""
        return tuple(sorted({depth_of(f, depth) for f in self.scorer.features}))

    def scorer_depths(self, depth: int) -> tuple[int, ...]:
        """Return the depths whose logits T reads: A, G and L, ascending."""
        return tuple(sorted({*self.anchor_depths(depth), *self.feature_depths(depth), depth}))

    def invariant_blocks(self, depth: int) -> tuple[int, int]:
        """Return e and m, the blocks whose projections I(M) reads, from 0 (method, section 7)."""
        e, m = _floor(self.rho_e, depth), _floor(self.rho_m, depth)
        if self.invariant.block == "depth":
            e, m = max(e - 1, 0), max(m - 1, 0)
        return e, m

    def to_dict(self) -> dict[str, Any]:
        """Return a plain nested dictionary, as recorded in a run and printed with a result."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Theta":
        """Return Theta with the overrides of a nested dictionary.

        Raises:
            ThetaError: An unknown name, a wrong type or a value outside its range.
        """
        if not isinstance(values, dict):
            raise ThetaError(f"Theta is a table, not {shown(values)}")
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> "Theta":
        """Return Theta with the overrides of a TOML file, such as `tau_dim = 1.01`.

        Raises:
            ThetaError: The file is missing or not TOML, or as in `from_dict`.
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ThetaError(f"cannot read Theta from {path}: {error}") from error
        return cls.from_dict(values)


def _floor(fraction: float, depth: int) -> int:
    return math.floor(fraction * depth + _ROUNDING)


def depth_of(fraction: float, depth: int) -> int:
    """Return min(L, ceil(f L)), the depth at a fraction f of `depth` blocks (method, section 5)."""
    return min(depth, math.ceil(fraction * depth - _ROUNDING))


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise ThetaError(f"Theta needs {expected}")


def _differences(
    values: dict[str, Any], others: dict[str, Any], prefix: str
) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _differences(value, others[name], f"{prefix}{name}.")
        elif value != others[name]:
            yield prefix + name, value
