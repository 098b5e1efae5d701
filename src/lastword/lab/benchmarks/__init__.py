"""Benchmarks: one file each, and their table. Data are read from the hub or a file, and verified.

Missing or wrong input raises `InputError`, with the expected form.
"""

from pathlib import Path

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Dataset, Example
from lastword.lab.benchmarks.contrasts import (
    FACTOR,
    FIB,
    HALUEVAL_QA,
    HALUEVAL_QA_CLOSED,
    HALUEVAL_SUM,
)
from lastword.lab.benchmarks.everyday import EVERYDAY
from lastword.lab.benchmarks.ready import DEMO, jsonl
from lastword.lab.benchmarks.truthfulqa import TRUTHFULQA
from lastword.text.prompt_template import Template

__all__ = ["BENCHMARKS", "Benchmark", "Dataset", "Example", "Template", "find", "templates_for"]

BENCHMARKS: dict[str, Benchmark] = {
    b.name: b
    for b in (
        TRUTHFULQA,
        HALUEVAL_QA,
        HALUEVAL_QA_CLOSED,
        HALUEVAL_SUM,
        FIB,
        FACTOR,
        EVERYDAY,
        DEMO,
    )
}


def find(name: str) -> Benchmark:
    """Return the benchmark with this name.

    `jsonl:PATH` is a file of the user's items.
    """
    if name.startswith("jsonl:"):
        return jsonl(Path(name.removeprefix("jsonl:")))
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise InputError(f"no benchmark {name!r}; known: {known}, jsonl:PATH")
    return BENCHMARKS[name]


def templates_for(benchmarks: list[Benchmark], names: list[str]) -> dict[str, list[Template]]:
    """Return the templates to run each benchmark with, by the benchmark's name.

    A template file applies to every benchmark, `benchmark/variant` to that benchmark, and
    `jsonl/prompt`, the name in records, to every `jsonl:PATH`. Other benchmarks use their default.
    """
    by_benchmark: dict[str, list[Template]] = {b.name: [] for b in benchmarks}
    for name in names:
        owner, _, variant = name.rpartition("/")
        owners = {b.name: b for b in benchmarks if owner in (b.name, b.name.partition(":")[0])}
        if owners:
            for benchmark in owners.values():
                by_benchmark[benchmark.name].append(benchmark.template(variant))
        elif Path(name).is_file():
            for templates in by_benchmark.values():
                templates.append(Template.from_file(Path(name)))
        else:
            template_names = ", ".join(f"{b.name}/{v}" for b in benchmarks for v in b.templates)
            raise InputError(
                f"no template {name!r}; known: {template_names}, or the path of a Jinja file"
            )
    files = {Path(name) for name in names if Path(name).is_file()}
    if len({path.stem for path in files}) < len(files):
        raise InputError("two template files have the same name, which names the cell; rename one")
    for benchmark in benchmarks:
        by_benchmark[benchmark.name] = by_benchmark[benchmark.name] or [benchmark.template()]
    return by_benchmark
