"""Certificates: formulas against naive definitions, edge cases, validity by simulation."""

from dataclasses import replace
from math import ceil, comb, e, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import Kind, at, changed, counted, in_groups, labelled
from scipy.stats import beta, binom

from lastword.errors import InputError
from lastword.trust.claims import Trial, certify, judge
from lastword.trust.evidence import Evidence
from lastword.trust.labelled import Labelled, MethodAnswers
from lastword.trust.policy import CERTIFIABLE, OFF, Policy, family, scalar_operator
from lastword.trust.terms import Terms

MARGINS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0)
SURE = (0.2, 0.35, 0.5, 0.9, 1.0)


def items(size: int, seed: int, group_size: int = 1) -> Labelled:
    """Return random items with ties, half credits and both operators."""
    rng = np.random.default_rng(seed)
    operators = rng.choice(("base", "decisive", "mix"), size)
    overrides = (operators != "base") & (rng.random(size) < 0.8)
    base = rng.choice([0, 0.5, 1], size, p=[0.45, 0.1, 0.45])
    mc1 = np.where(overrides, rng.choice([0, 0.5, 1], size, p=[0.3, 0.1, 0.6]), base)
    margins = rng.choice([*MARGINS, 0.3, 7.0], size)
    answers = MethodAnswers(mc1, rng.choice(SURE, size), overrides, operators, margins)
    drawn = np.unique(rng.integers(0, size // group_size, size), return_inverse=True)[1]
    groups = drawn if group_size > 1 else np.arange(size)
    return Labelled(base, rng.choice(SURE, size), {"trace": answers}, groups)


# --- the naive reference: lists, loops, exact tails as sums -----------------------------------


def at_most(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def outcomes(data: Labelled, margin: float) -> list[tuple[bool, bool]]:
    """Return for each item if it is broken, and if it is fixed, from a margin on."""
    flags, trace = [], data.methods["trace"]
    for i in range(len(data)):
        stands = trace.overrides[i] and trace.margins[i] >= margin
        base = bool(data.mc1_base[i] > 0)  # a tie counts as right for the base
        new = trace.mc1[i] == 1  # and as wrong for the answer shown
        flags.append((bool(stands and base and not new), bool(stands and not base and new)))
    return flags


def naive_mean_test(values: list[float], rate: float, exact: bool) -> float:
    """Return the p-value of H0: the mean is at least `rate`; values are in [0, 1]."""
    n, mean = len(values), sum(values) / max(len(values), 1)
    tail = at_most(ceil(round(mean * n, 9)), n, rate)
    if exact:
        return tail
    parts = [(min(mean, rate), rate), (1 - min(mean, rate), 1 - rate)]
    divergence = sum(a * log(a / b) for a, b in parts if a)
    return min(exp(-n * divergence), e * tail, 1.0)


def naive_p(data: Labelled, margin: float, terms: Terms) -> float:
    """Return the largest p-value of the promises, computed from lists of groups."""
    members: dict = {}
    for group, flags in zip(data.groups, outcomes(data, margin), strict=True):
        members.setdefault(int(group), []).append(flags)
    exact, groups = len(members) == len(data), members.values()
    broken = [sum(k for k, _ in group) / len(group) for group in groups]
    lost = [sum(k - f for k, f in group) / len(group) for group in groups if np.any(group)]
    p = naive_mean_test([(one + 1) / 2 for one in lost], 0.5, exact)
    return p if terms.promise == "gain" else max(p, naive_mean_test(broken, terms.alpha, exact))


@settings(max_examples=15)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.3, 0.4]),
    st.sampled_from(["breaks", "gain"]),
    st.sampled_from([1, 1, 2, 5]),
)
def test_certified_and_chosen_policies_agree_with_the_definition(seed, alpha, promise, group_size):
    data, terms = items(150, seed, group_size), Terms(alpha, 0.6, promise=promise)
    margins = (3.0, 2.0, 1.0, 0.25) if promise == "breaks" else (0.0,)
    if data.group_count < terms.least:
        with pytest.raises(InputError, match="at least"):
            certify(data, "mix", terms)
        return
    finding, order = certify(data, "mix", terms), {}
    assert {trial.policy for trial in finding.trials} == {
        Policy(("decisive", "mix"), margin) for margin in margins
    }
    for trial in finding.trials:
        margin, counts = trial.policy.margin, trial.evidence
        k, f = map(sum, zip(*outcomes(data, margin), strict=True))
        assert (counts.fixed, counts.broken) == (f, k)
        certified = naive_p(data, margin, terms) <= 0.6 / len(margins)
        assert trial.passes(terms) == certified
        if certified and f > k:
            order[trial.policy] = (f - k, -k, margin)
    best = max(order, key=order.__getitem__, default=OFF)
    assert finding.policy == best and finding.worth.get("net_at_least", 0) >= 0


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_a_lower_margin_breaks_more_and_withheld_overrides_show_the_base(seed):
    data = items(60, seed)
    trace, base = data.methods["trace"], data.mc1_base
    for operators in (("decisive",), ("mix",), ("decisive", "mix")):
        chain = [Policy(operators, margin) for margin in reversed(MARGINS)]
        broken = [int(changed(data, p)[1].sum()) for p in chain]
        assert broken == sorted(broken)
        for policy in chain:
            confidence, right = data.shown(policy)
            withheld = trace.overrides & ~data.stands(policy)
            assert np.array_equal(right, np.where(withheld, base, trace.mc1) == 1)
            expected = np.where(withheld, data.base_confidence, trace.confidence)
            assert np.array_equal(confidence, expected)
    assert not data.stands(OFF).any()


