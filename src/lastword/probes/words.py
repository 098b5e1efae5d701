"""A bag of words: the baseline of every probe, a classifier without a language model.

It is a logistic regression on TF-IDF features of one and two words and of 3 to 5 characters, with a
penalty chosen by cross-validation (docs/statistics.md).
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from lastword.probes.linear import recurring

if TYPE_CHECKING:
    from sklearn.model_selection import GridSearchCV

STRENGTHS = (1.0, 10.0, 100.0)  # C: the inverse of the penalty
FOLDS = 4


def bag_of_words(
    texts: Sequence[str],
    labels: Sequence[str],
    weights: Mapping[str, float] | None = None,
    strengths: Sequence[float] = (),
) -> "GridSearchCV":
    """Return a bag of words, fitted; `predict` and `predict_proba` take texts.

    Args:
        texts: The texts.
        labels: The class of each text; one class has two texts or more.
        weights: Weight of each class, in the fit and in its accuracy; by default equal.
        strengths: The penalties to choose from, by default `STRENGTHS`. A single one is not tested.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import make_scorer
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline, make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    model = make_pipeline(
        make_union(words, characters), LogisticRegression(max_iter=2000, class_weight=weights)
    )
    # The only text of a class is in the training part of every fold.
    again = recurring(labels)
    alone, judged = np.flatnonzero(~again), np.flatnonzero(again)
    fewest = min(count for count in Counter(labels).values() if count > 1)
    splits = StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=0)
    folds = [
        (np.concatenate([judged[train], alone]), judged[test])
        for train, test in splits.split(judged, np.array(labels)[judged])
    ]
    scoring = None if weights is None else make_scorer(_weighted, weights=weights)
    choices, tested = {"logisticregression__C": strengths or STRENGTHS}, folds[: len(strengths)]
    search = GridSearchCV(model, choices, cv=tested or folds, scoring=scoring)
    # Two threads would take ten times the CPU time.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes is greater")
        return search.fit([*texts], [*labels])


def _weighted(truths: Any, answers: np.ndarray, weights: Mapping[str, float]) -> float:
    each = [weights[truth] for truth in truths]
    return float(np.average(np.asarray(truths) == answers, weights=each))
