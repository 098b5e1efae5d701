"""Methods compared with TRACE: float64 references, releases, and a common contract."""

from dataclasses import replace
from functools import cache
from typing import Any

import families
import numpy as np
import peer_reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import Decider, Item, Tracer
from lastword.decide.batch import Scope
from lastword.errors import InputError
from lastword.methods import COMPARED, METHODS, ItemReadings, Needs, correction_of, resolve
from lastword.methods.contract import Facts, Method
from lastword.methods.dola import Contrast, divergence, premature_depths
from lastword.methods.sled import Evolution
from lastword.rule.tile import Tile


@cache
def tracer(family: str = "llama") -> Tracer:
    return Tracer(families.build(family), families.tokenizer())


def facts(depth: int) -> Facts:
    return Facts(depth, 331, 2.0)


def scored(engine: Tracer, encoded: Any, methods: dict[str, Method]) -> list[Any]:
    """Return every method's scores of a group."""
    return [d.methods for d in engine.decide_group(encoded, Scope("base", methods=methods))]


@cache
def compared(family: str) -> tuple[list[Any], list[dict[str, Any]]]:
    items = families.random_items(3, 4, candidates=(2, 3))
    encoded = tracer(family).encode(items)
    return encoded, scored(tracer(family), encoded, resolve(COMPARED, tracer(family).facts))


