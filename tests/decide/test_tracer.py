"""Tracer: stages, order, batches, precision and faults."""

import itertools
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import reference
import torch
from families import DEPTH, FAMILIES, build, random_items, tokenizer
from tiers import by_night

from lastword import Decision, Item, Theta, Tracer
from lastword.errors import InvariantError, NonFiniteError
from lastword.model.backbone import Backbone
from lastword.model.readout import _Float32Head

OPEN = Theta(tau_logr=-2.0, tau_H=0.1, gamma=-5.0)  # random models often pass these gates
BAND = 1e-4


@cache
def tracer_of(name: str, theta: Theta = OPEN, invariant: float = 2.0, **options) -> Tracer:
    return Tracer(build(name), tokenizer(), theta=theta, invariant=invariant, **options)


def read_all(tracer: Tracer, items: list[Item]) -> list[Decision]:
    return list(tracer.correct_many(items, read="all"))


def near(decision: Decision, theta: Theta = OPEN) -> bool:
    """Return True if rounding alone may change the decision (method, section 9)."""
    S, t = decision.trajectory, decision.t_scores
    return len(S) > 1 and reference.decide(S, t, theta, decision.invariant).near(BAND)


def same(decision: Decision, whole: Decision, tolerance: float = 1e-5, theta: Theta = OPEN) -> bool:
    """Compare the depths read, and the decision unless rounding may change it."""
    read = ~np.isnan(decision.trajectory)
    assert decision.id == whole.id
    assert decision.trajectory[read] == pytest.approx(whole.trajectory[read], abs=tolerance)
    if decision.t_scores is not None:
        assert decision.t_scores == pytest.approx(whole.t_scores, abs=tolerance)
    if near(whole, theta):
        return False
    for field in ("index", "base_index", "regime", "operator", "mixing", "tied"):
        assert getattr(decision, field) == getattr(whole, field)
    assert decision.scores == pytest.approx(whole.scores, abs=tolerance)
    assert decision.decisive_layer == whole.decisive_layer or not read.all()
    assert decision.decisive_layer in (None, whole.decisive_layer)
    return True


# --- stages ---

STAGED = [
    (name, theta, invariant)
    for name in ("llama", "gemma2", "gpt2", "bloom", "falcon", "opt-projected")
    for theta in (Theta(), OPEN)
    for invariant in (0.5, 2.0)
]
ALWAYS = [row for row in STAGED if row[0] in ("llama", "bloom")]


@pytest.mark.parametrize(("name", "theta", "invariant"), by_night(STAGED, ALWAYS))
def test_reading_in_stages_gives_the_same_decisions(name, theta, invariant):
    tracer = tracer_of(name, theta, invariant)
    items = random_items(21, 24, candidates=(1, 6))
    near_ties = 0
    for staged, whole in zip(tracer.correct_many(items), read_all(tracer, items), strict=True):
        if not same(staged, whole, theta=theta):
            near_ties += 1
            continue
        assert list(staged.gates) == list(whole.gates)
        for gate, whole_gate in zip(staged.gates.values(), whole.gates.values(), strict=True):
            assert gate.holds in (None, whole_gate.holds)
    assert near_ties <= 3


def depths_read(decision: Decision) -> set[int]:
    some = ~np.isnan(decision.trajectory)
    assert (some.all(axis=0) == some.any(axis=0)).all()
    return set(np.flatnonzero(some.all(axis=0)).tolist())


def test_stages_read_exactly_the_needed_depths():
    window = {3, 4}
    scorer = {2, 4, 6} | {3, 5, 6}  # A and G of six blocks
    outcomes = set()
    for invariant, theta in itertools.product((0.5, 2.0), (OPEN, Theta())):
        tracer = tracer_of("llama", theta, invariant)
        items = random_items(21, 24, candidates=(1, 6))
        bases = tracer.correct_many(items, read="base")
        for decision, base in zip(tracer.correct_many(items), bases, strict=True):
            assert depths_read(base) == {DEPTH}
            assert (base.operator, base.index) == ("base", decision.base_index)
            n, needed = len(decision.candidates), {DEPTH}
            if n > 2:
                needed |= window
            if n > 1 and decision.regime == "scalar" and invariant > 1:
                needed |= scorer
            if decision.operator == "early":
                needed |= {0}
            if decision.gates and decision.regime == "candidate-space":
                if all(decision.gates[g].holds for g in ("log_margin_ratio", "entropy")):
                    needed |= set(range(1, DEPTH + 1))
            assert depths_read(decision) == needed
            assert (decision.t_scores is not None) == (decision.mixing is not None)
            outcomes.add((decision.regime, decision.operator, len(needed)))
    assert {operator for _, operator, _ in outcomes} == {"base", "decisive", "mix", "early"}
    assert ("candidate-space", "base", 3) in outcomes  # a numeric gate failed: l* is not computed


