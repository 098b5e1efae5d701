"""Does a bag of words add to the states of an encoder and a model, as a third block?

    python experiments/words.py DATA --keep FOLDER

FOLDER has the states that `encoders.py` stored. Of 250 texts 100 are fitted and the rest tested, in
ten draws. Every block is standardised and divided by the root of its width; one ridge is fitted to
the concatenated blocks, with its penalty by leave-one-out.
"""

import argparse
from pathlib import Path

import numpy as np
from encoders import LABELS, SETS, TEXTS
from probes import rows_of
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV

DRAWS = 10
TRIED = (("mpnet",), ("mpnet", "words"), ("probe", "mpnet"), ("probe", "mpnet", "words"))


def block(values: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Return features in units of the fitted texts' deviation over the root of the width."""
    spread = values[fit].std(axis=0)
    scaled = (values - values[fit].mean(axis=0)) / np.where(spread == 0, 1, spread)
    return np.asarray(scaled / np.sqrt(values.shape[1]))


def accuracies(texts: list[str], y: np.ndarray, states: dict[str, np.ndarray]) -> list[list[float]]:
    """Return the accuracy of each combination of blocks [draws, combinations]."""
    rows: list[list[float]] = []
    for seed in range(DRAWS):
        order = np.random.default_rng(seed).permutation(len(y))
        fit, test = order[:LABELS], order[LABELS:]
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        words.fit([texts[i] for i in fit])
        features = states | {"words": words.transform(texts).toarray()}
        blocks = {name: block(values, fit) for name, values in features.items()}
        classes = np.unique(y[fit])
        targets = (y[fit][:, None] == classes).astype(float)
        rows.append([])
        for names in TRIED:
            x = np.hstack([blocks[name] for name in names])
            ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(x[fit], targets)
            answers = classes[ridge.predict(x[test]).argmax(axis=1)]
            rows[-1].append(float((answers == y[test]).mean()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--keep", type=Path, required=True)
    options = parser.parse_args()
    print("| set |", *(f"{' + '.join(names)} |" for names in TRIED))
    print("|---|", "--:|" * len(TRIED), sep="")
    for name in SETS:
        rows = rows_of(options.data / f"{name}.jsonl")[:TEXTS]
        stored = {s: np.load(options.keep / f"encoders-{s}-{name}.npy") for s in ("mpnet", "probe")}
        states = {
            "mpnet": stored["mpnet"][:, -1, 0],
            "probe": stored["probe"][:, stored["probe"].shape[1] // 2, 0],
        }
        y = np.array([str(row["truth"]) for row in rows])
        means = 100 * np.mean(accuracies([row["input"] for row in rows], y, states), axis=0)
        print(f"| {name} |", *(f"{mean:.1f} |" for mean in means), flush=True)


if __name__ == "__main__":
    main()
