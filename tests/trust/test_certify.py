"""Certificates: every formula against its naive definition, the edges, validity by simulation."""

from math import ceil, comb, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import Kind, Population, at, labelled

from lastword.errors import InputError
from lastword.trust.certify import Terms, certified, certify, choose, needed
from lastword.trust.deferral import THRESHOLDS, curve, defer
from lastword.trust.labelled import Labelled
from lastword.trust.policy import MARGINS, OFF, Policy, chains, scalar_operator
from lastword.trust.testing import fixed_sequence

OPERATORS = ("base", "decisive", "mix", "early")


def items(size: int, seed: int) -> Labelled:
    """Anything: ties, half credits, every operator."""
    rng = np.random.default_rng(seed)
    operators = rng.choice(OPERATORS[:3], size)
    overrides = (operators != "base") & (rng.random(size) < 0.8)
    mc1_base = rng.choice([0, 0.5, 1], size, p=[0.45, 0.1, 0.45])
    changed = rng.choice([0, 0.5, 1], size, p=[0.3, 0.1, 0.6])
    return Labelled(
        mc1_base=mc1_base,
        mc1=np.where(overrides, changed, mc1_base),
        overrides=overrides,
        operators=operators,
        margins=rng.choice([*MARGINS, 0.3, 7.0], size),
        base_confidence=rng.choice([0.2, 0.35, 0.5, 0.9, 1.0], size),
        confidence=rng.choice([0.2, 0.35, 0.5, 0.9, 1.0], size),
    )


# --- the naive reference: lists, loops, exact tails as sums -----------------------------------


def at_most(k: int, n: int, p: float) -> float:
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def at_least(k: int, n: int) -> float:
    return sum(comb(n, i) for i in range(k, n + 1)) / 2**n


def naive_counts(data: Labelled, operators: tuple[str, ...], margin: float) -> tuple[int, int]:
    fixed = broken = 0
    for i in range(len(data)):
        stands = data.overrides[i] and data.operators[i] in operators and data.margins[i] >= margin
        base_right = data.mc1_base[i] > 0  # a tie is right for the base
        new_right = data.mc1[i] == 1  # and wrong for what is shown
        broken += bool(stands and base_right and not new_right)
        fixed += bool(stands and not base_right and new_right)
    return fixed, broken


def naive_certified(data: Labelled, alpha: float, delta: float, gain: bool) -> dict:
    """The certified policies: (operators, margin) to (fixed, broken)."""
    found: dict = {}
    for operators in (("decisive",), ("mix",), ("decisive", "mix")):
        counts = {m: naive_counts(data, operators, m) for m in MARGINS}
        level = delta / 2 / 3 if gain else delta / 3
        kept, gaining = [], []
        for margin in sorted(MARGINS, reverse=True):
            if at_most(counts[margin][1], len(data), alpha) > level:
                break
            kept.append(margin)
        for margin in sorted(MARGINS):
            fixed, broken = counts[margin]
            if gain and at_least(fixed, fixed + broken) > level:
                break
            gaining.append(margin)
        found |= {(operators, m): counts[m] for m in set(kept) & set(gaining)}
    return found


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.2, 0.4]), st.booleans())
def test_what_is_certified_and_chosen_is_the_definition(seed, alpha, gain):
    data = items(150, seed)
    finding = certify(data, "mix", Terms(alpha, 0.3, gain))
    kept = {
        (t.policy.operators, t.policy.margin): (t.fixed, t.broken)
        for t in finding.trials
        if t.certified
    }
    assert kept == naive_certified(data, alpha, 0.3, gain)
    order = {p: (f - k, -k, p[1], -len(p[0])) for p, (f, k) in kept.items() if f > k}
    if finding.chosen is None:
        assert not order and finding.policy == OFF
    else:
        chosen = finding.policy
        assert order[chosen.operators, chosen.margin] == max(order.values())


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_breaking_grows_as_the_margin_falls_and_what_is_withheld_is_the_base(seed):
    data = items(60, seed)
    for chain in chains("mix"):
        broken = [int(data.broken(p).sum()) for p in chain]
        assert broken == sorted(broken)
        for policy in chain:
            confidence, right = data.shown(policy)
            held = data.overrides & ~data.stands(policy)
            assert np.array_equal(confidence[held], data.base_confidence[held])
            assert np.array_equal(right[held], data.mc1_base[held] == 1)
            assert np.array_equal(confidence[~held], data.confidence[~held])
            assert not (data.fixed(policy) & data.broken(policy)).any()
    assert not data.stands(OFF).any()


