"""Verdict: what records of labelled examples say of every correction, as figures and words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lastword.lab.evaluation.statistics import paired
from lastword.lab.report.controls import Addition, controls
from lastword.records.cells import Cell
from lastword.records.derived import derive, facts_of
from lastword.records.metrics import mc1
from lastword.trust.certification import Outcome
from lastword.trust.evidence import Evidence
from lastword.trust.grouping import Groups, groups
from lastword.trust.policy import METHODS, TRACE, is_probe
from lastword.trust.slices import found_at_least
from lastword.trust.summary import in_words
from lastword.trust.terms import Terms
from lastword.trust.testing import clopper_pearson
from lastword.tryout import words
from lastword.tryout.contest import Contest
from lastword.tryout.prompts import Race, Raced
from lastword.tryout.sets import Sets

_TAIL = (1 - 0.95) / 2  # of an interval at 95%
_NAMED = 5  # confusions that are kept


@dataclass(frozen=True)
class Line:
    """One way to answer, on the labelled items. Shares lie in [0, 1].

    Attributes:
        right: Share of right answers; ties count as the share of the tied that are right.
        low: Lower end of its exact 95% interval; that of chance is chance itself.
        fixed: Wrong answers of the model that it makes right; None where it is no correction.
        broken: Right answers of the model that it makes wrong.
        p: McNemar's exact test against the model, two-sided, over groups of examples.
        items: How many of the labelled items it answered; None where it is all of them.
    """

    name: str
    right: float
    low: float
    high: float
    fixed: int | None = None
    broken: int | None = None
    p: float | None = None
    items: int | None = None


@dataclass(frozen=True)
class Class:
    """One label: how much of it is found.

    Attributes:
        corrected: Share of its items that what is shown has right.
        p: McNemar's exact test between the two, two-sided, over groups of examples.
        at_least: What is promised of the second (`slices.found_at_least`); None where nothing is.
    """

    label: str
    items: int
    model: float
    corrected: float
    p: float
    at_least: float | None = None


@dataclass(frozen=True)
class Change:
    """An answer that is another than the model's own."""

    id: str
    truth: str
    model: str
    shown: str