def test_the_methods_determine_the_policies_and_shares_sum_to_one():
    assert [(p.operators, p.margin) for p in family("early")] == [
        (("decisive", "early"), margin) for margin in (3.0, 2.0, 1.0, 0.25)
    ]
    with_probe, probes = (*CERTIFIABLE, "probe@19"), ("probe@19", "probe-trajectory")
    for methods in (("trace",), CERTIFIABLE, with_probe, probes):
        for promise in ("gain", "breaks"):
            shares = family("mix", methods, promise)
            assert sum(shares.values()) == pytest.approx(1)
            assert {p.method for p in shares} == set(methods)
            assert promise == "breaks" or {p.margin for p in shares} == {0.0}
            if "probe@19" in methods and "pmi@1" in methods:
                assert shares[Policy(("probe@19",), 0.0, "probe@19")] == pytest.approx(2 / 3)
    assert (scalar_operator(1.5, 1.0), scalar_operator(1.0, 1.0)) == ("mix", "early")


@pytest.mark.parametrize(("alpha", "delta"), [(0.02, 0.05), (0.05, 0.15)])
def test_the_minimum_number_of_items_is_exact(alpha, delta):
    terms, first = Terms(alpha, delta), delta / 4
    assert at_most(0, terms.least, alpha) <= first < at_most(0, terms.least - 1, alpha)
    data = labelled([Kind(1.0, False, True, "decisive")] * terms.least)
    chosen = certify(data, "mix", terms).chosen
    assert chosen is not None and chosen.evidence.fixed == terms.least and chosen.policy.margin == 3
    for few in (terms.least - 1, 0):
        with pytest.raises(InputError, match=f"{few} .* at least {terms.least} groups are needed"):
            certify(at(data, np.arange(few)), "mix", terms)
    # A gain needs fewer; a probe is tested on half of the groups.
    gain = Terms(promise="gain")
    assert gain.least == 5 == replace(gain, methods=("probe@3",)).least / 2
    assert certify(at(data, np.arange(5)), "mix", gain).chosen is not None


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan")])
def test_invalid_terms_and_policies_are_refused(value):
    for name in ("alpha", "delta", "error"):
        with pytest.raises(InputError, match=name):
            Terms(**{name: value})
    for operators, margin in ((("decisive", "all"), 0.0), (("mix",), -1.0), (("mix",), np.inf)):
        with pytest.raises(InputError, match="a policy"):
            Policy(operators, margin)


# --- validity: only few of many certificates may be wrong --------------------------------------

REDRAWS, DELTA = 400, 0.05
MOST = DELTA + 3.7 * (DELTA * (1 - DELTA) / REDRAWS) ** 0.5  # exceeded by chance once in 10,000


def test_few_certificates_on_groups_are_wrong_but_many_if_copies_count():
    """80 groups of five copies, of which slightly more than alpha are broken: every outcome."""
    broken = np.arange(81)
    chance = binom.pmf(broken, 80, 0.0501)

    def wrong(evidence) -> float:
        passes = [evidence(n).breaks(0.05) <= DELTA for n in broken.tolist()]
        return float(chance[passes].sum())

    assert wrong(lambda n: replace(counted(80, 0, n), items=400)) <= DELTA
    assert wrong(lambda n: counted(400, 0, 5 * n)) > 2 * DELTA


def test_few_gains_among_probe_and_corrections_are_wrong():
    methods = ("pmi@1", "batch-calibrated", "probe@19")
    terms, rng, wrong = Terms(promise="gain", methods=methods), np.random.default_rng(3), 0
    for _ in range(REDRAWS):
        base, shown = rng.random(100) < 0.5, {m: rng.random(100) < 0.5 for m in methods}
        trials = []
        for policy, share in family("mix", methods, "gain").items():
            part = np.arange(50 if policy.method == "probe@19" else 0, 100)
            trials.append(
                Trial(policy, share, Evidence.of(base[part], shown[policy.method][part], part))
            )
        wrong += judge(trials, terms).chosen is not None  # no true gain
    assert 0 < wrong / REDRAWS <= MOST


def test_a_group_is_one_draw_whatever_its_size():
    several = labelled([Kind(1, False, True, "decisive"), Kind(1, True, True)] * 150)
    policy, copies = Policy(("decisive", "mix"), 0.25), in_groups(several, 3)
    with pytest.raises(InputError, match="180 .* in 60 groups .* at least 86 groups are needed"):
        certify(in_groups(at(several, np.arange(60)), 3), "mix", Terms(0.05))
    copied, alone = (data.evidence(policy) for data in (copies, several))
    for name in ("groups", "rate", "fixed_rate", "discordant", "lost"):
        assert getattr(copied, name) == pytest.approx(getattr(alone, name)), name
    assert not copied.exact and alone.exact
    # The tests for values in [0, 1] are weaker than those for 0 or 1.
    assert copied.breaks(0.05) >= alone.breaks(0.05) * (1 - 1e-9)
    assert copied.gains() >= alone.gains() * (1 - 1e-9)


def test_the_lower_bound_of_the_net_gain_is_a_product_of_two_bounds():
    wins = 2 * beta.ppf(0.75 * 0.05, 18, 3) - 1  # 18 of the 20 changed answers are fixed
    bound = counted(400, 18, 2).gain_bound(0.05)
    assert bound == pytest.approx(wins * beta.ppf(0.25 * 0.05, 20, 381), abs=1e-9)
    close = counted(400, 15, 6)  # p = 0.039
    assert close.gains() <= 0.05 and close.gain_bound(0.05) == 0.0


def test_trials_on_different_items_rank_by_the_gain_per_item():
    policy = Policy(("pmi@1",), 0.0, "pmi@1")
    few, many = (Trial(policy, 1.0, counted(*counts)) for counts in ((50, 10, 0), (100, 15, 0)))
    assert few.gain < many.gain and few.order > many.order
