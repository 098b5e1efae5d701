"""Methods compared with TRACE: float64 references, releases, and a common contract."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import families
import numpy as np
import peer_reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import Item, Tracer
from lastword.decide.batch import Scope
from lastword.errors import InputError
from lastword.methods import COMPARED, METHODS, correction_of, resolve
from lastword.methods.contract import Facts, Method
from lastword.methods.dola import Contrast, divergence, premature_depths
from lastword.methods.sled import Evolution
from lastword.rule.tile import Tile


def same(z: torch.Tensor) -> torch.Tensor:
    return z


def capped(z: torch.Tensor) -> torch.Tensor:
    return 5.0 * torch.tanh(z / 5.0)


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


@pytest.mark.parametrize(("family", "after"), [("llama", same), ("gpt2", same), ("gemma2", capped)])
def test_peers_agree_with_their_formulas_in_float64(family, after):
    model = copy.deepcopy(tracer(family).backbone.model).double()
    norm = model.get_submodule(families.FAMILIES[family].norm)
    for item, scores in zip(*compared(family), strict=True):
        read = [
            peer_reference.positions(model, norm, after, tokens, boundary)
            for tokens, boundary in zip(item.prompt.sequences, item.prompt.boundaries, strict=True)
        ]
        for name, of in peer_reference.PEERS.items():
            expected = [sum(of(at)[at.token] for at in positions) for positions in read]
            np.testing.assert_allclose(scores[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


# Scores of the releases' `lm_score` for the first one to four tokens of a candidate, in
# float32: JayZhang42/SLED at 00067af (rate 2.5, scale 75), voidism/DoLa at 805230e.
RELEASED: dict[str, tuple[Any, list[float]]] = {
    "sled": (
        Evolution(4, (0, 1, 2, 3)),
        [-2.616248607635498, -5.395164489746094, -10.785270690917969, -119.81194305419922],
    ),
    "dola": (
        Contrast(4, (0, 1, 2, 3)),
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


def test_dola_selects_by_kl_from_the_mean_and_not_by_jensen_shannon():
    late = np.log([0.5, 0.3, 0.15, 0.05])
    # One layer moves much mass. The other gives almost none to a token that is likely at the end.
    moved, denied = np.log([0.05, 0.15, 0.3, 0.5]), np.log([0.7, 1e-9, 0.22, 0.08])
    kl = [peer_reference.dola_divergence(late, early) for early in (moved, denied)]
    true = [peer_reference.jensen_shannon(late, early) for early in (moved, denied)]
    assert np.argmax(kl) != np.argmax(true)
    logits = {n: torch.tensor(z[None], dtype=torch.float32) for n, z in enumerate((moved, denied))}
    tile = tile_of(torch.tensor(late[None], dtype=torch.float32), raw=logits)
    assert int(Contrast(2, (0, 1)).chosen(tile)) == int(np.argmax(kl))


def test_dola_takes_the_first_layer_on_ties():
    z = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    early = torch.randn(3, 11, generator=torch.Generator().manual_seed(1))
    tile = tile_of(z, raw={1: early, 3: early.clone(), 5: early.clone()})
    assert Contrast(6, (1, 3, 5)).chosen(tile).tolist() == [0, 0, 0]


@given(st.integers(0, 2**31), st.floats(0.1, 60))
@settings(max_examples=30)
def test_divergence_agrees_with_the_sum_over_tokens(seed, scale):
    draw = np.random.default_rng(seed)
    late, early = (peer_reference.log_softmax(scale * draw.normal(size=23)) for _ in range(2))
    expected = peer_reference.dola_divergence(late, early)
    got = divergence(*(torch.tensor(x[None], dtype=torch.float32) for x in (late, early)))
    # The logits are rounded to float32: 60 nats to 4e-6.
    assert float(got) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_divergence_of_tokens_with_probability_zero_is_finite():
    z = torch.tensor([[0.0, -200.0, -300.0]])
    assert torch.isfinite(divergence(z, z)).all()


@pytest.mark.parametrize("peak", [1.0, 30.0, 300.0])
def test_sled_is_precise_if_a_layer_is_certain(peak):
    draw = np.random.default_rng(5)
    z, early = draw.normal(size=(4, 211)), draw.normal(size=(2, 4, 211))
    early[:, :, 7] += peak  # the probability of token 7 rounds to 1
    z[:, 7] += 2.0
    z, early = z.astype(np.float32), early.astype(np.float32)
    tile = tile_of(torch.tensor(z), raw={n: torch.tensor(early[n]) for n in (0, 1)})
    h = evolved(Evolution(2, (0, 1)), tile)
    for row in range(4):
        readings = [early[0][row].astype(float), early[1][row].astype(float)]
        at = peer_reference.Position([z[row].astype(float)] * 3, readings, 0)
        np.testing.assert_allclose(h[row], peer_reference.evolved(at), rtol=1e-5, atol=1e-5)


def evolved(scorer: Evolution, tile: Tile) -> torch.Tensor:
    """Return SLED's logits of all tokens, -100 outside the top k."""
    top = scorer.evolved(tile)
    return torch.full_like(tile.logits[2], -100.0).scatter_(1, top.tokens, top.h)


def test_sled_continues_its_steps_if_no_layer_has_a_direction():
    z = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    tile = tile_of(z, raw={0: z.clone(), 1: z.clone()})  # d_n = 0
    h = evolved(Evolution(2, (0, 1), k=20), tile)
    for row in range(2):
        logits = z[row].double().numpy()
        at = peer_reference.Position([logits] * 3, [logits] * 2, 0)
        expected = peer_reference.evolved(at, k=20)
        assert np.abs(expected - logits)[expected > -100].min() > 1e-3
        np.testing.assert_allclose(h[row], expected, rtol=1e-5, atol=1e-5)


def test_sled_selects_tied_tokens_by_lowest_id():
    z = torch.zeros(1, 9)
    tile = tile_of(z, raw={1: torch.arange(9.0)[None]})
    assert Evolution(2, (1,), k=4).evolved(tile).tokens.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("depth", "first", "last"), [(26, 13, 25), (32, 16, 30), (40, 20, 38), (60, 40, 58), (3, 1, 1)]
)
def test_premature_layers_are_every_second_depth_of_the_upper_half(depth, first, last):
    layers = premature_depths(depth)
    assert (layers[0], layers[-1]) == (first, last)
    assert set(np.diff(layers)) <= {2} and depth not in layers


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
    engine = tracer()
    methods = resolve(["question-blind"], engine.facts)
    candidates = ("w9 w10", "w11")
    (blind, missing) = scores_of(
        engine,
        [Item("w5 w6 w7", candidates, blind_prompt="w5 w7"), Item("w5 w6 w7", candidates)],
        methods,
        "question-blind",
    )
    base = engine.correct("w5 w7", candidates).base_scores
    np.testing.assert_allclose(blind, base, rtol=1e-6)
    assert missing is None


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


@pytest.mark.parametrize("name", ["dola", "sled"])
def test_a_method_of_whole_vocabularies_is_no_correction(name):
    with pytest.raises(InputError, match=f"{name} .*lastword compare"):
        correction_of(name, facts(6))


def test_methods_are_registered_and_compared_by_default_unless_they_need_other_prompts():
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


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


def test_the_docs_list_every_method():
    table = PAGE.partition("## The table")[2].partition("## ")[0]
    for name in METHODS:
        assert any(f"`{name}{option}`" in table for option in ("", "@FRACTION", "@LAMBDA")), name
