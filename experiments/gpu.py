"""Measurements on a GPU in ten minutes: correctness on CUDA, speed, and a profile.

    python experiments/gpu.py [--minutes 10] [--out experiments/results/gpu.json]

Every stage runs in a separate process and stores its result in one JSON file. Stored stages are not
run again, so an interrupted run continues. A failed stage stores its reason, and the next run tries
it again. At the end the table of docs/speed.md is printed. `--small` uses tiny models, and the CPU
if there is no GPU; the tests use it.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from meter import metered, peak_bytes, synchronise
from transformers import Qwen3Config, Qwen3ForCausalLM

from lastword import Choice
from lastword.decide.decider import Decider
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.decide.tracer import Tracer
from lastword.lab.timing import AGAINST, NAMES, Sums, bench, ours, sums_of
from lastword.model import embedded
from lastword.probes import Probe, fit_state
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.tokens import Encoded, EncodedItem, Passage

RESULTS = Path(__file__).parent / "results" / "gpu.json"
TESTS = Path(__file__).parents[1] / "tests"  # has tiny models of every family
# Calls with which the host waits for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Sizes:
    """The shapes of the measured model and of its items; lengths are in tokens."""

    blocks: int = 36
    width: int = 4096
    inner: int = 12288
    heads: int = 32
    key_values: int = 8
    vocabulary: int = 151_936
    dtype: str = "bfloat16"
    items: int = 32
    candidates: int = 5
    candidate: int = 11
    prompt: int = 30
    preamble: int = 153
    budgets: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    families: int | None = None  # number of families; None for all
    rounds: int = 3
    texts: int = 20_000  # texts for the probe


# The shape of Qwen3-8B with items like TruthfulQA's, and sizes for a few seconds on a CPU.
LARGE = Sizes()
SMALL = Sizes(6, 32, 48, 4, 2, 1001, "float32", 3, 3, 4, 6, 12, (64, 128), 2, 1, 300)


def device() -> torch.device:
    """Return the GPU, or the CPU if there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_of(sizes: Sizes) -> Qwen3ForCausalLM:
    """Return a random Qwen3 of these sizes, created on the device."""
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.blocks,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_values,
        head_dim=sizes.width // sizes.heads,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    with device():
        model = Qwen3ForCausalLM._from_config(config, dtype=DTYPES[sizes.dtype])
    return model.eval()


def tracer_of(sizes: Sizes) -> Tracer:
    """Return a tracer of that model; its tokenizer is not used."""
    return Tracer(model_of(sizes), embedded.load("organism")[1], invariant=0.5)


