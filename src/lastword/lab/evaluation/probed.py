"""Cross-fits probes to a cell's texts, depth by depth (method, section 19).

All items must have the same options and stored states (`lastword eval --states`). Every text is
answered by fits to other groups of texts, which also choose depth, pooling and penalty.

A cell to which no probe can be fitted raises `RecordError` with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os.path import commonprefix
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from lastword.errors import RecordError
from lastword.probes.state import POOLINGS, StateFit, States, can_fit, fit_state
from lastword.probes.words import bag_of_words
from lastword.records.cells import Cell
from lastword.records.columns import STATES
from lastword.records.ragged import Places
from lastword.trust.crossfit import Folds, cross_fit
from lastword.trust.record_groups import Groups, groups_at

PROBE, LAST, WORDS = "probe", "probe-last", "words"
PROBES: Mapping[str, str] = {
    PROBE: "a ridge on the model's states, its depth chosen by leave-one-out, cross-fitted",
    LAST: "the same of the last depth",
    WORDS: "a bag of words, cross-fitted: the control that needs no model",
}
FOLDS, SEED = 5, 0
MOST = 1000  # maximum number of texts; of more, a sample is drawn
_LEAST_P = 1e-12  # probability of a class that is missing in a fold's fit

Right = Bool[np.ndarray, " texts"]
Table = Float[np.ndarray, "texts classes"]


@dataclass(frozen=True, eq=False)
class ProbedCell:
    """Cross-fitted answers to the texts of a cell.

    Attributes:
        places: Indices of the texts among the cell's items [texts].
        scores: Log-probabilities of every item's candidates by `probe` and `probe-last`; None for
            an item that was not drawn.
        right: True where `probe`, `probe-last` and `words` are right, by name [texts].
        by_depth: True where the probe of each depth is right [texts, depths].
    """

    places: Places
    groups: Groups
    scores: Mapping[str, Sequence[Float[np.ndarray, " candidates"] | None]]
    right: Mapping[str, Right]
    by_depth: Bool[np.ndarray, "texts depths"]


def obstacle(candidates: Iterable[Iterable[str]], truthful: Iterable[Any]) -> str:
    """Return the reason why no state probe can answer these items; empty if one can.

    Args:
        candidates: The candidates of each item.
        truthful: True for the right ones, for each item; None if unlabelled.
    """
    if len({frozenset(options) for options in candidates}) != 1:
        return "options differ by item"
    one = all(marks is not None and sum(marks) == 1 for marks in truthful)
    return "" if one else "not every item has one right option"


@lru_cache(maxsize=16)  # a comparison and a figure use the same result
def probed(cell: Cell) -> ProbedCell:
    """Fit probes of every depth to the texts of a cell, and answer each text by fits to others."""
    places = cell.mc1_places
    if len(places) > MOST:
        places = np.sort(np.random.default_rng(SEED).choice(places, MOST, replace=False))
    groups = groups_at(cell, places)
    if len(np.unique(groups)) < FOLDS:
        raise RecordError(f"there are fewer than {FOLDS} groups of labelled texts")
    read = _read(cell, places)
    answers = cross_fit(lambda rest, tested: _answer(read, rest, tested), _folds(groups))
    labels = np.array(read.labels)
    classes = np.array(read.classes)
    right = {name: classes[p.argmax(axis=1)] == labels for name, p in answers.items()}
    depths = [right.pop(str(d)) for d in range(read.states.shape[1])]
    right[LAST] = depths[-1]
    scores = {
        name: _by_item(cell, read, np.log(np.maximum(answers[key], _LEAST_P)))
        for name, key in ((PROBE, PROBE), (LAST, str(len(depths) - 1)))
    }
    return ProbedCell(places, groups, scores, right, np.stack(depths, axis=1))


@dataclass(frozen=True, eq=False)
class _LabelledTexts:
    """States, texts, labels and candidates of some items of a cell."""

    places: Places
    states: States
    texts: Sequence[str]
    labels: Sequence[str]
    candidates: Sequence[Sequence[str]]

    @property
    def classes(self) -> list[str]:
        return sorted(self.candidates[0])


def _read(cell: Cell, places: Places) -> _LabelledTexts:
    """Return the texts of some items, with their states if the run stored them."""
    info = cell.info
    which = np.isin(np.arange(len(cell.items)), places)
    rows: dict[int, tuple[Any, ...]] = {}
    names = ("prompt", "candidates", *([STATES] if info.get("states") else []))
    for items, frame in cell.slices(*names):
        if frame["candidates"].isna().any():
            raise RecordError("the records have no texts")
        part = frame[which[items]]
        columns = (part[name] for name in names)
        rows |= zip(items[which[items]].tolist(), zip(*columns, strict=True), strict=True)
    truthful = cell.items["truthful"].iloc[places].tolist()
    candidates = [tuple(rows[place][1]) for place in places.tolist()]
    if why := obstacle(candidates, truthful):
        raise RecordError(why)
    if not info.get("states"):
        raise RecordError("the records have no states; `lastword eval --states` stores them")
    shape = (info["depth"] + 1, len(POOLINGS), -1)
    raw = (rows[place][2] for place in places.tolist())
    states = np.stack([np.frombuffer(blob, "<f4").reshape(shape) for blob in raw])
    labels = [options[int(np.argmax(t))] for options, t in zip(candidates, truthful, strict=True)]
    texts = _inputs([rows[place][0] for place in places.tolist()])
    return _LabelledTexts(places, states, texts, labels, candidates)


def _inputs(prompts: Sequence[str]) -> list[str]:
    """Return the prompts without their common prefix and suffix."""
    start = len(commonprefix(prompts))
    rest = [prompt[start:] for prompt in prompts]
    end = len(commonprefix([text[::-1] for text in rest]))
    return [text[: len(text) - end] for text in rest]


def _folds(groups: Groups) -> Folds:
    """Return the number of the fold of each text; the texts of a group are in one fold."""
    from sklearn.model_selection import GroupKFold

    folds: Folds = np.empty(len(groups), dtype=int)
    splits = GroupKFold(FOLDS, shuffle=True, random_state=SEED).split(groups, groups=groups)
    for number, (_, tested) in enumerate(splits):
        folds[tested] = number
    return folds


def _answer(read: _LabelledTexts, rest: Right, tested: Right) -> dict[str, np.ndarray]:
    """Return the classes' probabilities for the tested texts, by name and by depth."""
    fitted = np.flatnonzero(rest).tolist()
    places = np.flatnonzero(tested).tolist()
    labels = [read.labels[i] for i in fitted]
    if not can_fit(labels):
        raise RecordError("a fit has fewer than two classes, or no class with two labels")
    depths = range(read.states.shape[1])
    fits = [fit_state(read.states[fitted, d : d + 1], labels) for d in depths]
    tables = [_probabilities(fits[d], read.states[tested, d], read.classes) for d in depths]
    best = int(np.argmax([fit.right.max() for fit in fits]))  # the lowest depth on ties
    words = bag_of_words([read.texts[i] for i in fitted], labels)
    by_words = np.zeros((len(places), len(read.classes)))
    columns = np.searchsorted(read.classes, words.classes_)
    by_words[:, columns] = words.predict_proba([read.texts[i] for i in places])
    return {PROBE: tables[best], WORDS: by_words, **{str(d): tables[d] for d in depths}}


def _probabilities(
    fit: StateFit, states: Float[np.ndarray, "texts poolings width"], classes: Sequence[str]
) -> Table:
    probe = fit.probe
    rows = states[:, POOLINGS.index(probe.pooling)].astype(np.float64)
    table = np.zeros((len(states), len(classes)))
    # `classes` is sorted, so this is each class's column; one that the fit lacks keeps 0.
    table[:, np.searchsorted(classes, probe.classes)] = probe.probabilities(rows)
    return table


def _by_item(
    cell: Cell, read: _LabelledTexts, table: Table
) -> list[Float[np.ndarray, " _"] | None]:
    """Return the scores of every item of the cell [candidates], in its candidates' order."""
    scores: list[np.ndarray | None] = [None] * len(cell.items)
    for place, options, row in zip(read.places.tolist(), read.candidates, table, strict=True):
        scores[place] = row[np.searchsorted(read.classes, options)]
    return scores
