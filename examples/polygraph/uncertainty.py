"""TRACE's d_eff, margin ratio and entropy as uncertainty estimators of lm-polygraph.

They are estimators on its interface over a statistic of ours, `decisions`; its own metric then says
how well each tells the wrong answers from the right. On the embedded model:

    pip install -r examples/polygraph/requirements.txt
    python examples/polygraph/uncertainty.py
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from lm_polygraph.estimators.estimator import Estimator
from lm_polygraph.ue_metrics.pred_rej_area import PredictionRejectionArea

from lastword import Decision, Tracer
from lastword.lab.demo import items


class OfDecision(Estimator):
    """An uncertainty of the model's own answer: higher is less certain."""

    def __init__(self, name: str, read: Callable[[Decision], float]) -> None:
        """Take a name, and what of a decision it reads."""
        super().__init__(["decisions"], "sequence")
        self.name, self.read = name, read

    def __str__(self) -> str:
        """Return the name among other estimators."""
        return self.name

    def __call__(self, stats: Mapping[str, Sequence[Decision]]) -> np.ndarray:
        """One number a decision."""
        return np.array([self.read(decision) for decision in stats["decisions"]])


def margin_ratio(decision: Decision) -> float:
    """log(largest margin in the window / final margin): how much clearer it once was (Theta's)."""
    depth = decision.trajectory.shape[1] - 1
    window = np.sort(decision.trajectory[:, depth // 2 : depth - 1], axis=0)
    base = np.sort(decision.base_scores)
    margins, final = window[-1] - window[-2], base[-1] - base[-2]
    return float(np.log(max(margins.max(), 1e-12) / max(final, 1e-12)))


def entropy(decision: Decision) -> float:
    """H / log n of the model's own probabilities at the last depth."""
    p = decision.base_probabilities
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum() / np.log(len(p)))


ESTIMATORS = [
    OfDecision("TraceDimension", lambda decision: decision.d_eff),
    OfDecision("TraceMarginRatio", margin_ratio),
    OfDecision("TraceEntropy", entropy),
]


def main() -> None:
    """Estimate on sixty items of the embedded world and let lm-polygraph judge."""
    asked = items()[:60]
    decisions = list(Tracer.demo().correct_many(asked, read="all"))
    pairs = zip(decisions, asked, strict=True)
    right = np.array([float(item.truthful[d.base_index]) for d, item in pairs])
    metric = PredictionRejectionArea()
    for estimator in ESTIMATORS:
        uncertainty = estimator({"decisions": decisions})
        print(f"{estimator!s:18} {metric}: {metric(uncertainty, right):.3f}")


if __name__ == "__main__":
    main()
