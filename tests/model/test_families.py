"""Every family: readout, packed and plain road, independence of other items, and refusals."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import reference
import torch
from families import (
    DYNAMIC_BOUNDARY,
    FAMILIES,
    LONGROPE_BOUNDARY,
    PACKED,
    VOCAB,
    build,
    enliven,
    random_items,
    text_of,
    tokenizer,
)
from tiers import by_night
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    LlamaForCausalLM,
    PreTrainedModel,
)

from lastword import Item, Tracer
from lastword.errors import InputError, InvariantError, UnsupportedModelError
from lastword.model.backbone import TILE_POOLED, tiles
from lastword.text.forest import Branch
from lastword.text.forest import build as grow

# The value is set because I(M) of the weights does not matter here.
INVARIANT = 0.5

# One per kind of attention. Opening a model compares its roads on other texts too.
KINDS = ["llama", "mistral-sliding", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "opt-projected"]


@cache
def tracer_of(name: str) -> Tracer:
    return Tracer(build(name), tokenizer(), invariant=INVARIANT)


def read_all(tracer: Tracer, items: list[Item]):
    return list(tracer.correct_many(items, read="all"))


def read_plain(tracer: Tracer, items: list[Item]):
    plain = copy.copy(tracer)
    plain.model = copy.copy(tracer.model)
    plain.model.backbone = tracer.backbone.on("plain")
    return read_all(plain, items)


def expected_trajectories(name: str, items: list[Item]) -> list[np.ndarray]:
    """Return the trajectories of a new model, each text alone, by its own norm and head."""
    encoded, blocks = tracer_of(name).encode(items), FAMILIES[name].blocks
    prompts = [(e.prompt.sequences, e.prompt.boundaries) for e in encoded]
    reads = [reference.read_item(build(name), blocks, *prompt) for prompt in prompts]
    return [np.array([reference.candidate_scores(z, t) for z, t in read]) for read in reads]


@pytest.mark.parametrize("name", by_night(FAMILIES, [*KINDS, "bloom", "lfm2", "mamba"]))
def test_every_depth_agrees_with_the_models_norm_and_head_on_its_state(name):
    tracer, items = tracer_of(name), random_items(2, 2, candidates=(3, 3))
    assert (tracer.backbone.road != "plain") == FAMILIES[name].packs
    tolerance = 1e-3 if name == "mamba" else 1e-4  # state spaces accumulate noise over the text
    for a, b in zip(read_all(tracer, items), expected_trajectories(name, items), strict=True):
        assert a.trajectory == pytest.approx(b, abs=tolerance)
        assert a.base_scores == pytest.approx(b[:, -1], abs=tolerance / 2)
        assert np.array_equal(a.trajectory[:, tracer.backbone.depth], a.base_scores)


@pytest.mark.parametrize("name", by_night(PACKED, KINDS))
def test_packed_and_plain_roads_agree(name):
    tracer = tracer_of(name)
    # Prompts longer than every sliding window, but with one kind of rope scaling.
    items = random_items(3, 3, prompt=(10, 14))
    for a, b in zip(read_all(tracer, items), read_plain(tracer, items), strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-4)
        assert a.t_scores == pytest.approx(b.t_scores, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma2", "gpt_oss", "deepseek_v3"])
def test_a_row_of_many_tiles_agrees_with_the_plain_road(name, monkeypatch):
    monkeypatch.setattr("lastword.model.backbone.TILE", 64)
    tracer, items = tracer_of(name), random_items(7, 24, candidates=(3, 6), prompt=(6, 30))
    forest = grow([b for e in tracer.encode(items) for p in e.prompts for b in p.branches])
    assert len(tiles(forest.positions, 64)) > 3 and tracer.batch_tokens > len(forest)
    for a, b in zip(read_all(tracer, items), read_plain(tracer, items), strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-4)
    # Means over texts.
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 30, size=24)
    texts = [Branch((*draw.integers(3, 60, size=n + 1).tolist(),), 1) for n in lengths]
    assert len(tiles(grow(texts).positions, TILE_POOLED)) > 3
    packed, plain = (tracer.backbone.on(r).pooled(texts, [1, 4]) for r in ("packed", "plain"))
    assert packed == pytest.approx(plain, abs=1e-4)


# --- rope that depends on the batch (method, section 2): long and short lengths never meet ---


def item_of(fed: int, candidates: int = 2, longer: int = 0) -> Item:
    """Return an item whose candidates feed `fed` tokens, the last one `longer` more."""
    draw = np.random.default_rng(fed)
    prompt = draw.integers(3, VOCAB - 8, size=fed - 2).tolist()
    ends = [draw.integers(3, VOCAB - 8, size=2).tolist() for _ in range(candidates)]
    ends[-1] += draw.integers(3, VOCAB - 8, size=longer).tolist()
    return Item(text_of(prompt), tuple(text_of(e) for e in ends), id=f"{fed}+{longer}")


EDGE = {"phi3-longrope": LONGROPE_BOUNDARY, "llama-dynamic": DYNAMIC_BOUNDARY}


@pytest.mark.parametrize("name", EDGE)
def test_every_item_has_the_scores_of_running_alone_in_a_new_model(name):
    edge = EDGE[name]
    # Long before short and short before long, on the edge, and one on both sides of it.
    items = [item_of(edge + 9), item_of(edge), item_of(edge + 3), item_of(10), item_of(edge + 1)]
    items += [item_of(edge - 2, candidates=3, longer=6), item_of(edge - 1)]
    together = read_all(Tracer(build(name), tokenizer(), invariant=INVARIANT), items)
    in_turn = [read_all(tracer_of(name), [item])[0] for item in items]
    for a, b, alone in zip(together, in_turn, expected_trajectories(name, items), strict=True):
        assert a.trajectory == pytest.approx(alone, abs=1e-4), a.id
        assert b.trajectory == pytest.approx(alone, abs=1e-4), a.id


# --- refusals: one line each ---


def refusal(error: type[Exception], model, **options) -> str:
    with pytest.raises(error) as caught:
        Tracer(model, tokenizer(), **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_an_attention_that_the_model_does_not_use_is_refused():
    message = refusal(InputError, build("llama"), invariant=INVARIANT, attention="eager")
    assert (
        "the attention sdpa, not eager" in message and "set_attn_implementation('eager')" in message
    )
    model = build("llama")
    model.set_attn_implementation("flex_attention")
    assert "choose sdpa or eager" in refusal(InputError, model, invariant=INVARIANT)


def test_a_model_needs_three_blocks_and_an_invariant():
    assert "2 blocks" in refusal(UnsupportedModelError, build("llama", num_hidden_layers=2))
    tracer = Tracer(build("llama", num_hidden_layers=3), tokenizer(), invariant=2.0)
    items = random_items(5, 3)
    for item, decision in zip(items, tracer.correct_many(items), strict=True):
        assert decision.answer in item.candidates
    assert "invariant=VALUE" in refusal(InvariantError, build("mamba"))
    assert tracer_of("mamba").invariant == INVARIANT


def tiny(kind: str, auto: Any = AutoModelForCausalLM, **sizes: int) -> PreTrainedModel:
    model = auto.from_config(AutoConfig.for_model(kind, vocab_size=VOCAB, **sizes))
    enliven(model, 0)
    return model


T5 = {"d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 16, "d_kv": 8, "bos_token_id": 1}
BERT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
# It attends in both directions, with noise of several nats: a relative check would pass.
XLNET = {"d_model": 16, "n_layer": 4, "n_head": 2, "d_inner": 16}
GPT = {"n_embd": 16, "n_layer": 4, "n_head": 2}  # its blocks return lists


def louder() -> PreTrainedModel:
    """Its forward pass changes the states between norm and logits in an unknown way."""
    model = build("llama")
    forward = model.model.forward

    def changed(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state * 1.5
        return output

    model.model.forward = changed
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tiny("t5", AutoModelForSeq2SeqLM, **T5), "encoder-decoder"),
        (lambda: build("llama").model, "head"),
        (lambda: tiny("bert", num_attention_heads=2, **BERT), "BertLMHeadModel"),
        (lambda: build("gemma3_text", use_bidirectional_attention=True), "tokens after it"),
        (lambda: tiny("xlnet", **XLNET), "in its batch"),
        (lambda: tiny("openai-gpt", **GPT), "OpenAIGPTLMHeadModel"),
        (louder, "LlamaForCausalLM"),
    ],
)
def test_unsupported_models_are_refused(make, words):
    assert words in refusal(UnsupportedModelError, make(), invariant=1.0)


class ScaledByTheTrunk(LlamaForCausalLM):
    """A head that uses a constant of its trunk, like Falcon-H1's."""

    def forward(self, **inputs):
        output = super().forward(**inputs)
        output.logits = output.logits * self.model.multiplier
        return output


