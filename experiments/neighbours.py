"""What 100 labels buy compared with brier 0.2.0 and AnyJev 0.3.0, on the same texts.

    OMP_NUM_THREADS=1 python experiments/neighbours.py ours MODEL DATA --keep FOLDER
    OMP_NUM_THREADS=1 python experiments/neighbours.py brier EXPORT DATA
    OMP_NUM_THREADS=1 python experiments/neighbours.py anyjev EXPORT DATA
    python experiments/neighbours.py table

DATA and FOLDER are those of probes.py, which has stored states of trec, sst2, agnews and emotion,
and of `evidence.py jobs`, which has stored records. EXPORT is the same model saved by transformers
(`Tracer.from_pretrained(MODEL).backbone.model.save_pretrained`, with the tokenizer in the same
folder). brier and AnyJev run their releases, each in a separate environment without
lastword. Of the first 300 texts of a set, 100 are the test set; 100 labels are drawn from the
others, 5 times. brier's L2 is `fit_head` on the labels, without classes that have fewer than the
five required labels (named in `without`). Raw readings and AnyJev's L0 use no labels. They are
also run with the options in another order (`flips`), set by set until --seconds are over, all of
a set's texts in one batch, which gives L0 its prior. `certified` is the correction that `try`
certifies with the same labels, or the model if it certifies none. The result is one line per set,
method and draw in experiments/results/probes/neighbours.jsonl.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lastword import Decider
from lastword.decide.subject import subject_of

OUT = Path(__file__).resolve().parent / "results" / "probes" / "neighbours.jsonl"
SETS = ("trec", "sst2", "agnews", "emotion")
TEXTS, HELD, LABELS, DRAWS = 300, 100, 100, 5
UNLABELLED = 30  # test texts of the readings without labels, which are slow
TIMED = 10  # texts that time our decisions
FEWEST = 5  # minimum labels per class of brier's head

Row = dict[str, Any]


def rows_of(folder: Path, name: str) -> list[Row]:
    """Return the texts of a set."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:TEXTS]]


