"""Confidence thresholds of `lastword certify TABLE` compared with those of MAPIE.

    python experiments/tables.py [--draws 300]

Tables are drawn from a population whose answers are wrong with probability 0.2 (1 - confidence), so
the true error from each threshold on is known. lastword divides delta between this statement and
the accuracy; MAPIE's BinaryClassificationController has all of it, on the same thresholds. Printed
per number of rows and method: the share of draws with a threshold, the mean share of answers given,
and the share of draws in which the true error exceeds the promise (at most delta is allowed).
"""

import argparse
import warnings

import numpy as np
from mapie.risk_control import BinaryClassificationController

from lastword.trust.automation import quantiles
from lastword.trust.predictions import certify_plain, plain_table

ERROR, DELTA, FALLING = 0.05, 0.05, 0.2
ROWS, METHODS = (200, 500, 1000), ("bonferroni", "bonferroni_holm", "fixed_sequence")


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform confidences, and whether each answer is right."""
    random = np.random.default_rng(seed)
    confidence = random.random(rows)
    return confidence, random.random(rows) >= FALLING * (1 - confidence)


def of_lastword(confidence: np.ndarray, right: np.ndarray) -> float | None:
    """Return the threshold of `certify_plain`."""
    rows = [
        {"prediction": "a", "truth": "ba"[int(ok)], "confidence": repr(float(sure))}
        for sure, ok in zip(confidence, right, strict=True)
    ]
    return certify_plain(plain_table(rows), delta=DELTA, error=ERROR).certificate.threshold


def of_mapie(confidence: np.ndarray, right: np.ndarray, method: str) -> float | None:
    """Return the lowest threshold that MAPIE controls: precision of `right` by confidence."""
    control = BinaryClassificationController(
        lambda x: np.column_stack([1 - x[:, 0], x[:, 0]]),
        "precision",
        1 - ERROR,
        confidence_level=1 - DELTA,
        list_predict_params=np.array(quantiles(confidence)[::-1]),
        fwer_method=method,
    )
    control.calibrate(confidence[:, None], right.astype(int))
    valid = np.ravel(control.valid_predict_params)
    return float(valid.min()) if valid.size else None


def main() -> None:
    """Print a line per number of rows and method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=300)
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore")
    for rows in ROWS:
        samples = [drawn(rows, seed) for seed in range(draws)]
        results = {"lastword": [of_lastword(*sample) for sample in samples]}
        for method in METHODS:
            results[f"MAPIE {method}"] = [of_mapie(*sample, method) for sample in samples]
        for name, thresholds in results.items():
            there = np.array([t for t in thresholds if t is not None])
            wrong = (FALLING * (1 - there) / 2 > ERROR).sum() / draws
            answered = (1 - there).sum() / draws
            figures = f"found {len(there) / draws:.3f} answered {answered:.3f} wrong {wrong:.3f}"
            print(f"{rows:5} {name:22} {figures}")


if __name__ == "__main__":
    main()
