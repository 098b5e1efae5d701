"""The slow reference against hand-computed numbers, then the package against the reference."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import reference
import torch
from families import DEPTH, FAMILIES, VOCAB, build, random_items, tokenizer

from lastword import Decision, Item, Theta, Tracer
from lastword.decide.batch import Scope
from lastword.model.weights.invariant import model_invariant
from lastword.rule.scorer import Scorer, top_k
from lastword.rule.theta import ScorerTheta
from lastword.rule.tile import Tile
from lastword.text.tokens import encode

# --- the reference itself, by hand ---


# Two anchors, two features, one token in each top: Omega, evidence and z_T can be listed by hand.
OUTSIDE = ("clip", "floor", "final")
SMALL = {"anchors": (0.5, 1.0), "features": (0.5, 1.0), "k_min": 1, "quorum": 0.5}
EARLY, LATE = np.array([0.1, 0.6, 0.3]), np.array([0.2, 0.2, 0.6])
W = 1 / (1 + math.exp(0.5))  # weight of depth 1 of 2, next to exp(1)
LOW = 0.5 + 0.5 / (1 + math.exp(2.5))  # alpha at h~ = 0
HIGH = 0.5 + 0.5 / (1 + math.exp(-2.5))  # alpha at h~ = 1


# Omega = {1, 2}: 1 leads at depth 1, 2 at depth 2. h(1) = 0 (it fell), h(0) = h(2) = 0.8 log 2.
# With a quorum of both anchors no token leads twice: h~ is over V, and only token 1 is at 0.
@pytest.mark.parametrize(
    ("values", "alpha"),
    [
        ({"outside": "floor"}, (LOW, LOW, HIGH)),
        ({"outside": "clip"}, (HIGH, LOW, HIGH)),
        ({"outside": "final"}, (0.0, LOW, HIGH)),
        ({"floor": "final"}, (HIGH - 0.5, LOW - 0.5, HIGH - 0.5)),
        ({"outside": "floor", "floor": "final"}, (LOW - 0.5, LOW - 0.5, HIGH - 0.5)),
        *(({"outside": mode, "quorum": 1.0}, (HIGH, LOW, HIGH)) for mode in OUTSIDE),
    ],
)
def test_scorer_on_a_vocabulary_of_three(values, alpha):
    z = np.log(np.stack([[1 / 3] * 3, EARLY, LATE]))
    mixed = LATE * (EARLY / LATE) ** (np.array(alpha) * W)
    logits = reference.mixed_logits(z, ScorerTheta(**SMALL | values))
    expected = np.log(mixed / mixed.sum())
    assert reference.log_softmax(logits) == pytest.approx(expected, rel=1e-12)


def test_a_sharp_middle_overrides_an_undecided_end():
    # L = 6, window 3..4. Depth 4 is certain of candidate 2; the end is nearly flat with 0 first.
    flat, sharp, end = [-2.0] * 3, [-9.0, -8.0, -1.0], [-1.0, -1.01, -1.02]
    S = np.array([flat, flat, flat, [-3.0, -2.0, -2.5], sharp, flat, end]).T
    answer = reference.decide(S, None, Theta(), 5.0)
    assert (answer.regime, answer.operator) == ("candidate-space", "decisive")
    assert (answer.decisive_layer, answer.base_index, answer.index) == (4, 0, 2)
    log_ratio, holds = answer.gates["log_margin_ratio"]
    assert holds and log_ratio == pytest.approx(math.log(7 / 0.01))
    refused = reference.decide(S, None, Theta(tau_logr=10.0), 5.0)
    assert (refused.regime, refused.operator, refused.index) == ("candidate-space", "base", 0)


def test_depths_are_the_inputs_of_blocks_and_the_last_is_not_normed_twice():
    model = build("llama").double()
    fed = [1, 40, 7, 200, 33]
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([fed]), output_hidden_states=True).hidden_states
        lens = [model.lm_head(model.model.norm(h))[0].numpy() for h in hidden[:-1]]
        last = model.lm_head(hidden[-1])[0].numpy()  # transformers has already normed it
    z = reference.depth_logits(model, FAMILIES["llama"].blocks, fed)
    assert np.abs(z - np.stack([*lens, last])).max() < 1e-4
    again = model.lm_head(model.model.norm(hidden[-1]))[0].detach().numpy()
    assert np.abs(z[-1] - again).max() > 0.1


# --- the package against the reference ---

COMPARED = "llama mistral-sliding qwen3 gemma2 gpt_oss opt-projected bloom cohere".split()
BAND = 1e-4  # method, section 9, fp32
# On random models, gates of the default Theta seldom all hold; these often do.
OPEN = {"tau_logr": -2.0, "tau_H": 0.1, "gamma": -5.0}


@cache
def readings(name: str) -> list[tuple[Item, list[tuple[np.ndarray, list[int]]]]]:
    """Return items and the model's logits for them, from one pass per candidate."""
    sizes = ((1, 1), (2, 2), (2, 2), (3, 3), (3, 3), (4, 4), (5, 5))
    items = [random_items(40 + i, 1, candidates=size)[0] for i, size in enumerate(sizes)]
    encoded: Any = encode(items, tokenizer(), theta=Theta(), context=None)
    return [
        (
            e.item,
            reference.read_item(
                build(name), FAMILIES[name].blocks, e.prompt.sequences, e.prompt.boundaries
            ),
        )
        for e in encoded
    ]


