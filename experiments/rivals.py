"""What decides among options, on the same texts: ours, letters, AnyJev, a row an option.

    python experiments/rivals.py export MODEL FOLDER         the model as transformers reads it
    python experiments/rivals.py ours MODEL SETS OUT
    python experiments/rivals.py labels MODEL SETS OUT       what labelled texts give
    python experiments/rivals.py naive FOLDER SETS OUT       a forward an option, same prompts
    python experiments/rivals.py anyjev FOLDER SETS OUT      where anyjev 0.3.0 is installed
    python experiments/rivals.py table OUT

SETS is a folder of JSON lines, each `{"input", "instructions", "choices", "truth"}`; the texts from
the hundredth on are asked, once as they stand and once with the options in another order. OUT gets
a line for each set and method; what it has is not done again. `anyjev` needs an environment of its
own and nothing of lastword.
"""

import argparse
import json
import random
import statistics
import string
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

SETS = "sst2 trec emotion agnews csqa arc tools banking77 clinc150".split()
OWN_OPTIONS = ("arc", "csqa", "tools")  # sets whose every text has options of its own
FIRST, LABELS, TIMES = 100, slice(200, 300), 180  # texts asked, labelled and timed begin here
LETTERS = string.ascii_uppercase
TIMED = 4
# By what is run the last method that it writes of a set that all can be asked.
LAST = {"ours": "pmi@1", "labels": "certified", "naive": "naive", "anyjev": "anyjev L0"}

Row = dict[str, Any]
Asked = tuple[str, str, list[tuple[str, str | None]]]  # text, instructions, options


def rows(folder: Path, name: str, places: slice) -> list[Row]:
    """Some texts of a set."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[places]]


def asked(name: str, row: Row, place: int, *, permuted: bool) -> Asked:
    """A text with its question, its options as they stand or in another order."""
    given = [o if isinstance(o, dict) else {"value": o} for o in row["choices"]]
    options = [(o["value"], o.get("description")) for o in given]
    if permuted:
        draw = random.Random(f"{name}/{place if name in OWN_OPTIONS else 0}")
        order = options
        while order == options:
            order = draw.sample(options, len(options))
        options = order
    return row["input"], row["instructions"], options


def line_of(
    name: str, method: str, data: Sequence[Row], pairs: Sequence[Any], **more: Any
) -> dict[str, Any]:
    """What is told of a method on a set.

    Args:
        name: Of the set.
        method: What decided.
        data: The texts.
        pairs: Of each text the probabilities by option, as they stand and in another order.
        more: What it took.
    """
    first = [max(p, key=p.__getitem__) for p, _ in pairs]
    other = [max(p, key=p.__getitem__) for _, p in pairs]
    return {
        "set": name,
        "method": method,
        "options": len(data[0]["choices"]),
        "right": [int(c == row["truth"]) for c, row in zip(first, data, strict=True)],
        "sure": [round(float(max(p.values())), 4) for p, _ in pairs],
        "flips": [int(a != b) for a, b in zip(first, other, strict=True)],
        **more,
    }


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


# Ours, and letters by the same engine


def export(model: str, folder: Path) -> None:
    """Write a model down as transformers reads it, in float32."""
    from lastword import Tracer

    tracer = Tracer.from_pretrained(model, layout="stored")
    tracer.backbone.model.save_pretrained(folder)
    tracer.tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]


def item_of(value: Asked, *, letters: bool = False) -> Any:
    """The item of a question: its options' texts, or letters before them."""
    from lastword import Choice, Option
    from lastword.decisions import prepare
    from lastword.text.items import Item

    text, instructions, options = value
    if not letters:
        question = Choice(instructions, [Option(v, d) for v, d in options])
        return prepare({"q": question}).items(text)[0]
    told = [f"{v}: {d}" if d else v for v, d in options]
    lines = [f"{LETTERS[i]}. {line}" for i, line in enumerate(told)]
    prompt = "\n".join([f"Text: {text}", f"Question: {instructions}", *lines, "Answer:"])
    return Item(prompt, tuple(LETTERS[: len(options)]), literal=True)