def encoded_of(sizes: Sizes) -> list[EncodedItem]:
    """Return items of random ids with the lengths of TruthfulQA's."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> tuple[int, ...]:
        drawn = torch.randint(sizes.vocabulary, (count,), generator=generator)
        return tuple(drawn.tolist())

    names, preamble = tuple(f"c{i}" for i in range(sizes.candidates)), ids(sizes.preamble)
    items = []
    for _ in range(sizes.items):
        prompt = preamble + ids(sizes.prompt)
        branches = tuple(Branch(prompt + ids(sizes.candidate), len(prompt)) for _ in names)
        items.append(EncodedItem(Item("p", names), Encoded(branches)))
    return items


def machine(_: Sizes) -> dict[str, Any]:
    """Return the device and the versions."""
    versions: dict[str, Any] = {"device": platform.machine(), "torch": torch.__version__}
    versions["transformers"] = metadata.version("transformers")
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        versions |= {"device": properties.name, "gigabytes": properties.total_memory / 1e9}
        versions |= {
            "cuda": torch.version.cuda,
            "capability": f"{properties.major}.{properties.minor}",
        }
    return versions


def families(sizes: Sizes) -> dict[str, Any]:
    """Run every family, tiny, in float32 and bfloat16: its road, and differences from the CPU."""
    sys.path.insert(0, str(TESTS))
    from families import FAMILIES

    names = list(FAMILIES)[: sizes.families]
    return {f"{name}, {dtype}": family(name, dtype) for name in names for dtype in DTYPES}


def family(name: str, dtype: str) -> dict[str, Any]:
    """Run one family on the device: the check at load, and differences of scores from the CPU's.

    The check compares packed with plain runs. Scores are nats per token of every candidate at every
    depth, compared with the same weights on the CPU in float32.
    """
    from families import build, random_items, tokenizer

    items = random_items(1, 4)
    try:
        model = build(name, dtype=DTYPES[dtype]).to(device())
        tracer = Tracer(model, tokenizer(), invariant=0.5)
        decisions = list(tracer.correct_many(items, read="all"))
    except Exception as error:  # noqa: BLE001 - the other families are still to be tried
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0]}
    reference = build(name, dtype=DTYPES[dtype]).float()
    expected = Tracer(reference, tokenizer(), invariant=0.5).correct_many(items, read="all")
    difference = max(
        float(abs(a.trajectory - b.trajectory).max())
        for a, b in zip(decisions, expected, strict=True)
    )
    return {"check": asdict(tracer.checked), "nats_from_cpu": difference}


def speed(sizes: Sizes) -> dict[str, Any]:
    """Time our methods and others in interleaved rounds, after checking agreement."""
    first = AGAINST[0] if find_spec("lm_eval") is not None else "plain trace"
    tracer, encoded = tracer_of(sizes), encoded_of(sizes)
    result = bench(Decider(tracer), encoded, rounds=sizes.rounds, against=(first, "plain base"))
    ratios = {name: result.ratio(name, first) for name in NAMES.values()}
    about = {"against": first, "ratios": ratios, "check": asdict(tracer.checked)}
    return about | result.to_dict()


def options(sizes: Sizes) -> dict[str, Any]:
    """Measure like `speed`, with questions of 77 options."""
    return speed(replace(sizes, candidates=77, candidate=3, items=max(1, sizes.items // 8)))


def probe(sizes: Sizes) -> dict[str, Any]:
    """Time the mean state at half the depth, and transformers' `output_hidden_states`.

    All texts have one length, so transformers pads nothing; it runs no head either.
    """
    tracer, depth = tracer_of(sizes), sizes.blocks // 2
    shape = 8 * sizes.items, sizes.preamble + sizes.prompt
    ids = torch.randint(sizes.vocabulary, shape, generator=torch.Generator().manual_seed(0))
    passages = [Passage(tuple(row), 0) for row in ids.tolist()]
    trunk: Any = tracer.backbone.model.model

    @torch.inference_mode()
    def mean(part: torch.Tensor) -> torch.Tensor:
        states = trunk(part.to(device()), output_hidden_states=True).hidden_states
        return states[depth].float().mean(1).cpu()

    def padded() -> np.ndarray:
        return torch.cat([*map(mean, ids.split(16))]).numpy()

    runs: dict[str, Callable[[], np.ndarray]] = {
        "transformers": padded,
        "half the depth": lambda: tracer.pooled(passages, [depth])[:, 0],
        "every block": lambda: tracer.pooled(passages, [sizes.blocks])[:, 0],
    }
    mine, theirs = runs["half the depth"](), padded()
    off = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
    rounds = [{name: seconds_of(run) for name, run in runs.items()} for _ in range(sizes.rounds)]
    seconds = {name: median(times[name] for times in rounds) for name in runs}
    return {"texts": len(passages), "off": off, "seconds": seconds}


def seconds_of(run: Callable[[], Any]) -> float:
    """Return the seconds of a call, including work that is pending on the device."""
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def bulk(sizes: Sizes) -> dict[str, Any]:
    """Return texts per second of a probe and of the model, and the trunk's share of the probe."""
    model, tokenizer = model_of(sizes), embedded.load("organism")[1]
    reader, topic = Tracer(model, tokenizer, invariant=0.5), Choice("What?", ["fox", "bill"])
    ready = Decider(reader).prepare({"topic": topic})
    labelled = ["the red fox runs", "a cat sleeps", "pay the bill", "the invoice is late"]
    states = read_states(reader, labelled, topic, ready.template, ("mean",))
    fit = fit_state(states, ["fox", "fox", "bill", "bill"], poolings=("mean",)).probe
    topic_probe = Probe(topic, ready.template_name, subject_of(reader), fit, len(labelled))
    tracer = Tracer(model, tokenizer, invariant=0.5)
    decider = Decider(tracer, probes=[topic_probe])
    texts = [f"the red fox {i} runs home late" for i in range(sizes.texts)]
    list(decider.decide_many(texts[:256], ready))
    with metered(tracer) as meter:
        answers = list(decider.decide_many(texts, ready))
    model_decider, few = Decider(tracer), texts[: sizes.texts // 10]
    list(model_decider.decide_many(texts[:256], ready))
    seconds = seconds_of(lambda: list(model_decider.decide_many(few, ready)))
    return {
        "texts_a_second": len(answers) / meter.total,
        "answers_a_second": len(few) / seconds,
        "tokens_a_second": meter.tokens / meter.total,
        "trunk": meter.seconds["trunk"] / meter.total,
        "depth": fit.blocks[0].layer,
    }


def profile(sizes: Sizes) -> dict[str, Any]:
    """Return where the time of reading everything goes, and how often the host waits."""
    from torch.profiler import DeviceType, ProfilerActivity, profile

    tracer, encoded = tracer_of(sizes), encoded_of(sizes)
    ours(Decider(tracer), encoded, "all")
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA][: 1 + torch.cuda.is_available()]
    with profile(activities=activities) as profiler:
        seconds = seconds_of(lambda: ours(Decider(tracer), encoded, "all"))
    events = profiler.key_averages()
    if len(activities) > 1:
        kernels = [e for e in events if e.device_type == DeviceType.CUDA]
        spent = {e.key: e.self_device_time_total / 1e6 for e in kernels}
    else:
        spent = {e.key: e.self_cpu_time_total / 1e6 for e in events}
    longest = sorted(spent, key=spent.__getitem__, reverse=True)[:25]
    waits = {e.key: [e.count, e.cpu_time_total / 1e6] for e in events if e.key in WAITS}
    return {
        "seconds": seconds,
        "busy": sum(spent.values()) / seconds,
        "longest": {name: spent[name] for name in longest},
        "waits": waits,
    }


