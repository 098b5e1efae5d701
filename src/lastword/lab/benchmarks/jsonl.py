"""A user's items, in any file format that `lastword correct --input` reads.

`truthful` has the labels that metrics need. Reports show `question`. If the prompt contains it
exactly once, the blind prompt is the prompt without it, unless `blind_prompt` is given. A user's
template may use `prompt` and `question`. A conversation is rendered with the tokenizer's chat
template.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example, parse_item
from lastword.lab.benchmarks.source import Rows
from lastword.text.prompt_template import AS_IT_STANDS, Template
from lastword.text.reading import read_items, require_items


def jsonl(path: Path) -> Benchmark:
    """Return the benchmark `jsonl:<stem>` of the items in a file."""
    return Benchmark(
        name=f"jsonl:{path.stem}",
        read=partial(_read, path),
        parse=parse_item,
        verify=_verify,
        templates={"prompt": partial(Template, "jsonl/prompt", "1", AS_IT_STANDS)},
        licence="the file's own",
        citation="the file's own",
    )


def _read(path: Path, data: Path | None) -> Rows:
    # --data is the folder of the published sets; the path of this set is part of its name.
    items = require_items(read_items(path), path)
    return Rows([{"item": item} for item in items], path.name)


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    ids: set[str] = set()
    for (example,) in questions:
        if example.id in ids:
            raise InputError(f"two items have the id {example.id}; ids must be unique")
        ids.add(example.id)
    return f"{len(questions)} items"