def shares(scores: Any, options: Sequence[tuple[str, str | None]]) -> dict[str, float]:
    """softmax by option."""
    p = np.exp(scores - np.max(scores))
    return dict(zip([v for v, _ in options], (p / p.sum()).tolist(), strict=True))


def ours(tracer: Any, folder: Path, sets: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """A line for each set and method of ours, and for letters."""
    from lastword.batch import Scope
    from lastword.methods import resolve

    methods = resolve(["pmi@0.5", "pmi@1"], tracer.facts)
    for name in sets:
        data = rows(folder, name, slice(FIRST, FIRST + count))
        both = [[asked(name, r, i, permuted=p) for p in (False, True)] for i, r in enumerate(data)]
        scores = dict[str, list[Any]]()
        flat = [value for pair in both for value in pair]
        encoded = tracer.encode([item_of(value) for value in flat])
        decisions = [*tracer.correct_encoded(encoded, Scope(methods=methods))]
        scores["base"] = [d.base_scores for d in decisions]
        scores["trace"] = [d.scores for d in decisions]
        scores |= {m: [d.methods[m] for d in decisions] for m in methods}
        if len(flat[0][2]) <= len(LETTERS):
            items = [item_of(value, letters=True) for value in flat]
            scores["letters"] = [
                d.base_scores for d in tracer.correct_many(items, read="base", blind="none")
            ]
        for method, each in scores.items():
            told = [shares(u, value[2]) for u, value in zip(each, flat, strict=True)]
            pairs = [*zip(told[::2], told[1::2], strict=True)]
            yield line_of(name, method, data, pairs, **cost(tracer, folder, name, method))


def cost(tracer: Any, folder: Path, name: str, method: str) -> dict[str, Any]:
    """Median CPU seconds and tokens of one text that is new, its question having come before."""
    from lastword.batch import branches_of

    place = TIMES + TIMED * ["base", "trace", "letters", "pmi@0.5", "pmi@1"].index(method)
    if method == "pmi@1":
        return {}  # as pmi@0.5
    values = [
        asked(name, row, 0, permuted=False)
        for row in rows(folder, name, slice(place, place + TIMED))
    ]
    items = [item_of(value, letters=method == "letters") for value in values]
    reader = under(tracer, correction=method) if method.startswith("pmi") else tracer
    read = "decide" if method == "trace" else "base"
    items = [reader.trim(item) for item in items]
    taken = [
        seconds(lambda item=item: [*reader.correct_many([item], read=read, blind="none")])  # type: ignore[misc]
        for item in items
    ]
    bare = [tracer.trim(item) for item in items]
    fed = [[b.fed for b in branches_of(e)] for e in tracer.encode(bare)]
    tokens = [len({t[:n] for t in own for n in range(1, len(t) + 1)}) for own in fed]
    return {"cpu_seconds": statistics.median(taken), "tokens": statistics.median(tokens)}


def under(tracer: Any, **options: Any) -> Any:
    """The same model under another correction, or a certificate."""
    from lastword import Tracer
    from lastword.model.options import LoadOptions

    made = LoadOptions(tracer.source["model"], theta=tracer.theta, **options)
    return Tracer.over(tracer.backend, tracer.tokenizer, made, tracer.invariant)


def labels(tracer: Any, folder: Path, sets: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """Lines of what labelled texts give: a frozen batch calibration, the certified choice."""
    from lastword import try_labels
    from lastword.files.folder import locate
    from lastword.trust.certification import read_sample

    columns = {"text": "input", "label": "truth", "choices": "choices"}
    for name in sets:
        data = rows(folder, name, slice(FIRST, FIRST + count))
        own = [row | {"choices": json.dumps(row["choices"])} for row in rows(folder, name, LABELS)]
        with TemporaryDirectory() as out:
            instructions = data[0]["instructions"]
            try_labels(own, tracer, **columns, instructions=instructions, out=out, alpha=0.1)
            means = read_sample(locate(out), methods=None).means
            path = Path(out) / "certificate.toml"
            certified = under(tracer, certificate=path) if path.is_file() else None
        both = [[asked(name, r, i, permuted=p) for p in (False, True)] for i, r in enumerate(data)]
        flat = [value for pair in both for value in pair]
        items = [item_of(value) for value in flat]
        if scored := frozen(tracer, items, means):
            pairs = [*zip(scored[::2], scored[1::2], strict=True)]
            yield line_of(name, "batch-calibrated", data, pairs)
        if certified is None:
            yield {"set": name, "method": "certified", "policy": "keep it off: as base"}
            continue
        policy = certified.certificate.policy
        each = [d.scores for d in certified.correct_many(items, blind="none")]
        told = [shares(u, value[2]) for u, value in zip(each, flat, strict=True)]
        pairs = [*zip(told[::2], told[1::2], strict=True)]
        terms = f"{policy.method} from {policy.margin:g}"
        yield line_of(name, "certified", data, pairs, policy=terms)


def frozen(tracer: Any, items: Sequence[Any], means: Any) -> list[dict[str, float]]:
    """Probabilities by option under means of labelled texts; none where these lack a label set."""
    from lastword.methods.batch_calibrated import calibrated, label_set

    if any(label_set(item.candidates) not in means for item in items):
        return []
    scored = []
    for item, decision in zip(items, tracer.correct_many(items, read="base"), strict=True):
        texts = item.candidates
        ordered = dict(zip(sorted(texts), means[label_set(texts)], strict=True))
        u = calibrated(decision.base_scores, np.array([ordered[t] for t in texts]), log=False)
        scored.append(dict(zip(texts, np.asarray(u).tolist(), strict=True)))
    return scored


# Others


def naive(model: Path, folder: Path, sets: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """A line for each set: a forward of prompt and option for every option, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def score(prompt: str, option: str) -> tuple[float, int]:
        before = len(tokenizer(prompt)["input_ids"])
        ids = torch.tensor([tokenizer(f"{prompt} {option}")["input_ids"]])
        with torch.no_grad():
            lines = network(ids).logits[0, before - 1 : -1].float().log_softmax(-1)
        return float(lines.gather(1, ids[0, before:, None]).mean()), ids.shape[1]

    for name in sets:
        data = rows(folder, name, slice(FIRST, FIRST + count))
        pairs, taken, tokens = [], [], []
        for place, row in enumerate(data):
            value = asked(name, row, place, permuted=False)
            item = item_of(value)
            start = time.process_time()
            scored = [score(item.prompt, option) for option in item.candidates]
            taken.append(time.process_time() - start)
            tokens.append(sum(n for _, n in scored))
            p = shares(np.array([u for u, _ in scored]), value[2])
            pairs.append((p, p))
        costs = {"cpu_seconds": statistics.median(taken), "tokens": statistics.median(tokens)}
        yield line_of(name, "naive", data, pairs) | costs | {"flips": []}


def anyjev(model: Path, folder: Path, sets: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    """Two lines for each set: AnyJev as it reads first, and with rotations and its batch prior."""
    from anyjev import Decider, Question  # type: ignore[import-not-found]
    from anyjev.backends.hf import HFBackend  # type: ignore[import-not-found]

    backend = HFBackend(str(model), device="cpu", dtype="float32")
    fed = [0]
    backend.model.register_forward_pre_hook(
        lambda _, args, given: fed.__setitem__(0, fed[0] + given["input_ids"].numel()),
        with_kwargs=True,
    )

    def question(value: Asked) -> Any:
        told = [f"{v}: {d}" if d else v for v, d in value[2]]
        return Question.choice(value[1], told)

    def decide(values: Sequence[Asked], level: str) -> list[Any]:
        decider = Decider(backend)
        if len({tuple(value[2]) for value in values}) == 1:
            states = [value[0] for value in values]
            return list(decider.decide_batch(states, question(values[0]), level=level))
        return [decider.decide(v[0], [question(v)], level=level)[0] for v in values]

    def by_option(probabilities: Any, value: Asked) -> dict[str, float]:
        return dict(zip([v for v, _ in value[2]], map(float, probabilities), strict=True))

    for name in sets:
        data = rows(folder, name, slice(FIRST, FIRST + count))
        if len(data[0]["choices"]) > len(LETTERS):
            continue
        made, taken, tokens = [], 0.0, 0
        for permuted in (False, True):
            values = [asked(name, r, i, permuted=permuted) for i, r in enumerate(data)]
            before, start = fed[0], time.process_time()
            decided = decide(values, "L0")
            taken, tokens = taken + time.process_time() - start, tokens + fed[0] - before
            made.append([*zip(decided, values, strict=True)])
        before, start = fed[0], time.process_time()
        decide([value for _, value in made[0][:3]], "raw")
        single = {
            "cpu_seconds": (time.process_time() - start) / 3,
            "tokens": (fed[0] - before) / 3,
        }
        whole = {"cpu_seconds": taken / 2 / len(data), "tokens": tokens / 2 / len(data)}
        for method, costs in (("anyjev raw", single), ("anyjev L0", whole)):
            told = [
                [
                    by_option(d.diagnostics["raw_probs"] if "raw" in method else d.probs, value)
                    for d, value in side
                ]
                for side in made
            ]
            yield line_of(name, method, data, [*zip(*told, strict=True)], **costs)


# What came out


def table(path: Path, count: int) -> Iterator[str]:
    """By method over the sets that letters can ask, the first texts of each; then by set."""
    from lastword.records.metrics import reliability

    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    base = {line["set"]: line for line in lines if line["method"] == "base"}
    few = [name for name in base if base[name]["options"] <= len(LETTERS)]
    yield f"{', '.join(few)}; the first {count} texts of each"
    for method in dict.fromkeys(line["method"] for line in lines):
        own = {line["set"]: line for line in lines if line["method"] == method}
        used = [own[name] if "right" in own.get(name, {}) else base[name] for name in few]
        if method == "certified" or all(name in own for name in few):
            right = [r for line in used for r in line["right"][:count]]
            sure = [s for line in used for s in line["sure"][:count]]
            flips = [f for line in used for f in line["flips"][:count]]
            taken = [own[n]["cpu_seconds"] for n in few if "cpu_seconds" in own.get(n, {})]
            fed = [own[n]["tokens"] for n in few if "tokens" in own.get(n, {})]
            costs = (
                f"{statistics.mean(taken):.2f} s, {statistics.mean(fed):.0f} tokens"
                if taken
                else "–"
            )
            yield (
                f"{method:17} right {sum(right)} of {len(right)}, flips {sum(flips)} of"
                f" {len(flips)}, ece {100 * reliability(sure, right).ece:.1f}, {costs}"
            )
    for line in lines:
        hits = f"{sum(line['right'])} of {len(line['right'])}" if "right" in line else "–"
        more = {k: line.get(k) for k in ("cpu_seconds", "tokens", "policy")}
        flips = sum(line.get("flips", []))
        yield f"{line['set']:10} {line['method']:17} {hits} flips {flips} {more}"


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("export", *LAST, "table"))
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--items", type=int, default=12)
    parser.add_argument("--sets", nargs="+", default=SETS)
    given = parser.parse_args()
    if given.what == "export":
        export(given.paths[0], Path(given.paths[1]))
        return
    if given.what == "table":
        print("\n".join(table(Path(given.paths[0]), given.items)))
        return
    model, folder, out = given.paths[0], Path(given.paths[1]), Path(given.paths[2])
    kept = map(json.loads, out.read_text(encoding="utf-8").splitlines() if out.exists() else [])
    done = {line["set"] for line in kept if line["method"] == LAST[given.what]}
    sets = [name for name in given.sets if name not in done]
    if given.what in ("ours", "labels"):
        from lastword import Tracer

        measure = ours if given.what == "ours" else labels
        lines = measure(Tracer.from_pretrained(model), folder, sets, given.items)
    else:
        other = naive if given.what == "naive" else anyjev
        lines = other(Path(model), folder, sets, given.items)
    for line in lines:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line["set"], line["method"], sum(line.get("right", [])), flush=True)


if __name__ == "__main__":
    main()
