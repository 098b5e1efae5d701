"""Records packed for the page: an index of all items, each cell's items, and texts kept once.

Numbers are kept as whole steps from depth to depth, in thousandths: that is what a plot can show,
and it compresses to about a byte a number. A block is gzip in base64, so that no text of a model or
a benchmark stands in the page as it came.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelm.report.document import compress
from tracelm.report.figure_parts import Rule
from tracelm.report.figures import band, rows_of, subject
from tracelm.theta import Theta
from tracelm.view.explanation import GATE_NAMES, explain, gates_of
from tracelm.view.portrait import Portrait, Record, portrait

if TYPE_CHECKING:
    import pandas as pd

REGIMES = {"s": "scalar", "c": "candidate-space"}
OPERATORS = {name[0]: name for name in ("base", "decisive", "mix", "early")}
OUTCOMES = {"f": "fixed", "b": "broken", "c": "changed", "u": "unchanged", "e": "failed"}
JUDGED = {"1": "MC1", "2": "MC2 alone", "n": "nothing: no labels", "e": "nothing: failed"}
_UNIT = 1000
_QUESTION_LIMIT = 300

Block = dict[str, Any]


def data_blocks(records: "pd.DataFrame", theta: Theta) -> dict[str, str]:
    """Blocks by name: `items`, `cell-0` on, `texts-0` on (a block a benchmark).

    Args:
        records: Records of all cells.
        theta: Theta of the runs.
    """
    cells = [rows_of(group) for _, group in records.groupby(["model", "benchmark"], sort=False)]
    index, texts = indexed(cells)
    blocks = {f"cell-{c}": compress([item(r, theta) for r in rows]) for c, rows in enumerate(cells)}
    return {"items": compress(index), **texts.blocks(), **blocks}


def indexed(cells: Sequence[Sequence[Record]]) -> tuple[Block, "Texts"]:
    """The index of all items, and the texts that it names.

    Args:
        cells: The records of each model on each benchmark.
    """
    models, benchmarks = (
        list(dict.fromkeys(str(rows[0][name]) for rows in cells)) for name in ("model", "benchmark")
    )
    texts = Texts(benchmarks)
    listed = [
        {
            "model": models.index(str(rows[0]["model"])),
            "benchmark": benchmarks.index(str(rows[0]["benchmark"])),
            "text": [texts.place(row) for row in rows],
            "codes": "".join(codes(row) for row in rows),
        }
        for rows in cells
    ]
    names = {
        "benchmark": benchmarks,
        "model": models,
        "outcome": OUTCOMES,
        "operator": OPERATORS,
        "regime": REGIMES,
        "judged": JUDGED,
    }
    return {"texts": texts.index, "cells": listed, "names": names}, texts


class Texts:
    """Every distinct text of an item once, however many models answered it."""

    def __init__(self, benchmarks: Sequence[str]) -> None:
        self._benchmarks = list(benchmarks)
        self._places: dict[tuple[str, ...], int] = {}
        self._by_benchmark: list[dict[int, Block]] = [{} for _ in benchmarks]
        self.index: list[tuple[str, int, str]] = []

    def place(self, record: Record) -> int:
        """The place of a record's text in the index."""
        key = (record["benchmark"], str(record["id"]), record["prompt"], *record["candidates"])
        if key in self._places:
            return self._places[key]
        place = self._places[key] = len(self.index)
        benchmark = self._benchmarks.index(record["benchmark"])
        self.index.append((str(record["id"]), benchmark, subject(record, _QUESTION_LIMIT)))
        self._by_benchmark[benchmark][place] = text(record)
        return place

    def blocks(self) -> dict[str, str]:
        """A block of texts a benchmark, by place in the index."""
        return {f"texts-{b}": compress(texts) for b, texts in enumerate(self._by_benchmark)}


def text(record: Record) -> Block:
    """What was asked, and what is true of it where that is known."""
    truthful = record.get("truthful")
    return {
        "prompt": record["prompt"],
        "candidates": [str(candidate) for candidate in record["candidates"]],
        "truthful": None if truthful is None else [bool(t) for t in truthful],
    }