# --- order, budget, batches, permutation ---


@pytest.mark.parametrize("name", ["llama", "gemma2", "bloom"])
def test_order_budget_and_other_items_change_nothing(name):
    tracer, items = tracer_of(name), random_items(23, 10, candidates=(2, 5))
    expected = {d.id: d for d in read_all(tracer, items)}
    mixed = random.Random(0).sample(items, len(items))
    small = Tracer(build(name), tokenizer(), theta=OPEN, invariant=2.0, batch_tokens=40)
    assert len(small.plan(small.encode(items))) > 3 > len(tracer.plan(tracer.encode(items)))
    for tracer_, batch in [(tracer, mixed), (small, items), *((tracer, [i]) for i in items)]:
        decisions = read_all(tracer_, batch)
        assert [decision.id for decision in decisions] == [item.id for item in batch]
        for decision in decisions:
            same(decision, expected[decision.id], 2e-5)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_batches_are_halved_when_memory_runs_out(name, monkeypatch):
    tracer, items = tracer_of(name), random_items(34, 6)
    expected = read_all(tracer, items)
    run, largest = Backbone._run, 3

    def limited(self: Backbone, branches, depths):
        if len(branches) > largest:
            raise torch.OutOfMemoryError("branches")
        return run(self, branches, depths)

    monkeypatch.setattr(Backbone, "_run", limited)
    for decision, whole in zip(read_all(tracer, items), expected, strict=True):
        assert decision.trajectory == pytest.approx(whole.trajectory, abs=1e-4)
        assert decision.t_scores == pytest.approx(whole.t_scores, abs=1e-4)
    largest = 0
    with pytest.raises(torch.OutOfMemoryError, match="branches"):
        read_all(tracer, items)


@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_permuting_candidates_permutes_the_scores(name):
    tracer, draw = tracer_of(name), random.Random(1)
    for item, expected in zip(
        random_items(24, 8), read_all(tracer, random_items(24, 8)), strict=True
    ):
        order = draw.sample(range(len(item.candidates)), len(item.candidates))
        moved = replace(item, candidates=tuple(item.candidates[i] for i in order))
        decision = read_all(tracer, [moved])[0]
        assert decision.trajectory == pytest.approx(expected.trajectory[order], abs=2e-5)
        assert decision.t_scores == pytest.approx(expected.t_scores[order], abs=2e-5)
        if not near(expected):
            assert decision.scores == pytest.approx(expected.scores[order], abs=2e-5)
            assert decision.answer == expected.answer


@pytest.mark.parametrize("read", ["decide", "all", "base"])
def test_the_blind_trajectory_is_that_of_the_blind_prompt_and_changes_nothing_else(read):
    tracer = tracer_of("llama")
    items = [
        replace(item, blind_prompt=" ".join(item.prompt.split()[1:]) or "w3")
        for item in random_items(27, 6, candidates=(1, 5))
    ]
    alone = read_all(tracer, [replace(i, prompt=i.blind_prompt, blind_prompt=None) for i in items])
    modes = [list(tracer.correct_many(items, read, blind=mode)) for mode in ("base", "all", "none")]
    for base, whole, none, expected in zip(*modes, alone, strict=True):
        assert whole.blind_trajectory == pytest.approx(expected.trajectory, rel=1e-6)
        assert whole.blind_t_scores == pytest.approx(expected.t_scores, rel=1e-6)
        assert base.blind_trajectory is base.blind_t_scores is None
        assert none.blind_scores is none.blind_trajectory is None
        assert whole.blind_scores == pytest.approx(base.blind_scores, abs=1e-5)
        np.testing.assert_array_equal(np.isnan(whole.trajectory), np.isnan(base.trajectory))
        assert "blind_trajectory" not in base.to_dict(full=True)
        for other in (whole, none):
            assert other.scores == pytest.approx(base.scores, abs=1e-5)
            assert other.operator == base.operator
    (other,) = tracer.correct_many(random_items(29, 1), read, blind="all")
    assert other.blind_scores is other.blind_trajectory is other.blind_t_scores is None


