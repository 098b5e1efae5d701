"""A forest as vLLM's requests."""

from typing import Any

import numpy as np

from lastword.text.forest import Forest


def requests(forest: Forest) -> list[dict[str, Any]]:
    """A request a leaf of the forest, in its order: every node lies on the way to one.

    Each says which of its positions are read, whoever of those that share them computes them.
    """
    row_of = np.full(len(forest), -1)
    row_of[forest.reads.rows] = np.arange(len(forest.reads.rows))
    leaves = []
    for leaf in np.flatnonzero(forest.ends == np.arange(len(forest)) + 1):
        path = np.append(forest.ancestors(int(leaf)), leaf)
        positions = np.flatnonzero(row_of[path] >= 0)
        leaves.append(
            {
                "ids": forest.tokens[path].tolist(),
                "positions": positions.tolist(),
                "rows": row_of[path[positions]].tolist(),
            }
        )
    return leaves
