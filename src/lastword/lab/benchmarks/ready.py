"""Sets of ready items: a user's file, and the demo's.

A file is in any format that `lastword correct --input` reads. `truthful` has the labels that
metrics need. Reports show `question`. If the prompt contains it exactly once, the blind prompt is
the prompt without it, unless `blind_prompt` is given. A user's template may use `prompt` and
`question`. A conversation is rendered with the tokenizer's chat template.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.lab.benchmarks.benchmark import Benchmark, Example
from lastword.lab.benchmarks.source import Rows
from lastword.text.items import Item
from lastword.text.prompt_template import AS_IT_STANDS, Template
from lastword.text.reading import read_items, require_items

DEMO_PATH = Path(__file__).with_name("demo.jsonl")


def jsonl(path: Path) -> Benchmark:
    """Return the benchmark `jsonl:<stem>` of the items in a file."""
    return Benchmark(
        name=f"jsonl:{path.stem}",
        # --data is the folder of the published sets; the path of this set is part of its name.
        read=lambda data: Rows(
            [{"item": item} for item in require_items(read_items(path), path)], path.name
        ),
        parse=lambda place, row: (Example.of(row["item"], place),),
        verify=_verify,
        templates={"prompt": partial(Template, "jsonl/prompt", "1", AS_IT_STANDS)},
        licence="the file's own",
        citation="the file's own",
    )


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    ids: set[str] = set()
    for (example,) in questions:
        if example.id in ids:
            raise InputError(f"two items have the id {example.id}; ids must be unique")
        ids.add(example.id)
    return f"{len(questions)} items"


def demo_items() -> list[Item]:
    """Return the items of the embedded models' invented world; ids are `form/kind/split/number`."""
    return [Item.from_dict(row) for row in read_objects(DEMO_PATH)]


DEMO = replace(
    jsonl(DEMO_PATH),
    name="demo",
    templates={"prompt": AS_IT_STANDS},
    licence="Apache-2.0",
    citation="made by lastword: an invented world",
)