# --- precision ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_packed_road_is_as_accurate_as_the_plain_one(name, dtype):
    model = build(name, dtype=dtype)
    tracer, items = Tracer(model, tokenizer(), invariant=2.0), random_items(28, 8)
    assert tracer.backbone.road == "packed"
    packed = np.concatenate([d.trajectory for d in read_all(tracer, items)])
    tracer.model.backbone = tracer.backbone.on("plain")
    plain = np.concatenate([d.trajectory for d in read_all(tracer, items)])
    truth = np.array(
        [
            reference.candidate_scores(*read)
            for e in tracer.encode(items)
            for read in reference.read_item(
                model, FAMILIES[name].blocks, e.prompt.sequences, e.prompt.boundaries
            )
        ]
    )
    error, allowed = (np.sqrt(np.mean((x - truth) ** 2)) for x in (packed, plain))
    assert error <= allowed * 1.1 + torch.finfo(dtype).eps
    assert allowed < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_logits_are_not_rounded(dtype):
    # Some logits differ in float32 but are equal in half precision.
    model = build("llama", dtype=dtype)
    items = random_items(29, 4)
    exact = Tracer(model, tokenizer(), invariant=2.0)
    rounded = Tracer(model, tokenizer(), invariant=2.0, head_dtype="model")
    a = np.concatenate([d.trajectory for d in read_all(exact, items)])
    b = np.concatenate([d.trajectory for d in read_all(rounded, items)])
    assert 0 < np.abs(a - b).max() < 0.5
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits = exact.readout.logits(hidden)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.to(dtype).float())


# --- faults ---


@pytest.mark.parametrize("block", [0, 3])
@pytest.mark.parametrize("read", ["decide", "all", "base"])
def test_nan_weights_are_an_error_that_names_the_depth(block, read):
    model = build("llama")
    tracer = Tracer(model, tokenizer(), theta=OPEN, invariant=2.0)
    with torch.no_grad():
        model.model.layers[block].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"depth \d") as caught:
        list(tracer.correct_many(random_items(30, 3), read=read))
    assert block < caught.value.depth <= DEPTH
    if read == "all":
        assert caught.value.depth == block + 1  # the first depth with non-finite values
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("read", ["decide", "all", "base"])
def test_a_non_finite_weight_or_logit_of_any_token_is_an_error(value, read, monkeypatch):
    model = build("llama")
    tracer, pieces = Tracer(model, tokenizer(), invariant=2.0), _Float32Head._by_piece

    def spoilt(head, rows):
        for logits in pieces(head, rows):
            yield logits.index_fill(-1, torch.tensor([329]), value)

    with monkeypatch.context() as patch:
        patch.setattr(_Float32Head, "_by_piece", spoilt)
        with pytest.raises(NonFiniteError):
            tracer.correct("w5 w6", ["w7", "w8"], read=read)
    with torch.no_grad():
        model.model.norm.weight[:] = value
    with pytest.raises(NonFiniteError, match=f"depth {DEPTH}"):
        Tracer(model, tokenizer(), invariant=2.0)


@pytest.mark.parametrize("head", ["plain", "bias", "hook"])
def test_a_float32_head_agrees_with_the_model_for_any_number_of_rows(head):
    model = build("llama")
    model.lm_head = torch.nn.Linear(model.config.hidden_size, 331, bias=head == "bias")
    if head == "hook":
        model.lm_head.register_forward_hook(lambda _, __, logits: 2 * logits)
    readout = Tracer(model, tokenizer(), invariant=2.0).readout
    hidden = torch.randn(300, model.config.hidden_size)
    every = readout.logits(hidden)
    with torch.no_grad():
        expected = model.lm_head(model.model.norm(hidden))
    torch.testing.assert_close(every, expected, atol=1e-5, rtol=0)
    for rows in (1, 7, 128):
        torch.testing.assert_close(readout.logits(hidden[:rows]), every[:rows], atol=1e-6, rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1.0])
def test_an_invalid_invariant_is_refused(value):
    with pytest.raises(InvariantError, match="finite"):
        Tracer(build("llama"), tokenizer(), invariant=value)


def test_another_theta_is_another_tracer_of_the_same_model():
    from lastword.lab.demo import items

    tracer, item = Tracer.demo(), items()[0]
    for name in ("theta", "invariant"):
        with pytest.raises(AttributeError):
            setattr(tracer, name, None)
    other = tracer.with_theta(replace(tracer.theta, tau_dim=1000.0))
    assert other.model is tracer.model and other.invariant == tracer.invariant
    decisions = [t.correct(item.prompt, item.candidates) for t in (tracer, other)]
    assert [d.regime for d in decisions] == ["candidate-space", "scalar"]
    assert other.describe()["theta"]["tau_dim"] == 1000
