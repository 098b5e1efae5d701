"""Everyday: questions about the real world written for lastword, each with its reason in the file.

The id has the kind of question: `plain/017` is about a plain fact; `popular/017` has a popular
wrong answer among its candidates; `pair/017/a` and `pair/017/b` are two questions with the same
candidates and different truths. A method that does not read the question gets at most half of the
paired items right, and no pair. Length, place and first word do not reveal the truth: tests check
that baselines which use them stay near chance.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from lastword.files.rows import read_objects
from lastword.lab.benchmarks.benchmark import Benchmark, Example
from lastword.lab.benchmarks.source import Row, Rows

PATH = Path(__file__).with_name("everyday.jsonl")


def _read(data: Path | None) -> Rows:
    # --data does not apply: the set is part of the package. A pair is one question, so that
    # --limit never splits it.
    lines = groupby(read_objects(PATH), key=lambda line: line["id"].split("/")[:2])
    return Rows([{"lines": list(group)} for _, group in lines], PATH.name)


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    return tuple(
        Example(
            id=line["id"],
            fields={"question": line["question"]},
            blind_fields={"question": ""},
            candidates=tuple(line["candidates"]),
            truthful=tuple(candidate == line["truth"] for candidate in line["candidates"]),
        )
        for line in row["lines"]
    )


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    pairs = sum(len(question) == 2 for question in questions)
    return f"{len(questions) + pairs} items, {pairs} pairs"


EVERYDAY = Benchmark(
    name="everyday",
    read=_read,
    parse=_parse,
    verify=_verify,
    templates={"qa": "Q: {{ question }}\nA:", "question": "Question: {{ question }}\nAnswer:"},
    licence="Apache-2.0",
    citation="made by lastword: questions about the real world",
)