def test_the_readout_applies_a_constant_of_the_trunk():
    plain, model = tracer_of("llama"), build("llama")
    model.__class__ = ScaledByTheTrunk
    model.model.multiplier = 0.25
    tracer, states = Tracer(model, tokenizer(), invariant=1.0), torch.randn(3, 32)
    expected = 0.25 * plain.readout.logits(states)
    assert torch.allclose(tracer.readout.logits(states), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["gemma2", "llama-dynamic"])
def test_the_model_is_unchanged_afterwards(name):
    model = build(name)
    before = copy.deepcopy(model.state_dict())
    ids = torch.arange(3, 7 + DYNAMIC_BOUNDARY)[None]
    items = [*random_items(6, 2), Item(text_of(list(range(3, 100))), ("w7", "w9"))]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
        list(Tracer(model, tokenizer(), invariant=1.0).correct_many(items))
        again = model(input_ids=ids).logits
    assert torch.equal(logits, again)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_model_in_training_mode_is_read_without_dropout_and_stays_in_it():
    model: Any = build("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5)
    items = random_items(7, 3)
    expected = [d.scores for d in Tracer(model, tokenizer(), invariant=1.0).correct_many(items)]
    model.train()
    model.transformer.h[1].eval()  # a frozen block
    tracer = Tracer(model, tokenizer(), invariant=1.0)
    for decision, scores in zip(tracer.correct_many(items), expected, strict=True):
        assert decision.scores == pytest.approx(scores, abs=1e-6)
    assert [i for i, block in enumerate(model.transformer.h) if not block.training] == [1]