def held_back(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the test texts, and of those from which labels are drawn."""
    order, held = np.random.default_rng(0).permutation(count), min(HELD, count // 3)
    return order[:held], order[held:]


def labelled(pool: np.ndarray, draw: int) -> np.ndarray:
    """Return the positions of a draw's labels."""
    return np.random.default_rng(1 + draw).permutation(pool)[:LABELS]


def another_order(options: Sequence[str], name: str) -> list[str]:
    """Return the options of a set in another order."""
    draw, order = random.Random(name), list(options)
    while order == list(options):
        order = draw.sample(options, len(options))
    return order


def ece(sure: Sequence[float], right: Sequence[bool]) -> float:
    """Return the calibration error over ten bins of equal width."""
    bins = np.minimum((np.array(sure) * 10).astype(int), 9)
    gaps = np.array(right, dtype=float) - np.array(sure)
    return float(sum(abs(gaps[bins == b].sum()) for b in range(10)) / len(gaps))


def write(
    name: str, method: str, answers: Sequence[str], truths: Sequence[str], **more: Any
) -> None:
    """Add a line with a method's results on a set, replacing an earlier one of the same draw."""
    line = {"set": name, "method": method, "texts": len(answers)}
    line["right"] = float(np.mean([a == t for a, t in zip(answers, truths, strict=True)]))
    if (sure := more.pop("sure", None)) is not None:
        hits = [a == t for a, t in zip(answers, truths, strict=True)]
        line["ece"] = ece(sure, hits)
    line |= more
    key = ("set", "method", "draw")
    old = OUT.read_text(encoding="utf-8").splitlines() if OUT.exists() else []
    others = [
        text for text in old if [json.loads(text).get(k) for k in key] != [line.get(k) for k in key]
    ]
    OUT.write_text("\n".join([*others, json.dumps(line)]) + "\n", encoding="utf-8")
    print(json.dumps(line), flush=True)


def seconds(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return a call's result, and its CPU seconds."""
    start = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - start


# Ours


def ours(model: str, folder: Path, keep: Path, sets: Sequence[str]) -> None:
    """Write lines of the model, the certified correction, words and the probe."""
    from probes import question, read, sample_of
    from scipy.special import softmax

    from lastword import Tracer
    from lastword.decide.item import item_of
    from lastword.decide.questionnaire import prepare
    from lastword.decide.states import read_states
    from lastword.probes import bag_of_words, fit_state
    from lastword.probes.state import POOLINGS
    from lastword.trust.claims import Trial, judge
    from lastword.trust.evidence import Evidence
    from lastword.trust.policy import OFF, family
    from lastword.trust.terms import Terms

    tracer = Tracer.from_pretrained(model)
    for name in sets:
        rows, stem = rows_of(folder, name), Path(model).name
        data = read(None, folder / f"{name}.jsonl", keep, stem)
        sample = sample_of(folder / f"{name}.jsonl", keep, stem)
        held, pool = held_back(len(rows))
        texts, truths = data["text"], data["y"]
        options = np.array([option.text for option in question(rows[0]).options])
        shares = family(sample.scalar, sample.methods, "gain")
        scores = {p: np.stack(sample.shown(p)[0]) for p in (OFF, *shares)}
        predicted = {p: options[u.argmax(axis=1)] for p, u in scores.items()}
        terms = Terms(methods=sample.methods, promise="gain")
        questions = {"q": question(rows[0])}
        ready = prepare(questions)
        some = [str(texts[i]) for i in held[:TIMED]]
        decide = Decider(tracer).decide
        decide("Once before.", ready)
        cost = seconds(partial(_one_by_one, decide), some, ready)[1] / TIMED
        sure = softmax(scores[OFF][held], axis=1).max(axis=1)
        other = question(rows[0] | {"choices": another_order(rows[0]["choices"], name)})
        items = [item_of(str(texts[i]), other, ready.template) for i in held]
        again = [
            item.candidates[int(decision.base_scores.argmax())]
            for item, decision in zip(
                items, tracer.correct_many(items, read="base", blind="none"), strict=True
            )
        ]
        write(
            name,
            "model",
            predicted[OFF][held],
            truths[held],
            sure=sure.tolist(),
            cpu_seconds=cost,
            flips=flipped(predicted[OFF][held], again),
        )
        for draw in range(DRAWS):
            labels = labelled(pool, draw)
            right = {p: each[labels] == truths[labels] for p, each in predicted.items()}
            groups = sample.items.groups[labels]
            changed = {p: predicted[p][labels] != predicted[OFF][labels] for p in shares}
            best = judge(
                [
                    Trial(p, share, Evidence.of(right[OFF], right[p], groups, changed[p]))
                    for p, share in shares.items()
                ],
                terms,
            ).policy
            which = best.method if best.operators else "the model"
            write(name, "certified", predicted[best][held], truths[held], draw=draw, which=which)
            y = truths[labels].tolist()
            bag, fitting = seconds(bag_of_words, texts[labels].tolist(), y)
            p, deciding = seconds(bag.predict_proba, texts[held].tolist())
            write(
                name,
                "words",
                bag.classes_[p.argmax(axis=1)],
                truths[held],
                sure=p.max(axis=1).tolist(),
                draw=draw,
                fit_seconds=fitting,
                cpu_seconds=deciding / len(held),
            )
            fit, fitting = seconds(fit_state, data["x"][labels], y)
            probe = fit.probe
            at = POOLINGS.index(probe.blocks[0].pooling)
            scores = probe.scores(data["x"][held][:, probe.blocks[0].layer, at])
            p = probe.probabilities(scores, probe.classes)
            more: dict[str, Any] = {}
            if draw == 0:  # the time of reading 100 texts is the same in every draw
                sub = [str(t) for t in texts[labels][:TIMED]]
                _, reading = seconds(
                    read_states, tracer, sub, questions["q"], ready.template, POOLINGS
                )
                more["read_seconds"] = reading * LABELS / len(sub)
                _, deciding = seconds(_decide, tracer, probe, questions["q"], ready, some)
                more["cpu_seconds"] = deciding / len(some)
                again = _decide(tracer, probe, other, ready, [str(texts[i]) for i in held])
                more["flips"] = flipped(np.array(probe.classes)[p.argmax(axis=1)], again)
            write(
                name,
                "probe",
                np.array(probe.classes)[p.argmax(axis=1)],
                truths[held],
                sure=p.max(axis=1).tolist(),
                draw=draw,
                fit_seconds=fitting,
                which=f"{probe.name}, {probe.blocks[0].pooling}",
                **more,
            )


def _one_by_one(decide: Any, texts: Sequence[str], ready: Any) -> None:
    for text in texts:
        decide(text, ready)


def _decide(tracer: Any, probe: Any, question: Any, ready: Any, texts: Sequence[str]) -> list[str]:
    """Return a probe's answers to texts, one by one."""
    from lastword.probes import Probe

    fitted = Probe(question, ready.template_name, subject_of(tracer), probe, LABELS)
    decider = Decider(tracer, probes=[fitted])
    return [str(decider.decide(text, ready)["q"].choice) for text in texts]


# The neighbours


def brier(export: str, folder: Path, most: float, sets: Sequence[str]) -> None:
    """Write lines of brier's L2, then of its raw reading."""
    from brier import Choice, Decider  # type: ignore[import-not-found]
    from brier.backends.hf import HFBackend  # type: ignore[import-not-found]

    decider, begin = Decider(HFBackend(export), max_batch=HELD), time.monotonic()

    def probabilities(question: Any, texts: Sequence[str], level: str) -> list[dict[str, float]]:
        return [d["q"].probs for d in decider.decide_batch(texts, [question], level=level)]

    for draw in range(DRAWS):
        for name in sets:
            if time.monotonic() - begin > most:
                return
            rows = rows_of(folder, name)
            held, pool = held_back(len(rows))
            places = labelled(pool, draw).tolist()
            counts = Counter(rows[i]["truth"] for i in places)
            without = sorted(c for c, n in counts.items() if n < FEWEST)
            places = [i for i in places if rows[i]["truth"] not in without]
            options = [c for c in rows[0]["choices"] if c not in without]
            question = Choice(rows[0]["instructions"], options, name="q")
            texts, y = ([rows[i][key] for i in places] for key in ("input", "truth"))
            _, fitting = seconds(decider.fit_head, texts, question, y)
            p, deciding = seconds(probabilities, question, [rows[i]["input"] for i in held], "L2")
            write(
                name,
                "brier L2",
                [max(one, key=one.__getitem__) for one in p],
                [rows[i]["truth"] for i in held],
                sure=[max(one.values()) for one in p],
                draw=draw,
                fit_seconds=fitting,
                cpu_seconds=deciding / len(p),
                without=without,
            )
        if draw == 0:
            unlabelled(
                {
                    "brier raw": lambda n, o, texts: probabilities(
                        Choice(n, o, name="q"), texts, "raw"
                    )
                },
                folder,
                most,
                sets,
            )


def anyjev(export: str, folder: Path, most: float, sets: Sequence[str]) -> None:
    """Write lines of AnyJev's raw reading, and of L0 with rotations and its batch prior."""
    from anyjev import Decider, Question  # type: ignore[import-not-found]
    from anyjev.backends.hf import HFBackend  # type: ignore[import-not-found]

    backend = HFBackend(export, device="cpu", dtype="float32")

    def at(level: str) -> Callable[..., list[dict[str, float]]]:
        decider = Decider(backend)

        def probabilities(
            text: str, options: Sequence[str], texts: Sequence[str]
        ) -> list[dict[str, float]]:
            question = Question.choice(text, options)
            each = decider.decide_batch(list(texts), question, level=level)
            return [dict(zip(options, map(float, d.probs), strict=True)) for d in each]

        return probabilities

    unlabelled({"anyjev raw": at("raw"), "anyjev L0": at("L0")}, folder, most, sets)


def unlabelled(
    methods: dict[str, Callable[..., Any]], folder: Path, most: float, sets: Sequence[str]
) -> None:
    """Write lines of methods without labels on test texts, until the time is over."""
    begin = time.monotonic()
    for name in sets:
        rows = rows_of(folder, name)
        held = [rows[i] for i in held_back(len(rows))[0][:UNLABELLED]]
        texts, options = [row["input"] for row in held], rows[0]["choices"]
        other = another_order(options, name)
        for method, probabilities in methods.items():
            if time.monotonic() - begin > most:
                return
            p, cost = seconds(probabilities, rows[0]["instructions"], options, texts)
            again = probabilities(rows[0]["instructions"], other, texts)
            predicted, after = ([max(one, key=one.get) for one in each] for each in (p, again))
            write(
                name,
                method,
                predicted,
                [row["truth"] for row in held],
                sure=[max(one.values()) for one in p],
                flips=flipped(predicted, after),
                cpu_seconds=cost / len(held),
            )


def flipped(before: Sequence[str], after: Sequence[str]) -> float:
    """Return the share of answers that differ with the options in another order."""
    return float(np.mean([a != b for a, b in zip(before, after, strict=True)]))


def table() -> Iterator[str]:
    """Yield lines of Markdown with means over the draws."""
    lines = [*map(json.loads, OUT.read_text(encoding="utf-8").splitlines())]
    yield "| set | method | texts | draws | right | ece | flips | CPU s a decision | to fit |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for name in SETS:
        for method in dict.fromkeys(line["method"] for line in lines):
            matching = [x for x in lines if (x["set"], x["method"]) == (name, method)]
            if not matching:
                continue

            def mean(key: str, scale: float, form: str, matching: list[Row] = matching) -> str:
                values = [x[key] for x in matching if key in x]
                return format(scale * np.mean(values), form) if values else "–"

            fit = [x.get("fit_seconds", 0.0) for x in matching if "fit_seconds" in x]
            read = [x["read_seconds"] for x in matching if "read_seconds" in x]
            fitting = f"{np.mean(fit) + (np.mean(read) if read else 0):.1f}" if fit else "–"
            cells = [name, method, matching[0]["texts"], len(matching), mean("right", 100, ".1f")]
            cells += [mean("ece", 100, ".1f"), mean("flips", 100, ".0f")]
            cells += [mean("cpu_seconds", 1, ".3f"), fitting]
            yield "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("ours", "brier", "anyjev", "table"))
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--seconds", type=float, default=3600.0)
    options = parser.parse_args()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    if options.what == "table":
        text = "\n".join(table())
        OUT.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
        print(text)
        return
    model, folder = options.paths[0], Path(options.paths[1])
    if options.what == "ours":
        ours(model, folder, options.keep, options.sets)
    else:
        (brier if options.what == "brier" else anyjev)(model, folder, options.seconds, options.sets)


if __name__ == "__main__":
    main()
