"""What the demo computes, for the tables of docs/demo.md.

    lastword get smollm2-135m && python experiments/demo.py

The real model on `everyday`, with every item's two answers, then the four embedded models on their
world. The result is kept in experiments/results/demo.json; the tests hold the tables against it.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch

from lastword import Tracer
from lastword.demo.figures import everyday, figures
from lastword.demo.organism import answers, figures_of
from lastword.demo.outcome import answer
from lastword.demo.real import NAME
from lastword.model.embedded import Name
from lastword.records.decision import Decision

RESULTS = Path(__file__).parent / "results" / "demo.json"
COMMAND = "lastword get smollm2-135m && python experiments/demo.py"


def main() -> None:
    made_with = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    result = {"command": COMMAND, **made_with, "real": real(), "organisms": organisms()}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def real() -> dict[str, Any]:
    tracer = Tracer.from_pretrained(NAME)
    outcomes = answer(tracer, everyday(), silent)
    pairs = [[o.decision.base_index, o.decision.index] for o in outcomes]
    return asdict(figures(tracer, outcomes)) | {
        # One digit an item, in the benchmark's order: small, and readable beside it.
        name: "".join(str(pair[place]) for pair in pairs)
        for place, name in enumerate(("base_answers", "answers"))
    }


def organisms() -> dict[str, Any]:
    return {name: figures_of(answers(name, silent)) for name in get_args(Name)}


def silent(decisions: Iterable[Decision], *_: object) -> Iterable[Decision]:
    return decisions


if __name__ == "__main__":
    main()
