"""What an answer costs by the shape of the work: seconds and memory, each against one number.

    python experiments/laws.py [--rounds 3] [--out FILE] [--figure FILE]
    OMP_NUM_THREADS=1 python experiments/laws.py --decisions lastword/smollm2-135m
    OMP_NUM_THREADS=1 python experiments/laws.py --probes lastword/smollm2-135m
    OMP_NUM_THREADS=1 python experiments/laws.py --user lastword/smollm2-135m --data SETS
    python experiments/laws.py --plan 1000000
    OMP_NUM_THREADS=1 python experiments/laws.py --batches lastword/smollm2-135m --data SETS

A small random Llama and random token ids, so that every number can be moved alone.
Writes the seconds and draws them; prints each law's exponent: the slope of its seconds between its
last two points on logarithmic axes, 1 where twice the work takes twice the time.

--decisions has requests of `decide` instead: CPU seconds by options, questions and length of the
input, for a new input to questions that came before and for one that comes back. The floor of the
last over the first is the ratio of the tokens that go through the trunk. It goes on where it was
stopped.

--probes has answers of mean-pooled probes over the model's own answers to the same questions:
ratios of CPU seconds in one run, each the least of five rounds in turns, every text new, the
question one that came before. Beside each stands the share of tokens and depth that a probe reads.
The weights are random: what an answer costs does not depend on them.

--user has a probe's states of the tickets and of sets of texts, beside what a user would write
with transformers (batches of 32 sorted by length, padded, every hidden state, the mean of one), and
beside the floor: the products of the blocks up to that depth at the best rate of the run, of the
set's distinct tokens (a prefix that several texts share is computed once). CPU
seconds, each the least of the rounds in turns, set by set; with how far the states of the same
tokens are apart (a probe's text has two tokens before it, which all texts share).

--batches has a probe's states of AG News by the distinct tokens of a batch: CPU seconds over those
of the default.

--options has one question of 10, 77 and 150 options about a text of BANKING77 and CLINC150: CPU
seconds of `decide` over one pass of transformers per option, with the same tokens and only the
option's logits, each the least of the rounds in turns. The log-likelihoods agree first.

--lengths has the MB by which a model laid out for oneDNN grows over 160 texts of 5 to 290 words,
on any processor, and their CPU seconds.

--plan has the plan of so many branches of 60 tokens, four an item: CPU seconds, the bytes that it
takes beside the branches, and the process's peak memory.
"""

import argparse
import csv
import json
import math
import random
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import psutil
import torch
from matplotlib.axes import Axes
from meter import Meter, metered, peak_bytes
from torch.nn import Linear
from transformers import LlamaConfig, LlamaForCausalLM

from lastword import Choice, Decider
from lastword.decide.batch import Read
from lastword.decide.item import item_of
from lastword.decide.questionnaire import prepare
from lastword.decide.states import read_passages
from lastword.decide.subject import subject_of
from lastword.decide.tracer import Tracer
from lastword.lab.report import draw
from lastword.lab.timing import ours
from lastword.model import embedded, layout
from lastword.model.layout import LaidOut
from lastword.model.loading import load
from lastword.model.options import LoadOptions
from lastword.model.parts import locate
from lastword.probes import LinearProbe, Probe
from lastword.probes.novelty import Likeness
from lastword.probes.state import StateBlock
from lastword.records.marks import Role
from lastword.text.forest import Branch, build, plan
from lastword.text.items import Item
from lastword.text.tokens import Encoded, EncodedItem, Passage

WORDS = "time person year way day thing man world life hand part child eye woman place work".split()
SENTENCE = "The parcel was sent on Monday and has not come; please say where it is. "
READS: dict[Read, str] = {"base": "base only", "decide": "staged", "all": "everything read"}