def codes(record: Record) -> str:
    """Four letters: regime, operator, what became of the answer, and which metric counts it."""
    if failed(record):
        return "--ee"
    return f"{record['regime'][0]}{record['operator'][0]}{outcome(record)[0]}{_judged(record)}"


def outcome(record: Record) -> str:
    """Whether correction fixed or broke an answer that MC1 counts, or changed or kept one."""
    if failed(record):
        return "failed"
    gain = float(record["mc1"] - record["mc1_base"]) if _known(record, "mc1_base") else 0.0
    if gain:
        return "fixed" if gain > 0 else "broken"
    return "unchanged" if record["base_index"] == record["index"] else "changed"


def _judged(record: Record) -> str:
    if _known(record, "mc1_base"):
        return "1"
    return "2" if _known(record, "mc2_base") else "n"


def _known(record: Record, name: str) -> bool:
    value = record.get(name)
    return value is not None and value == value  # nan where a frame has none


def failed(record: Record) -> bool:
    """Whether the item could not be answered."""
    return isinstance(record.get("error"), str)


def item(record: Record, theta: Theta) -> Block:
    """What the page shows of one item, beside its text."""
    if failed(record):
        return {"words": explain(record, theta), "error": True}
    seen = portrait(record, theta)
    letters = [candidate.letter for candidate in seen.candidates]
    return {
        "words": explain({**record, "candidates": letters}, theta),
        "letters": letters,
        "roles": [candidate.role for candidate in seen.candidates],
        "index": seen.index,
        "base_index": seen.base_index,
        "base_probabilities": [round(candidate.before, 4) for candidate in seen.candidates],
        "probabilities": [round(candidate.after, 4) for candidate in seen.candidates],
        "gates": [_gate(name, gate) for name, gate in gates_of(record).items()],
        **_depths(seen, record["operator"]),
    }


def _depths(seen: Portrait, operator: str) -> Block:
    some = seen.candidates
    S = [candidate.scores for candidate in some]
    if len(seen.depths) <= seen.depth or not np.isfinite(S).all():
        return {"panels": [], "marks": [], "depth_note": ""}
    marks = [asdict(band(seen)), *(asdict(Rule(float(depth))) for depth in seen.chosen)]
    shares = _panel([c.shares for c in some], [c.blind_shares for c in some])
    scores = _panel(S, [c.blind_scores for c in some])
    panels = [
        {"short": "Probability", "y_label": "probability among candidates", "y_range": [0, 1]}
        | shares,
        {"short": "Score", "y_label": "mean log-probability a token, nats", "y_range": None}
        | scores,
    ]
    note = _note(operator, blind=bool(some[0].blind_shares))
    return {"panels": panels, "marks": marks, "depth_note": note}


def _panel(values: Sequence[Sequence[float]], blind: Sequence[Sequence[float]]) -> Block:
    unread = not blind[0]
    return {"unit": _UNIT, "steps": _steps(values), "blind": [] if unread else _steps(blind)}


def _note(operator: str, *, blind: bool) -> str:
    decided = {
        "decisive": "Dotted: the decisive depth ℓ*, whose scores decide.",
        "early": "Dotted: depth 0, whose scores decide; it has read nothing of the question.",
        "mix": "Dotted: the anchor depths of the scorer T, whose scores are mixed in.",
    }.get(operator, "The last depth, the model’s own scores, decides.")
    faint = " Faint: the same candidates with the question left out." if blind else ""
    return f"{decided} Shaded: the interior window in which d_eff is measured.{faint}"


def _steps(values: Sequence[Sequence[float]]) -> list[list[int]]:
    whole = np.rint(np.array(values) * _UNIT).astype(int)
    steps: list[list[int]] = np.diff(whole, axis=1, prepend=0).tolist()
    return steps


def _gate(name: str, gate: Mapping[str, Any]) -> tuple[str, str, str, bool | None]:
    threshold = gate["threshold"]
    if isinstance(threshold, bool):
        shown = {True: "yes", False: "no", None: "–"}
        return GATE_NAMES.get(name, name), shown[gate["value"]], shown[threshold], gate["holds"]
    sign = "<" if name == "confidence" else ">"
    value = "–" if gate["value"] is None else f"{float(gate['value']):.4g}"
    return GATE_NAMES.get(name, name), value, f"{sign} {float(threshold):g}", gate["holds"]
