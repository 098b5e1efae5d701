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
    VOCAB,
    build,
    enliven,
    random_items,
    text_of,
    tokenizer,
)
from tiers import by_night
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
)

from lastword import Item, Tracer
from lastword.errors import InputError, InvariantError, UnsupportedModelError
from lastword.model.backbone import TILE_POOLED, tiles
from lastword.text.forest import Branch
from lastword.text.forest import build as grow

# The value is set because I(M) of the weights does not matter here.
INVARIANT = 0.5

every_family = pytest.mark.parametrize("name", FAMILIES)
# One per kind of attention. Opening a model compares its roads on other texts too.
KINDS = ["llama", "mistral-sliding", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "opt-projected"]
PACKED = [name for name, family in FAMILIES.items() if family.packs]


@cache
def tracer_of(name: str) -> Tracer:
    return Tracer(build(name), tokenizer(), invariant=INVARIANT)


def read_all(tracer: Tracer, items: list[Item]):
    return list(tracer.correct_many(items, read="all"))


def model_score(model, sequence: tuple[int, ...], boundary: int) -> float:
    """Return the mean log-probability of a candidate by the model's logits."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sequence[:-1]])).logits[0, boundary - 1 :]
    tokens = torch.tensor(sequence[boundary:])
    return float(logits.double().log_softmax(-1).gather(1, tokens[:, None]).mean())


@every_family
def test_the_last_depth_agrees_with_the_models_logits(name):
    tracer, items = tracer_of(name), random_items(1, 2)
    assert (tracer.backbone.road != "plain") == FAMILIES[name].packs
    for item, decision in zip(tracer.encode(items), read_all(tracer, items), strict=True):
        pairs = zip(item.prompt.sequences, item.prompt.boundaries, strict=True)
        expected = [model_score(tracer.backbone.model, s, b) for s, b in pairs]
        assert decision.base_scores == pytest.approx(expected, abs=5e-5)
        assert np.array_equal(decision.trajectory[:, tracer.backbone.depth], decision.base_scores)


@pytest.mark.parametrize("name", by_night(FAMILIES, [*KINDS, "bloom", "lfm2", "mamba"]))
def test_every_depth_agrees_with_the_models_norm_and_head_on_its_state(name):
    tracer, items = tracer_of(name), random_items(2, 1, candidates=(3, 3))
    encoded, decision = tracer.encode(items)[0], read_all(tracer, items)[0]
    pristine, blocks = build(name), FAMILIES[name].blocks
    read = reference.read_item(
        pristine, blocks, encoded.prompt.sequences, encoded.prompt.boundaries
    )
    expected = np.array([reference.candidate_scores(z, tokens) for z, tokens in read])
    tolerance = 1e-3 if name == "mamba" else 1e-4  # state spaces accumulate noise over the text
    assert decision.trajectory == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("name", by_night(PACKED, KINDS))
def test_packed_and_plain_roads_agree(name):
    tracer = tracer_of(name)
    # Prompts longer than every sliding window, but with one kind of rope scaling.
    items = random_items(3, 3, prompt=(10, 14))
    packed = read_all(tracer, items)
    plain = read_plain(tracer, items)
    for a, b in zip(packed, plain, strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-4)
        assert a.t_scores == pytest.approx(b.t_scores, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma2", "gpt_oss", "deepseek_v3"])
def test_a_row_of_many_tiles_agrees_with_the_plain_road(name, monkeypatch):
    monkeypatch.setattr("lastword.model.backbone.TILE", 64)
    tracer, items = tracer_of(name), random_items(7, 24, candidates=(3, 6), prompt=(6, 30))
    forest = grow([b for e in tracer.encode(items) for p in e.prompts for b in p.branches])
    assert len(tiles(forest.positions, 64)) > 3 and tracer.batch_tokens > len(forest)
    packed, plain = (read(tracer, items) for read in (read_all, read_plain))
    for a, b in zip(packed, plain, strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma2", "gpt2"])
def test_means_over_texts_of_many_tiles_agree_with_the_plain_road(name):
    tracer, draw = tracer_of(name), np.random.default_rng(0)
    lengths = draw.integers(1, 30, size=24)
    texts = [Branch((*draw.integers(3, 60, size=n + 1).tolist(),), 1) for n in lengths]
    assert len(tiles(grow(texts).positions, TILE_POOLED)) > 3
    packed, plain = (tracer.backbone.on(r).pooled(texts, [1, 4]) for r in ("packed", "plain"))
    assert packed == pytest.approx(plain, abs=1e-4)


def test_an_attention_that_the_model_does_not_use_is_refused():
    message = refusal(InputError, build("llama"), invariant=INVARIANT, attention="eager")
    assert (
        "the attention sdpa, not eager" in message and "set_attn_implementation('eager')" in message
    )
    model = build("llama")
    model.set_attn_implementation("eager")
    tracer = Tracer(model, tokenizer(), invariant=INVARIANT, attention="eager")
    assert tracer.describe()["attention"] == "eager"
    model.set_attn_implementation("flex_attention")
    assert "choose sdpa or eager" in refusal(InputError, model, invariant=INVARIANT)


def read_plain(tracer: Tracer, items: list[Item]):
    plain = copy.copy(tracer)
    plain.model = copy.copy(tracer.model)
    plain.model.backbone = tracer.backbone.on("plain")
    return read_all(plain, items)


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
    used = tracer_of(name)
    in_turn = [read_all(used, [item])[0] for item in items]
    for item, encoded, a, b in zip(items, used.encode(items), together, in_turn, strict=True):
        blocks, pristine = FAMILIES[name].blocks, build(name)
        read = reference.read_item(
            pristine, blocks, encoded.prompt.sequences, encoded.prompt.boundaries
        )
        alone = np.array([reference.candidate_scores(z, tokens) for z, tokens in read])
        assert a.trajectory == pytest.approx(alone, abs=1e-4), item.id
        assert b.trajectory == pytest.approx(alone, abs=1e-4), item.id


# --- refusals: one line each ---


def refusal(error: type[Exception], model, **options) -> str:
    with pytest.raises(error) as caught:
        Tracer(model, tokenizer(), **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_a_model_needs_at_least_three_blocks():
    for depth in (1, 2):
        message = refusal(UnsupportedModelError, build("llama", num_hidden_layers=depth))
        assert f"{depth} blocks" in message and "at least 3" in message
    tracer = Tracer(build("llama", num_hidden_layers=3), tokenizer(), invariant=2.0)
    items = random_items(5, 3)
    for item, decision in zip(items, tracer.correct_many(items), strict=True):
        assert decision.answer in item.candidates


def test_a_model_without_projections_needs_an_invariant():
    assert "invariant=VALUE" in refusal(InvariantError, build("mamba"))
    assert tracer_of("mamba").invariant == INVARIANT


def t5() -> PreTrainedModel:
    config: Any = T5Config(vocab_size=VOCAB, d_model=16, num_layers=3, num_heads=2, d_ff=16, d_kv=8)
    config.bos_token_id = 1
    return T5ForConditionalGeneration(config)


def bert() -> PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4}
    return BertLMHeadModel(BertConfig(vocab_size=VOCAB, num_attention_heads=2, **sizes))


def xlnet() -> PreTrainedModel:
    """It attends in both directions, with noise of several nats: a relative check would pass."""
    config = XLNetConfig(vocab_size=VOCAB, d_model=16, n_layer=4, n_head=2, d_inner=16)
    enliven(model := XLNetLMHeadModel(config), 0)
    return model


def gpt() -> PreTrainedModel:
    """Its blocks return lists."""
    return OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=VOCAB, n_embd=16, n_layer=4, n_head=2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (t5, "encoder-decoder"),
        (lambda: build("llama").model, "head"),
        (bert, "BertLMHeadModel"),
        (lambda: build("gemma3_text", use_bidirectional_attention=True), "tokens after it"),
        (xlnet, "in its batch"),
        (gpt, "OpenAIGPTLMHeadModel"),
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
    model = build("llama")
    model.__class__ = ScaledByTheTrunk
    model.model.multiplier = 0.25
    tracer, items = Tracer(model, tokenizer(), invariant=1.0), random_items(1, 2)
    for item, decision in zip(tracer.encode(items), read_all(tracer, items), strict=True):
        pairs = zip(item.prompt.sequences, item.prompt.boundaries, strict=True)
        expected = [model_score(model, s, b) for s, b in pairs]
        assert decision.base_scores == pytest.approx(expected, abs=5e-5)


def test_a_head_that_the_readout_does_not_reproduce_is_refused():
    # The forward pass changes the states between norm and logits in an unknown way.
    model = build("llama")
    forward = model.model.forward

    def louder(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state * 1.5
        return output

    model.model.forward = louder
    assert "LlamaForCausalLM" in refusal(UnsupportedModelError, model, invariant=1.0)


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
