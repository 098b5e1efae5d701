"""Packs records for the page: an index of all items, each cell's items, and unique texts.

Numbers are stored as integers: differences between depths in thousandths, the finest step that a
plot can show. They compress to about one byte per number. A block is gzip in base64, so that texts
of models and benchmarks are never part of the page's markup.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from lastword.lab.report.figures import subject
from lastword.records.cells import Cell
from lastword.records.decision import Decision, read, without_nan
from lastword.records.document import compress
from lastword.records.ragged import Places
from lastword.records.view import View, item_text, page_item
from lastword.rule.theta import Theta

REGIMES = {"s": "scalar", "c": "candidate-space"}
OPERATORS = {name[0]: name for name in ("base", "decisive", "mix", "early", "correction")}
OUTCOMES = {"f": "fixed", "b": "broken", "c": "changed", "u": "unchanged", "e": "failed"}
JUDGED = {"1": "MC1", "2": "MC2 alone", "n": "nothing: no labels", "e": "nothing: failed"}
MOST_SHOWN = 30_000  # maximum records of a page, which a browser opens in three seconds
_AT_ONCE = 2000  # maximum number of whole records in memory
_QUESTION_LIMIT = 300


def data_blocks(cells: Sequence[Cell], theta: Theta) -> dict[str, str]:
    """Return blocks by name: `items`, `cell-0` and so on, `texts-0` and so on (per benchmark).

    Every distinct text is stored once for all models.
    """
    models = list(dict.fromkeys(cell.model for cell in cells))
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    places: dict[tuple[str, ...], int] = {}  # place of each text in its block
    subjects: list[tuple[str, int, str]] = []
    texts: list[dict[int, View]] = [{} for _ in benchmarks]
    index: list[View] = []
    blocks: dict[str, str] = {}
    for c, (cell, some) in enumerate(zip(cells, sampled(cells), strict=True)):
        benchmark = benchmarks.index(cell.benchmark)
        text_places, letters, shown = list[int](), "", list[View]()
        # Whole records are large, so a limited number is in memory at a time.
        pieces = (some[at : at + _AT_ONCE] for at in range(0, len(some), _AT_ONCE))
        frames = (cell.whole(piece).to_dict("records") for piece in pieces)
        for row in map(without_nan, chain.from_iterable(frames)):
            key = (row["benchmark"], str(row["id"]), row["prompt"], *row["candidates"])
            if key not in places:
                places[key] = len(subjects)
                subjects.append((str(row["id"]), benchmark, subject(row, _QUESTION_LIMIT)))
                texts[benchmark][places[key]] = item_text(row)
            record = None if row["error"] else read(row)
            text_places.append(places[key])
            letters += codes(record)
            shown.append(failed(row["error"]) if record is None else page_item(record, theta))
        model = models.index(cell.model)
        index.append(
            {"model": model, "benchmark": benchmark, "text": text_places, "codes": letters}
        )
        blocks[f"cell-{c}"] = compress(shown)
    # The codes are four letters per record; the second is the operator.
    corrected = any("c" in entry["codes"][1::4] for entry in index)  # by another method
    names = {
        "benchmark": benchmarks,
        "model": models,
        "outcome": OUTCOMES,
        "operator": {k: v for k, v in OPERATORS.items() if k != "c" or corrected},
        "regime": REGIMES,
        "judged": JUDGED,
    }
    return {
        "items": compress({"texts": subjects, "cells": index, "names": names}),
        **{f"texts-{b}": compress(block) for b, block in enumerate(texts)},
        **blocks,
    }


def sampled(cells: Sequence[Cell]) -> list[Places]:
    """Return the indices of the records on the page: all, or a sample per cell if there are many.

    A sample prefers records whose answer changed.
    """
    shares = even_shares([len(cell.records) for cell in cells], MOST_SHOWN)
    return [_sample(cell, share) for cell, share in zip(cells, shares, strict=True)]


def sample_note(cells: Sequence[Cell]) -> str:
    """Return text such as `30,000 of the 81,700`; empty if the page has every record."""
    listed, records = sum(map(len, sampled(cells))), sum(len(cell.records) for cell in cells)
    return "" if listed == records else f"{listed:,} of the {records:,}"


def even_shares(sizes: Sequence[int], limit: int) -> list[int]:
    """Return the number taken from each group: an equal number, or all of a smaller group."""
    # The smallest groups come first; what they do not use is left for the larger ones.
    shares = [0] * len(sizes)
    for nth, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], (limit - sum(shares)) // (len(sizes) - nth))
    return shares


def _sample(cell: Cell, count: int) -> Places:
    records = cell.records
    stays = (records["index"] == records["base_index"]) | records["error"].notna()
    places: Places = np.sort(np.argsort(stays.to_numpy(bool), kind="stable")[:count])
    return places


def failed(error: str) -> View:
    """Return what is shown of an item that could not be answered."""
    return {"words": f"This item failed and counts nowhere: {error}.", "error": True}


def codes(record: Decision | None) -> str:
    """Return four letters: regime, operator, outcome of the answer, and metric that counts it."""
    if record is None:
        return "--ee"
    operator = record.operator if record.operator in OPERATORS.values() else "correction"
    counted = (record.share(name, base=True) is not None for name in ("mc1", "mc2"))
    metric = next((letter for letter, counts in zip("12", counted, strict=True) if counts), "n")
    return f"{record.regime[0]}{operator[0]}{outcome(record)[0]}{metric}"


def outcome(record: Decision) -> str:
    """Return the outcome of an answer: fixed or broken by MC1, changed, or unchanged."""
    if record.gain:
        return "fixed" if record.gain > 0 else "broken"
    return "changed" if record.corrected else "unchanged"
