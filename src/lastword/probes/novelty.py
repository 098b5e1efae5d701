"""Conformal p-values of the distance of a text from the labelled texts.

The distance is Mahalanobis' in the probe's feature space, with a shrunk covariance (Ledoit and
Wolf). The distance of a labelled text uses a mean and covariance without it (docs/statistics.md).
"""

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import Field

from lastword.errors import InputError
from lastword.probes.arrays import ARRAY, LEAST, MOST, require_shapes

Vectors = Float[np.ndarray, "texts width"]
Distances = Float[np.ndarray, " texts"]


@dataclass(frozen=True, eq=False)
class Likeness:
    """The inverse covariance of the labelled texts, and their leave-one-out distances.

    The squared distance of z is |z|^2 / floor + sum_d gains[d] (directions[d] . z)^2.

    Attributes:
        directions: Principal directions of the labelled texts, orthonormal [directions, width].
        gains: Correction of the inverse variance along each direction, below 0 [directions].
        floor: Variance in every direction that the labelled texts do not span.
        distances: Squared leave-one-out distances, ascending [texts].
    """

    directions: Annotated[Float[np.ndarray, "directions width"], ARRAY]
    gains: Annotated[Float[np.ndarray, " directions"], ARRAY]
    floor: Annotated[float, Field(ge=LEAST, le=MOST)]
    distances: Annotated[Distances, ARRAY]

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together, as a damaged file may have."""
        require_shapes(self, gains=(self.gains.size,), distances=(self.distances.size,))
        if not self.distances.size or (np.diff(self.distances) < 0).any():
            raise InputError("its distances are missing, or not in order")

    @classmethod
    def of(cls, z: Vectors) -> "Likeness":
        """Fit the covariance of centred vectors."""
        from sklearn.covariance import ledoit_wolf_shrinkage

        n, width = z.shape
        # With fewer texts than features, or equal texts, the inverse needs a floor.
        shrinkage = float(np.clip(ledoit_wolf_shrinkage(z, assume_centered=True), 1e-3, 1.0))
        floor = max(shrinkage * float(np.square(z).sum()) / (n * width), 1e-12)
        _, singular, directions = np.linalg.svd(z, full_matrices=False)
        spread = (1 - shrinkage) * singular**2 / n
        # Without text i the mean moves by z_i / (n - 1), and the covariance changes by a rank-one
        # term, so the inverse follows from Sherman and Morrison without another fit.
        # The inverse is 1 / (v + floor) along a direction with variance v, else 1 / floor.
        grown = n / (n - 1)
        inside = _squared(z, directions, 1 / (spread * grown + floor) - 1 / floor, floor)
        lost = (1 - shrinkage) * n / (n - 1) ** 2
        distances = grown**2 * inside / np.maximum(1 - lost * inside, 1e-12)
        return cls(directions, 1 / (spread + floor) - 1 / floor, floor, np.sort(distances))

    @property
    def least_p(self) -> float:
        """The smallest possible p-value: 1 / (1 + labelled texts)."""
        return 1 / (1 + len(self.distances))

    def level(self, wanted: float = 0.01) -> float:
        """Return a level to defer at: `wanted`, or the first thousandth above `least_p`."""
        least = ceil(1000 * self.least_p + 1e-9) / 1000
        return wanted if wanted > self.least_p else max(least, wanted)

    def p_values(self, z: Vectors) -> Distances:
        """Return (1 + labelled texts at least as far) / (1 + labelled texts) for each vector."""
        far = _squared(z, self.directions, self.gains, self.floor)
        nearer = np.searchsorted(self.distances, far, side="left")
        count = len(self.distances)
        return np.asarray((1 + count - nearer) / (1 + count))


def _squared(z: Vectors, directions: np.ndarray, gains: np.ndarray, floor: float) -> Distances:
    along = np.square(z @ directions.T) @ gains
    return np.asarray(np.square(z).sum(axis=1) / floor + along)