@cache
def scored(name: str, scorer: ScorerTheta) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Return S and t of each item, and the minimum distance of rounding from another Omega."""
    return [
        (
            np.array([reference.candidate_scores(z, tokens) for z, tokens in read]),
            np.array([reference.trajectory_score(z, tokens, scorer) for z, tokens in read]),
            min(reference.quorum_gap(z, scorer) for z, _ in read),
        )
        for _, read in readings(name)
    ]


@cache
def compared(name: str, theta: Theta, invariant: float) -> list[tuple[Decision, reference.Answer]]:
    tracer = Tracer(build(name), tokenizer(), theta=theta, invariant=invariant)
    decisions = tracer.correct_many([item for item, _ in readings(name)], read="all")
    answers = []
    for S, t, gap in scored(name, theta.scorer):
        answers.append(reference.decide(S, t, theta, invariant))
        answers[-1].quorum_gap = gap
    return list(zip(decisions, answers, strict=True))


def settled(answer: reference.Answer) -> bool:
    """Return True if rounding cannot change the scorer's Omega."""
    return answer.quorum_gap > 2e-5


FIELDS = ("regime", "operator", "index", "base_index", "tied", "mixing", "decisive_layer")


def assert_agree(pairs: list[tuple[Decision, reference.Answer]]) -> None:
    """Require equal numbers, and equal decisions outside the rounding band; few may be inside."""
    inside = 0
    for decision, answer in pairs:
        assert decision.trajectory == pytest.approx(answer.trajectory, abs=1e-4)
        assert decision.d_eff == pytest.approx(answer.d_eff, abs=1e-4)
        if settled(answer):
            assert decision.t_scores == pytest.approx(answer.t_scores, abs=1e-4)
        if answer.near(BAND) or not settled(answer):
            inside += 1
            continue
        for name in FIELDS:
            assert getattr(decision, name) == getattr(answer, name), name
        assert decision.scores == pytest.approx(answer.scores, abs=2e-4)
        for name, (value, holds) in answer.gates.items():
            assert decision.gates[name].holds == holds
            assert decision.gates[name].value == pytest.approx(value, abs=2e-3)
    assert inside <= len(pairs) // 3, f"{inside} of {len(pairs)} inside the rounding band"


@pytest.mark.parametrize("invariant", [0.5, 2.0])
@pytest.mark.parametrize("name", COMPARED)
def test_all_decisions_agree_with_the_reference(name, invariant):
    assert_agree(compared(name, Theta(), invariant))
    assert_agree(compared(name, Theta(**OPEN), invariant))


def test_the_comparison_covers_all_operators_and_both_sides_of_all_gates():
    answers = [
        answer
        for name in COMPARED
        for theta in (Theta(), Theta(**OPEN))
        for invariant in (0.5, 2.0)
        for _, answer in compared(name, theta, invariant)
        if not answer.near(BAND) and settled(answer)
    ]
    assert {a.operator for a in answers} == {"base", "decisive", "mix", "early"}
    assert {np.sign(a.mixing) for a in answers if a.mixing is not None} == {-1, 0, 1}
    outcomes = {(name, holds) for a in answers for name, (_, holds) in a.gates.items()}
    names = ("changes", "log_margin_ratio", "entropy", "sharper", "shift", "confidence")
    assert outcomes == {(name, holds) for name in names for holds in (True, False)}


VARIANTS = [
    *({"scorer": {"outside": mode, "k_min": 12}} for mode in OUTSIDE),
    {"scorer": {"outside": "floor", "floor": "final"}},
    {"scorer": {"outside": "clip", "floor": "final", "k_min": 3}},
    {"scorer": {"outside": "final", "floor": "final", "k_min": 3}},  # Omega is often empty
    {"scorer": {"anchors": [1.0], "features": [1.0], "k_min": 1, "quorum": 1.0}},
    {"scorer": {"features": [0.4, 1.0], "weights": [1.0, 0.0, 2.0], "k_fraction": 0.5}},
    {"scorer": {"lambda_0": 0.0, "gamma_alpha": 20.0, "k_min": 500}},
    {"eta": 0.5},
    {"eta": 0.0},
    {"eta": 1.75},
    {"rho_minus": 0.2, "rho_plus": 0.7, "tau_dim": 1.2},
    {"tau_dim": 1.0, "tau_logr": -1.0, "tau_H": 0.0, "eps_H": 5.0},
    {"tau_dim": 100.0, "tau_I": 3.0},
]


