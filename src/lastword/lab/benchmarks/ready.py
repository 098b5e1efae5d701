"""Sets of ready items: a user's file, a set on the hub with named columns, and the demo's.

A file is in any format that `lastword correct --input` reads. `truthful` has the labels that
metrics need. Reports show `question`. If the prompt contains it exactly once, the blind prompt is
the prompt without it, unless `blind_prompt` is given. A user's template may use `prompt` and
`question`. A conversation is rendered with the tokenizer's chat template.

`hf:cais/mmlu:all@test` is configuration `all`, split `test`; both are optional if there is only
one. `--columns prompt=question,candidates=choices,truthful=answer` names the columns. The right
answer is an index counted from 0, a list of them, or the candidate's text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.lab.benchmarks.benchmark import Benchmark, Example
from lastword.lab.benchmarks.source import Row, Rows, read_hub
from lastword.text.items import Item
from lastword.text.prompt_template import AS_IT_STANDS, Template
from lastword.text.reading import read_items, require_items

DEMO_PATH = Path(__file__).with_name("demo.jsonl")
_ROLES = ("prompt", "candidates", "truthful")


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


def hub(name: str, columns: str | None) -> Benchmark:
    """Return the benchmark `hf:NAME`."""
    pairs = [part.partition("=") for part in (columns or "").split(",") if part.strip()]
    by_role = {role.strip(): column.strip() for role, _, column in pairs}
    if {*by_role} != {*_ROLES}:
        raise InputError(
            f"--columns takes prompt=..., candidates=..., truthful=...; it has {columns or 'none'}"
        )
    path = Path(name.partition("@")[0].partition(":")[0])
    return Benchmark(
        name=f"hf:{path.resolve().name if path.is_dir() else name}",
        # --data does not apply to a set named in full.
        read=lambda data: read_hub(
            name, "name the configuration and the split as hf:NAME:CONFIGURATION@SPLIT"
        ),
        parse=partial(_parse, by_role),
        templates={"prompt": AS_IT_STANDS, "qa": "Question: {{ prompt }}\nAnswer:"},
        licence="the set's own",
        citation="the set's own",
    )


def _parse(columns: Mapping[str, str], place: int, row: Row) -> tuple[Example, ...]:
    if absent := [column for column in columns.values() if column not in row]:
        raise InputError(f"no column {absent[0]}; the row has {', '.join(row)}")
    values = {role: row[column] for role, column in columns.items()}
    truth, candidates = values["truthful"], list(values["candidates"])
    if isinstance(truth, str):
        if candidates.count(truth) != 1:
            raise InputError(f"the right answer {truth!r} is not one of the candidates")
        values["truthful"] = candidates.index(truth)
    if isinstance(values["prompt"], str):
        values["question"] = values["prompt"]
    return (Example.of(Item.from_dict(values, id=str(place)), place),)
