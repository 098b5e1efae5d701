"""A benchmark of your own: rows, what each row asks, a check of the whole, and a template."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lastword.lab.benchmarks import Benchmark, Example, Template
from lastword.lab.benchmarks.source import Row, Rows


def _read(data: Path | None) -> Rows:
    """Every sum of two digits; a file of one's own would be looked for in `data`."""
    return Rows([{"a": a, "b": b} for a in range(1, 10) for b in range(1, 10)], "made here")


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    """One question with three answers, of which the first is true."""
    right = row["a"] + row["b"]
    return (
        Example(
            id=f"{row['a']}+{row['b']}",
            fields={"sum": f"{row['a']} + {row['b']}"},
            blind_fields={"sum": "the sum"},
            candidates=(str(right), str(right + 1), str(right - 1)),
            truthful=(True, False, False),
        ),
    )


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    return f"{len(questions)} sums"


SUMS = Benchmark(
    name="sums",
    read=_read,
    parse=_parse,
    verify=_verify,
    templates={"plain": partial(Template, "sums/plain", "1", "{{ sum }} =")},
    licence="Apache-2.0",
    citation="made by hand",
)
