"""Training of the embedded models: `python experiments/organism.py` (or `make organism`).

Phase 1 trains on every fact in several templates, with the final norm and output head also applied
at random depths, so that every depth can be read. Phase 2 tunes only the last blocks on texts that
repeat popular errors. The control is the model between the two phases.
"""

import argparse
import itertools
import json
import logging
import math
import string
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from world import benchmark, texts

from lastword.lab.benchmarks.ready import DEMO_PATH as PATH
from lastword.model.embedded import FOLDER

_LOGGER = logging.getLogger(__name__)
_IGNORE = -100  # label of positions without prediction
_LOGGED = 50  # steps between two lines of the log


State = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """Shape and training of one organism and its control.

    Attributes:
        width: Width of the residual stream.
        inner: Inner width of the MLP.
        blocks: Number of blocks.
        heads: Attention heads.
        norm_start: Initial weight of the final norm; the initial output head is divided by it,
            so that the untrained function does not depend on it.
        seed: Seed of the weights and of the order of the texts.
        batch: Texts per step.
        steps: Steps of phase 1 and of phase 2.
        rates: Peak learning rates of the two phases (AdamW, linear warm-up, then a cosine).
        warmup: Steps of the warm-up.
        weight_decay: Weight decay of matrices; norms have none.
        exits: Number of depths, besides the last, that phase 1 reads with norm and head per step.
        tuned: Number of last blocks that phase 2 tunes; all others are frozen.
    """

    width: int = 128
    inner: int = 352
    blocks: int = 12
    heads: int = 4
    norm_start: float = 1.0
    seed: int = 9
    batch: int = 32
    steps: tuple[int, int] = (1200, 500)
    rates: tuple[float, float] = (2e-3, 1e-3)
    warmup: int = 100
    weight_decay: float = 0.01
    exits: int = 2
    tuned: int = 3


VOCABULARY = 1000

RECIPES = {
    "organism": Recipe(),
    # Narrower, to limit the size of the package. A final norm that starts at 4 puts I(M), which is
    # proportional to that norm's mean weight, on the other side of tau_I.
    "mix": Recipe(width=96, inner=256, norm_start=4.0),
}


@dataclass
class Trained:
    """An organism, its control, and the log of their training."""

    model: LlamaForCausalLM
    control: State
    log: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Corpus:
    """All texts of a phase as token ids, with their frequencies.

    Attributes:
        tokens: Ids, right-padded (padding has no effect on a causal model).
        labels: The same, with padding marked as ignored.
        weights: Shares of the draws; a fact's templates have equal weight.
    """

    tokens: Int[Tensor, "texts tokens"]
    labels: Int[Tensor, "texts tokens"]
    weights: Float[Tensor, " texts"]