def test_the_family_is_three_chains_of_what_the_model_has():
    for scalar in ("mix", "early"):
        family = chains(scalar)
        assert [c[0].operators for c in family] == [("decisive",), (scalar,), ("decisive", scalar)]
        assert all([p.margin for p in c] == [4, 3, 2, 1.5, 1, 0.5, 0.25, 0] for c in family)
    assert (scalar_operator(1.5, 1.0), scalar_operator(1.0, 1.0)) == ("mix", "early")


def test_a_policy_says_which_rule_an_override_fails():
    policy = Policy(("decisive",), 1.0)
    assert policy.withholds("decisive", 1.0) is None
    assert policy.withholds("decisive", 0.99) == "a margin of at least 1 nats"
    assert policy.withholds("mix", 9.0) == "only decisive may override"
    assert OFF.withholds("decisive", 9.0) == "nothing may override"
    told = [policy.withholds(o, m) is None for o in OPERATORS for m in (0.5, 1.0, 3.0)]
    names = np.array([o for o in OPERATORS for _ in range(3)])
    assert policy.lets(names, np.array([0.5, 1.0, 3.0] * 4)).tolist() == told
    for operators, margin in ((("decisive", "all"), 0.0), (("mix",), -1.0), (("mix",), np.inf)):
        with pytest.raises(InputError, match="a policy"):
            Policy(operators, margin)


@pytest.mark.parametrize(
    ("alpha", "delta", "gain"), [(0.02, 0.05, False), (0.05, 0.15, True), (0.5, 0.75, False)]
)
def test_the_least_number_of_items_is_the_least(alpha, delta, gain):
    terms = Terms(alpha, delta, gain)
    assert terms.least == ceil(round(log(terms.level) / log(1 - alpha), 9))
    assert at_most(0, terms.least, alpha) <= terms.level < at_most(0, terms.least - 1, alpha)
    perfect = Population.of([Kind(1.0, False, True, "decisive")])
    data = perfect.draw(terms.least, np.random.default_rng(0))
    chosen = certify(data, "mix", Terms(alpha, delta)).chosen
    assert chosen is not None and chosen.fixed == terms.least and chosen.policy.margin == 4
    with pytest.raises(InputError, match=f"at least {terms.least} are needed"):
        certify(perfect.draw(terms.least - 1, np.random.default_rng(0)), "mix", terms)
    with pytest.raises(InputError, match="0 labelled items"):
        certify(labelled([]), "mix", terms)


def test_fifty_nine_items_without_a_break_are_what_one_test_alone_would_take():
    one_chain = Terms(0.05, 0.15)
    assert one_chain.level == pytest.approx(0.05) and one_chain.least == 59


