"""A user's items, in any file format that `lastword correct --input` reads.

`truthful` gives the labels that metrics need. `question` is shown to people; where the prompt holds
it once, the prompt without it is the question-blind one, unless `blind_prompt` gives that itself.
A user's template has `prompt` and `question`; a prompt that is a conversation is
written by the tokenizer's chat template.
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
    # --data names the folder of the published sets; the path of this one stands in its name.
    items = require_items(read_items(path), path)
    return Rows([{"item": item} for item in items], path.name)


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    ids: set[str] = set()
    for (example,) in questions:
        if example.id in ids:
            raise InputError(f"two items have the id {example.id}; ids must be unique")
        ids.add(example.id)
    return f"{len(questions)} items"
