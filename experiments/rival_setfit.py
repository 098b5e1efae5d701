"""What SetFit makes of 100 labels, on the draws of encoders.py.

    OMP_NUM_THREADS=1 python experiments/rival_setfit.py MINILM DATA [--draws 3]

Runs in an environment of its own (`pip install setfit torch`). MINILM is the folder of
all-MiniLM-L6-v2 (`lastword get minilm` prints it), which SetFit fine-tunes with its defaults. DATA
is the folder of encoders.py. The accuracy and the CPU seconds of each fit are added to
results/probes/setfit.json, one draw of all sets before the next; finished draws are not repeated.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments  # type: ignore[import-not-found]

OUT = Path(__file__).resolve().parent / "results" / "probes" / "setfit.json"
SETS = ("trec", "sst2", "agnews", "emotion", "banking77", "clinc150")
TEXTS, LABELS = 250, 100  # as in encoders.py


def fit_and_judge(encoder: Path, path: Path, seed: int) -> dict[str, float]:
    """Return SetFit's accuracy on the texts past the labels, and the CPU seconds of its fit."""
    lines = path.read_text(encoding="utf-8").splitlines()[:TEXTS]
    rows = [json.loads(line) for line in lines]
    texts, y = (np.array([row[name] for row in rows]) for name in ("input", "truth"))
    order = np.random.default_rng(seed).permutation(len(y))
    fit, test = order[:LABELS], order[LABELS:]
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        model = SetFitModel.from_pretrained(str(encoder))
        options = TrainingArguments(output_dir=folder, seed=seed, report_to="none")
        data = Dataset.from_dict({"text": texts[fit].tolist(), "label": y[fit].tolist()})
        Trainer(model=model, args=options, train_dataset=data).train()
    seconds = time.process_time() - begun
    answers = np.array(model.predict(texts[test].tolist()))
    return {"right": float((answers == y[test]).mean()), "cpu_s": round(seconds, 1)}


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    results = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for seed in range(options.draws):
        for name in SETS:
            draws = results.setdefault(name, [])
            if len(draws) > seed:
                continue
            draws.append(fit_and_judge(options.encoder, options.data / f"{name}.jsonl", seed))
            OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, seed, draws[-1], flush=True)


if __name__ == "__main__":
    main()
