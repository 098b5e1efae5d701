"""Objective: the worth of an answer by the right one, for users whose aim is not accuracy.

It is a table of worth, truth by answer. `balanced` gives a right answer 1 / (K times the share of
its class), so that the mean over rows is the mean recall of the K classes. `cost` gives each answer
minus its cost. The shares are those of the labels that fit a probe. They are fixed before a label
that tests it is seen, so the gain of a row is a bounded value, like any other.

    objective = Objective.balanced(["bad", "good"], ["bad", "good", "good", "good"])
    objective.worth  # ((2.0, 0.0), (0.0, 0.667))
"""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.trust.testing import BETS, betting_bound, betting_p

ACCURACY, BALANCED, COST = "accuracy", "balanced", "cost="
Rows = Float[np.ndarray, " rows"]


@dataclass(frozen=True)
class Gains:
    """Gains of independent groups of rows: distinct values, and the number of each."""

    values: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, gains: Rows) -> "Gains":
        """Count the gains of groups."""
        values, counts = np.unique(np.round(gains, 12), return_counts=True)
        return cls(tuple(values.tolist()), tuple(counts.tolist()))

    @property
    def mean(self) -> float:
        """The mean gain."""
        return float(np.average(self.values, weights=self.counts))


@dataclass(frozen=True)
class Objective:
    """Worth of an answer by the right one.

    Attributes:
        options: The options of each row.
        worth: Worth of each answer (column) by truth (row), in the order of the options.

    Raises:
        InputError: The right answer is not worth most, or there is only one option.
    """

    name: Literal["balanced", "cost"]
    options: tuple[str, ...]
    worth: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        """Refuse a table of another size, or one that rewards wrong answers."""
        if len(self.options) < 2:
            raise InputError(f"an objective needs at least 2 options, not {len(self.options)}")
        shape = {len(row) for row in self.worth} | {len(self.worth)}
        if shape != {len(self.options)} or not np.isfinite(self.worth).all():
            raise InputError("an objective is a finite number per truth and answer")
        for option, row, weight in zip(self.options, self.worth, self._weights, strict=True):
            if max(row) > row[self.options.index(option)] or not weight > 0:
                raise InputError(f"{option!r}: a wrong answer has to cost more than the right one")

    @classmethod
    def balanced(cls, options: Sequence[str], labels: Sequence[str]) -> "Objective":
        """Return the objective of mean recall, with the classes' shares among some labels."""
        counts = Counter(labels)
        each = [len(labels) / (len(counts) * max(counts[option], 1)) for option in options]
        return cls("balanced", tuple(options), tuple(map(tuple, np.diag(each).tolist())))

    @classmethod
    def of_costs(
        cls, options: Sequence[str], costs: Mapping[str, Mapping[str, int | float]]
    ) -> "Objective":
        """Return the objective of a cost per truth and answer.

        Raises:
            InputError: A cost is missing, or belongs to no option.
        """
        rows = []
        names = [*costs, *(answer for row in costs.values() for answer in row)]
        if unknown := [name for name in names if name not in options]:
            raise InputError(f"{unknown[0]!r} is none of {', '.join(options)}")
        for truth in options:
            row = {truth: 0.0} | dict(costs.get(truth, {}))
            if missing := [answer for answer in options if answer not in row]:
                raise InputError(f"no cost of the answer {missing[0]!r} to {truth!r}")
            rows.append(tuple(-float(row[answer]) for answer in options))
        return cls("cost", tuple(options), tuple(rows))

    @property
    def table(self) -> Float[np.ndarray, "truths answers"]:
        """The worth as an array."""
        return np.array(self.worth)

    @property
    def loss(self) -> float:
        """The largest difference in worth of two answers to a row."""
        return float(np.ptp(self.table, axis=1).max())

    @property
    def _weights(self) -> np.ndarray:
        """The mean loss by a wrong answer, per truth."""
        table = self.table
        return np.asarray((np.diag(table)[:, None] - table).sum(axis=1) / (len(table) - 1))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each class in fits: the mean loss by a wrong answer."""
        return dict(zip(self.options, self._weights.tolist(), strict=True))

    @property
    def break_even(self) -> float:
        """The share of broken answers, among fixed and broken, above which no gain is possible."""
        table = self.table
        wrong = ~np.eye(len(table), dtype=bool)
        losses = (np.diag(table)[:, None] - table)[wrong]
        losses = losses[losses > 0]
        return float(losses.max() / (losses.max() + losses.min()))

    def values(self, truths: Sequence[str], answers: Sequence[str]) -> Rows:
        """Return the worth of each row's answer."""
        places = {option: place for place, option in enumerate(self.options)}
        rows, columns = ([places[name] for name in names] for names in (truths, answers))
        return np.asarray(self.table[rows, columns])

    def constant(self, labels: Sequence[str]) -> str:
        """Return the answer that is worth most if it is given to all rows.

        If several are equal, as for balanced recall, it is the most frequent label.
        """
        counts = Counter(labels)
        worth = {one: self.values(labels, [one] * len(labels)).sum() for one in self.options}
        return max(self.options, key=lambda one: (round(worth[one], 6), counts[one]))

    def least(self, level: float) -> int:
        """Return the minimum number of groups that proves a gain if each gains the most."""
        # Each such group multiplies the money of the largest bet by 1 + max(BETS), and the money of
        # `testing.betting_p` is the mean over all bets.
        return math.ceil(math.log(len(BETS) / level) / math.log1p(max(BETS)))

    def p(self, gains: Gains, times: Any = 1.0) -> Any:
        """Return the p-value that nothing is gained, for `times` as many groups at these rates."""
        return betting_p(gains.values, np.multiply.outer(times, gains.counts), -self.loss)

    def bound(self, gains: Gains, level: float) -> float:
        """Return the lower bound of the mean gain."""
        return betting_bound(gains.values, gains.counts, -self.loss, level)