@dataclass(frozen=True)
class Work:
    """One shape of the work; lengths are in tokens."""

    items: int = 32
    candidates: int = 4
    candidate: int = 12
    common: int = 0  # tokens with which all candidates of an item begin
    prompt: int = 64
    preamble: int = 128  # tokens with which all prompts begin
    blocks: int = 12
    vocabulary: int = 8192

    def encoded(self) -> list[EncodedItem]:
        """Items of random ids."""
        draw = np.random.default_rng(0)

        def ids(count: int) -> tuple[int, ...]:
            return tuple(draw.integers(self.vocabulary, size=count).tolist())

        names = tuple(f"c{i}" for i in range(self.candidates))
        preamble, items = ids(self.preamble), []
        for _ in range(self.items):
            prompt, common = preamble + ids(self.prompt), ids(self.common)
            rest = self.candidate - self.common
            branches = tuple(Branch(prompt + common + ids(rest), len(prompt)) for _ in names)
            items.append(EncodedItem(Item("p", names), Encoded(branches)))
        return items

    def tracer(self, batch_tokens: int | None = None) -> Tracer:
        """A model of this depth and vocabulary."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=self.blocks,
            num_attention_heads=4,
            max_position_embeddings=16384,
        )
        model = LlamaForCausalLM(config).eval()
        tokenizer = embedded.load("organism")[1]
        return Tracer(model, tokenizer, invariant=2.0, batch_tokens=batch_tokens)


LAWS: dict[str, tuple[str, tuple[int, ...]]] = {
    "items": ("items", (32, 64, 128, 256)),
    "candidates": ("candidates an item", (2, 4, 8, 16)),
    "candidate": ("tokens a candidate", (4, 8, 16, 32)),
    "prompt": ("tokens of a prompt", (64, 128, 256, 512)),
    "blocks": ("blocks", (6, 12, 24)),
    "vocabulary": ("vocabulary", (4096, 8192, 16384)),
}
SHARED = (0, 8, 16, 20)  # of 24 tokens of each of 16 candidates
BUDGETS = (1024, 2048, 4096, 8192)


def time(work: Work, rounds: int) -> dict[Read, Meter]:
    """The fastest of a few interleaved runs of each reading."""
    tracer, encoded = work.tracer(), work.encoded()
    ours(Decider(tracer), encoded[:2], "all")
    best: dict[Read, Meter] = {}
    for _ in range(rounds):
        for read in READS:
            with metered(tracer) as meter:
                ours(Decider(tracer), encoded, read)
            if read not in best or meter.total < best[read].total:
                best[read] = meter
    return best


def law(works: Sequence[Work], at: Callable[[Work], int], rounds: int) -> dict[str, Any]:
    """Seconds of each reading by one number, with the distinct tokens and the exponents."""
    timed = [time(work, rounds) for work in works]
    seconds = {name: [t[read].total for t in timed] for read, name in READS.items()}
    x = [at(work) for work in works]
    rise = {name: math.log(s[-1] / s[-2]) / math.log(x[-1] / x[-2]) for name, s in seconds.items()}
    tokens = [t["base"].tokens for t in timed]
    return {"x": x, "seconds": seconds, "distinct_tokens": tokens, "exponent": rise}


def memory() -> dict[str, Any]:
    """Peak memory above the loaded model by the token budget: medians of three fresh processes."""
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
        peaks = list(processes.map(peak, BUDGETS * 3))
    medians = [median(peaks[i :: len(BUDGETS)]) for i in range(len(BUDGETS))]
    return {"x": list(BUDGETS), "mebibytes": medians}


def peak(budget: int) -> float:
    """Peak memory of many items above the loaded model, in MiB."""
    work = Work(items=256)
    tracer, encoded = work.tracer(budget), work.encoded()
    return peak_bytes(lambda: ours(Decider(tracer), encoded, "all"), torch.device("cpu")) / 2**20


def panel(axes: Axes, title: str, law: dict[str, Any]) -> None:
    """Draw one law as curves."""
    roles: dict[str, Role] = {
        "base only": "base",
        "staged": "corrected",
        "everything read": "other",
    }
    draw.label(axes, "", title, "seconds")
    for name, seconds in law["seconds"].items():
        draw.line(axes, law["x"], seconds, roles.get(name, "other"), name, markers=True)
    axes.set_ylim(0, 1.1 * max(map(max, law["seconds"].values())))


@draw.styled
def figure(results: dict[str, Any]) -> draw.Figure:
    """Draw all laws."""
    canvas, (*panels, last) = draw.canvas(len(LAWS) + 2, columns=4)
    titles = {title: results[name] for name, (title, _) in LAWS.items()}
    titles |= {"distinct tokens, as candidates share more": results["distinct"]}
    for axes, (title, law) in zip(panels, titles.items(), strict=True):
        panel(axes, title, law)
    memory = results["memory"]
    draw.label(last, "", "--batch-tokens", "peak MiB")
    draw.line(last, memory["x"], memory["mebibytes"], "chosen", markers=True)
    last.set_ylim(0, 1.1 * max(memory["mebibytes"]))
    return draw.Figure("laws", "Cost laws", "", canvas)


RESULTS, IMAGES = Path("experiments/results"), Path("docs/images")
# Of a request one number is moved; the last of each is held to a goal in times of the first.
REQUESTS: dict[str, tuple[str, tuple[int, ...], float | None]] = {
    "options": ("options of one question", (2, 10, 77, 150, 255), 4.0),
    "questions": ("questions of 5 options", (1, 5, 20), 4.0),
    "sentences": ("sentences of the input", (4, 9, 18, 36), None),
}
CURVES = {
    "new": ("a new input", "corrected"),
    "again": ("it comes back", "other"),
}


@dataclass(frozen=True)
class Request:
    """One shape of a request: made-up questions of so many options about an input."""

    options: int = 5
    questions: int = 1
    sentences: int = 18


def random_questions(draw: random.Random, questions: int, options: int) -> dict[str, Choice]:
    """Questions of six words, with so many options of three."""
    return {
        f"q{i}": Choice(
            f"{' '.join(draw.sample(WORDS, 6))}?",
            list({" ".join(draw.sample(WORDS, 3)): None for _ in range(3 * options)})[:options],
        )
        for i in range(questions)
    }


def cpu_seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """CPU seconds of a call."""
    start = process_time()
    work(*arguments)
    return process_time() - start


def request_seconds(tracer: Decider, request: Request, rounds: int, law: str) -> dict[str, float]:
    """The least CPU seconds of a request whose questions came before, by what else is known.

    With the tokens that go through the trunk for a new input. An input begins by the law's name:
    two laws have a request in common.
    """
    ready = tracer.prepare(random_questions(random.Random(0), request.questions, request.options))

    def text(place: int) -> str:
        return f"{law} {request} {place}. {SENTENCE * request.sentences}"

    tracer.decide(text(0), ready)
    news = [cpu_seconds(tracer.decide, text(n), ready) for n in range(1, rounds + 1)]
    agains = [cpu_seconds(tracer.decide, text(rounds), ready) for _ in range(rounds)]
    with metered(tracer.tracer) as meter:
        tracer.decide(text(rounds + 1), ready)
    return {"new": min(news), "again": min(agains), "tokens": meter.tokens}


def decisions(model: str, rounds: int, out: Path, only: Sequence[str]) -> dict[str, Any]:
    """CPU seconds of requests, one number of them moved at a time, each law written as it comes."""
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    tracer = Decider.from_pretrained(model, correction="pmi@0.5")
    results |= {"model": model, "correction": "pmi@0.5"}
    for name, (title, values, goal) in REQUESTS.items():
        if name in results or name not in only:
            continue
        shapes = [replace(Request(), **{name: value}) for value in values]
        timed = [request_seconds(tracer, shape, rounds, name) for shape in shapes]
        seconds = {curve: [one[curve] for one in timed] for curve in CURVES}
        over = seconds["new"][-1] / seconds["new"][0]
        tokens = [one["tokens"] for one in timed]
        results[name] = {"x": values, "seconds": seconds, "last_over_first": over, "goal": goal}
        results[name] |= {"tokens": tokens, "floor": tokens[-1] / tokens[0]}
        print(title, json.dumps(results[name]), flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


@draw.styled
def decisions_figure(results: dict[str, Any]) -> draw.Figure:
    """Draw the laws of requests, with the goals as lines."""
    canvas, panels = draw.canvas(len(REQUESTS), columns=3)
    for axes, (name, (title, values, goal)) in zip(panels, REQUESTS.items(), strict=True):
        seconds = results[name]["seconds"]
        draw.label(axes, "", title, "CPU seconds")
        for curve, (label, role) in CURVES.items():
            draw.line(axes, values, seconds[curve], role, label, markers=True)
        most = max(map(max, seconds.values()))
        if goal is not None:
            limit = goal * seconds["new"][0]
            draw.rule(axes, limit, name=f"goal: {goal:g} times", across=True)
            most = max(most, limit)
        axes.set_ylim(0, 1.1 * most)
    return draw.Figure("laws-decisions", "Cost of decisions", "", canvas)


PROBED, ROUNDS = 19, 5  # depth of the probes; rounds of each shape
# Texts of so many tokens, options of so many; the goal is of the probe over the model's own answer.
SHAPES = ((12, 6, 0.3), (300, 6, 0.7), (12, 77, 0.1))
LONG = 300  # tokens of a text that is asked about again
TOGETHER, MOST = 20, 255  # probes on one text, options of one; goals 1.2 and 1.05


def random_probe(tracer: Tracer, question: Choice, seed: int) -> Probe:
    """Return a probe of random weights that reads the mean."""
    draw = np.random.default_rng(seed)
    width, names = tracer.profile.width, sorted(option.text for option in question.options)
    states = draw.normal(size=(100, width))
    fit = LinearProbe(
        classes=tuple(names),
        blocks=(StateBlock(PROBED, "mean"),),
        mean=np.zeros(width),
        scale=np.ones(width),
        weights=draw.normal(size=(width, len(names))),
        intercept=np.zeros(len(names)),
        temperature=1.0,
        likeness=Likeness.of(states - states.mean(axis=0)),
    )
    template = prepare({"q": question}).template_name
    return Probe(question, template, subject_of(tracer), fit, labels=100)


def probes(model: str) -> dict[str, Any]:
    """Return the ratios of CPU seconds, each with its goal."""
    tracer = Tracer.from_pretrained(model)
    draw = random.Random(0)

    def text(tokens: int) -> str:
        words: list[str] = []
        while len(tracer.tokenizer(" ".join(words))["input_ids"]) < tokens:
            words.append(draw.choice(WORDS))
        return " ".join(words)

    def with_probes(questions: dict[str, Choice]) -> Decider:
        probes = [random_probe(tracer, q, seed) for seed, q in enumerate(questions.values())]
        return Decider(tracer, probes=probes)

    def times(
        first: tuple[Decider, Any], other: tuple[Decider, Any], tokens: int
    ) -> dict[str, float]:
        sides = [(decider, decider.prepare(questions)) for decider, questions in (first, other)]
        for decider, ready in sides:
            decider.decide(text(tokens), ready)
        rounds = [[cpu_seconds(o.decide, text(tokens), r) for o, r in sides] for _ in range(ROUNDS)]
        a, b = map(float, np.min(rounds, axis=0))
        return {"ratio": a / b}

    def again(decider: Decider, *questions: dict[str, Choice]) -> dict[str, float]:
        """What the last question on a text takes of what the first took."""
        ready = [decider.prepare(each) for each in questions]
        texts = [text(LONG) for _ in range(ROUNDS + 1)]
        rounds = [[cpu_seconds(decider.decide, each, r) for r in ready] for each in texts][1:]
        first, last = map(float, np.min(rounds, axis=0))
        return {"ratio": last / first}

    def share(questions: dict[str, Choice], tokens: int) -> float:
        (question,), short, ready = questions.values(), text(tokens), prepare(questions)
        item = item_of(short, question, ready.template, blind=True, content_free=True)
        encoded: Any = tracer.encode([item])[0]
        passage: Any = read_passages(tracer, [(short, None)], question, ready.template, "mean")[0]
        whole = len(build([b for p in encoded.prompts for b in p.branches])) * tracer.profile.depth
        return len(passage.tokens) * PROBED / whole

    results: dict[str, Any] = {"model": model, "depth": PROBED}
    for tokens, options, goal in SHAPES:
        questions = random_questions(random.Random(0), 1, options)
        ratio = times((with_probes(questions), questions), (Decider(tracer), questions), tokens)
        name = f"{tokens} tokens, {options} options: probe over own answer"
        results[name] = {**ratio, "share": share(questions, tokens), "goal": goal}
    many, one = (
        random_questions(random.Random(0), TOGETHER, 6),
        random_questions(random.Random(0), 1, 6),
    )
    wide, two = (random_questions(random.Random(0), 1, options) for options in (MOST, 2))
    for tokens in (12, 100):
        ratio = times((with_probes(many), many), (with_probes(one), one), tokens)
        results[f"{tokens} tokens: {TOGETHER} probes over one"] = {**ratio, "goal": 1.2}
        ratio = times((with_probes(wide), wide), (with_probes(two), two), tokens)
        results[f"{tokens} tokens: {MOST} options over two"] = {**ratio, "goal": 1.05}
    one, other = ({name: each} for name, each in random_questions(random.Random(0), 2, 6).items())
    results[f"{LONG} tokens: a second question over the first"] = again(Decider(tracer), one, other)
    results[f"{LONG} tokens: a probe's text again over new"] = again(with_probes(one), one, one)
    return results


USERS = 32  # texts of a padded batch
ROWS = 1024  # of a product of the floor
TICKETS = Path("examples/tickets.csv")


def padded(model: Any, tokenizer: Any, texts: Sequence[str], depth: int) -> np.ndarray:
    """Return mean states as a user would write it [texts, width]."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    for start in range(0, len(order), USERS):
        some = order[start : start + USERS]
        batch = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
        mask = batch["attention_mask"][..., None]
        out[some] = ((states[depth] * mask).sum(1) / mask.sum(1)).numpy()
    return out


