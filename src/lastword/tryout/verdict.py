"""Verdict: what records of labelled examples say of every correction, as figures and words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lastword.evaluation.derived import derive, facts_of
from lastword.evaluation.statistics import mcnemar
from lastword.records.cells import Cell
from lastword.records.metrics import mc1
from lastword.trust.certify import Finding
from lastword.trust.policy import METHODS
from lastword.trust.summary import in_words
from lastword.trust.terms import Terms

_LEVEL = 0.95
_WIDTH = 30  # of a bar
_NAMED = 5  # classes and confusions that words tell


@dataclass(frozen=True)
class Line:
    """One way to answer, on the labelled items. Shares lie in [0, 1].

    Attributes:
        name: What answers.
        right: Share of right answers; ties count as the share of the tied that are right.
        low: Lower end of its exact 95% interval; that of chance is chance itself.
        high: Its upper end.
        fixed: Wrong answers of the model that it makes right; None where it is no correction.
        broken: Right answers of the model that it makes wrong.
        p: McNemar's exact test against the model, two-sided.
    """

    name: str
    right: float
    low: float
    high: float
    fixed: int | None = None
    broken: int | None = None
    p: float | None = None


@dataclass(frozen=True)
class Class:
    """One label: how much of it is found.

    Attributes:
        label: Its text.
        items: How many labelled items have it.
        model: Share of them that the model answers right.
        corrected: Share of them that the correction does.
        p: McNemar's exact test between the two, two-sided.
    """

    label: str
    items: int
    model: float
    corrected: float
    p: float


@dataclass(frozen=True)
class Verdict:
    """What labelled examples say of a model and of its corrections.

    Attributes:
        model: The model's name.
        items: How many labelled items were answered.
        lines: Chance, the model without the text, the model, each correction.
        certified: What is right under the certificate; None where nothing is let through.
        let_through: What the certificate lets through, in words.
        needed: With about how many labels it would, if the rates stay; None where it does, or
            where no number would do.
        least: Fewest labels that could certify anything.
        alpha: What was to be promised: the largest share of all answers that may be broken.
        rivals: What never reads the text and would be certified for as much, in words.
        best: The correction with the most right answers on these labels.
        classes: By label, the model beside that correction; none where options differ by row.
        confusions: Truth, answer and count of the model's most frequent mistakes.
    """

    model: str
    items: int
    lines: tuple[Line, ...]
    certified: Line | None
    let_through: str
    needed: int | None
    least: int
    alpha: float
    rivals: tuple[str, ...]
    best: str
    classes: tuple[Class, ...]
    confusions: tuple[tuple[str, str, int], ...]

    def line(self, name: str) -> Line:
        """The line of that name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def useless(self) -> bool:
        """Whether the model is not shown to be better than chance."""
        return self.line("the model").low <= self.line("chance").right

    @property
    def macro(self) -> tuple[float, float]:
        """Mean over labels of the share that is found: by the model, by the correction."""
        found = [(own.model, own.corrected) for own in self.classes]
        return (np.nan, np.nan) if not found else tuple(np.mean(found, axis=0).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Every figure, as plain JSON values."""
        return {**asdict(self), "macro": self.macro, "useless": self.useless, "words": self.words()}

    def picture(self) -> list[str]:
        """A bar a line, its interval beside it."""
        lines = [*self.lines, *([] if self.certified is None else [self.certified])]
        width = max(len(line.name) for line in lines)
        return [_bar(line, width) for line in lines]

    def words(self) -> list[str]:
        """What follows from the figures: whether the model is of use, and what to do."""
        model, chance, best = self.line("the model"), self.line("chance"), self.line(self.best)
        told = []
        if self.useless:
            told.append(
                f"{self.model} is no use here by itself: {_percent(model.right)} right, where "
                f"guessing gets {_percent(chance.right)}."
            )
        if self.rivals:
            told.append(
                f"Beware: {' and '.join(self.rivals)}, which never reads the text, would be "
                "certified for as much."
            )
        told += [self._advice(), self._best(best)]
        if self.classes:
            before, after = map(_percent, self.macro)
            told.append(f"By class (macro recall): {before}, with {self.best} {after}.")
        if hurt := [own for own in self.classes if own.corrected < own.model and own.p < 0.05]:
            named = ", ".join(
                f"{own.label} ({_percent(own.model)} to {_percent(own.corrected)})" for own in hurt
            )
            told.append(f"{self.best} hurts {named}.")
        return told

    def _advice(self) -> str:
        if self.certified is not None:
            return (
                f"Switch it on: {self.let_through}; at most {_percent(self.alpha)} of all answers "
                "broken and more fixed than broken, with 95% confidence."
            )
        if self.items < self.least:
            return (
                f"Label {self.least - self.items} more: {self.items} labels cannot certify that at "
                f"most {_percent(self.alpha)} of answers break, {self.least} can."
            )
        if self.needed is not None:
            return f"Label {self.needed - self.items} more: about {self.needed} would certify it."
        return "Keep it off: no correction can be promised to break so little and to gain."

    def _best(self, best: Line) -> str:
        model = self.line("the model")
        more = best.right - model.right
        if more <= 0:
            return "No correction gains on these labels."
        assert best.p is not None
        tried = len(METHODS)
        sure = "" if best.p < 0.05 / tried else "not shown to be "
        return (
            f"{best.name} gains most on these labels: {100 * more:+.1f} points, {best.fixed} fixed "
            f"and {best.broken} broken ({sure}more than chance: p = {best.p:.2g}, {tried} tried)."
        )


def judge(
    cell: Cell,
    run: Mapping[str, Any],
    finding: Finding | None,
    terms: Terms,
    rivals: Sequence[str] = (),
) -> Verdict:
    """The verdict of a cell's records.

    Args:
        cell: Labelled items, with depth L and all others read with the text and without.
        run: `run.json`.
        finding: What they certify; None where they are too few.
        terms: What was to be promised.
        rivals: Controls that would be certified for as much.
    """
    from lastword.methods import resolve

    items = cell.items
    scores = {"trace": list(items["scores"])} | derive(
        cell, resolve([name for name in METHODS if name != "trace"], facts_of(run))
    )
    truths = [np.asarray(t, dtype=bool) for t in items["truthful"]]
    base = _right(list(items["base_scores"]), truths)
    lines = [
        _line("chance", np.array([t.mean() for t in truths]), certain=True),
        _line("without the text", _right(list(items["blind_scores"]), truths)),
        _line("the model", base),
    ]
    right = {name: _right(own, truths) for name, own in scores.items()}
    lines += [_line(name, own, base) for name, own in right.items()]
    there = {name: own for name, own in right.items() if not np.isnan(own).any()}
    best = max(there, key=lambda name: float(there[name].mean()))
    names = _candidates(cell)
    fixed = len({tuple(sorted(own)) for own in names}) == 1
    return Verdict(
        model=cell.model,
        items=len(items),
        lines=tuple(lines),
        certified=_certified(finding, base),
        let_through="nothing" if finding is None else in_words(finding.policy),
        needed=None if finding is None else finding.needed,
        least=terms.least,
        alpha=terms.alpha,
        rivals=tuple(rivals),
        best=best,
        classes=_classes(names, truths, base, right[best]) if fixed else (),
        confusions=_confusions(names, truths, list(items["base_scores"])),
    )


def _right(scores: Sequence[Any], truths: Sequence[np.ndarray]) -> np.ndarray:
    """MC1 of each item; nan where there are no scores."""
    return np.array(
        [
            np.nan if u is None else mc1(np.asarray(u, dtype=float), t)
            for u, t in zip(scores, truths, strict=True)
        ]
    )


def _line(
    name: str, right: np.ndarray, base: np.ndarray | None = None, *, certain: bool = False
) -> Line:
    known = right[~np.isnan(right)]
    share = float(known.mean()) if len(known) else np.nan
    low, high = (share, share) if certain else _interval(float(known.sum()), len(known))
    if base is None:
        return Line(name, share, low, high)
    both = ~np.isnan(right)
    fixed = int((right[both] > base[both]).sum())
    broken = int((right[both] < base[both]).sum())
    return Line(name, share, low, high, fixed, broken, mcnemar(fixed, broken))


def _interval(right: float, items: int) -> tuple[float, float]:
    """Clopper-Pearson."""
    from scipy.stats import beta

    if not items:
        return np.nan, np.nan
    rest, tail = items - right, (1 - _LEVEL) / 2
    low = 0.0 if right <= 0 else float(beta.ppf(tail, right, rest + 1))
    high = 1.0 if rest <= 0 else float(beta.ppf(1 - tail, right + 1, rest))
    return low, high


def _certified(finding: Finding | None, base: np.ndarray) -> Line | None:
    if finding is None or finding.chosen is None:
        return None
    fixed, broken = finding.chosen.fixed, finding.chosen.broken
    right = float(base.sum()) + fixed - broken
    low, high = _interval(right, len(base))
    return Line("certified", right / len(base), low, high, fixed, broken, mcnemar(fixed, broken))


def _candidates(cell: Cell) -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = [()] * len(cell.items)
    for places, frame in cell.slices("candidates"):
        for place, own in zip(places, frame["candidates"], strict=True):
            names[int(place)] = tuple(own)
    return names


def _classes(
    names: Sequence[tuple[str, ...]],
    truths: Sequence[np.ndarray],
    base: np.ndarray,
    corrected: np.ndarray,
) -> tuple[Class, ...]:
    of = np.array([own[int(t.argmax())] for own, t in zip(names, truths, strict=True)])
    made = []
    for label in sorted(set(of.tolist())):
        before, after = base[of == label], corrected[of == label]
        p = mcnemar(int((after > before).sum()), int((after < before).sum()))
        found = float(before.mean()), float(np.nanmean(after))
        made.append(Class(label, int((of == label).sum()), *found, p))
    return tuple(made)


def _confusions(
    names: Sequence[tuple[str, ...]], truths: Sequence[np.ndarray], scores: Sequence[Any]
) -> tuple[tuple[str, str, int], ...]:
    pairs = Counter(
        (own[int(t.argmax())], own[int(np.argmax(u))])
        for own, t, u in zip(names, truths, scores, strict=True)
        if not t[int(np.argmax(u))]
    )
    return tuple((*pair, count) for pair, count in pairs.most_common(_NAMED))


def _bar(line: Line, width: int) -> str:
    """`pmi@0.5   ██████████            61.3%  52.6 to 69.5   +56 -1`."""
    if line.right != line.right:
        return f"{line.name:<{width}}  does not apply to these examples"
    filled = round(_WIDTH * line.right)
    changes = "" if line.fixed is None else f"   +{line.fixed} -{line.broken}"
    interval = "" if line.low == line.high else f"  {100 * line.low:.0f} to {100 * line.high:.0f}"
    bar = "█" * filled + "·" * (_WIDTH - filled)
    return f"{line.name:<{width}}  {bar}  {_percent(line.right):>6}{interval}{changes}"


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f}%".replace(".0%", "%")