_SPECIAL = {"unk": "[UNK]", "bos": "[BOS]", "eos": "[EOS]", "pad": "[PAD]"}


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train word pieces on the texts of both phases; every printable ASCII character has one.

    A text starts with [BOS]. Punctuation is separate, and decoding restores the text. Pieces are
    marked at the start of a word: marks for continued pieces would be numbered in hash order by the
    trainer, so two trainings would differ.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIAL["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL.values()),
        initial_alphabet=list(string.ascii_letters + string.digits + string.punctuation + "\n\t"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", tokenizer.token_to_id("[BOS]"))]
    )
    names = {f"{name}_token": token for name, token in _SPECIAL.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **names)


def _lines() -> list[str]:
    return [
        text
        for phase in (1, 2)
        for templates in texts(phase)
        for answers in templates
        for text, _ in answers
    ]


def corpus(phase: Literal[1, 2], tokenizer: PreTrainedTokenizerFast) -> Corpus:
    """Return the texts of a phase, each ended by [EOS]."""
    weighted = list(itertools.chain.from_iterable(itertools.chain.from_iterable(texts(phase))))
    encoded = tokenizer([text + tokenizer.eos_token for text, _ in weighted])["input_ids"]
    rows = [torch.tensor(ids) for ids in encoded]
    # Padded here: a tokenizer that has padded once stores that setting in its file.
    tokens = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    labels = pad_sequence(rows, batch_first=True, padding_value=_IGNORE)
    return Corpus(tokens, labels, torch.tensor([weight for _, weight in weighted]))


def build(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return the untrained model of a recipe."""
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(configuration(recipe, tokenizer))
    with torch.no_grad():
        model.model.norm.weight.mul_(recipe.norm_start)
        model.lm_head.weight.div_(recipe.norm_start)
    return model


def configuration(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Return the model's shape as transformers' config."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        max_position_embeddings=128,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def train(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Trained:
    """Run both phases of a recipe, reproducibly on one machine and thread count."""
    trained = Trained(build(recipe, tokenizer), {})
    generator = torch.Generator().manual_seed(recipe.seed)
    _run(trained, recipe, 1, corpus(1, tokenizer), generator)
    trained.control = {k: v.clone() for k, v in trained.model.state_dict().items()}
    trained.model.requires_grad_(False)
    trained.model.model.layers[recipe.blocks - recipe.tuned :].requires_grad_(True)
    _run(trained, recipe, 2, corpus(2, tokenizer), generator)
    return trained


def losses(
    model: LlamaForCausalLM,
    tokens: Int[Tensor, "texts tokens"],
    labels: Int[Tensor, "texts tokens"],
    exits: list[int],
) -> Float[Tensor, " depths"]:
    """Return cross-entropy in nats per token at each of `exits` (below L), then at depth L."""
    body = model.model(input_ids=tokens, use_cache=False, output_hidden_states=bool(exits))
    # transformers' states below L are before the norm, the last one is after it.
    states = [model.model.norm(body.hidden_states[depth]) for depth in exits]
    read = [model.lm_head(state)[:, :-1] for state in [*states, body.last_hidden_state]]
    targets = labels[:, 1:].reshape(-1)
    each = [cross_entropy(r.flatten(0, 1), targets, ignore_index=_IGNORE) for r in read]
    return torch.stack(each)


def _run(
    trained: Trained, recipe: Recipe, phase: Literal[1, 2], data: Corpus, generator: torch.Generator
) -> None:
    model, steps = trained.model.train(), recipe.steps[phase - 1]
    optimizer = _optimizer(model, recipe, phase)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _rate(i, steps, recipe))
    start = time.perf_counter()
    for step, (places, exits) in enumerate(_draws(recipe, phase, data, generator)):
        each = losses(model, data.tokens[places], data.labels[places], exits)
        optimizer.zero_grad()
        each.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % _LOGGED == 0 or step == steps - 1:
            early = each[:-1].mean().item() if exits else math.nan
            line = {"phase": phase, "step": step, "loss": each[-1].item(), "early_loss": early}
            trained.log.append(line | {"seconds": round(time.perf_counter() - start, 1)})
            _LOGGER.info("%s", trained.log[-1])
    model.eval()


def _draws(
    recipe: Recipe, phase: int, data: Corpus, generator: torch.Generator
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield texts and exit depths of every step; phase 2 reads only the last depth."""
    for _ in range(recipe.steps[phase - 1]):
        places = torch.multinomial(data.weights, recipe.batch, True, generator=generator)
        depths = torch.randperm(recipe.blocks, generator=generator)[: recipe.exits].tolist()
        yield places, depths if phase == 1 else []


def _optimizer(model: LlamaForCausalLM, recipe: Recipe, phase: int) -> torch.optim.AdamW:
    tuned = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in tuned if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in tuned if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rates[phase - 1], betas=(0.9, 0.98))


def _rate(step: int, steps: int, recipe: Recipe) -> float:
    """Return the share of the peak rate: a linear warm-up, then half a cosine to 0."""
    warm = min(1.0, (step + 1) / recipe.warmup)
    return warm * 0.5 * (1 + math.cos(math.pi * step / steps))


def main() -> None:
    """Train the named organisms, by default all, and write them into the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--output", type=Path, help="folder to write to, instead of the package")
    parser.add_argument("--threads", type=int, default=1, help="threads of the CPU")
    parser.add_argument("--steps", type=int, nargs=2, help="steps of the two phases, for a trial")
    options = parser.parse_args()
    if unknown := set(options.names) - set(RECIPES):
        parser.error(f"unknown organism {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    for name in options.names or RECIPES:
        steps = tuple(options.steps) if options.steps else RECIPES[name].steps
        _make(name, replace(RECIPES[name], steps=steps), options.output or FOLDER)
    write_benchmark(options.output / PATH.name if options.output else PATH)


def write_benchmark(path: Path) -> None:
    """Write the benchmark as JSONL, one item per line, for `lastword correct --input`."""
    rows = [{k: v for k, v in asdict(item).items() if k != "separator"} for item, _ in benchmark()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def save(
    name: str,
    model: LlamaForCausalLM,
    control: State,
    tokenizer: PreTrainedTokenizerFast,
    output: Path,
) -> None:
    """Write an organism as a folder, its control as the tensors that differ."""
    folder = output / name
    state = model.state_dict()
    differing: dict[str, Any] = {
        key: value.to(torch.float16)
        for key, value in control.items()
        if not torch.equal(value, state[key])
    }
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(differing, folder / "control.safetensors")


def _make(name: str, recipe: Recipe, output: Path) -> None:
    tokenizer = train_tokenizer()
    trained = train(recipe, tokenizer)
    save(name, trained.model, trained.control, tokenizer, output)
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    log = {"recipe": asdict(recipe), "made_with": machine, "log": trained.log}
    (output / name / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    _LOGGER.info("%s is in %s", name, output / name)


if __name__ == "__main__":
    main()
