"""Published corrections compared with the code that their authors released, on the same states.

    OMP_NUM_THREADS=1 python experiments/releases.py FOLDER

FOLDER has the checkouts `DoLa`, `SLED`, `surface-form-competition` and `StaICC` at the commits
below. The model is an embedded one. Each release gets the tokens of a question and a model with
early exits, or the candidates' probabilities, and computes scores with its code. Packages that the
releases import but do not need for this are replaced by empty modules. The result is printed;
docs/methods.md has it.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import lm_eval
import numpy as np
import pandas as pd
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from lastword import Item, Tracer
from lastword.cli.evaluate import read_benchmarks
from lastword.decide.batch import Scope
from lastword.decide.tracer import sound
from lastword.methods import resolve
from lastword.methods.batch_calibrated import batch_calibrated, means_of
from lastword.methods.contract import ItemReadings, Method
from lastword.methods.dola import premature_depths
from lastword.rule.geometry import Trajectory

DOLA, SLED = "voidism/DoLa at 805230e", "JayZhang42/SLED at 00067af"
SURFACE = "peterwestuw/surface-form-competition at ffc22c6"
STAICC = "hc495/StaICC at 9d13532 (by others)"
HARNESS = f"lm-evaluation-harness {lm_eval.__version__}"
QUESTIONS, TEXTS = 12, 24
TEAMS = ("billing", "technical", "shipping", "account", "returns")
Pair = tuple[Any, Any]


def load_release(path: Path, *absent: str) -> ModuleType:
    """Import a file of a release, with empty modules for its missing packages."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in absent}):
        spec.loader.exec_module(module)
    return module


class EarlyExits:
    """The model of DoLa's fork of transformers: logits of depths without the final norm."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor, early_exit_layers: list[int], **_: Any) -> Any:
        """Return logits by depth, and the output."""
        output = self.model(input_ids, output_hidden_states=True, use_cache=False)
        head, last = self.model.get_output_embeddings(), len(output.hidden_states) - 1
        logits = {n: head(output.hidden_states[n]) for n in early_exit_layers if n < last}
        return logits | {last: output.logits}, output


def scored_by_tokens(
    release: Any, model: Any, sequence: Sequence[int], boundary: int, **how: Any
) -> float:
    """Return a candidate's score by the `lm_score` of a release."""
    texts = {"prompt": sequence[:boundary], "prompt candidate": sequence}
    instance = release.__new__(release)
    instance.model, instance.device = EarlyExits(model), "cpu"
    instance.tokenizer = lambda text, **_: SimpleNamespace(input_ids=torch.tensor([texts[text]]))
    score, _ = instance.lm_score("prompt", " candidate", **how)
    return float(score)


def layers(tracer: Tracer, folder: Path) -> Iterator[tuple[str, str, Pair]]:
    """Yield DoLa's and SLED's scores and ours, on questions of `demo`."""
    depth, model = tracer.profile.depth, tracer.backbone.model
    stopping = "transformers.generation.stopping_criteria"
    dola = load_release(folder / "DoLa" / "dola.py", stopping).DoLa
    sled = load_release(folder / "SLED" / "sled_decoding.py", stopping).SLED_DecodedLLM_TruthfulQA
    upper, every = list(premature_depths(depth)), list(range(depth))
    bare = {"mode": "dola", "post_softmax": False, "relative_top": 0.0}
    evolution = {"mode": "SLED", "evolution_rate": 2.5, "evolution_scale": 75}
    released: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "dola": (DOLA, dola, {**bare, "candidate_premature_layers": upper}),
        "sled": (SLED, sled, {**evolution, "post_softmax": True}),
    }
    harness = HFLM(pretrained=model, tokenizer=tracer.tokenizer, batch_size=1)
    ((questions, template),) = read_benchmarks(["demo"], [], None, QUESTIONS)
    items = questions.items(template)
    methods = resolve([*released, "base-sum"], tracer.facts)
    encoded: list[Any] = tracer.encode(items)
    for item in encoded:
        scores = scores_of(tracer, item, methods)
        places = zip(item.prompt.sequences, item.prompt.boundaries, strict=True)
        for i, (sequence, boundary) in enumerate(places):
            for name, (release, cls, how) in released.items():
                options = {"candidate_premature_layers": every, "mature_layer": depth, **how}
                theirs = scored_by_tokens(cls, model, sequence, boundary, **options)
                yield name, release, (theirs, scores[name][i])
        requests = [
            Instance("loglikelihood", {}, (item.item.prompt, f" {candidate}"), 0)
            for candidate in item.item.candidates
        ]
        totals = [total for total, _ in harness.loglikelihood(requests, disable_tqdm=True)]
        yield "base-sum", HARNESS, (totals, scores["base-sum"])


