"""The embedded models' benchmark: questions of an invented world."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lastword.benchmarks.benchmark import Benchmark, Example
from lastword.benchmarks.source import Row, Rows
from lastword.benchmarks.template import Template
from lastword.benchmarks.world import items


def _read(data: Path | None) -> Rows:
    # Nothing to look for in --data: the set is made by the package.
    return Rows([{"item": item} for item in items()], "lastword.demo")


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    return (Example.of(row["item"], place),)


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    return f"{len(questions)} items"


DEMO = Benchmark(
    name="demo",
    read=_read,
    parse=_parse,
    verify=_verify,
    templates={"prompt": partial(Template, "demo/prompt", "1", "{{ prompt }}")},
    licence="Apache-2.0",
    citation="made by lastword: an invented world",
)