@pytest.mark.parametrize("values", VARIANTS, ids=str)
def test_all_switches_and_constants_agree_with_the_reference(values):
    assert_agree(compared("llama", Theta.from_dict(values), 2.0))


def test_one_pass_gives_t_of_all_six_readings():
    theta = Theta.from_dict({"scorer": {"k_min": 12}})
    tracer = Tracer(build("llama"), tokenizer(), theta=theta, invariant=2.0)
    encoded = tracer.encode([item for item, _ in readings("llama")])
    decisions = list(tracer.correct_encoded(encoded, Scope("all", readings=True)))
    assert not next(tracer.correct_encoded(encoded, Scope("all"))).t_readings
    pairs = [(outside, floor) for outside in OUTSIDE for floor in ("anchor", "final")]
    assert list(decisions[0].t_readings) == [f"{outside}-{floor}" for outside, floor in pairs]
    for outside, floor in pairs:
        scorer = replace(theta.scorer, outside=outside, floor=floor)
        for decision, (_, t, gap) in zip(decisions, scored("llama", scorer), strict=True):
            if gap > 2e-5:
                assert decision.t_readings[scorer.reading] == pytest.approx(t, abs=1e-4)


@pytest.mark.parametrize("values", VARIANTS[:9], ids=str)
def test_t_does_not_wait_for_the_device_and_is_the_same_there(values, monkeypatch):
    scorer = Scorer(Theta.from_dict(values), DEPTH, VOCAB)
    draw = torch.Generator().manual_seed(0)
    # Similar depths, so that tokens recur, in steps of a quarter, so that many tie at the k-th
    # place.
    common = torch.randn(40, VOCAB, generator=draw)
    common[20:] = 0
    noise = {depth: torch.randn(40, VOCAB, generator=draw) for depth in scorer.depths}
    steps = {d: ((common * 2 + z) * 4).round() / 4 for d, z in noise.items()}
    sizes = scorer.recurring(steps).sum(dim=-1)  # sizes of Omega
    assert sizes.max() > 1 and (scorer.k > 3 or sizes.min() == 0 or sizes.max() == scorer.k)
    row, token = torch.arange(40), torch.randint(VOCAB, (40,), generator=draw)

    def tile(device: str) -> Tile:
        logits = {depth: z.to(device) for depth, z in steps.items()}
        log_z = {depth: z.logsumexp(-1, keepdim=True) for depth, z in logits.items()}
        return Tile(logits, log_z, {}, row.to(device), token.to(device))

    expected = scorer.log_probs(tile("cpu"))
    assert scorer.log_probs(tile("meta")).is_meta  # raises if a value is read
    monkeypatch.setattr("lastword.rule.scorer.answers_at_once", lambda _: False)
    assert scorer.log_probs(tile("cpu")).numpy() == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize("vocabulary", [2_000, 2_013])
@pytest.mark.parametrize("steps", [1, 1_000_000])  # per unit: few make many ties
def test_the_top_k_of_a_large_vocabulary(vocabulary, steps):
    z = torch.randn(30, vocabulary, generator=torch.Generator().manual_seed(0))
    z = (z * steps).round() / steps
    z[:5, 100:] = -torch.inf  # masked tokens
    largest = np.argsort(-z.numpy(), axis=1, kind="stable")[:, :60]  # ties: the lowest id first
    expected = np.zeros(z.shape, bool)
    np.put_along_axis(expected, largest, True, axis=1)
    assert np.array_equal(top_k(z, 60).numpy(), expected)


def test_switches_of_the_scorer_change_t():
    # Otherwise the variants above would test nothing.
    scores = [
        np.concatenate([d.t_scores for d, _ in compared("llama", Theta.from_dict(v), 2.0)])
        for v in VARIANTS[:9]
    ]
    for i, one in enumerate(scores):
        assert all(np.abs(one - other).max() > 1e-3 for other in scores[:i])


@pytest.mark.parametrize("block", ["zero", "depth"])
@pytest.mark.parametrize("rows", ["stored", "input"])
@pytest.mark.parametrize("norm", ["stored", "effective"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_invariant_agrees_with_the_reference(name, norm, rows, block):
    values = {"invariant": {"norm": norm, "output_rows": rows, "block": block}}
    theta, model = Theta.from_dict(values), build(name)
    tensors = {
        n.removeprefix("model.").removesuffix(".weight"): p.detach().double().numpy()
        for n, p in model.named_parameters()
        if p.ndim <= 2
    }
    offset = 1.0 if name == "gemma2" else 0.0
    expected = reference.invariant(tensors, DEPTH, theta, offset=offset)
    assert model_invariant(model, theta=theta).value == pytest.approx(expected, rel=1e-9)
