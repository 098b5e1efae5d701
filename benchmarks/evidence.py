"""Does it help on a real model? The cells behind docs/evidence.md, stage by stage.

    python benchmarks/evidence.py run [STAGE ...] --data DATA [--runs evidence] [--model M]
    python benchmarks/evidence.py page [--runs evidence]

`run` computes the stages (left out, all of them) and goes on where it was stopped; `--model` takes
the place of SmolLM2, for one's own model on one's own GPU. DATA holds TruthfulQA, HaluEval-QA, FIB,
FACTOR and, for a lower bound, `stories260K`.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tracelm import Tracer
from tracelm.benchmarks import Dataset, find
from tracelm.evaluation.runner import execute, prepare
from tracelm.methods import COMPARED, resolve
from tracelm.model.options import LoadOptions
from tracelm.text.tokens import Chat

SMOLLM2 = "tracelm/smollm2-135m"


@dataclass(frozen=True)
class Stage:
    """One cell.

    Attributes:
        benchmark: Its name.
        variant: Of the template; None for the benchmark's own.
        model: Name or folder; None for the model that the evidence is about.
        chat: Whether the prompt goes into the tokenizer's chat template.
        kind: The kind of items that are read; None for all.
        limit: How many questions, drawn at random; None for all.
        blind: As in `tracelm eval --blind`.
        methods: TRACE's peers, by name.
        root: Folder beside the others where a cell of the same name stands already.
    """

    benchmark: str
    variant: str | None = None
    model: str | None = None
    chat: bool = False
    kind: str | None = None
    limit: int | None = None
    blind: str = "all"
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
    "peers": Stage("truthfulqa", kind="mc1", limit=200, methods=COMPARED, root="peers"),
    "organism": Stage("demo", model="tracelm/demo-organism", methods=COMPARED),
    "control": Stage("demo", model="tracelm/demo-control", methods=COMPARED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE")
    running.add_argument("--data", type=Path, required=True)
    running.add_argument("--model", default=SMOLLM2)
    running.add_argument("--runs", type=Path, default=Path("evidence"))
    options = vars(parser.parse_args())
    COMMANDS[options.pop("command")](**options)


def run(stages: Sequence[str], data: Path, model: str, runs: Path) -> None:
    """Compute what the stages lack."""
    for name in stages or STAGES:
        stage = STAGES[name]
        tracer = load(stage.model or model, stage.chat)
        methods = resolve(stage.methods, tracer.facts)
        template = find(stage.benchmark).template(stage.variant)
        job = prepare(tracer, chosen(stage, data), template, blind=stage.blind, methods=methods)
        done = 0

        def advance(items: int, name: str = name, total: int = len(job.items)) -> None:
            nonlocal done
            done += items
            print(f"{name}: {done} of {total} items", flush=True)

        execute(tracer, job, runs / stage.root, advance=advance)


def chosen(stage: Stage, data: Path) -> Dataset:
    """The stage's questions; `--limit` draws them with seed 0."""
    benchmark, own = find(stage.benchmark), stage.benchmark in ("everyday", "demo")
    seed = None if stage.limit is None else 0
    dataset = benchmark.load(None if own else data, limit=stage.limit, seed=seed)
    return replace(
        dataset,
        examples=tuple(e for e in dataset.examples if stage.kind in (None, e.kind)),
    )


@cache
def load(model: str, chat: bool) -> Tracer:
    return Tracer.open(LoadOptions(model, chat=Chat() if chat else None))


COMMANDS = {"run": run}

if __name__ == "__main__":
    main()
