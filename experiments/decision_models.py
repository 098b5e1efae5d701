"""Decision models of transformers 5.23 compared with lastword, on the same texts and model.

    OMP_NUM_THREADS=1 python experiments/decision_models.py MODEL DATA FOLDER

DATA has trec.jsonl, sst2.jsonl and emotion.jsonl; FOLDER is new. Three ways to answer the first 80
texts of each set: `pipeline("decision")` with its own prompt of letters, lastword's `decide`, and
the pipeline with the folder that `lastword export` writes. Prints accuracy, CPU seconds per text,
and for the letters how many answers change if the options are reversed. The result goes into
experiments/results/decision-models.json.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import pipeline

from lastword import Choice, Decider, Tracer
from lastword.decide.decision_prompt import request_of
from lastword.errors import InputError
from lastword.integrations.decision_model import export_decision_model

SETS, TEXTS = ("trec", "sst2", "emotion"), 80
OUT = Path(__file__).parent / "results" / "decision-models.json"
Row = dict[str, Any]


def question_of(row: Row, *, reverse: bool = False) -> Choice:
    """Return the question of a row, with its options reversed on demand."""
    return Choice(row["instructions"], row["choices"][:: -1 if reverse else 1])


def timed(answer: Callable[[Row], str], rows: list[Row]) -> tuple[list[str], float]:
    """Return the answer to each row, and the CPU seconds per row."""
    start = time.process_time()
    answers = [answer(row) for row in rows]
    return answers, (time.process_time() - start) / len(rows)


def asking(folder: Path, *, reverse: bool = False) -> Callable[[Row], str]:
    """Return a function that answers a row by their pipeline."""
    pipe = pipeline("decision", str(folder), dtype="float32")

    def answer(row: Row) -> str:
        questions = {"q": dict(request_of(question_of(row, reverse=reverse)))}
        return str(pipe({"state": row["input"], "questions": questions})["q"]["choice"])

    return answer


def main() -> None:
    """Compare the three on every set."""
    model, data, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    tracer = Tracer.from_pretrained(model)
    decider = Decider(tracer)
    tracer.backbone.model.save_pretrained(folder / "letters")
    tracer.tokenizer.save_pretrained(folder / "letters")  # type: ignore[attr-defined]
    results: dict[str, Any] = {}
    for name in SETS:
        lines = (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:TEXTS]
        rows = [json.loads(line) for line in lines]
        truths = [row["truth"] for row in rows]
        ways: dict[str, Callable[[Row], str]] = {
            "transformers": asking(folder / "letters"),
            "transformers, reversed": asking(folder / "letters", reverse=True),
            "lastword": lambda row: str(
                decider.decide(row["input"], {"q": question_of(row)})["q"].choice
            ),
            "lastword, reversed": lambda row: str(
                decider.decide(row["input"], {"q": question_of(row, reverse=True)})["q"].choice
            ),
        }
        try:
            export_decision_model(tracer, {"q": question_of(rows[0])}, folder / name)
            ways["exported"] = asking(folder / name)
        except InputError as error:
            print(f"{name}: {error}")
        answers, seconds = {}, {}
        for way, answer in ways.items():
            answers[way], seconds[way] = timed(answer, rows)
        results[name] = {
            way: {
                "right": sum(map(str.__eq__, truths, answers[way])),
                "cpu_seconds": round(seconds[way], 3),
            }
            for way in ways
        }
        for way in ("transformers", "lastword"):
            turned = zip(answers[way], answers[f"{way}, reversed"], strict=True)
            results[name][way]["changed"] = sum(one != other for one, other in turned)
        print(name, json.dumps(results[name]), flush=True)
        OUT.write_text(json.dumps({"texts": TEXTS, "model": model} | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