def labels(tracer: Tracer, folder: Path) -> Iterator[tuple[str, str, Pair]]:
    """Yield the scores of the calibrations and ours, on the texts of tickets.csv."""
    table = pd.read_csv(Path(__file__).parents[1] / "examples" / "tickets.csv")
    # The embedded model's context is short.
    prompts = [f"Text: {text[:30]}\nTeam:" for text in table["text"][:TEXTS]]
    free = tuple(f"Text: {text}\nTeam:" for text in ("N/A", "", "[MASK]"))
    items = [Item(p, TEAMS, blind_prompt="Text:\nTeam:", content_free=free) for p in prompts]
    names = ["base-mean", "dcpmi"]
    encoded: list[Any] = tracer.encode(items)
    methods = resolve(names, tracer.facts)
    scores = [scores_of(tracer, item, methods) for item in encoded]
    surface = load_release(folder / "surface-form-competition" / "utils.py", "openai")
    for item, ours in zip(encoded, scores, strict=True):
        yield "dcpmi", SURFACE, (mutual(surface, tracer, item), ours["dcpmi"])
    staicc = load_release_of_package(folder / "StaICC")
    b = [ours["base-mean"] for ours in scores]
    p = [np.exp(each) / np.exp(each).sum() for each in b]
    evidence = [evidence_of(each) for each in b]
    method = batch_calibrated(tracer.facts, means_of(evidence))
    theirs = np.log(staicc.batch_calibration(p, batch_size=len(p)))
    mine = [method.scores(each) for each in evidence]
    # Theirs end with a softmax: logarithms agree up to a constant per item.
    yield "batch-calibrated", STAICC, (centred(theirs), centred(np.array(mine)))


def scores_of(tracer: Tracer, item: Any, methods: Mapping[str, Method]) -> Mapping[str, np.ndarray]:
    """Return the scores of an encoded item by method."""
    (decision,) = tracer.decide_group([item], Scope("base", methods=methods))
    return sound(decision).methods


def mutual(surface: Any, tracer: Tracer, item: Any) -> list[float]:
    """Return domain-conditional minus conditional cross-entropies, like `utils.py:399`."""
    model = tracer.backbone.model
    called = mock.MagicMock(side_effect=model)
    called.transformer.wte.weight.device = torch.device("cpu")
    entropies = []
    for prompt in (item.blind, item.prompt):
        at = list(zip(prompt.sequences, prompt.boundaries, strict=True))
        sources, targets = [list(s[:n]) for s, n in at], [list(s[n:]) for s, n in at]
        entropies.append(surface.cross_entropy_list(sources, targets, called))
    return [blind - entropy for blind, entropy in zip(*entropies, strict=True)]


def load_release_of_package(folder: Path) -> Any:
    """Import StaICC's calibrations, whose relative imports need only a softmax."""
    path = folder / "prefabricate_inference" / "standard_calibration.py"
    source = path.read_text(encoding="utf-8").replace("from ..util import", "from util import")
    functional = mock.MagicMock(softmax=lambda x: np.exp(x) / np.exp(x).sum())
    util = SimpleNamespace(stable_random=None, functional=functional)
    module = ModuleType("standard_calibration")
    with mock.patch.dict(sys.modules, {"util": util}):
        exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def evidence_of(b: np.ndarray) -> ItemReadings:
    """Return an item's evidence with only the last depth."""
    return ItemReadings(TEAMS, np.ones(len(b), dtype=int), Trajectory(b[:, None]))


def centred(scores: np.ndarray) -> np.ndarray:
    """Return scores minus their mean over the candidates."""
    return np.asarray(scores - scores.mean(axis=-1, keepdims=True))


def main() -> None:
    """Write the number of scores compared and their largest difference, per method."""
    folder = Path(sys.argv[1])
    tracer = Tracer.demo(device="cpu")
    counts: dict[tuple[str, str], int] = defaultdict(int)
    largest: dict[tuple[str, str], float] = defaultdict(float)
    parts: tuple[Callable[..., Iterator[tuple[str, str, Pair]]], ...] = (layers, labels)
    for part in parts:
        for name, release, (theirs, ours) in part(tracer, folder):
            difference = np.abs(np.asarray(theirs) - np.asarray(ours))
            counts[name, release] += difference.size
            largest[name, release] = max(largest[name, release], float(difference.max()))
    for name, release in counts:
        print(name, release, counts[name, release], f"{largest[name, release]:.2g}")


if __name__ == "__main__":
    main()
