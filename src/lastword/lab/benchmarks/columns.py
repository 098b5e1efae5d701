"""Benchmarks from the hub, or from a folder that `datasets` reads, with columns named by the user.

`hf:cais/mmlu:all@test` is configuration `all`, split `test`; both are optional if there is only
one. `--columns prompt=question,candidates=choices,truthful=answer` names the columns. The right
answer is an index counted from 0, a list of them, or the candidate's text.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example
from lastword.lab.benchmarks.source import Row, Rows, read_hub
from lastword.text.items import Item
from lastword.text.prompt_template import AS_IT_STANDS

_ROLES = ("prompt", "candidates", "truthful")


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
        read=partial(_read, name),
        parse=partial(_parse, by_role),
        templates={"prompt": AS_IT_STANDS, "qa": "Question: {{ prompt }}\nAnswer:"},
        licence="the set's own",
        citation="the set's own",
    )


def _read(name: str, data: Path | None) -> Rows:
    # --data is the folder of the published sets, and does not apply to a set named in full.
    return read_hub(name, "name the configuration and the split as hf:NAME:CONFIGURATION@SPLIT")


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
