"""Packs records for the page: an index of all items, each cell's items, and unique texts.

Numbers are stored as integers: differences between depths in thousandths, the finest step that a
plot can show. They compress to about one byte per number. A block is gzip in base64, so that texts
of models and benchmarks are never part of the page's markup.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lastword.lab.report.figures import subject
from lastword.records.cells import Cell
from lastword.records.columns import read, without_nan
from lastword.records.decision import Decision
from lastword.records.document import compress
from lastword.records.metrics import Places
from lastword.records.view import View, item_text, page_item
from lastword.rule.theta import Theta
from lastword.trust.policy import OVERRIDING

MOST_SHOWN = 30_000  # maximum records of a page, which a browser opens in three seconds
_QUESTION_LIMIT = 300


def data_blocks(cells: Sequence[Cell], theta: Theta) -> dict[str, str]:
    """Return blocks by name: `items`, `cell-0` and so on, `texts-0` and so on (per benchmark).

    Every distinct text is stored once for all models.
    """
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    texts: list[dict[int, View]] = [{} for _ in benchmarks]
    subjects: dict[tuple[str, ...], tuple[int, str, int, str]] = {}  # of each text, in order
    index: list[View] = []
    blocks: dict[str, str] = {}
    for cell, places in zip(cells, listed(cells), strict=True):
        benchmark = benchmarks.index(cell.benchmark)
        entries, shown = list[list[Any]](), list[View]()
        for row in map(without_nan, cell.whole(places).to_dict("records")):
            key = (row["benchmark"], str(row["id"]), row["prompt"], *row["candidates"])
            asked = (len(subjects), str(row["id"]), benchmark, subject(row, _QUESTION_LIMIT))
            place, *_ = subjects.setdefault(key, asked)
            texts[benchmark].setdefault(place, item_text(row))
            record = None if row["error"] else read(row)
            entries.append([place, *facets(record)])
            shown.append(failed(row["error"]) if record is None else page_item(record, theta))
        blocks[f"cell-{len(index)}"] = compress(shown)
        index.append({"model": cell.model, "benchmark": cell.benchmark, "items": entries})
    asked_items = [asked[1:] for asked in subjects.values()]
    blocks["items"] = compress({"texts": asked_items, "cells": index})
    return blocks | {f"texts-{place}": compress(block) for place, block in enumerate(texts)}


def listed(cells: Sequence[Cell]) -> list[Places]:
    """Return the indices of each cell's records on the page.

    If there are many, every cell has an equal number, first those whose answer changed.
    """
    share = MOST_SHOWN // len(cells) if sum(len(c.records) for c in cells) > MOST_SHOWN else None
    return [_listed(cell, share) for cell in cells]


def _listed(cell: Cell, count: int | None) -> Places:
    records = cell.records
    stays = (records["index"] == records["base_index"]) | records["error"].notna()
    places: Places = np.sort(np.argsort(stays.to_numpy(bool), kind="stable")[:count])
    return places


def sample_note(cells: Sequence[Cell]) -> str:
    """Return text such as `30,000 of the 81,700`; empty if the page has every record."""
    shown, records = sum(map(len, listed(cells))), sum(len(cell.records) for cell in cells)
    return "" if shown == records else f"{shown:,} of the {records:,}"


def failed(error: str) -> View:
    """Return what is shown of an item that could not be answered."""
    return {"words": f"This item failed and counts nowhere: {error}.", "error": True}


def facets(record: Decision | None) -> tuple[str, str, str, str]:
    """Return what filters select by: regime, operator, outcome, and the metric that counts it."""
    if record is None:
        return ("", "", "failed", "failed")
    by_rule = record.operator == "base" or record.operator in OVERRIDING
    counted = [name for name in ("mc1", "mc2") if record.share(name, base=True) is not None]
    metric = {"mc1": "MC1", "mc2": "MC2 alone"}[counted[0]] if counted else "no labels"
    operator = record.operator if by_rule else "correction"
    return (record.regime, operator, outcome(record), metric)


def outcome(record: Decision) -> str:
    """Return the outcome of an answer: fixed or broken by MC1, changed, or unchanged."""
    if record.gain:
        return "fixed" if record.gain > 0 else "broken"
    return "changed" if record.corrected else "unchanged"