def memory(sizes: Sizes) -> dict[str, Any]:
    """Return peak memory above the model, and seconds, by the budget of distinct tokens."""
    tracer, encoded = tracer_of(sizes), encoded_of(sizes)
    results = {}
    for budget in sizes.budgets:
        tracer.batch_tokens = budget
        peak = peak_bytes(lambda: ours(Decider(tracer), encoded, "all"), device())
        with metered(tracer) as meter:
            ours(Decider(tracer), encoded, "all")
        results[str(budget)] = {"mebibytes": peak / 2**20, "seconds": meter.total}
    return results


def vllm(sizes: Sizes) -> dict[str, Any]:
    """Score the same candidates with the same weights in vLLM, if it is installed."""
    if find_spec("vllm") is None:
        return {"missing": "vllm is not installed"}
    tracer, encoded = tracer_of(sizes), encoded_of(sizes)
    sums = sums_of(encoded, ours(Decider(tracer), encoded, "base"))
    with tempfile.TemporaryDirectory() as folder:
        tracer.backbone.model.save_pretrained(folder)
        del tracer
        torch.cuda.empty_cache()
        score = vllm_scorer(folder, sizes.dtype)
        theirs = score(encoded)
        seconds = [seconds_of(lambda: score(encoded)) for _ in range(sizes.rounds)]
    pairs = zip(chain(*sums), chain(*theirs), strict=True)
    return {"seconds": median(seconds), "nats_off": max(abs(a - b) for a, b in pairs)}


def vllm_scorer(folder: str, dtype: str) -> Callable[[list[EncodedItem]], Sums]:
    """Return a function that sums vLLM's log-probabilities of prompt tokens by candidate."""
    module: Any = import_module("vllm")
    llm = module.LLM(
        model=folder, dtype=dtype, skip_tokenizer_init=True, enable_prefix_caching=True
    )
    parameters = module.SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)

    def score(encoded: list[EncodedItem]) -> Sums:
        prompts = [{"prompt_token_ids": list(s)} for e in encoded for s in e.prompt.sequences]
        answers = iter(llm.generate(prompts, parameters, use_tqdm=False))
        sums: Sums = []
        for e in encoded:
            sums.append([])
            for s, b in zip(e.prompt.sequences, e.prompt.boundaries, strict=True):
                logprobs = next(answers).prompt_logprobs
                sums[-1].append(sum(logprobs[i][s[i]].logprob for i in range(b, len(s))))
        return sums

    return score


STAGES: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    stage.__name__: stage
    for stage in (machine, families, speed, probe, options, bulk, vllm, profile, memory)
}
FAMILY_HEAD = "\n| family | road | packed, nats | from the CPU, nats |\n|---|---|---|---|"