@pytest.mark.parametrize(("family", "cap"), [("llama", None), ("gpt2", None), ("gemma2", 5.0)])
def test_peers_agree_with_their_formulas_in_float64(family, cap):
    model, blocks = tracer(family).backbone.model, families.FAMILIES[family].blocks
    for item, scores in zip(*compared(family), strict=True):
        read = [
            peer_reference.positions(model, blocks, cap, tokens, boundary)
            for tokens, boundary in zip(item.prompt.sequences, item.prompt.boundaries, strict=True)
        ]
        for name, of in peer_reference.PEERS.items():
            expected = [sum(of(at)[at.token] for at in positions) for positions in read]
            np.testing.assert_allclose(scores[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


# Scores of the releases' `lm_score` for the first one to four tokens of a candidate, in
# float32: JayZhang42/SLED at 00067af (rate 2.5, scale 75), voidism/DoLa at 805230e.
RELEASED: dict[str, tuple[Any, list[float]]] = {
    "sled": (
        Evolution((4,), (0, 1, 2, 3)),
        [-2.616248607635498, -5.395164489746094, -10.785270690917969, -119.81194305419922],
    ),
    "dola": (
        Contrast((4,), (0, 1, 2, 3)),
        [11.010009765625, 19.907106399536133, 26.046653747558594, 29.365161895751953],
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_scores_agree_with_the_releases(name):
    z = (3 * np.random.default_rng(19).normal(size=(5, 4, 300))).astype(np.float32)
    last = torch.tensor(z[4])
    raw = {depth: torch.tensor(z[depth]) for depth in range(4)}
    tokens = torch.tensor([257, 241, 149, 11])
    log_z = {4: last.logsumexp(dim=-1, keepdim=True)}
    scorer, expected = RELEASED[name]
    scores = scorer.log_probs(Tile({4: last}, log_z, raw, torch.arange(4), tokens))
    np.testing.assert_allclose(np.cumsum(scores.numpy()), expected, rtol=1e-5)


def test_the_first_of_equal_layers_and_the_lowest_of_equal_tokens_are_chosen():
    z = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    early = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    tile = tile_of(z, raw={1: early, 3: early.clone(), 5: early.clone()})
    assert Contrast((6,), (1, 3, 5)).chosen(tile).tolist() == [0, 0, 0]
    tile = tile_of(torch.zeros(1, 9), raw={1: torch.arange(9.0)[None]})
    assert Evolution((2,), (1,), k=4).evolved(tile)[0].tolist() == [[0, 1, 2, 3]]


@given(st.integers(0, 2**31), st.floats(0.1, 60))
@settings(max_examples=30)
def test_divergence_agrees_with_the_sum_over_tokens(seed, scale):
    draw = np.random.default_rng(seed)
    late, early = (peer_reference.log_softmax(scale * draw.normal(size=23)) for _ in range(2))
    expected = peer_reference.dola_divergence(late, early)
    got = divergence(*(torch.tensor(x[None], dtype=torch.float32) for x in (late, early)))
    # The logits are rounded to float32: 60 nats to 4e-6.
    assert float(got) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    impossible = torch.tensor([[0.0, -200.0, -300.0]])
    assert torch.isfinite(divergence(impossible, impossible)).all()


@pytest.mark.parametrize("peak", [None, 1.0, 30.0, 300.0])
def test_sled_is_precise_if_a_layer_is_certain_or_has_no_direction(peak):
    draw = np.random.default_rng(5)
    z, early = draw.normal(size=(4, 211)), draw.normal(size=(2, 4, 211))
    if peak is None:
        early[:] = z  # d_n = 0: the steps are still made
    else:
        early[:, :, 7] += peak  # the probability of token 7 rounds to 1
        z[:, 7] += 2.0
    z, early = z.astype(np.float32), early.astype(np.float32)
    tile = tile_of(torch.tensor(z), raw={n: torch.tensor(early[n]) for n in (0, 1)})
    tokens, h = Evolution((2,), (0, 1)).evolved(tile)
    evolved = torch.full_like(tile.logits[2], -100.0).scatter_(1, tokens, h)
    for row in range(4):
        readings = [layer[row].astype(float) for layer in early]
        at = peer_reference.Position([z[row].astype(float)] * 3, readings, 0)
        np.testing.assert_allclose(evolved[row], peer_reference.evolved(at), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("depth", "first"), [(3, 1), (26, 13), (40, 20), (41, 21), (60, 40)])
def test_premature_layers_are_every_second_depth_of_the_upper_half(depth, first):
    assert premature_depths(depth) == tuple(range(first, depth, 2))


@pytest.mark.parametrize("name", COMPARED)
def test_candidate_order_and_other_items_do_not_change_scores(name):
    engine = tracer()
    item = Item("w5 w6 w7 w8", ("w9 w10", "w11", "w9 w12 w13"), blind_prompt="w5 w8")
    turned = Item("w5 w6 w7 w8", item.candidates[::-1], blind_prompt="w5 w8")
    other = families.random_items(8, 2)
    methods = resolve([name], engine.facts)
    assert isinstance(methods[name], Method)
    (alone,) = scores_of(engine, [item], methods, name)
    (backwards,) = scores_of(engine, [turned], methods, name)
    _, in_company, _ = scores_of(engine, [other[0], item, other[1]], methods, name)
    assert alone.dtype == np.float64 and alone.shape == (3,)
    np.testing.assert_allclose(backwards[::-1], alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(in_company, alone, rtol=1e-5, atol=1e-5)


def test_scoring_methods_does_not_change_the_decision():
    engine = tracer()
    encoded, answers = compared("llama")
    methods = resolve(COMPARED, engine.facts)
    plain = engine.decide_group(encoded, Scope("all"))
    for mode in ("all", "decide", "base"):
        for alone, decision, scores in zip(
            plain, engine.decide_group(encoded, Scope(mode, methods=methods)), answers, strict=True
        ):
            if mode != "base":
                assert decision.index == alone.index and decision.operator == alone.operator
            np.testing.assert_allclose(decision.methods["sled"], scores["sled"], rtol=1e-6)


def test_methods_on_the_trajectory_agree_with_their_definitions():
    engine = tracer()
    encoded, answers = compared("llama")
    window = engine.theta.window(engine.facts.depth)
    for item, decision, scores in zip(
        encoded, engine.decide_group(encoded, Scope("all")), answers, strict=True
    ):
        S, b = decision.trajectory, decision.base_scores
        tokens, texts = np.array(item.prompt.candidate_tokens), item.item.candidates
        for name, expected in {
            "trace": decision.scores,
            "base-mean": b,
            "base-sum": b * tokens,
            "base-bytes": b * tokens / [len(t.encode()) for t in texts],
            "early-exit@0.75": S[:, 5],
            "self-consistent-depth": S[:, window].mean(axis=1),
            "length-only": [-len(t) for t in texts],
        }.items():
            np.testing.assert_allclose(scores[name], expected, rtol=1e-7, err_msg=name)
        assert np.exp(scores["decisive-only"]).sum() == pytest.approx(1)


def test_question_blind_scores_the_blind_prompt_or_nothing():
    engine, bare = tracer(), Item("w5 w6 w7", ("w9 w10", "w11"))
    methods = resolve(["question-blind"], engine.facts)
    some = [replace(bare, blind_prompt="w5 w7"), bare]
    blind, missing = scores_of(engine, some, methods, "question-blind")
    base = engine.correct("w5 w7", bare.candidates).base_scores
    np.testing.assert_allclose(blind, base, rtol=1e-6)
    assert missing is None


def last_agreeing(readings: ItemReadings) -> np.ndarray:
    """Return the scores of the last depth that agrees with the one after it."""
    S = readings.trajectory.scores
    choices = S.argmax(axis=0)
    agreeing = np.flatnonzero(choices[:-1] == choices[1:])
    return S[:, agreeing[-1]] if len(agreeing) else readings.trajectory.base


def test_a_method_of_a_user_scores_and_corrects():
    engine, items = tracer(), families.random_items(3, 4, candidates=(2, 3))
    own = Method("last-agreeing", Needs(frozenset(range(engine.facts.depth + 1))), last_agreeing)
    beside = engine.correct_many(items, methods={"own": own})
    alone = Decider(engine, correction=own).correct_many(items)
    whole = engine.decide_group(engine.encode(items), Scope("all"))
    for compared, corrected, decision in zip(beside, alone, whole, strict=True):
        S = decision.trajectory
        agreeing = [d for d in range(6) if S[:, d].argmax() == S[:, d + 1].argmax()]
        expected = S[:, agreeing[-1]] if agreeing else S[:, 6]
        for scores in (compared.methods["own"], corrected.scores):
            np.testing.assert_allclose(scores, expected, rtol=1e-5)
        assert corrected.operator == "last-agreeing"
        assert corrected.index == int(expected.argmax())


def test_names_take_an_aggregation_and_a_fraction():
    engine = tracer()
    names = ["dola", "dola@mean", "early-exit@1", "base-mean"]
    encoded, _ = compared("llama")
    for item, scores in zip(
        encoded, scored(engine, encoded, resolve(names, engine.facts)), strict=True
    ):
        tokens = np.array(item.prompt.candidate_tokens)
        np.testing.assert_allclose(scores["dola"], scores["dola@mean"] * tokens)
        np.testing.assert_allclose(scores["early-exit@1"], scores["base-mean"])
    early = resolve(["early-exit@0.75@sum"], engine.facts)["early-exit@0.75@sum"]
    assert early.needs.depths == {5} and early.aggregation == "sum"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dolla", "no method dolla; known: trace"),
        ("pmi", "needs LAMBDA"),
        ("pmi@x", "expected LAMBDA"),
        ("pmi@-1", "LAMBDA"),
        ("pmi@nan", "LAMBDA"),
        ("dcpmi@1", "takes no @1"),
        ("early-exit", "needs a fraction"),
        ("early-exit@half", "got 'half'"),
        ("early-exit@1.5", r"in \[0, 1\], not 1.5"),
        ("trace@mean", "takes no @mean"),
        ("dola@0.5", "@0.5; .* sum, mean, bytes"),
    ],
)
def test_invalid_names_are_refused(name, message):
    for made in (lambda: resolve([name], facts(6)), lambda: correction_of(name, facts(6))):
        with pytest.raises(InputError, match=message):
            made()


def test_methods_are_compared_by_default_unless_they_need_other_prompts():
    with pytest.raises(InputError, match="dola .*lastword compare"):
        correction_of("dola", facts(6))
    when_named = {"pmi", "dcpmi", "trace-gated", "contextual", "batch-calibrated"}
    assert {m.partition("@")[0] for m in COMPARED} == set(METHODS) - when_named


def tile_of(last: torch.Tensor, *, raw: dict[int, torch.Tensor]) -> Tile:
    """Return a tile whose last depth is one above the others, with its first token read."""
    depth = {1: 2, 2: 2, 3: 6}[len(raw)]
    nothing = torch.zeros(1, dtype=torch.int64)
    log_z = {depth: last.logsumexp(dim=-1, keepdim=True)}
    return Tile({depth: last}, log_z, raw, nothing, nothing)


def scores_of(
    engine: Tracer, items: list[Item], methods: dict[str, Method], name: str
) -> list[Any]:
    return [scores[name] for scores in scored(engine, engine.encode(items), methods)]