def objective_from(
    name: str, options: Sequence[str] | None
) -> Callable[[Sequence[str]], Objective] | None:
    """Return the function that makes an objective from labels; None for accuracy.

    Args:
        name: `accuracy`, `balanced` or `cost=FILE`.
        options: The options of each row; None if they differ.

    Raises:
        InputError: There is no such objective, the options differ, or the file is invalid.
    """
    if name == ACCURACY:
        return None
    if options is None:
        raise InputError(f"--objective {name} needs the same options for every row")
    if name == BALANCED:
        return partial(Objective.balanced, options)
    if not name.startswith(COST):
        raise InputError(f"--objective is accuracy, balanced or cost=FILE, not {name!r}")
    path = Path(name.removeprefix(COST))
    try:
        objective = Objective.of_costs(options, read_costs(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return lambda labels: objective


def read_costs(path: Path) -> dict[str, dict[str, float]]:
    """Return the cost of each answer by truth.

    A table has a row per truth, with the truth in its first column, and a column per answer. TOML
    has a table per truth. The right answer costs nothing by default.

    Raises:
        InputError: The file cannot be read, a truth has two rows, or a cost is not a number.
    """
    if path.suffix.lower() == ".toml":
        try:
            rows: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the costs: {error}") from error
    else:
        rows = _by_truth(read_objects(path))
    costs = {}
    for truth, row in rows.items():
        try:
            costs[truth] = {answer: float(cost) for answer, cost in row.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"the costs of {truth!r} are a number per answer: {error}") from error
    return costs


def _by_truth(table: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for place, row in enumerate(table, start=1):
        if not row:
            raise InputError(f"row {place} is empty; expected a truth and a cost per answer")
        (_, truth), *costs = row.items()
        if str(truth) in rows:
            raise InputError(f"row {place}: {truth!r} has a row already; remove one of them")
        rows[str(truth)] = {answer: cost for answer, cost in costs if cost not in (None, "")}
    return rows
