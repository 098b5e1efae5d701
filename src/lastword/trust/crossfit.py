"""Cross-fitting: each item is answered by a fit to other groups."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int

Folds = Int[np.ndarray, " items"]
Which = Bool[np.ndarray, " items"]
Name = TypeVar("Name", bound=Hashable)


def deal_folds(groups: Sequence[Hashable], order: Iterable[Hashable], count: int) -> Folds:
    """Return the fold of each item: the groups, in some order, are dealt to the folds in turn."""
    fold = {group: place % count for place, group in enumerate(order)}
    return np.array([fold[group] for group in groups])


def random_folds(groups: Int[np.ndarray, " items"], count: int, seed: int) -> Folds:
    """Return the fold of each item: groups are dealt in random order."""
    order = np.random.default_rng(seed).permutation(np.unique(groups))
    return deal_folds(groups.tolist(), order.tolist(), count)


def cross_fit(
    answer: Callable[[Which, Which], dict[Name, np.ndarray]], folds: Folds
) -> dict[Name, np.ndarray]:
    """Return the answers to each item by fits to the other folds, by name of the fit.

    `answer` fits to the first items, and answers the second ones [items, ...].
    """
    parts = [(folds == fold, answer(folds != fold, folds == fold)) for fold in np.unique(folds)]
    back = np.argsort(np.concatenate([np.flatnonzero(tested) for tested, _ in parts]))
    names = parts[0][1]
    return {name: np.concatenate([values[name] for _, values in parts])[back] for name in names}
