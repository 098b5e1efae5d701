"""Decoding by the rule and by its peers: what each step answers, held to the tracer itself."""

from functools import cache
from typing import Any

import families
import numpy as np
import peer_reference
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from lastword import Item, Tracer
from lastword.errors import InputError
from lastword.generation.decoding import decoder, decoding, generate

PROMPT = "w5 w6 w7 w8 w9"


@cache
def tracer(family: str = "llama", invariant: float = 2.0) -> Tracer:
    return Tracer(families.build(family), families.tokenizer(), invariant=invariant)


class Kept(LogitsProcessor):
    """Remembers what the processors before it made of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append((input_ids.clone(), scores.clone()))
        return scores


def steps_of(engine: Tracer, decode: Any, prompts: list[str], new: int = 3, **options: Any) -> Any:
    kept = Kept()
    model: Any = engine.backbone.model
    inputs = engine.tokenizer(prompts, return_tensors="pt")
    with decoding(engine, decode, **options) as processors:
        model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_processor=LogitsProcessorList([*processors, kept]),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
    return kept.steps


@pytest.mark.parametrize("invariant", [0.5, 2.0])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_step_is_the_tracers_decision_among_its_top_tokens(family: str, invariant: float) -> None:
    engine = tracer(family, invariant)
    operators = set()
    for ids, scores in steps_of(engine, "trace", [PROMPT], top=5):
        tokens = torch.isfinite(scores[0]).nonzero()[:, 0].tolist()
        assert len(tokens) == 5
        # The same tokens as candidates of an item whose prompt is what was generated so far.
        item = Item(families.text_of(ids[0, 1:].tolist()), tuple(f"w{t}" for t in tokens))
        encoded: Any = engine.encode([item])[0]
        assert encoded.sequences[0][: len(ids[0])] == tuple(ids[0].tolist())
        (decision,) = engine.decide_group([encoded])
        operators.add(decision.operator)
        np.testing.assert_allclose(scores[0, tokens], decision.scores, rtol=1e-4, atol=1e-4)
    assert operators


def test_candidates_are_the_models_own_top_tokens_and_every_operator_can_speak() -> None:
    seen = set()
    for seed in range(6):
        engine = Tracer(families.build("llama", seed=seed), families.tokenizer(), invariant=2.0)
        own = {i.shape[1]: s for i, s in steps_of(engine, "base", [PROMPT], new=1)}
        for ids, scores in steps_of(engine, "trace", [PROMPT], new=1, top=4):
            top = own[ids.shape[1]][0].topk(4).indices
            assert set(torch.isfinite(scores[0]).nonzero()[:, 0].tolist()) == set(top.tolist())
            log_p = own[ids.shape[1]].log_softmax(-1)[0, top]
            seen.add(bool(torch.allclose(scores[0, top], log_p, atol=1e-4)))
    assert seen == {True, False}  # the base where a gate fails, another operator where none does


@pytest.mark.parametrize("decode", ["dola", "sled"])
def test_a_peers_step_is_its_formula(decode: str) -> None:
    engine = tracer()
    model = engine.backbone.model
    for ids, scores in steps_of(engine, decode, [PROMPT]):
        sequence = [*ids[0].tolist(), 3]
        double = families.build("llama").double()
        (at,) = peer_reference.positions(
            double, double.get_submodule("model.norm"), lambda z: z, sequence, len(sequence) - 1
        )
        allowed = torch.isfinite(scores[0])
        if decode == "sled":
            expected = peer_reference.evolved(at)
        else:
            s = peer_reference.contrast(at, normed=False)
            p = peer_reference.softmax(at.normed[-1])
            expected = np.where(p < 0.1 * p.max(), -1000.0, s)
        np.testing.assert_allclose(
            scores[0][allowed], expected[allowed.numpy()], rtol=1e-4, atol=1e-4
        )
    assert model is engine.backbone.model


@pytest.mark.parametrize("decode", ["trace", "dola", "sled"])
def test_a_batch_is_decoded_as_its_sequences_alone(decode: str) -> None:
    engine = tracer()
    prompts = [PROMPT, "w11 w12 w13 w14 w15"]
    together = steps_of(engine, decode, prompts)
    for place, prompt in enumerate(prompts):
        for (ids, scores), (own_ids, own) in zip(
            together, steps_of(engine, decode, [prompt]), strict=True
        ):
            assert torch.equal(ids[place], own_ids[0])
            torch.testing.assert_close(scores[place], own[0], rtol=1e-4, atol=1e-4)


def test_generate_continues_a_prompt_and_leaves_the_model_as_it_was() -> None:
    engine = tracer()
    model: Any = engine.backbone.model
    tokenizer: Any = engine.tokenizer
    texts = {d: generate(engine, PROMPT, d, max_new_tokens=4) for d in ("base", "trace", "sled")}
    inputs = engine.tokenizer([PROMPT], return_tensors="pt")["input_ids"]
    plain = model.generate(inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
    own = tokenizer.decode(plain[0, inputs.shape[1] :], skip_special_tokens=True)
    assert texts["base"] == own and all(texts.values())
    assert all(not block._forward_pre_hooks for block in engine.backbone.parts.blocks)
    with decoding(engine, "trace") as processors:
        model.generate(inputs, max_new_tokens=4, pad_token_id=0, logits_processor=processors)
    assert generate(engine, PROMPT, "trace", max_new_tokens=4) == texts["trace"]


@pytest.mark.parametrize("decode", ["trace", "dola", "sled"])
def test_temperature_and_penalties_act_on_what_is_decoded(decode: str) -> None:
    engine = tracer()
    inputs = engine.tokenizer([PROMPT], return_tensors="pt")["input_ids"]

    def scores(**options: Any) -> torch.Tensor:
        model: Any = engine.backbone.model
        given = {"do_sample": True, "top_k": 0, "return_dict_in_generate": True, **options}
        way = decoder(engine, decode)
        output = model.generate(
            inputs,
            max_new_tokens=1,
            output_scores=True,
            pad_token_id=0,
            custom_generate=way,
            **given,
        )
        return output.scores[0][0]

    own = scores(temperature=1.0)
    torch.testing.assert_close(scores(temperature=4.0), own / 4)
    seen = inputs[0]
    penalised = scores(temperature=1.0, repetition_penalty=3.0)
    if decode != "trace":  # which re-ranks what a penalty has left
        expected = torch.where(own[seen] < 0, own[seen] * 3, own[seen] / 3)
        torch.testing.assert_close(penalised[seen], expected)
        assert not torch.equal(penalised[seen], own[seen])


def test_more_beams_than_one_are_refused() -> None:
    engine = tracer()
    model: Any = engine.backbone.model
    inputs = engine.tokenizer([PROMPT], return_tensors="pt")["input_ids"]
    with pytest.raises(InputError, match="cannot decode sled by 2 beams"):
        way = decoder(engine, "sled")
        model.generate(inputs, max_new_tokens=1, num_beams=2, custom_generate=way)


def test_custom_generate_is_the_same_decoding() -> None:
    engine = tracer()
    model: Any = engine.backbone.model
    tokenizer: Any = engine.tokenizer
    inputs = tokenizer([PROMPT], return_tensors="pt")["input_ids"]
    output = model.generate(
        inputs,
        max_new_tokens=4,
        do_sample=False,
        pad_token_id=0,
        custom_generate=decoder(engine, "trace"),
    )
    text = tokenizer.decode(output[0, inputs.shape[1] :], skip_special_tokens=True)
    assert text == generate(engine, PROMPT, "trace", max_new_tokens=4)


@pytest.mark.parametrize("decode", ["trace", "dola", "sled"])
def test_what_another_processor_forbids_stays_forbidden(decode: str) -> None:
    engine = tracer()
    text = generate(engine, PROMPT, decode, max_new_tokens=1)
    (token,) = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    other = generate(engine, PROMPT, decode, max_new_tokens=1, suppress_tokens=[token])
    assert other != text


def test_bad_ways_of_decoding_are_refused() -> None:
    engine = tracer()
    with pytest.raises(InputError, match="cannot decode by beam; one of base, trace, dola, sled"):
        generate(engine, PROMPT, "beam")
    with pytest.raises(InputError, match="at least two candidates, not 1"):
        generate(engine, PROMPT, top=1)
    for layers in ("middle", [], [0, families.DEPTH]):
        with pytest.raises(InputError, match="layers are high, low or depths from 0 to 5, not"):
            generate(engine, PROMPT, "dola", layers=layers)
    with decoding(engine, "trace") as processors:
        pass
    with pytest.raises(InputError, match="use it inside `with decoding"):
        processors[0](torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, families.VOCAB))
