"""The records behind docs/evidence.md, and the page itself: does TRACE help on a real model?

    python experiments/evidence.py run [STAGE ...] --data DATA [--models MODELS] [--model M]
    python experiments/evidence.py jobs --data DATA --model M [--model M] [--sets SET ...]
    python experiments/evidence.py keep [--runs evidence]
    python experiments/evidence.py page

`run` computes the stages (by default all of them) and continues an interrupted run; `--model`
replaces SmolLM2 by another model. DATA contains TruthfulQA, HaluEval-QA, FIB and FACTOR; MODELS
contains stories260K, a model too small to have any knowledge. Without MODELS its stage is left
out. `jobs` runs models on tasks that choose one of a set of labels, with the default prompt of
`lastword try` and `decide`, and on 100 or fewer items of other sets. It stores their items in
`items`, one file per set.
`keep` copies the records into experiments/results/evidence without text, which may not be
published here; `lastword report` reads them there. `page` writes docs/evidence.md from them, and
their numbers as `results/evidence.json`.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import evidence_page
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastword import Decider, Tracer
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare as prepare_questions
from lastword.lab.benchmarks import Dataset, find
from lastword.lab.evaluation.runner import evaluate
from lastword.lab.evaluation.work import Work
from lastword.methods import COMPARED, resolve
from lastword.model.options import LoadOptions
from lastword.records.columns import to_table
from lastword.records.info import cell_folder, find_cells, read_run
from lastword.records.store import Run, missing_places, part_files, read_part
from lastword.text.chat import Chat
from lastword.text.items import Item
from lastword.text.prompt_template import Blind
from lastword.text.question import Choice, Option

SMOLLM2 = "lastword/smollm2-135m"
STORIES = "stories260K"
RECORDS = Path(__file__).parent / "results" / "evidence"
# Sets of jobs, and the number of first items used.
JOBS = {
    "tools": 300,
    "trec": 300,
    "agnews": 300,
    "sst2": 300,
    "emotion": 300,
    "csqa": 300,
    "arc": 300,
    "banking77": 60,
    "clinc150": 40,
}
# Benchmarks of further models, and the number of questions of each.
LATER = {"truthfulqa": 100, "everyday": 300, "halueval-qa": 50, "factor": 60, "fib": 25}
TRAJECTORIES = ("trajectory", "blind_trajectory")
FIELDS = ("id", "prompt", "question", "blind_prompt", "content_free", "candidates", "truthful")
SCORES = ("t_scores", "blind_scores", "blind_t_scores", "scores", "base_scores", "probabilities")


@dataclass(frozen=True)
class Stage:
    """One cell.

    Attributes:
        benchmark: Name of the benchmark.
        variant: Variant of the template; None for the benchmark's default.
        model: Name of the model; None for the model of the evidence.
        chat: Whether the prompt goes into the tokenizer's chat template.
        kind: Kind of items to read; None for all.
        limit: Number of questions, drawn at random with seed 0; None for all.
        blind: As in `lastword eval --blind`.
        methods: Other methods to compare, by name.
        root: Folder of its records. Cells with one name need different folders.
    """

    benchmark: str
    variant: str | None = None
    model: str | None = None
    chat: bool = False
    kind: str | None = None
    limit: int | None = None
    blind: Blind = "all"
    methods: Sequence[str] = ()
    root: str = "own"


STAGES: Mapping[str, Stage] = {
    "everyday": Stage("everyday", methods=COMPARED),
    "truthfulqa": Stage("truthfulqa"),
    "halueval": Stage("halueval-qa"),
    "halueval-closed": Stage("halueval-qa-closed"),
    "fib": Stage("fib"),
    "factor": Stage("factor", limit=250),
    "own6": Stage("truthfulqa", "own6", kind="mc1", blind="base"),
    "zero-shot": Stage("truthfulqa", "zero-shot", kind="mc1", blind="base"),
    "chat": Stage("truthfulqa", "zero-shot", kind="mc1", blind="base", chat=True, root="chat"),
    "peers": Stage("truthfulqa", kind="mc1", limit=100, methods=COMPARED, root="peers"),
    "peers-halueval": Stage("halueval-qa", limit=100, methods=COMPARED, root="peers"),
    "peers-closed": Stage("halueval-qa-closed", limit=100, methods=COMPARED, root="peers"),
    "peers-fib": Stage("fib", limit=30, methods=COMPARED, root="peers"),
    "peers-factor": Stage("factor", limit=40, methods=COMPARED, root="peers"),
    "organism": Stage("demo", model="lastword/demo-organism", methods=COMPARED),
    "stories": Stage("truthfulqa", model=STORIES, kind="mc1"),
    "control": Stage("demo", model="lastword/demo-control", methods=COMPARED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE")
    running.add_argument("--data", type=Path, required=True)
    running.add_argument("--model", default=SMOLLM2)
    running.add_argument("--models", type=Path)
    for command in (running, commands.add_parser("keep")):
        command.add_argument("--runs", type=Path, default=Path("evidence"))
    drawing = commands.add_parser("jobs")
    drawing.add_argument("--data", type=Path, required=True)
    drawing.add_argument("--model", action="append", required=True, dest="models")
    drawing.add_argument("--sets", nargs="+", default=[*JOBS], choices=[*JOBS, *LATER])
    drawing.add_argument("--runs", type=Path, default=Path("evidence"))
    commands.add_parser("page")
    options = vars(parser.parse_args())
    COMMANDS[options.pop("command")](**options)


def run(stages: Sequence[str], data: Path, model: str, models: Path | None, runs: Path) -> None:
    """Compute the missing parts of the stages."""
    for name in stages or STAGES:
        stage = STAGES[name]
        if stage.model == STORIES and models is None:
            print(f"{name}: left out, its model is looked for in --models")
            continue
        wanted = stage.model or model
        decider = load(str(models / wanted) if models and wanted == STORIES else wanted, stage.chat)
        methods = resolve(stage.methods, decider.tracer.facts)
        template = find(stage.benchmark).template(stage.variant)
        work = Work(chosen(stage, data), template, blind=stage.blind, methods=methods)
        done = 0

        def advance(items: int, name: str = name, total: int = len(work.dataset.examples)) -> None:
            nonlocal done
            done += items
            print(f"{name}: {done} of {total} items", flush=True)

        evaluate(decider, work, runs / stage.root, advance=advance)


def chosen(stage: Stage, data: Path) -> Dataset:
    """Return the stage's questions; DATA does not have those of the package."""
    benchmark, embedded = find(stage.benchmark), stage.benchmark in ("everyday", "demo")
    seed = None if stage.limit is None else 0
    dataset = benchmark.load(None if embedded else data, limit=stage.limit, seed=seed)
    wanted = tuple(e for e in dataset.examples if stage.kind in (None, e.kind))
    return replace(dataset, examples=wanted)