@dataclass(frozen=True)
class Verdict:
    """Verdict of labelled examples on a model and its corrections.

    Attributes:
        lines: Chance, the model without the text, the model, each correction.
        certified: What is right under the certificate; None where nothing is allowed.
        needed: With about how many labels it would, if the rates stay; None where it does, or
            where no number would do.
        net_at_least: Lower bound of the share that is gained; None where nothing is certified.
        rivals: What never reads the text and would be certified for as much, in words.
        method: What is certified; None where nothing is.
        shown: What `classes` and `changes` are of: `certified`, or `best` where nothing is allowed.
        classes: By label, the model beside that; none where options differ by row.
        probe: The method of the probe that is certified, else of the one that labels make; None
            where there is none.
        cost: What an answer of the probe takes, in answers of the model.
        curve: As in `Contest`.
        raced: The model itself under other prompts, on rows that no example came from: `fixed` and
            `broken` are against the prompt in use on the same rows.
        by_depth: Share right by depth: of the model's own head, and of a probe by leave-one-out.
        middle: What depths below the last add to wording and the last one (section 15); None where
            that was not to be fitted.
        tested: The labels that judged what is certified; None where nothing is.
        table: What was guessed of the table, and what looks wrong in it, in words.
    """

    model: str
    items: int
    lines: tuple[Line, ...]
    certified: Line | None
    let_through: str
    needed: int | None
    least: int
    promise: str
    net_at_least: float | None
    alpha: float
    delta: float
    rivals: tuple[str, ...]
    best: str
    shown: str
    classes: tuple[Class, ...]
    changes: tuple[Change, ...]
    confusions: tuple[tuple[str, str, int], ...]
    middle: Addition | None = None
    method: str | None = None
    headline: str = ""
    probe: str | None = None
    cost: float | None = None
    by_depth: tuple[tuple[float, float], ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    raced: tuple[Line, ...] = ()
    not_raced: tuple[str, ...] = ()
    sets: Sets | None = None
    tested: Line | None = None
    table: tuple[str, ...] = ()

    def line(self, name: str) -> Line:
        """The line of that name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def useless(self) -> bool:
        """True if the model is not shown to be better than chance."""
        return self.line("the model").low <= self.line("chance").right

    @property
    def macro(self) -> tuple[float, float]:
        """Mean over labels of the share that is found: by the model, by the correction."""
        recalls = [(own.model, own.corrected) for own in self.classes]
        return (np.nan, np.nan) if not recalls else tuple(np.mean(recalls, axis=0).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Every figure, the picture and the words, as plain JSON values."""
        entries = {"picture": self.picture(), "words": self.words(), "by_class": self.by_class()}
        return {**asdict(self), "macro": self.macro, "useless": self.useless, **entries}

    @property
    def prompt(self) -> Line | None:
        """The other prompt under which the model itself is shown to be right more often."""
        count = len(self.raced)
        gains = [own for own in self.raced if (own.fixed or 0) > (own.broken or 0)]
        shown = [own for own in gains if (own.p or 0.0) * count < 0.05]
        return max(shown, key=lambda own: own.right, default=None)

    def picture(self) -> list[str]:
        """A bar a line, its interval beside it."""
        return words.picture(self)

    def words(self) -> list[str]:
        """Say what follows from the figures: whether the model is of use, and what to do."""
        return words.words(self)

    def by_class(self) -> list[str]:
        """A line a label: how much of it is found."""
        return words.by_class(self)


def judge(
    cell: Cell,
    run: Mapping[str, Any],
    outcome: Outcome | None,
    terms: Terms,
    contest: Contest | None = None,
    raced: Race = Race(),  # noqa: B008 - frozen
) -> Verdict:
    """Return the verdict of a cell's records."""
    items, scores = cell.items, _scores(cell, run)
    truths = [np.asarray(t, dtype=bool) for t in items["truthful"]]
    base, blind = (_right(list(items[name]), truths) for name in ("base_scores", "blind_scores"))
    right = {name: _right(own, truths) for name, own in scores.items()}
    together = _groups(cell)
    lines = [
        _line("chance", np.array([t.mean() for t in truths]), certain=True),
        _line("without the text", blind),
        _line("the model", base),
        *(_correction(name, own, base, together) for name, own in right.items()),
    ]
    crossed = {} if contest is None else _crossed(cell, contest)
    lines += [_correction(name, own, base, together) for name, own in crossed.items()]
    there = {name: own for name, own in right.items() if not np.isnan(own).any()}
    best = max(there, key=lambda name: float(there[name].mean()))
    finding = None if outcome is None else outcome.finding
    trial = None if finding is None else finding.chosen
    method = best if trial is None else trial.policy.method
    entrant = None if contest is None else contest.entrant(method)
    by_probe = entrant is not None and method == entrant.probe.name
    places = {str(id): place for place, id in enumerate(items["id"])}
    stands = np.ones(len(items), bool) if by_probe else _stands(outcome, scores[method])
    answers = np.where(stands, crossed[method] if by_probe else right[method], base)
    names = _candidates(cell)
    fixed = len({tuple(sorted(own)) for own in names}) == 1
    labels = np.array([own[int(t.argmax())] for own, t in zip(names, truths, strict=True)])
    promised = {} if outcome is None or not fixed else _promised(outcome, contest, labels)
    verdict = Verdict(
        model=cell.model,
        items=len(items),
        lines=tuple(lines),
        certified=None if trial is None else _correction("certified", answers, base, together),
        let_through="nothing" if finding is None else in_words(finding.policy),
        needed=None if finding is None else finding.needed,
        least=terms.least,
        promise=terms.promise,
        net_at_least=None if finding is None else finding.worth.get("net_at_least"),
        alpha=terms.alpha,
        delta=terms.delta,
        rivals=() if outcome is None else outcome.rivals,
        best=best,
        shown=best if trial is None else "certified",
        method=None if trial is None else trial.policy.method,
        classes=_classes(labels, base, answers, together, promised) if fixed else (),
        changes=() if by_probe else _changes(cell, names, truths, scores[method], stands),
        confusions=_confusions(names, truths, list(items["base_scores"])),
        middle=None if (fit := controls(cell).fit) is None else fit.middle,
        probe=None if entrant is None else entrant.probe.name,
        cost=None if entrant is None else entrant.cost,
        by_depth=() if contest is None else _by_depth(cell, contest),
        curve=() if contest is None else contest.curve,
        raced=tuple(_raced(own, places, base, together) for own in raced.prompts),
        not_raced=raced.left_out,
        tested=None if trial is None else _tested(trial.evidence),
    )
    return replace(verdict, headline=words.headline(verdict))


def _crossed(cell: Cell, contest: Contest) -> dict[str, np.ndarray]:
    """Where cross-fitted probes and their controls are right, of all of a cell's items."""
    unread = np.full(len(cell.items), np.nan)
    return {name: _whole(cell, own, unread) for name, own in contest.crossed.items()}


def _whole(cell: Cell, counting: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Values of the items that count for MC1, and of the others."""
    values = others.copy()
    values[cell.mc1_places] = counting
    return values


def _by_depth(cell: Cell, contest: Contest) -> tuple[tuple[float, float], ...]:
    """Share right of the model's own head at each depth, and of a probe there."""
    if not len(contest.by_depth):
        return ()
    right = np.zeros(len(contest.by_depth))
    for places, frame in cell.slices("trajectory"):
        for place, S in zip(places, frame["trajectory"], strict=True):
            truth = np.asarray(cell.items["truthful"].iloc[int(place)], dtype=bool)
            right += truth[np.stack([*S]).argmax(axis=0)]
    return tuple(zip((right / len(cell.items)).tolist(), contest.by_depth.tolist(), strict=True))


def _scores(cell: Cell, run: Mapping[str, Any]) -> dict[str, list[Any]]:
    from lastword.methods import resolve

    others = resolve([name for name in METHODS if name != TRACE], facts_of(run))
    return {TRACE: list(cell.items["scores"])} | derive(cell, others)


def _stands(outcome: Outcome | None, scores: Sequence[Any]) -> np.ndarray:
    """Which overrides are allowed; where nothing is certified all that there are scores for."""
    if outcome is None or outcome.finding.chosen is None:
        return np.array([u is not None for u in scores])
    (cell,) = outcome.sample.cells
    stands = outcome.sample.items.stands(outcome.finding.policy)
    return _whole(cell, stands, np.zeros(len(cell.items), dtype=bool))


def _changes(
    cell: Cell,
    names: Sequence[tuple[str, ...]],
    truths: Sequence[np.ndarray],
    scores: Sequence[Any],
    stands: np.ndarray,
) -> tuple[Change, ...]:
    items = cell.items
    before = items["base_index"].to_numpy(int)
    after = [b if u is None else int(np.argmax(u)) for b, u in zip(before, scores, strict=True)]
    rows = zip(items["id"], names, truths, before, after, strict=True)
    return tuple(
        Change(str(id), own[int(t.argmax())], own[b], own[a])
        for (id, own, t, b, a), stand in zip(rows, stands, strict=True)
        if stand and a != b
    )


def _right(scores: Sequence[Any], truths: Sequence[np.ndarray]) -> np.ndarray:
    """MC1 of each item; nan where there are no scores."""
    return np.array(
        [
            np.nan if u is None else mc1(np.asarray(u, dtype=float), t)
            for u, t in zip(scores, truths, strict=True)
        ]
    )


def _line(name: str, right: np.ndarray, *, certain: bool = False) -> Line:
    values = right[~np.isnan(right)]
    share = float(values.mean()) if len(values) else np.nan
    if certain or not len(values):
        return Line(name, share, share, share)
    return Line(name, share, *clopper_pearson(float(values.sum()), len(values), _TAIL))


def _correction(name: str, right: np.ndarray, base: np.ndarray, together: Groups) -> Line:
    """The line of what is held against the model's own answers."""
    fixed, broken, p = paired(right - base, together)
    return replace(_line(name, right), fixed=fixed, broken=broken, p=p)


def _raced(own: Raced, places: Mapping[str, int], base: np.ndarray, together: Groups) -> Line:
    """The line of another prompt, held against the one in use on the same items."""
    pairs = [(places[id], right) for id, right in zip(own.ids, own.right, strict=True)]
    at, right = map(np.array, zip(*pairs, strict=True))
    line = _correction(own.name, right.astype(float), base[at], together[at])
    return replace(line, items=len(at))


def _groups(cell: Cell) -> Groups:
    """The group of every item; one that counts for nothing is a group by itself."""
    own = groups([cell])
    return _whole(cell, own, own.max(initial=-1) + 1 + np.arange(len(cell.items)))


def _candidates(cell: Cell) -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = [()] * len(cell.items)
    for places, frame in cell.slices("candidates"):
        for place, own in zip(places, frame["candidates"], strict=True):
            names[int(place)] = tuple(own)
    return names


def _classes(
    labels: np.ndarray,
    base: np.ndarray,
    corrected: np.ndarray,
    together: Groups,
    promised: Mapping[str, float],
) -> tuple[Class, ...]:
    classes = []
    for label in np.unique(labels).tolist():
        own = labels == label
        before, after = base[own], corrected[own]
        *_, p = paired(after - before, together[own])
        recall = float(before.mean()), float(np.nanmean(after))
        classes.append(Class(label, int(own.sum()), *recall, p, promised.get(label)))
    return tuple(classes)


def _promised(outcome: Outcome, contest: Contest | None, labels: np.ndarray) -> dict[str, float]:
    """The share found at least of each class, under what is certified."""
    finding, items = outcome.finding, outcome.sample.items
    if (trial := finding.chosen) is None:
        return {}
    (cell,) = outcome.sample.cells
    tested, right = np.ones(len(items), dtype=bool), items.right(trial.policy)
    if contest is not None and is_probe(trial.policy.method):
        own = contest.entrant(trial.policy.method)
        tested, right = own.tested, own.right
    truths, level = labels[cell.mc1_places], finding.terms.level * trial.share
    return found_at_least(truths[tested], right[tested], items.groups[tested], level)


def _tested(own: Evidence) -> Line:
    fixed, broken, items = int(own.fixed), int(own.broken), int(own.items)
    right = float(own.base_right + fixed - broken)
    bounds = clopper_pearson(right, items, _TAIL)
    return Line("tested", right / items, *bounds, fixed, broken, items=items)


def _confusions(
    names: Sequence[tuple[str, ...]], truths: Sequence[np.ndarray], scores: Sequence[Any]
) -> tuple[tuple[str, str, int], ...]:
    pairs = Counter(
        (own[int(t.argmax())], own[int(np.argmax(u))])
        for own, t, u in zip(names, truths, scores, strict=True)
        if not t[int(np.argmax(u))]
    )
    return tuple((*pair, count) for pair, count in pairs.most_common(_NAMED))