def table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the table of docs/speed.md, from the stored stages."""
    done = {name: stage for name, stage in results.items() if "failed" not in stage}
    for name in sorted(results.keys() - done.keys()):
        yield f"{name} failed: {results[name]['failed']}"
    if about := done.get("machine"):
        yield f"{about['device']}, torch {about['torch']}, transformers {about['transformers']}"
    if "families" in done:
        yield FAMILY_HEAD
        yield from map(family_row, done["families"].items())
    if timed := done.get("speed"):
        yield from speed_table(timed, done.get("vllm", {}).get("seconds"))
    if timed := done.get("options"):
        yield "\n77 options:"
        yield from speed_table(timed, None)
    if timed := done.get("probe"):
        yield f"\nA probe of {timed['texts']} texts, {timed['off']:.1e} from transformers:"
        yield "\n| what is read | seconds | / transformers |\n|---|---|---|"
        for name, seconds in timed["seconds"].items():
            yield f"| {name} | {seconds:.3f} | {seconds / timed['seconds']['transformers']:.2f} |"
    if timed := done.get("bulk"):
        rates = f"{timed['texts_a_second']:.0f} texts, {timed['tokens_a_second']:.0f} tokens"
        share = f"{100 * timed['trunk']:.0f}% of it in the trunk"
        yield f"\nBulk by a probe at depth {timed['depth']}: {rates} a second, {share}."
        yield f"The model's answer: {timed['answers_a_second']:.0f} texts a second."
    if profiled := done.get("profile"):
        waits, busy = sum(count for count, _ in profiled["waits"].values()), 100 * profiled["busy"]
        yield f"\nThe device is busy {busy:.0f}% of it; the host waits {waits} times."
    if peaks := done.get("memory"):
        yield "\n| `--batch-tokens` | peak MiB | seconds |\n|---|---|---|"
        for budget, m in peaks.items():
            yield f"| {budget} | {m['mebibytes']:.0f} | {m['seconds']:.3f} |"


def speed_table(timed: dict[str, Any], vllm_seconds: float | None) -> Iterator[str]:
    """Yield seconds of our methods, also relative to the first of the others and to vLLM."""
    yield f"\n| what is read | seconds | / {timed['against']} | / vLLM |"
    yield "|---|---|---|---|"
    for name in NAMES.values():
        seconds, ratio = timed["seconds"][name], timed["ratios"][name]
        to_vllm = f"{seconds / vllm_seconds:.3f}" if vllm_seconds else "–"
        relative = "–" if ratio is None else f"{ratio:.3f}"
        yield f"| {name.removeprefix('ours, ')} | {seconds:.3f} | {relative} | {to_vllm} |"


def family_row(entry: tuple[str, dict[str, Any]]) -> str:
    """Return the row of a family: road, differences from plain runs and the CPU."""
    name, result = entry
    if "refused" in result:
        return f"| {name} | refused: {result['refused']} | | |"
    check = result["check"]
    cells = f"{check['road']} | {check['packed']:.1e}"
    return f"| {name} | {cells} | {result['nats_from_cpu']:.1e} |"


def stored(file: Path) -> dict[str, Any]:
    """Return the stages in the file, or none if there is no file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def keep(file: Path, stage: str, result: dict[str, Any]) -> None:
    """Store one stage in the file."""
    text = json.dumps(stored(file) | {stage: result}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")


def run_alone(stage: str, options: argparse.Namespace, seconds: float) -> None:
    """Run one stage in a separate process, and store the reason if it fails."""
    command = [sys.executable, __file__, "--only", stage, "--out", str(options.out)]
    command += ["--small"] if options.small else []
    try:
        done = subprocess.run(
            command, timeout=seconds, stderr=subprocess.PIPE, text=True, check=False
        )
        why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it died"])[-1]
    except subprocess.TimeoutExpired:
        why = f"it was not done after {seconds:.0f} s"
    if why:
        keep(options.out, stage, {"failed": why})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--small", action="store_true", help="Tiny models, on the CPU too.")
    parser.add_argument("--only", choices=STAGES, action="append", help="In this process.")
    options = parser.parse_args()
    if not (options.small or torch.cuda.is_available()):
        parser.error("there is no CUDA device here; --small runs on the CPU")
    for stage in options.only or ():
        keep(options.out, stage, STAGES[stage](SMALL if options.small else LARGE))
    if options.only:
        return
    end = time.monotonic() + 60 * options.minutes
    results = stored(options.out)
    left = [s for s in STAGES if s not in results or "failed" in results[s]]
    for stage in left:
        print(stage, flush=True)
        run_alone(stage, options, max(1.0, end - time.monotonic()))
    print(*table(stored(options.out)), sep="\n")


if __name__ == "__main__":
    main()
