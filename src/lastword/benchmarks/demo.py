"""The embedded models' benchmark: questions of an invented world (`experiments/world.py`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from lastword.benchmarks.benchmark import Benchmark, parse_item
from lastword.benchmarks.source import Rows, read_rows
from lastword.benchmarks.template import AS_IT_STANDS
from lastword.text.items import Item

Kind = Literal["clean", "contested", "overwritten", "revised"]
Form = Literal["multi", "binary"]
Split = Literal["seen", "unseen"]

PATH = Path(__file__).with_name("demo.jsonl")


@dataclass(frozen=True)
class Label:
    """The kind of an item for tables: its fact's kind, its form and its template's split."""

    kind: Kind
    form: Form
    split: Split


def items() -> list[Item]:
    """Return the benchmark's items; an item's id carries its label (`parse_label`)."""
    return [Item.from_dict(row) for row in read_rows(PATH)]


def parse_label(item_id: str) -> Label:
    """The label that an id of the benchmark carries, `form/kind/split/number`.

    Raises:
        ValueError: The id is not one of this benchmark.
    """
    form, kind, split, _ = item_id.split("/")
    if form in get_args(Form) and kind in get_args(Kind) and split in get_args(Split):
        return Label(kind, form, split)  # type: ignore[arg-type]
    raise ValueError(f"expected an id form/kind/split/number of the demo, got {item_id!r}")


def _read(data: Path | None) -> Rows:
    # Nothing to look for in --data: the set comes with the package.
    return Rows([{"item": item} for item in items()], "lastword.demo")


DEMO = Benchmark(
    name="demo",
    read=_read,
    parse=parse_item,
    templates={"prompt": AS_IT_STANDS},
    licence="Apache-2.0",
    citation="made by lastword: an invented world",
)
