"""The portrait of an answered item: every number that a picture or a table of it shows.

Notebook, terminal, explorer, report and demo all show a portrait and compute nothing, so that their
numbers agree.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from lastword.files.wording import shorten
from lastword.records.marks import Role
from lastword.rule.answer import Answer
from lastword.rule.theta import Theta


@dataclass(frozen=True)
class Candidate:
    """One candidate of an answered item.

    Attributes:
        true: True if it is truthful; None if unlabelled.
        before: Its probability among the candidates by the model's scores.
        after: Its probability by the scores that decide.
        scores: S at the portrait's depths, in nats per token [depths].
        shares: pi_l, its probability at the portrait's depths, Eq. 6 [depths].
        blind_scores: S without the question at these depths [depths]; empty if not read.
    """

    letter: str
    text: str
    true: bool | None
    role: Role
    before: float
    after: float
    scores: tuple[float, ...]
    shares: tuple[float, ...]
    blind_scores: tuple[float, ...] = ()
    blind_shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Portrait:
    """The numbers of an answered item that pages and terminals show.

    Attributes:
        depths: The depths that were read, ascending.
        window: First and last depth of the interior window; None without Theta.
        sharpest: l*; None if it was not needed.
        deciding_depths: Depths whose scores decided: l*, depth 0, or the anchors of T; () if the
            model's answer is unchanged.
        deciding_name: Name of a single deciding depth; empty for the anchors.
    """

    candidates: tuple[Candidate, ...]
    index: int
    base_index: int
    depth: int
    depths: tuple[int, ...]
    window: tuple[int, int] | None
    sharpest: int | None
    deciding_depths: tuple[int, ...]
    deciding_name: str


def portrait(answer: Answer, theta: Theta | None = None) -> Portrait:
    """Return the portrait of an answered item.

    Without Theta the window and the anchors are left out.
    """
    S = answer.trajectory
    depth = S.shape[1] - 1
    read = np.flatnonzero(~np.isnan(S).any(axis=0))
    window = None if theta is None else theta.window(depth)
    deciding_depths = _deciding_depths(answer, depth, theta)
    blind = np.full(S.shape, np.nan) if answer.blind_trajectory is None else answer.blind_trajectory
    return Portrait(
        candidates=_candidates(answer, S[:, read], blind[:, read]),
        index=answer.index,
        base_index=answer.base_index,
        depth=depth,
        depths=tuple(read.tolist()),
        window=None if window is None else (window[0], window[-1]),
        sharpest=answer.decisive_layer,
        deciding_depths=deciding_depths,
        deciding_name=_NAMES.get(answer.operator, "").format(*deciding_depths),
    )


_NAMES = {"decisive": "ℓ* = {}", "early": "depth {}"}


def _candidates(answer: Answer, S: np.ndarray, blind: np.ndarray) -> tuple[Candidate, ...]:
    before, after = answer.base_probabilities, answer.probabilities
    truths = answer.truthful or [None] * len(S)
    # Runs may read only the last depth without the question; a curve needs all of them.
    blind = blind if np.isfinite(blind).all() else blind[:, :0]
    pi, blind_pi = softmax(S, axis=0), softmax(blind, axis=0)  # over the candidates, at every depth
    columns = zip(answer.candidates, truths, before, after, strict=True)
    return tuple(
        Candidate(
            letter=letter(place),
            text=text,
            true=true,
            role=_role(answer, place, true),
            before=float(b),
            after=float(u),
            scores=tuple(S[place].tolist()),
            shares=tuple(pi[place].tolist()),
            blind_scores=tuple(blind[place].tolist()),
            blind_shares=tuple(blind_pi[place].tolist()),
        )
        for place, (text, true, b, u) in enumerate(columns)
    )


def _role(answer: Answer, place: int, true: bool | None) -> Role:
    """Return a candidate's role: truth, the model's error or other; or, unlabelled, its answers."""
    if true:
        return "truthful"
    if true is False and place == answer.base_index:
        return "winner"
    if place == answer.index:
        return "corrected"
    return "mix" if place == answer.base_index else "other"


def _deciding_depths(answer: Answer, depth: int, theta: Theta | None) -> tuple[int, ...]:
    if answer.operator == "decisive":
        assert answer.decisive_layer is not None
        return (answer.decisive_layer,)
    if answer.operator == "early":
        return (0,)
    return theta.anchor_depths(depth) if theta and answer.operator == "mix" else ()


def letter(place: int) -> str:
    """Return the short name of a candidate: A to Z, then A1 to Z1 and so on."""
    turn, index = divmod(place, 26)
    return chr(ord("A") + index) + (str(turn) if turn else "")


def short(text: str, limit: int = 60) -> str:
    """Return a text as one line of at most `limit` characters, without control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shorten(line, limit)
