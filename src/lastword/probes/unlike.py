"""Unlike the labels: how far a text lies from the labelled ones, as a conformal p-value.

The distance is Mahalanobis' in the probe's own space, with a covariance that is shrunk (Ledoit and
Wolf); a labelled text's own distance leaves it out of mean and covariance (method, section 19).
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from jaxtyping import Float

Vectors = Float[np.ndarray, "texts width"]
Distances = Float[np.ndarray, " texts"]


@dataclass(frozen=True, eq=False)
class Likeness:
    """The labelled texts' covariance in its principal directions, and their own distances.

    Attributes:
        directions: Of the labelled texts, orthonormal [directions, width].
        gains: What a square along each direction adds to that of no direction [directions].
        floor: What the square of any vector is divided by.
        distances: Leave-one-out, squared, ascending [texts].
    """

    directions: Float[np.ndarray, "directions width"]
    gains: Float[np.ndarray, " directions"]
    floor: float
    distances: Distances

    @classmethod
    def of(cls, z: Vectors) -> "Likeness":
        """Fit the covariance of centred vectors."""
        from sklearn.covariance import ledoit_wolf_shrinkage

        n, width = z.shape
        shrinkage = float(np.clip(ledoit_wolf_shrinkage(z, assume_centered=True), 1e-3, 1.0))
        floor = max(shrinkage * float(np.square(z).sum()) / (n * width), 1e-12)
        _, singular, directions = np.linalg.svd(z, full_matrices=False)
        spread = (1 - shrinkage) * singular**2 / n

        def squared(vectors: Vectors, variances: np.ndarray) -> Distances:
            # Along a direction of variance v the inverse is 1 / (v + floor), elsewhere 1 / floor.
            gains = 1 / (variances + floor) - 1 / floor
            along = np.square(vectors @ directions.T) @ gains
            return np.asarray(np.square(vectors).sum(axis=1) / floor + along)

        # Without text i the mean moves by z_i / (n - 1), and the covariance is a rank-one update.
        grown = n / (n - 1)
        inside = squared(z, spread * grown)
        lost = (1 - shrinkage) * n / (n - 1) ** 2
        distances = grown**2 * inside / np.maximum(1 - lost * inside, 1e-12)
        return cls(directions, 1 / (spread + floor) - 1 / floor, floor, np.sort(distances))

    @property
    def least_p(self) -> float:
        """The smallest p-value that any text can have: 1 / (1 + labelled texts)."""
        return 1 / (1 + len(self.distances))

    def level(self, wanted: float = 0.01) -> float:
        """Return the level below which to defer: `wanted`, or the first thousandth that can."""
        least = ceil(1000 * self.least_p + 1e-9) / 1000
        return wanted if wanted > self.least_p else max(least, wanted)

    def p_values(self, z: Vectors) -> Distances:
        """Return (1 + labelled texts at least as far) / (1 + labelled texts) of each vector."""
        along = np.square(z @ self.directions.T) @ self.gains
        far = np.square(z).sum(axis=1) / self.floor + along
        nearer = np.searchsorted(self.distances, far, side="left")
        count = len(self.distances)
        return np.asarray((1 + count - nearer) / (1 + count))
