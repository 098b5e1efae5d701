"""Benchmarks from the hub, or from a folder that `datasets` reads, with columns named by the user.

`hf:cais/mmlu:all@test` is configuration `all`, split `test`; both are optional if there is only
one. `--columns prompt=question,candidates=choices,truthful=answer` names the columns.
`choices.text` is a field inside a column, and `opa+opb+opc` are columns with one candidate each.
The right answer is an index counted from 0, a letter, the candidate's text, or one of `labels`.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example
from lastword.lab.benchmarks.source import Row, Rows
from lastword.text.items import Item
from lastword.text.prompt_template import AS_IT_STANDS


@dataclass(frozen=True)
class Columns:
    """The columns of a data set, by their meaning.

    Attributes:
        prompt: The question, as text or as the messages of a conversation.
        candidates: A column of lists, or columns joined by `+`.
        truthful: The right answer.
        labels: Column with the names of the candidates in `truthful`; by default letters.
        id: Name of the row; by default its index.
        group: Column whose equal values mark dependent rows.
    """

    prompt: str
    candidates: str
    truthful: str
    labels: str | None = None
    id: str | None = None
    group: str | None = None

    @classmethod
    def parse(cls, text: str | None) -> "Columns":
        """Return the columns named by `prompt=question,candidates=choices,truthful=answer`."""
        pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
        columns = {name.strip(): column.strip() for name, _, column in pairs}
        names = [f.name for f in fields(cls)]
        wrong = [name for name, column in columns.items() if name not in names or not column]
        lacks = [name for name in names[:3] if name not in columns]
        if wrong or lacks:
            raise InputError(
                f"--columns needs prompt=..., candidates=..., truthful=..., and takes labels=..., "
                f"id=... and group=...; {f'not {wrong[0]}' if wrong else f'{lacks[0]} is missing'}"
            )
        return cls(**columns)


def hub(name: str, columns: str | None) -> Benchmark:
    """Return the benchmark `hf:NAME`."""
    roles = Columns.parse(columns)
    path = Path(name.partition("@")[0].partition(":")[0])
    label = f"hf:{path.resolve().name if path.is_dir() else name}"
    return Benchmark(
        name=label,
        read=partial(_read, name),
        parse=partial(_parse, roles),
        verify=lambda questions: f"{len(questions)} questions",
        templates={"prompt": AS_IT_STANDS, "qa": "Question: {{ prompt }}\nAnswer:"},
        licence="the set's own",
        citation="the set's own",
    )


def _read(name: str, data: Path | None) -> Rows:
    # --data is the folder of the published sets, and does not apply to a set named in full.
    from datasets import DatasetDict, load_dataset

    location, _, split = name.partition("@")
    path, _, configuration = location.partition(":")
    try:
        dataset = load_dataset(path, configuration or None, split=split or None)
    # `datasets` raises many kinds of errors here (offline, unknown set, broken file).
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"cannot load {name}: {reason}; name the configuration and the split as "
            "hf:NAME:CONFIGURATION@SPLIT"
        ) from error
    if isinstance(dataset, DatasetDict):
        if len(dataset) != 1:
            raise InputError(f"{name} has splits {', '.join(dataset)}: choose one, {name}@SPLIT")
        (dataset,) = dataset.values()
    return Rows([dict(row) for row in dataset], f"hf:{name}")


def _parse(columns: Columns, place: int, row: Row) -> tuple[Example, ...]:
    candidates = _candidates(row, columns.candidates)
    labels = None if columns.labels is None else _at(row, columns.labels)
    content = {
        "id": None if columns.id is None else _at(row, columns.id),
        "group": None if columns.group is None else _at(row, columns.group),
        "prompt": _at(row, columns.prompt),
        "candidates": candidates,
        "truthful": _truth(_at(row, columns.truthful), candidates, labels),
    }
    item = Item.from_dict(content, id=str(place))
    if item.messages is not None:
        return (Example.of(item, place),)
    prompts = {"prompt": item.prompt, "question": item.prompt}
    texts = {name: value for name, value in row.items() if isinstance(value, str)} | prompts
    blind = {
        name: "" if name in (columns.prompt, *prompts) else text for name, text in texts.items()
    }
    example = Example(str(item.id), texts, blind, item.candidates, item.truthful)
    return (replace(example, group=item.group),)


def _candidates(row: Row, name: str) -> Any:
    if "+" in name and name not in row:
        return [_at(row, part) for part in name.split("+")]
    return _at(row, name)


def _at(row: Row, name: str) -> Any:
    """Return the value of a column; dots select a field inside it."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise InputError(f"no column {name}; the row has {', '.join(row)}")
        value = value[part]
    return value


def _truth(value: Any, candidates: Any, labels: Sequence[Any] | None) -> Any:
    """Convert right answers given as text to indices; other forms, which items take, stay."""
    texts = [value] if isinstance(value, str) else value
    if not (isinstance(texts, list) and texts and isinstance(texts[0], str)):
        return value
    return [_place(text, list(candidates), labels) for text in texts]


def _place(text: str, candidates: list[Any], labels: Sequence[Any] | None) -> int:
    letters = list(string.ascii_uppercase[: len(candidates)])
    vocabularies = [letters, candidates] if labels is None else [list(labels)]
    # A candidate may be called "B": then the text is clear only if it is the second one.
    places = {names.index(text) for names in vocabularies if text in names}
    if len(places) != 1:
        what = "two candidates" if places else "no candidate"
        raise InputError(
            f"the right answer {text!r} names {what}: expected an index, a letter or a candidate's "
            "text; labels=COLUMN has the names of the candidates"
        )
    return places.pop()