def products(weight: torch.Tensor, rows: torch.Tensor) -> list[Callable[[], Any]]:
    """Return the products of rows and a weight that are known here."""
    outputs, inputs = weight.shape
    layer = Linear(inputs, outputs, bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    turned, out, product = weight.t().contiguous(), rows @ weight.t(), LaidOut(layer)
    return [
        lambda: torch.mm(rows, weight.t(), out=out),
        lambda: torch.mm(rows, turned, out=out),
        lambda: product(rows),
    ]


def floor(blocks: torch.nn.ModuleList, tokens: int) -> float:
    """CPU seconds of the blocks' products of so many tokens, each by the best way known here."""
    shapes = Counter(tuple(m.weight.shape) for m in blocks.modules() if isinstance(m, Linear))
    seconds = 0.0
    for shape, count in shapes.items():
        ways = products(torch.randn(shape), torch.randn(ROWS, shape[1]))
        seconds += count * min(cpu_seconds(way) for way in ways for _ in range(8)) / ROWS
    return seconds * tokens


def user(model: str, data: Path, most: int, rounds: int, out: Path) -> dict[str, Any]:
    """Return CPU seconds of a probe's states over a user's, and over the floor; set by set."""
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    tracer = Tracer.from_pretrained(model, prefix_cache=0)
    # A user's model has its weights as torch keeps them; the tracer may have laid its own out.
    trunk = locate(load(LoadOptions(model)).model).trunk
    tokenizer: Any = tracer.tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with TICKETS.open(encoding="utf-8", newline="") as file:
        texts = {"tickets": [row["text"] for row in csv.DictReader(file)]}
    for name in ("trec", "agnews"):
        lines = (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        texts[name] = [json.loads(line)["input"] for line in lines]
    question = next(iter(random_questions(random.Random(0), 1, 6).values()))
    template = prepare({"q": question}).template
    results |= {
        "model": model,
        "depth": PROBED,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
    }
    for name, every in texts.items():
        if name in results:
            continue
        chosen = every[:most]

        def ours(chosen: Sequence[str] = chosen) -> None:
            named = [(text, None) for text in chosen]
            passages: Any = read_passages(tracer, named, question, template, "mean")
            tracer.pooled(passages, [PROBED])

        def theirs(chosen: Sequence[str] = chosen) -> None:
            padded(trunk, tokenizer, chosen, PROBED)

        seconds = [[cpu_seconds(ours), cpu_seconds(theirs)] for _ in range(rounds)]
        a, b = map(float, np.min(seconds, axis=0))
        ids = tokenizer(chosen)["input_ids"]
        same = tracer.pooled([Passage(tuple(i), 0) for i in ids[:USERS]], [PROBED])[:, 0]
        other = padded(trunk, tokenizer, chosen[:USERS], PROBED)
        apart = np.abs(same - other).max() / np.abs(other).max()
        distinct = len(build([Branch((*i, i[0]), 1) for i in ids]))
        least = floor(tracer.backbone.parts.blocks[:PROBED], distinct)
        row: dict[str, float] = {
            "texts": len(chosen),
            "tokens": sum(map(len, ids)),
            "distinct tokens": distinct,
        }
        row |= {"apart": float(apart), "seconds": a}
        results[name] = row | {"over user": a / b, "over floor": a / least}
        print(name, results[name], flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def batches(model: str, data: Path, most: int, rounds: int) -> dict[int, float]:
    """Return CPU seconds of a probe's states by the tokens of a batch, over the largest."""
    tracer = Tracer.from_pretrained(model, prefix_cache=0)
    lines = (data / "agnews.jsonl").read_text(encoding="utf-8").splitlines()[:most]
    ids: Any = tracer.tokenizer([json.loads(line)["input"] for line in lines])["input_ids"]
    passages = [Passage(tuple(i), 0) for i in ids]
    sizes = (512, 1024, 2048, tracer.batch_tokens)

    def seconds(size: int) -> float:
        tracer.batch_tokens = size
        return cpu_seconds(tracer.pooled, passages, [PROBED])

    least = np.min([[seconds(size) for size in sizes] for _ in range(rounds)], axis=0)
    return dict(zip(sizes, (least / least[-1]).tolist(), strict=True))


TREES = (("banking77", 10), ("banking77", 77), ("clinc150", 150))


def trees(model: str, data: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return CPU seconds of `decide` by options, and of one pass of transformers per option."""
    decider = Decider.from_pretrained(model, prefix_cache=0)
    plain, results = load(LoadOptions(model)).model, dict[str, dict[str, float]]()
    for name, count in TREES:
        lines = (data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[: rounds + 1]
        rows = [json.loads(line) for line in lines]
        question = Choice(rows[0]["instructions"], rows[0]["choices"][:count])
        ready, seconds, apart = decider.prepare({"q": question}), [], 0.0
        for row in rows:
            item: Any = decider.plan(row["input"], ready)[0].item
            start = process_time()
            sums = [log_likelihood(plain, branch) for branch in item.prompt.branches]
            theirs, start = process_time() - start, process_time()
            decision: Any = decider.decide(row["input"], ready)["q"].decision
            seconds.append((process_time() - start, theirs))
            ours = decision.base_scores * item.prompt.candidate_tokens
            apart = max(apart, float(np.abs(ours - sums).max()))
        assert apart < 1e-4, apart
        a, b = map(float, np.min(seconds[1:], axis=0))
        branches = item.prompt.branches
        results[f"{count} options of {name}"] = {
            "tokens": sum(len(b.fed) for b in branches),
            "distinct tokens": len(build(branches)),
            "apart": apart,
            "seconds": a,
            "a pass per option": b,
            "ratio": a / b,
        }
    return results


@torch.inference_mode()
def log_likelihood(model: Any, branch: Branch) -> float:
    """Return the sum of log p of a branch's predicted tokens, by one pass of transformers."""
    targets = torch.tensor(branch.tokens[branch.boundary :])
    out = model(torch.tensor([branch.fed]), logits_to_keep=len(targets), use_cache=False)
    log_p = out.logits[0].float().log_softmax(-1)
    return float(log_p[torch.arange(len(targets)), targets].sum())


def lengths(model: str) -> dict[str, float]:
    """Return what texts of many lengths cost a model that is laid out for oneDNN."""
    layout._is_faster = lambda layers: True
    decider, draw = Decider.from_pretrained(model, prefix_cache=0), random.Random(0)
    ready, process = decider.prepare(random_questions(draw, 1, 5)), psutil.Process()

    def decide(words: int) -> None:
        decider.decide(" ".join(draw.choices(WORDS, k=words)), ready)

    decide(300)
    before = process.memory_info().rss
    seconds = sum(cpu_seconds(decide, draw.randint(5, 290)) for _ in range(160))
    return {"MB": (process.memory_info().rss - before) / 2**20, "seconds": seconds}


def planning(count: int) -> dict[str, float]:
    """Return CPU seconds and memory of the plan of so many branches."""
    draw, vocabulary = np.random.default_rng(0), np.arange(49152).astype(object)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(vocabulary[draw.integers(len(vocabulary), size=length)])

    prompts = (ids(48) for _ in range(count // 4))
    items = [[[Branch(prompt + ids(13), 48) for _ in range(4)]] for prompt in prompts]
    seconds: list[float] = []
    allocated = peak_bytes(
        lambda: seconds.append(cpu_seconds(plan, items, 5418)), torch.device("cpu")
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds[0], "KB a branch": allocated / count / 1000, "peak GiB": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decisions", metavar="MODEL", help="Requests of `decide` to a model.")
    parser.add_argument("--only", nargs="+", choices=REQUESTS, default=[*REQUESTS])
    parser.add_argument("--probes", metavar="MODEL", help="Answers of probes over the model's.")
    parser.add_argument("--user", metavar="MODEL", help="A probe's states over a user's.")
    parser.add_argument("--batches", metavar="MODEL", help="A probe's states by tokens of a batch.")
    parser.add_argument("--options", metavar="MODEL", help="Over a pass per option.")
    parser.add_argument("--lengths", metavar="MODEL", help="Memory over texts of many lengths.")
    parser.add_argument("--plan", type=int, metavar="BRANCHES", help="The plan of so many.")
    parser.add_argument("--data", type=Path, help="Folder of sets of texts.")
    parser.add_argument("--texts", type=int, default=1000, help="Most of a set, for --user.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.user:
        out = options.out or RESULTS / "probes" / "user.json"
        user(options.user, options.data, options.texts, options.rounds, out)
        return
    if options.batches:
        print(batches(options.batches, options.data, options.texts, options.rounds))
        return
    if options.options:
        text = json.dumps(trees(options.options, options.data, options.rounds), indent=1)
        (options.out or RESULTS / "laws-options.json").write_text(text + "\n")
        print(text)
        return
    if options.lengths:
        print(lengths(options.lengths))
        return
    if options.plan:
        print(planning(options.plan))
        return
    if options.probes:
        text = json.dumps(probes(options.probes), indent=1)
        (options.out or RESULTS / "probes" / "laws.json").write_text(text + "\n")
        print(text)
        return
    name = "laws-decisions" if options.decisions else "laws"
    out = options.out or RESULTS / f"{name}.json"
    if options.decisions:
        results = decisions(options.decisions, options.rounds, out, options.only)
        if {*options.only} < {*REQUESTS}:
            return
        drawn = decisions_figure(results)
    else:
        results = laws(options.rounds)
        drawn = figure(results)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        files = {path.suffix: path for path in draw.save(drawn, Path(folder))}
        shutil.copy(files[".svg"], options.figure or IMAGES / f"{name}.svg")


def laws(rounds: int) -> dict[str, Any]:
    """Seconds and memory by every number of the work."""
    results: dict[str, Any] = {"threads": torch.get_num_threads()}
    for name, (title, values) in LAWS.items():
        works = [replace(Work(), **{name: value}) for value in values]
        results[name] = law(works, attrgetter(name), rounds)
        print(title, json.dumps(results[name]), flush=True)
    sharing = [Work(candidates=16, candidate=24, common=common) for common in SHARED]
    tokens = {work: sum_of_distinct(work) for work in sharing}
    results["distinct"] = law(sharing[::-1], tokens.__getitem__, rounds)
    print("distinct tokens", json.dumps(results["distinct"]), flush=True)
    half, none = Work(candidates=13, candidate=24, common=12), Work(candidates=8, candidate=24)
    pair = [time(work, rounds) for work in (half, none)]
    results["13_sharing_half_over_8_sharing_none"] = {
        name: pair[0][read].total / pair[1][read].total for read, name in READS.items()
    }
    print("13 sharing half / 8 sharing none", results["13_sharing_half_over_8_sharing_none"])
    results["memory"] = memory()
    print("memory", json.dumps(results["memory"]))
    return results


def sum_of_distinct(work: Work) -> int:
    """Distinct tokens fed of one shape of work."""
    candidates = work.candidates * (work.candidate - work.common - 1) + work.common
    return work.preamble + work.items * (work.prompt + candidates)


if __name__ == "__main__":
    main()
