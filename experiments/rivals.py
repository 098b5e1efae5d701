"""What SetFit and brier make of 100 labels, on the draws of encoders.py.

    OMP_NUM_THREADS=1 python experiments/rivals.py setfit MINILM DATA [--draws 3]
    OMP_NUM_THREADS=1 python experiments/rivals.py brier EXPORT DATA [--draws 3]

Each runs in an environment of its own (`pip install setfit torch`, `pip install brier==0.2.0`).
MINILM is the folder of all-MiniLM-L6-v2 (`lastword get minilm` prints it), which SetFit fine-tunes
with its defaults. EXPORT is the folder of a language model, to which brier fits its L2 head. brier
takes at most 26 options and at least five labels of each: classes with fewer are left out of the
options, so their texts are answered wrong, and sets with more options are not measured. DATA is the
folder of encoders.py. The accuracy and the CPU seconds of each fit are added to
results/probes/setfit.json or brier.json, one draw of all sets before the next; finished draws are
not repeated.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).resolve().parent / "results" / "probes"
SETS = ("trec", "sst2", "agnews", "emotion", "banking77", "clinc150")
TEXTS, LABELS = 250, 100  # as in encoders.py
LEAST, MOST = 5, 26  # labels of a class, and options, that brier takes

Row = dict[str, Any]
Fitted = tuple[Callable[[list[str]], Sequence[str]], dict[str, Any]]


def fit_setfit(encoder: Path, rows: list[Row], seed: int) -> Fitted:
    """Fine-tune an encoder, and return what answers texts."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        model = SetFitModel.from_pretrained(str(encoder))
        options = TrainingArguments(output_dir=folder, seed=seed, report_to="none")
        texts, labels = ([row[key] for row in rows] for key in ("input", "truth"))
        data = Dataset.from_dict({"text": texts, "label": labels})
        Trainer(model=model, args=options, train_dataset=data).train()
    return model.predict, {}


def fit_brier(decider: Any, rows: list[Row], seed: int) -> Fitted:
    """Fit the L2 head of a question, and return what answers texts."""
    from brier import Choice  # type: ignore[import-not-found]

    counts = Counter(row["truth"] for row in rows)
    options = [option for option in rows[0]["choices"] if counts[option] >= LEAST]
    question = Choice(rows[0]["instructions"], options, name="q")
    fit = [row for row in rows if row["truth"] in options]
    decider.fit_head([row["input"] for row in fit], question, [row["truth"] for row in fit])

    def answer(texts: list[str]) -> list[str]:
        decisions = decider.decide_batch(texts, [question], level="L2")
        return [max(d["q"].probs, key=d["q"].probs.__getitem__) for d in decisions]

    return answer, {"without": [o for o in rows[0]["choices"] if o not in options]}


def rival(name: str, folder: Path) -> Callable[[list[Row], int], Fitted]:
    """Return the fit of a rival."""
    if name == "setfit":
        return partial(fit_setfit, folder)
    from brier import Decider
    from brier.backends.hf import HFBackend  # type: ignore[import-not-found]

    return partial(fit_brier, Decider(HFBackend(str(folder)), max_batch=TEXTS - LABELS))


def fit_and_judge(
    fit: Callable[[list[Row], int], Fitted], rows: list[Row], seed: int
) -> dict[str, Any]:
    """Return a rival's accuracy on the texts past the labels, and the CPU seconds of its fit."""
    order = np.random.default_rng(seed).permutation(len(rows))
    labelled, test = ([rows[i] for i in part] for part in (order[:LABELS], order[LABELS:]))
    begun = time.process_time()
    answer, notes = fit(labelled, seed)
    seconds = time.process_time() - begun
    answers = answer([row["input"] for row in test])
    right = np.mean([a == row["truth"] for a, row in zip(answers, test, strict=True)])
    return {"right": float(right), "cpu_s": round(seconds, 1)} | notes


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rival", choices=("setfit", "brier"))
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    out = OUT / f"{options.rival}.json"
    results = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    fit = rival(options.rival, options.model)
    for seed in range(options.draws):
        for name in SETS:
            lines = (options.data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines[:TEXTS]]
            draws = results.setdefault(name, [])
            too_many = options.rival == "brier" and len(rows[0]["choices"]) > MOST
            if len(draws) > seed or too_many:
                continue
            draws.append(fit_and_judge(fit, rows, seed))
            out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, seed, draws[-1], flush=True)


if __name__ == "__main__":
    main()