@cache
def load(model: str, chat: bool) -> Decider:
    return Decider(Tracer.from_pretrained(LoadOptions(model, chat=Chat() if chat else None)))


def jobs(data: Path, models: Sequence[str], sets: Sequence[str], runs: Path) -> None:
    """Run models on the items of the study."""
    for model in models:
        for name in sets:
            run_job(load(model, chat=False), data, name, runs)


def run_job(decider: Decider, data: Path, name: str, runs: Path) -> None:
    """Run a model on the items of a set, unless it is done."""
    items = runs / "items" / f"{name}.jsonl"
    if not items.exists():
        items.parent.mkdir(parents=True, exist_ok=True)
        if name in JOBS:
            lines = (data / "decisions" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [job(json.loads(line)) for line in lines[: JOBS[name]]]
        else:
            template = find(name).template()
            examples = [e for e in chosen(Stage(name), data).examples if e.kind in (None, "mc1")]
            rows = [examples[i].item(template) for i in draw(examples, LATER[name])]
        write(items, [{key: getattr(row, key) for key in FIELDS} for row in rows])
    benchmark = find(f"jsonl:{items}")
    methods = resolve(["contextual"] if name in JOBS else [], decider.tracer.facts)
    work = Work(benchmark.load(None), benchmark.template(None), blind="all", methods=methods)
    evaluate(decider, work, runs / "jobs")


def draw(population: Sequence[Any], size: int) -> list[int]:
    """Return positions drawn without replacement, in order."""
    return sorted(np.random.default_rng(0).permutation(len(population))[:size].tolist())


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def job(row: dict[str, Any]) -> Item:
    """Return a row as the item of `lastword try` with default options."""
    options = [o if isinstance(o, dict) else {"value": o} for o in row["choices"]]
    question = Choice(
        row["instructions"], [Option(o["value"], o.get("description")) for o in options]
    )
    ready = prepare_questions({"q": question})
    item = item_of(
        row["input"], question, ready.template, id=row["id"], blind=True, content_free=True
    )
    return replace(item, truthful=[text == row["truth"] for text in item.candidates])


def keep(runs: Path) -> None:
    """Copy complete cells, each as one part, without text and with numbers rounded to float32."""
    for cell in find_cells(runs):
        if missing_places(cell):
            print(f"{cell} is not done yet, and left out")
            continue
        table = pa.concat_tables(map(read_part, part_files(cell)))
        rows = [without_text(row) for row in table.sort_by("place").to_pylist()]
        info = read_run(cell)
        target = RECORDS / cell.relative_to(runs).parts[0]
        with TemporaryDirectory() as temporary:
            part = Path(temporary) / "part-00000.parquet"
            part.write_bytes(serialise(rows))
            with Run(cell_folder(target, info["model"], info["benchmark"]), info) as run:
                run.copy(part)


def without_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record with `x` (or `é`, of two bytes) for each character of its candidates."""
    masked = [mask(text) for text in row["candidates"]]
    short = {name: rounded(row[name]) for name in (*TRAJECTORIES, *SCORES)}
    return row | short | {"candidates": masked, "prompt": "", "question": None}


def mask(text: str) -> str:
    """Return as many characters with, up to two bytes per character, as many bytes."""
    wide = min(len(text.encode()) - len(text), len(text))
    return "é" * wide + "x" * (len(text) - wide)


def rounded(numbers: Any) -> Any:
    """Return scores or a trajectory in float32 as lists, or None."""
    return None if numbers is None else np.float32(numbers).tolist()


def serialise(rows: list[dict[str, Any]]) -> bytes:
    """Serialise like the store, with byte-stream splitting, which compresses rounded numbers."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        to_table(rows),
        sink,
        compression="zstd",
        compression_level=19,
        use_dictionary=False,
        use_byte_stream_split=[
            *(f"{name}.list.element.list.element" for name in TRAJECTORIES),
            *(f"{name}.list.element" for name in SCORES),
            "methods.list.element.value.list.element",
        ],
        write_page_checksum=True,
    )
    return bytes(sink.getvalue())


def page() -> None:
    """Write the page from the stored records."""
    evidence_page.write(RECORDS)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "run": run,
    "jobs": jobs,
    "keep": keep,
    "page": page,
}

if __name__ == "__main__":
    main()
