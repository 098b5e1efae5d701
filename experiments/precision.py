"""What bfloat16 saves on this processor, and how many answers it changes.

    OMP_NUM_THREADS=1 python experiments/precision.py lastword/smollm2-135m DATA [--texts 300]

DATA is a folder of JSON lines, as in probes.py. The model is loaded in float32 and in bfloat16, and
both read the first texts of each set, 50 at a time in turns. The results are CPU seconds in
bfloat16 over those in float32, of the model's answers and of a probe's states at every depth; the
number of answers that differ, and the accuracy of both. *Kept* is the share of tables of 100 rows,
drawn from these, that hold no answer that differs: those that `try` would run in bfloat16. *Probe*
is the accuracy of a probe of the first 100 labels on the other texts, at two thirds of the depth.
"""

import argparse
import json
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from probes import SETS, question, rows_of
from scipy.stats import hypergeom
from second_round import MANY_OPTIONS

from lastword import Tracer
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare
from lastword.decide.states import read_states
from lastword.probes import fit_state

OUT = Path(__file__).resolve().parent / "results" / "precision.json"
DTYPES, TOGETHER, LABELS = ("float32", "bfloat16"), 50, 100


def compare(tracers: list[Tracer], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what both data types take and answer on the texts of a set."""
    ready = prepare({"q": question(rows[0])})
    asked, truths = ready.questions["q"], np.array([row["truth"] for row in rows])
    depth = 2 * tracers[0].profile.depth // 3
    seconds = np.zeros((2, 2))
    answers: list[list[str]] = [[], []]
    states: list[list[np.ndarray]] = [[], []]
    for start in range(0, len(rows), TOGETHER):
        texts = [row["input"] for row in rows[start : start + TOGETHER]]
        items = [item_of(text, asked, ready.template) for text in texts]
        for i, tracer in enumerate(tracers):
            begin = process_time()
            decisions = [*tracer.correct_many(items, read="base", blind="none")]
            middle = process_time()
            every = read_states(tracer, texts, asked, ready.template, ("mean",))
            states[i].append(every[:, [depth]])
            seconds[i] += middle - begin, process_time() - middle
            answers[i] += [d.candidates[d.base_index] for d in decisions]
    differ = int((np.array(answers[0]) != np.array(answers[1])).sum())
    right = []
    for each in states:
        x = np.concatenate(each)
        fit = fit_state(x[:LABELS], truths[:LABELS].tolist(), layers=[depth], poolings=("mean",))
        guesses = fit.probe.scores(x[LABELS:, 0, 0].astype(np.float64)).argmax(axis=1)
        right.append(float((np.array(fit.probe.classes)[guesses] == truths[LABELS:]).mean()))
    answer, probe = seconds[1] / seconds[0]
    return {
        "texts": len(rows),
        "answers' CPU": round(float(answer), 3),
        "states' CPU": round(float(probe), 3),
        "differ": differ,
        "kept": round(float(hypergeom(len(rows), differ, LABELS).pmf(0)), 3),
        "accuracy": [float((np.array(a) == truths).mean()) for a in answers],
        "probe": right,
    }


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=300)
    options = parser.parse_args()
    tracers = [Tracer.from_pretrained(options.model, dtype=dtype) for dtype in DTYPES]
    results: dict[str, Any] = {}
    for name in (*SETS, *MANY_OPTIONS):
        rows = rows_of(options.data / f"{name}.jsonl")[: options.texts]
        results[name] = compare(tracers, rows)
        print(name, results[name], flush=True)
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