@pytest.mark.parametrize("name", ["alpha", "delta", "error"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan")])
def test_a_promise_is_a_share(name, value):
    with pytest.raises(InputError, match=name):
        Terms(**{name: value})


def test_where_all_is_broken_correction_stays_off_and_no_number_helps():
    data = labelled([Kind(1, True, False, "decisive")] * 300)
    finding = certify(data, "mix", Terms(0.1))
    assert finding.chosen is None and finding.needed is None and finding.policy == OFF
    assert finding.best.gain == 0  # to do nothing is the best of these


def test_where_nothing_is_overridden_there_is_nothing_to_certify():
    finding = certify(labelled([Kind(1, True, True)] * 300), "early", Terms(0.1))
    assert finding.chosen is None and finding.needed is None
    assert {t.overrides for t in finding.trials} == {0}


def test_a_tie_for_first_counts_against_us():
    data = vars(labelled([Kind(1, True, True, "decisive")] * 4))
    ties = Labelled(
        **data | {"mc1_base": np.array([0.5, 0.5, 0.0, 1.0]), "mc1": np.array([1.0, 0.0, 0.5, 0.5])}
    )
    policy = Policy(("decisive",), 0.0)
    assert ties.fixed(policy).tolist() == [False] * 4
    assert ties.broken(policy).tolist() == [False, True, False, True]
    assert ties.shown(policy)[1].tolist() == [True, False, False, False]
    assert ties.shown(OFF)[1].tolist() == [False, False, False, True]


def test_needed_is_about_the_number_at_which_it_passes():
    few = [Kind(1, False, True, "decisive")] * 12 + [Kind(1, True, False, "decisive")] * 3
    data = labelled(few + [Kind(1, True, True)] * 285)  # 1% broken, 4% fixed
    terms = Terms(0.02)
    finding = certify(data, "mix", terms)
    assert finding.chosen is None and finding.needed is not None
    for size, passes in ((finding.needed, True), (int(0.85 * finding.needed), False)):
        fixed = np.full((3, 8), int(12 * size / 300))
        broken = np.full((3, 8), ceil(3 * size / 300))
        assert (choose(certified(fixed, broken, size, terms), fixed, broken) >= 0) == passes
    nothing = np.zeros((3, 8), int)
    assert needed(nothing, nothing, 300, terms) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_a_fixed_sequence_stops_at_the_first_that_stands(p_values, level):
    fallen = fixed_sequence(np.array(p_values), level).tolist()
    stop = next((i for i, p in enumerate(p_values) if p > level), len(p_values))
    assert fallen == [i < stop for i in range(len(p_values))]


# --- answer or defer --------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.6, 0.8]))
def test_the_threshold_is_the_smallest_that_holm_certifies(seed, error):
    data, policy = items(80, seed), Policy(("decisive", "mix"), 0.5)
    confidence, right = data.shown(policy)
    p_values = []
    for tau in THRESHOLDS:
        given_ = [r for c, r in zip(confidence, right, strict=True) if c >= tau]
        p_values.append(at_most(sum(not r for r in given_), len(given_), error))
    kept = set()
    for rank, place in enumerate(sorted(range(20), key=lambda i: p_values[i])):
        if p_values[place] * (20 - rank) > 0.1 / 25:  # 24 policies and none
            break
        kept.add(place)
    found = defer(data, policy, error, 0.1)
    assert found.threshold == (THRESHOLDS[min(kept)] if kept else None)
    if found.threshold is not None:
        wrong = (~right)[confidence >= found.threshold]
        assert (found.answered, found.wrong) == (len(wrong), wrong.sum())


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_the_curve_is_the_mean_over_every_order_of_equals(pairs):
    from itertools import permutations

    confidence, right = (np.array(column) for column in zip(*pairs, strict=True))
    risks = [
        np.cumsum(~right[list(order)]) / np.arange(1, len(pairs) + 1)
        for order in permutations(range(len(pairs)))
        if (np.diff(confidence[list(order)]) <= 0).all()
    ]
    drawn = curve(confidence, right)
    assert drawn.risk == pytest.approx(np.mean(risks, axis=0))
    assert drawn.coverage == pytest.approx(np.arange(1, len(pairs) + 1) / len(pairs))
    assert drawn.area == pytest.approx(np.mean(risks))


def test_the_curve_of_nothing_is_undefined():
    empty = curve(np.array([]), np.array([], dtype=bool))
    assert np.isnan(empty.area) and empty.coverage.size == 0


# --- validity: of many certificates, few may be wrong -----------------------------------------

REDRAWS, DELTA = 2000, 0.05
MOST = DELTA + 3.7 * (DELTA * (1 - DELTA) / REDRAWS) ** 0.5  # missed by chance once in 10,000


def breaking(rate: float) -> Population:
    """Each operator breaks this share of all items, at margins that no threshold parts."""
    return Population.of(
        [
            Kind(share, base, not base, operator)
            for operator in ("decisive", "mix")
            for share, base in ((rate, True), (2 * rate, False))
        ]
    )


def chosen(population: Population, items: int, terms: Terms, rule=certified) -> list[Policy]:
    """The policy that each of many samples would have let through."""
    fixed, broken = population.counts(chains("mix"), items, REDRAWS, np.random.default_rng(7))
    places = choose(rule(fixed, broken, items, terms), fixed, broken)
    policies = [*(p for chain in chains("mix") for p in chain), OFF]  # -1 is the last
    return [policies[place] for place in places]


def wrong_certificates(rate: float, rule=certified) -> float:
    """Share of samples whose policy truly breaks more than alpha = 0.05."""
    population = breaking(rate)
    policies = chosen(population, 400, Terms(0.05, DELTA), rule)
    return float(np.mean([population.broken(policy) > 0.05 for policy in policies]))


@pytest.mark.parametrize("rate", [0.049, 0.0501, 0.15])
def test_few_certificates_are_wrong(rate):
    assert wrong_certificates(rate) <= MOST


def test_a_plain_empirical_threshold_fails_the_same_test():
    def plain(fixed, broken, items, terms):
        """Whatever broke at most alpha of the items that were seen."""
        return broken / items <= terms.alpha

    assert wrong_certificates(0.0501, plain) > MOST + 0.2


def test_many_samples_at_once_are_decided_as_one_by_one():
    population, terms = breaking(0.02), Terms(0.05, DELTA, gain=True)
    policies = chosen(population, 400, terms)
    drawn = np.random.default_rng(7).multinomial(400, population.shares, size=REDRAWS)
    for place in range(10):
        data = at(population.types, np.repeat(np.arange(len(drawn[place])), drawn[place]))
        assert certify(data, "mix", terms).policy == policies[place]
    assert len(set(policies)) > 1


def test_few_gains_are_none():
    loses = Population.of(
        [Kind(0.1, True, False, o) for o in ("decisive", "mix")]
        + [Kind(0.098, False, True, o) for o in ("decisive", "mix")]
    )
    asked = chosen(loses, 300, Terms(0.4, DELTA, gain=True))
    unasked = chosen(loses, 300, Terms(0.4, DELTA))
    assert np.mean([policy != OFF for policy in asked]) <= MOST
    assert np.mean([policy != OFF for policy in unasked]) > 0.3  # half of them look like a gain


def test_few_thresholds_let_more_errors_through():
    bands = [(0.31, 0.5), (0.52, 0.3), (0.71, 0.101), (0.93, 0.05)]  # confidence, share wrong
    population = Population.of(
        [
            Kind(0.25 * share, right, right, confidence=c, base_confidence=c)
            for c, wrong in bands
            for share, right in ((wrong, False), (1 - wrong, True))
        ]
    )
    error = population.error(OFF, 0.55) * 0.99
    rng, redraws, wrong, plain = np.random.default_rng(5), 200, 0, 0
    for _ in range(redraws):
        data = population.draw(600, rng)
        threshold = defer(data, OFF, error, DELTA).threshold
        wrong += threshold is not None and population.error(OFF, threshold) > error
        # The control: a threshold above which few enough were seen to be wrong.
        seen = [(data.mc1 < 1)[data.confidence >= tau].mean() for tau in (0.05, 0.35, 0.55)]
        plain += any(share <= error for share in seen)
    most = DELTA + 3.7 * (DELTA * (1 - DELTA) / redraws) ** 0.5
    assert wrong / redraws <= most < plain / redraws
