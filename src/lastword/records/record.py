"""Record: one row an item, as Parquet holds it; metrics beside the decision that they judge.

Columns of nested numbers are lists of float64; `gates` and `withheld` are JSON strings, as
`Decision.to_dict` writes them. A failed item keeps its text and has `error`; what it would have
said is null.
"""

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lastword.files.strict_json import to_json
from lastword.records.metrics import mc1, mc2, mc3
from lastword.rule.decision import Decision
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.text.tokens import Encoded

_NUMBERS = pa.list_(pa.float64())
# Pairs, as a map would hold them: `datasets` knows no maps.
_BY_NAME = pa.list_(pa.struct([("key", pa.string()), ("value", _NUMBERS)]))

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("benchmark", pa.string()),
        ("kind", pa.string()),  # the metric that the item is for; null for all
        ("place", pa.int32()),  # in the benchmark's item list
        ("group", pa.int32()),  # of the plan: items that shared a batch
        ("prompt", pa.string()),
        ("question", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("candidates", pa.list_(pa.string())),
        ("candidate_tokens", pa.list_(pa.int32())),
        ("truthful", pa.list_(pa.bool_())),
        ("trajectory", pa.list_(_NUMBERS)),
        ("t_scores", _NUMBERS),
        ("blind_scores", _NUMBERS),
        ("blind_trajectory", pa.list_(_NUMBERS)),  # null unless every depth was read blind
        ("blind_t_scores", _NUMBERS),
        ("d_eff", pa.float64()),
        ("invariant", pa.float64()),
        ("regime", pa.string()),
        ("operator", pa.string()),
        ("decisive_layer", pa.int32()),
        ("lambda", pa.float64()),
        ("gates", pa.string()),
        ("scores", _NUMBERS),
        ("probabilities", _NUMBERS),
        ("base_scores", _NUMBERS),
        ("index", pa.int32()),
        ("base_index", pa.int32()),
        ("tied", pa.bool_()),
        ("mc1_base", pa.float64()),
        ("mc1", pa.float64()),
        ("mc2_base", pa.float64()),
        ("mc2", pa.float64()),
        ("mc3_base", pa.float64()),
        ("mc3", pa.float64()),
        ("methods", _BY_NAME),  # scores of TRACE's peers, by name
        ("seconds", pa.float64()),
        ("truncated", pa.int32()),
        ("boundary_moved", pa.bool_()),
        ("withheld", pa.string()),  # what a certificate did not let through
        ("deferred", pa.bool_()),
        ("error", pa.string()),
    ]
)

# MC3 asks whether every truth beats every falsehood: a question for the set with several truths.
_COUNTS = {"mc1": ("mc1", None), "mc2": ("mc2", None), "mc3": ("mc2", None)}
_METRICS = {"mc1": mc1, "mc2": mc2, "mc3": mc3}

Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a record stands.

    Attributes:
        benchmark: The cell's benchmark, with its template where that is not the default.
        kind: The metric that the item is for; None for all.
        place: In the benchmark's item list.
        group: Of the plan.
    """

    benchmark: str
    kind: str | None
    place: int
    group: int


def record(where: Place, encoded: "Encoded", decision: Decision, seconds: float) -> Row:
    """The row of an answered item.

    Args:
        where: Its place in the run.
        encoded: The item as tokens.
        decision: What was decided, with every depth read.
        seconds: The item's share of the time that its group took.
    """
    return (
        _text(where, encoded.item)
        | {
            "prompt_tokens": encoded.prompt_tokens,
            "candidate_tokens": list(encoded.candidate_tokens),
            "boundary_moved": encoded.boundary_moved,
            "truncated": encoded.truncated,
            "seconds": seconds,
            "error": None,
        }
        | _decided(decision)
        | _judged(where.kind, encoded.item.truthful, decision)
    )


def failure(where: Place, item: Item, error: str) -> Row:
    """The row of an item that could not be answered: its text and why."""
    return _text(where, item) | {"error": error}


def to_table(rows: list[Row]) -> pa.Table:
    """Rows as an Arrow table; a column that a row lacks is null."""
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def _text(where: Place, item: Item) -> Row:
    return {
        "id": item.id,
        "benchmark": where.benchmark,
        "kind": where.kind,
        "place": where.place,
        "group": where.group,
        "prompt": item.prompt,
        "question": item.question,
        "candidates": list(item.candidates),
        "truthful": None if item.truthful is None else list(item.truthful),
    }


def _decided(decision: Decision) -> Row:
    gates = {name: gate.to_dict() for name, gate in decision.gates.items()}
    return {
        "trajectory": decision.trajectory.tolist(),
        "t_scores": _list(decision.t_scores),
        "blind_scores": _list(decision.blind_scores),
        "blind_trajectory": _list(decision.blind_trajectory),
        "blind_t_scores": _list(decision.blind_t_scores),
        "d_eff": _known(decision.d_eff),
        "invariant": decision.invariant,
        "regime": decision.regime,
        "operator": decision.operator,
        "decisive_layer": decision.decisive_layer,
        "lambda": decision.mixing,
        "gates": json.dumps(gates),
        "scores": decision.scores.tolist(),
        "probabilities": decision.probabilities.tolist(),
        "base_scores": decision.base_scores.tolist(),
        "index": decision.index,
        "base_index": decision.base_index,
        "tied": decision.tied,
        "withheld": None if decision.withheld is None else to_json(decision.to_dict()["withheld"]),
        "deferred": decision.deferred,
        "methods": [{"key": n, "value": _list(u)} for n, u in decision.methods.items()],
    }


def _judged(kind: str | None, truthful: tuple[bool, ...] | None, decision: Decision) -> Row:
    row: Row = {}
    for name, metric in _METRICS.items():
        if truthful is not None and kind in _COUNTS[name]:
            row[f"{name}_base"] = _known(metric(decision.base_scores, truthful))
            row[name] = _known(metric(decision.scores, truthful))
    return row


def _list(numbers: np.ndarray | None) -> list[Any] | None:
    return None if numbers is None else numbers.tolist()


def _known(value: float) -> float | None:
    """Null for what is undefined."""
    return None if math.isnan(value) else value
