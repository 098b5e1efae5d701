"""The embedded models' benchmark: questions of an invented world (`experiments/world.py`)."""

from pathlib import Path

from lastword.files.rows import read_objects
from lastword.lab.benchmarks.benchmark import Benchmark, parse_item
from lastword.lab.benchmarks.source import Rows
from lastword.text.items import Item
from lastword.text.prompt_template import AS_IT_STANDS

PATH = Path(__file__).with_name("demo.jsonl")


def items() -> list[Item]:
    """Return the benchmark's items; an item's id is `form/kind/split/number`."""
    return [Item.from_dict(row) for row in read_objects(PATH)]


def _read(data: Path | None) -> Rows:
    # --data does not apply: the set is part of the package.
    return Rows([{"item": item} for item in items()], "lastword.lab.demo")


DEMO = Benchmark(
    name="demo",
    read=_read,
    parse=parse_item,
    templates={"prompt": AS_IT_STANDS},
    licence="Apache-2.0",
    citation="made by lastword: an invented world",
)
