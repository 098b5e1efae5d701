"""Comparison of corrections: every method's answers on the same items, judged one way.

Judged from records whose run was asked for methods (`lastword compare`). A method is held against
the base of its own aggregation, so that a correction never gains by summing where the base took
means; and against TRACE on the same items.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.errors import RecordError
from lastword.evaluation.controls import controls
from lastword.evaluation.probed import WORDS, probed
from lastword.evaluation.statistics import paired
from lastword.files.folder import Folder
from lastword.records.cells import Cell, mean, mean_known
from lastword.records.columns import Lists, PerItem, Places
from lastword.records.derived import derive, fitted_methods
from lastword.records.info import find_cells, read_run
from lastword.records.metrics import mc1_rows, mc2_rows, mc3_rows, of_items
from lastword.trust.grouping import Groups, changed_groups
from lastword.trust.testing import holm

if TYPE_CHECKING:
    from lastword.methods.contract import Aggregation, Method

TRACE = "trace"

Name = tuple[str, str]


@dataclass(frozen=True)
class Standing:
    """One method on one cell. All shares lie in [0, 1]; nan where there is nothing to judge.

    Attributes:
        method: Its full name.
        base: The base that it is held against: `base-mean`, `base-sum` or `base-bytes`.
        items: How many items count for MC1 and have its scores.
        mc1: Mean MC1.
        delta_mc1: Mean MC1 minus the base's, on the same items.
        mc2: Mean MC2 of its scores as published, by log-sum-exp.
        mc2_normalised: Mean MC2 of the same scores as means over tokens.
        mc3: Mean MC3.
        fixed: Items that the base has wrong and the method right.
        broken: Items that the base has right and the method wrong: regressions.
        p_base: McNemar's exact test against the base, two-sided, over groups of items.
        p_base_holm: The same after Holm's correction over the methods of the cell.
        ahead: Items that TRACE has wrong and the method right.
        behind: Items that TRACE has right and the method wrong.
        p_trace: McNemar's exact test against TRACE, two-sided, over groups of items.
        p_trace_holm: The same after Holm's correction over the methods of the cell.
    """

    method: str
    base: str
    items: int
    mc1: float
    delta_mc1: float
    mc2: float
    mc2_normalised: float
    mc3: float
    fixed: int
    broken: int
    p_base: float
    p_base_holm: float
    ahead: int
    behind: int
    p_trace: float
    p_trace_holm: float


@dataclass(frozen=True)
class Comparison:
    """Every method on one model and one benchmark.

    Attributes:
        model: The model's name.
        benchmark: The benchmark's name.
        standings: One a method, in the order in which they were asked for.
        oracle: Share of items in which any depth ranks a truth first: what a choice of depth could
            win at most.
        rivals: Mean MC1 of what never reads the question, by name.
        blind_oracle: As the oracle, with the question left out; nan where that was not read.
        words: Share right of a bag of words, cross-fitted; nan where probes are left out.
        unprobed: Why probes and words are left out; empty where they are not.
    """

    model: str
    benchmark: str
    standings: tuple[Standing, ...]
    oracle: float
    rivals: Mapping[str, float] = field(default_factory=dict)
    blind_oracle: float = float("nan")
    words: float = float("nan")
    unprobed: str = ""


def compare(
    cell: Cell, methods: "Mapping[str, Aggregation]", fitted: "Mapping[str, Method] | None" = None
) -> Comparison:
    """Judge every method of a cell.

    Args:
        cell: Records of a run that was asked for methods.
        methods: Their aggregations by name.
        fitted: Those of them that learn from the cell's items, and score them by its records.

    Raises:
        RecordError: The records hold no scores of a method.
    """
    read = _Scores.of(cell, methods, fitted or {})
    words, unprobed = float("nan"), ""
    try:
        crossed = probed(cell)
        read = read.beside(crossed.scores)
        methods = {**methods, **dict.fromkeys(crossed.scores, "mean")}
        words = mean(crossed.right[WORDS].astype(float))
    except RecordError as error:
        unprobed = str(error)
    first = {name: read.first(cell, name, how) for name, how in methods.items()}
    changed = sum(_moved(own - base) + _moved(own - trace) for own, base, trace in first.values())
    groups = changed_groups(cell, np.asarray(changed, dtype=float))
    standings = [
        _standing(read, cell, name, how, first[name], groups) for name, how in methods.items()
    ]
    against_base = holm(np.array([s.p_base for s in standings]))
    against_trace = holm(np.array([s.p_trace for s in standings]))
    adjusted = tuple(
        replace(s, p_base_holm=float(b), p_trace_holm=float(t))
        for s, b, t in zip(standings, against_base, against_trace, strict=True)
    )
    beside = controls(cell)
    return Comparison(
        cell.model,
        cell.benchmark,
        adjusted,
        oracle=beside.oracle,
        rivals=beside.rivals,
        blind_oracle=beside.blind_oracle,
        words=words,
        unprobed=unprobed,
    )


def read_comparisons(runs: Folder, parted: Sequence[Cell]) -> list[Comparison]:
    """Comparisons of those cells whose runs were asked for methods; none where none was.

    Args:
        runs: Folder of records, at any level.
        parted: Its cells.

    Raises:
        RecordError: No records, or a file that cannot be read.
    """
    methods: dict[Name, tuple[Any, ...]] = {}
    for folder in find_cells(runs):
        info = read_run(folder)
        if names := info.get("methods"):
            methods[info["model"], info["benchmark"]] = names, fitted_methods(names, info)
    pairs = [(cell, methods.get((cell.model, cell.benchmark))) for cell in parted]
    return [compare(cell, *methods) for cell, methods in pairs if methods is not None]


@dataclass(frozen=True, eq=False)
class _Scores:
    """The scores of every item, in one layout, for every method.

    Attributes:
        base: The model's own, as means over tokens.
        trace: TRACE's.
        truthful: Which candidates are true.
        tokens: How many each candidate has.
        sizes: How many bytes of text each candidate has.
        by: Of the methods, by name; none where a method does not apply.
    """

    base: Lists
    trace: Lists
    truthful: Lists
    tokens: Lists
    sizes: Lists
    by: Mapping[str, Lists]

    @classmethod
    def of(cls, cell: Cell, names: Iterable[str], fitted: "Mapping[str, Method]") -> "_Scores":
        read = []
        for items, frame in cell.slices("methods", "candidates", "candidate_tokens"):
            if "methods" not in frame or frame["methods"].isna().any():
                raise RecordError(
                    f"{cell.model} on {cell.benchmark} holds no scores of other methods; write "
                    "them with `lastword compare`"
                )
            if len(items):
                counts = Lists.of(frame["candidate_tokens"]), Lists.sizes(frame["candidates"])
                read.append((items, *counts, Lists.by_name(frame["methods"])))
        for name in names:
            if not all(name in by for *_, by in read):
                raise RecordError(f"a record holds no scores of {name}; compare again")
        base, trace, truthful = (
            Lists.of(cell.items[name]) for name in ("base_scores", "scores", "truthful")
        )
        return cls(
            base,
            trace,
            truthful,
            tokens=base.filled((items, tokens) for items, tokens, _, _ in read),
            sizes=base.filled((items, sizes) for items, _, sizes, _ in read),
            by={n: base.filled((items, by[n]) for items, *_, by in read) for n in names}
            | {n: base.of_rows(rows) for n, rows in derive(cell, fitted).items()},
        )

    def beside(self, more: "Mapping[str, Sequence[np.ndarray | None]]") -> "_Scores":
        """The same with the scores of further methods, by item."""
        return replace(self, by={**self.by, **{n: self.base.of_rows(u) for n, u in more.items()}})

    def aggregated(self, how: "Aggregation") -> Lists:
        """The base's scores, aggregated as a method's are."""
        return replace(self.base, values=self._aggregate(self.base.values, how))

    def each(
        self, metric: Callable[[Any, Any], np.ndarray], scores: Lists, places: Places
    ) -> PerItem:
        """A metric of some items; nan where there are no scores."""
        return of_items(metric, scores, self.truthful, places)

    def first(self, cell: Cell, method: str, how: "Aggregation") -> tuple[PerItem, ...]:
        """MC1 of a method, of the base of its aggregation and of TRACE."""
        scores = self.by[method], self.aggregated(how), self.trace
        return tuple(self.each(mc1_rows, own, cell.mc1_places) for own in scores)

    def normalised(self, method: str, how: "Aggregation") -> Lists:
        """Scores as means over tokens, whatever they are."""
        u = self.by[method]
        return replace(u, values=u.values / self._aggregate(np.ones(len(u.values)), how))

    def _aggregate(self, means: np.ndarray, how: "Aggregation") -> np.ndarray:
        from lastword.methods.contract import aggregate  # torch comes with the methods

        return aggregate(means, how, self.tokens.values, self.sizes.values)


def _standing(
    read: _Scores,
    cell: Cell,
    name: str,
    how: "Aggregation",
    first: tuple[PerItem, ...],
    groups: Groups,
) -> Standing:
    """A method on the items that count for MC1, and on those that count for MC2 and MC3."""
    u, second = read.by[name], cell.mc2_places
    own, base, trace = first
    is_base = name == f"base-{how}"
    fixed, broken, p_base = paired(own - base, groups)
    ahead, behind, p_trace = paired(own - trace, groups)
    return Standing(
        method=name,
        base=f"base-{how}",
        items=int((~np.isnan(own)).sum()),
        mc1=mean_known(own),
        delta_mc1=mean_known(own - base),
        mc2=mean_known(read.each(mc2_rows, u, second)),
        mc2_normalised=mean_known(read.each(mc2_rows, read.normalised(name, how), second)),
        mc3=mean_known(read.each(mc3_rows, u, second)),
        fixed=fixed,
        broken=broken,
        p_base=np.nan if is_base else p_base,
        p_base_holm=np.nan,
        ahead=ahead,
        behind=behind,
        p_trace=np.nan if name == TRACE else p_trace,
        p_trace_holm=np.nan,
    )


def _moved(gains: PerItem) -> PerItem:
    """1 of an item that gains or loses, 0 of one that does not, or was not answered."""
    changes: PerItem = (np.nan_to_num(gains) != 0).astype(float)
    return changes
