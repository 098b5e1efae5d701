"""Are certificates right as often as promised? 2,000 samples from populations with known rates.

    python experiments/trust.py [--redraws 2000]

It draws labelled items from populations whose true rates are just below, at, just above and far
above the promised one, and counts the samples whose certificate is wrong: the broken rate, the
gain, the threshold of given answers, the monitor and the drift test under 10,000 looks. Each has a
control, the naive test, which fails. Groups of five, looks at growing
labels, a family of methods and means over the tested items are included.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from populations import Kind, at, changed, labelled

from lastword.trust.automation import Automation, climb, quantiles, rungs
from lastword.trust.claims import certify
from lastword.trust.drift import Drift
from lastword.trust.labelled import Labelled
from lastword.trust.monitor import BETS
from lastword.trust.policy import BATCH, CERTIFIABLE, OFF, Policy, family
from lastword.trust.terms import Terms
from lastword.trust.testing import at_least, holm

RESULTS = Path(__file__).parent / "results"
ALPHA, DELTA = 0.05, 0.05
STEPS = 10_000
FAMILY = family("mix")
THRESHOLDS = np.round(np.arange(1, 21) * 0.05, 2)
POLICIES = [*FAMILY, OFF]  # index -1 is OFF
MARGINS = [policy.margin for policy in FAMILY]
Row = dict[str, Any]


@dataclass(frozen=True)
class Population:
    """Types of items as one labelled item each, with their shares."""

    types: Labelled
    shares: np.ndarray

    @classmethod
    def of(cls, kinds: Iterable[Kind]) -> "Population":
        """Return these kinds; the rest of the population has unchanged right answers."""
        kinds = list(kinds)
        rest = 1 - sum(k.share for k in kinds)
        assert rest > -1e-9
        kinds.append(Kind(max(rest, 0.0), True, True))
        shares = np.array([kind.share for kind in kinds])
        return cls(labelled(kinds), shares / shares.sum())

    def draw(self, items: int, rng: np.random.Generator) -> Labelled:
        places = rng.choice(len(self.shares), items, p=self.shares)
        return at(self.types, places)

    def broken(self, policy: Policy) -> float:
        return float(self.shares[changed(self.types, policy)[1]].sum())


def log_wealth(broken: Any, labelled: Any, alpha: float) -> np.ndarray:
    """Return the log of the mean over lambda of prod (1 + lambda (X - alpha)), from the start."""
    lost = np.asarray(broken)[..., None]
    good = np.asarray(labelled)[..., None] - lost
    each = lost * np.log1p(BETS / alpha * (1 - alpha)) + good * np.log1p(-BETS)
    return np.asarray(np.logaddexp.reduce(each, axis=-1) - np.log(len(BETS)))


def main() -> None:
    """Print and store the rows of every claim."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--redraws", type=int, default=2000)
    rows = []
    for row in validity(parser.parse_args().redraws):
        print(json.dumps(row), flush=True)
        rows.append(row)
    (RESULTS / "trust-validity.json").write_text(json.dumps(rows, indent=1) + "\n")


def validity(redraws: int) -> Iterator[Row]:
    """Yield the share of samples whose statement is wrong, and the control's."""
    for claim in CLAIMS:
        for row in claim(redraws):
            most = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / row["redraws"])
            yield row | {"delta": DELTA, "valid": row["wrong"] <= most}


# --- the choice of a policy, for many samples at once ---------------------------------------------


def p_values(
    fixed: np.ndarray, broken: np.ndarray, groups: int, terms: Terms, exact: bool = True
) -> np.ndarray:
    """Return the p-value of each policy's promise; counts are those of groups."""
    changed = fixed + broken
    p = at_least(0.5, broken / np.maximum(changed, 1), changed, exact)
    if terms.promise == "gain":
        return p
    return np.maximum(p, at_least(terms.alpha, broken / groups, groups, exact))


def choose(
    fixed: np.ndarray,
    broken: np.ndarray,
    groups: int,
    terms: Terms,
    shares: dict[Policy, float],
    exact: bool = True,
) -> np.ndarray:
    """Return, per sample, the position of the policy that `judge` would choose; -1 for none."""
    p = p_values(fixed, broken, groups, terms, exact)
    gain, margins = fixed - broken, np.array([policy.margin for policy in shares])
    holds = (p <= terms.delta * np.array([*shares.values()])) & (gain > 0)
    worth = np.where(holds, 1e6 * gain - broken + margins / 100, -np.inf)
    return np.where(holds.any(axis=-1), worth.argmax(axis=-1), -1)


def draw_counts(
    population: Population,
    policies: Iterable[Policy],
    items: int,
    redraws: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return F and K of every policy in many samples of `items` [redraws, policies]."""
    drawn = rng.multinomial(items, population.shares, size=redraws)
    changes = np.array([changed(population.types, policy) for policy in policies], dtype=int)
    fixed, broken = changes.swapaxes(0, 1)
    return drawn @ fixed.T, drawn @ broken.T


# --- populations --------------------------------------------------------------------------------


def flat(rate: float, fixed: float) -> Population:
    """Return a population whose overrides break and fix these shares, at any margin."""
    return Population.of(
        [Kind(s, base, not base, "decisive") for s, base in ((rate, True), (fixed, False))]
    )


def sloped(rate: float) -> Population:
    """Return a population that breaks equally at every margin, this share at the smallest."""
    at = [margin + 0.1 for margin in MARGINS]
    return Population.of(
        Kind(share / len(at), base, not base, "decisive", margin)
        for margin in at
        for share, base in ((rate, True), (2 * rate, False))
    )


def flattering(overridden: float = 0.9) -> Population:
    """Return coin-flip overrides in twenty bands of confidence: the luckiest policy looks right."""
    bands = 0.7 ** np.arange(20)
    kinds = []
    for confidence, share in zip(THRESHOLDS, bands / bands.sum(), strict=True):
        rest, coin = share * (1 - overridden) / 2, share * overridden / 32
        sure = {"confidence": confidence, "base_confidence": confidence}
        kinds += [Kind(rest, right, right, **sure) for right in (True, False)]
        kinds += [
            Kind(coin, right, not right, operator, margin + 0.1, **sure)
            for operator in ("decisive", "mix")
            for margin in MARGINS
            for right in (True, False)
        ]
    return Population.of(kinds)


# --- the claims, and how often they are wrong ----------------------------------------------------


def broken_rates(redraws: int) -> Iterator[Row]:
    """Test certificates: wrong if the policy truly breaks more than alpha."""
    rates = {"just below": 0.98, "at": 1.0, "just above": 1.02, "far above": 3.0}
    populations = {f"{name} alpha": flat(f * ALPHA, 2 * f * ALPHA) for name, f in rates.items()}
    populations["crossing alpha between two margins"] = sloped(1.6 * ALPHA)
    for name, population in populations.items():
        rng = np.random.default_rng(1)
        fixed, broken = draw_counts(population, FAMILY, 400, redraws, rng)
        places = choose(fixed, broken, 400, Terms(ALPHA, DELTA), FAMILY)
        over = np.array([population.broken(policy) for policy in POLICIES]) > ALPHA + 1e-12
        plain = np.where(broken <= ALPHA * 400, fixed - broken, -1)
        by_eye = np.where((plain >= 0).any(axis=1), plain.argmax(axis=1), -1)
        yield {
            "claim": "broken rate",
            "population": name,
            "redraws": redraws,
            "wrong": float(over[places].mean()),
            "certified": float((places >= 0).mean()),
            "control": "at most alpha of the sample is broken",
            "control wrong": float(over[by_eye].mean()),
        }


def gains(redraws: int) -> Iterator[Row]:
    """Test certified gains: wrong if no more is fixed than broken."""
    for name, fixes in (("none", 1.0), ("a small loss", 0.98), ("a large loss", 0.5)):
        population = flat(0.1, 0.1 * fixes)
        terms = Terms(delta=DELTA, promise="gain")
        shares = family("mix", promise="gain")
        fixed, broken = draw_counts(population, shares, 400, redraws, np.random.default_rng(2))
        places = choose(fixed, broken, 400, terms, shares)
        yield {
            "claim": "gain",
            "population": name,
            "redraws": redraws,
            "wrong": float((places >= 0).mean()),
            "control": "the sample gains",
            "control wrong": float(((fixed > broken).any(axis=1)).mean()),
        }


def clusters(redraws: int) -> Iterator[Row]:
    """Test groups that break whole or not at all; as single items they are certified too often."""
    for size in (2, 5, 10):
        count, rate = 400 // size, 1.02 * ALPHA
        rng, shape = np.random.default_rng(6), (redraws, len(FAMILY))
        broken = np.broadcast_to(rng.binomial(count, rate, redraws)[:, None], shape)
        fixed = np.broadcast_to(rng.binomial(count, 0.3, redraws)[:, None], shape)
        terms = Terms(ALPHA, DELTA)
        wrong = choose(fixed, broken, count, terms, FAMILY, exact=False) >= 0
        alone = choose(fixed * size, broken * size, count * size, terms, FAMILY) >= 0
        yield {
            "claim": "broken rate",
            "population": f"groups of {size} that break together, just above alpha",
            "redraws": redraws,
            "wrong": float(wrong.mean()),
            "control": "items counted as independent",
            "control wrong": float(alone.mean()),
        }


def sequential_looks(redraws: int) -> Iterator[Row]:
    """Test 100 to 1,000 labels, in steps of 100; one wrong certificate is enough."""
    population, looks = flat(1.02 * ALPHA, 4 * ALPHA), 10
    rng = np.random.default_rng(7)
    counts = [draw_counts(population, FAMILY, 100, redraws, rng) for _ in range(looks)]
    wrong = np.zeros((2, redraws), dtype=bool)
    fixed, broken = (np.cumsum([c[i] for c in counts], axis=0) for i in (0, 1))
    for look in range(looks):
        for place, spent in enumerate((looks, 1)):
            terms = Terms(ALPHA, DELTA / spent)
            wrong[place] |= choose(fixed[look], broken[look], 100 * (look + 1), terms, FAMILY) >= 0
    yield {
        "claim": "broken rate",
        "population": f"just above alpha, {looks} looks at growing labels",
        "redraws": redraws,
        "wrong": float(wrong[0].mean()),
        "control": "the whole of delta at every look",
        "control wrong": float(wrong[1].mean()),
    }


def families(redraws: int) -> Iterator[Row]:
    """Test policies of all methods, each just above alpha: the best-looking one is luck."""
    terms, shares = Terms(ALPHA, DELTA, methods=CERTIFIABLE), family("mix", CERTIFIABLE)
    rng, shape = np.random.default_rng(8), (redraws, len(shares))
    broken, fixed = rng.binomial(400, 1.02 * ALPHA, shape), rng.binomial(400, 0.3, shape)
    yield {
        "claim": "broken rate",
        "population": f"{len(shares)} policies of methods, just above alpha",
        "redraws": redraws,
        "wrong": float((choose(fixed, broken, 400, terms, shares) >= 0).mean()),
        "control": "each policy tested by itself at delta",
        "control wrong": float((p_values(fixed, broken, 400, terms) <= DELTA).any(axis=1).mean()),
    }


def batch_means(redraws: int) -> Iterator[Row]:
    """Test batch calibration between two labels, with the mean over the tested items.

    An item leans to the first label by d = p_1 - p_2. The mean of d is subtracted, so items that
    lean less than others flip. The certificate stores that mean, and is wrong if with it more than
    alpha of the population breaks. A crowd of items lies near the mean.
    """
    for name, crowd in (("smooth", 0.0), ("a crowd at the mean", 0.15)):
        d, true = leaning(crowd)
        rng, wrong = np.random.default_rng(10), np.zeros(2)
        terms, shares = Terms(ALPHA, DELTA, methods=(BATCH,)), family("mix", (BATCH,))
        for _ in range(redraws):
            drawn = rng.integers(len(d), size=400)
            mean = float(d[drawn].mean())
            fixed, broken = flipped(d[drawn], true[drawn], mean, shares)
            over = np.append(flipped(d, true, mean, shares)[1] > ALPHA * len(d), False)  # -1: none
            place = choose(fixed, broken, 400, terms, shares)
            plain = np.where(broken <= ALPHA * 400, fixed - broken, -1)
            by_eye = plain.argmax() if plain.max() >= 0 else -1
            wrong += [over[place], over[by_eye]]
        yield {
            "claim": "broken rate",
            "population": f"batch calibration, its mean of the tested items, {name}",
            "redraws": redraws,
            "wrong": float(wrong[0]) / redraws,
            "control": "at most alpha of the sample is broken",
            "control wrong": float(wrong[1]) / redraws,
        }


def leaning(crowd: float) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much each item leans to the first label, and whether that label is true.

    Of the items that flip at the population's mean, so many are true that 1.02 alpha break.
    """
    rng, size = np.random.default_rng(11), 100_000
    d = np.tanh(rng.normal(0.8, 1.0, size) / 2)
    near = rng.random(size) < crowd
    d[near] = d[~near].mean() + rng.normal(0.0, 0.02, int(near.sum()))
    flips = (d > 0) & (d < d.mean())
    return d, rng.random(size) < 1.02 * ALPHA / flips.mean()


def flipped(
    d: np.ndarray, true: np.ndarray, mean: float, policies: Iterable[Policy]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers fixed and broken by each policy with this mean subtracted [policies]."""
    flips = (d > 0) != (d > mean)
    right = (d > 0) == true
    overrides = [flips & (np.abs(d - mean) >= policy.margin) for policy in policies]
    fixed, broken = (
        np.array([(some & hit).sum() for some in overrides]) for hit in (~right, right)
    )
    return fixed, broken


def decisive(rate: float) -> Population:
    """Return a population with one operator that breaks this share and fixes alpha."""
    shares = ((rate, True), (ALPHA, False))
    return Population.of([Kind(share, base, not base, "decisive") for share, base in shares])


def error_of(population: Population, policy: Policy, threshold: float) -> float:
    """Return the share of wrong answers among those not deferred."""
    confidence, right = population.types.shown(policy)
    answered = confidence >= threshold
    return float(population.shares[answered & ~right].sum() / population.shares[answered].sum())


def threshold_of(data: Labelled, policy: Policy, error: float) -> float | None:
    """Return the threshold that `certify` proves after a choice among all policies."""
    confidence, right = data.shown(policy)
    level = DELTA / (Terms().policies + 1)
    steps = rungs(confidence, ~right, data.groups, quantiles(confidence))
    rung = Automation(error, climb(steps, error, level)).rung(level)
    return None if rung is None else rung.threshold


def thresholds(redraws: int) -> Iterator[Row]:
    """Test thresholds: wrong if too many of the answers are wrong."""
    population = flattering()
    error = error_of(population, OFF, 0.05) * 0.9999
    rng, terms, counts = np.random.default_rng(3), Terms(0.6, DELTA), np.zeros(4)
    for _ in range(redraws):
        data = population.draw(4000, rng)
        chosen = certify(data, "mix", terms).policy
        confidence, right = data.shown(chosen)
        over = confidence[:, None] >= THRESHOLDS
        answered, wrong = over.sum(axis=0), (over & ~right[:, None]).sum(axis=0)
        by_holm = np.flatnonzero(holm(binom.cdf(wrong, answered, error)) <= DELTA)
        by_rate = np.flatnonzero(wrong <= error * answered)
        candidates = [
            threshold_of(data, chosen, error),
            THRESHOLDS[by_holm[0]] if by_holm.size else None,
            THRESHOLDS[by_rate[0]] if by_rate.size else None,
        ]
        counts[:3] += [
            t is not None and error_of(population, chosen, t) > error for t in candidates
        ]
        without = threshold_of(data, OFF, error)
        counts[3] += without is not None and error_of(population, OFF, without) > error
    shares = (counts / redraws).tolist()
    row = {"claim": "defer", "redraws": redraws}
    policy = row | {"population": "coin flips, the policy chosen by the same labels"}
    yield policy | {
        "wrong": shares[0],
        "control": "Holm over the thresholds alone",
        "control wrong": shares[1],
    }
    yield row | {
        "population": "coin flips, no policy",
        "wrong": shares[3],
        "control": "few enough of the sample are wrong",
        "control wrong": shares[2],
    }


def monitors(redraws: int) -> Iterator[Row]:
    """Test alarms: wrong if no more than alpha is broken, with a look after every label."""
    labelled = np.arange(1, STEPS + 1)
    for name, rate in (("at alpha", ALPHA), ("just below alpha", 0.98 * ALPHA)):
        rng, alarms, peeks = np.random.default_rng(4), 0, 0
        for _ in range(redraws):
            broken = (rng.random(STEPS) < rate).cumsum()
            alarms += bool((log_wealth(broken, labelled, ALPHA) >= -math.log(DELTA)).any())
            peeks += bool((binom.sf(broken - 1, labelled, ALPHA) <= DELTA).any())
        yield {
            "claim": "monitor",
            "population": f"{name}, {STEPS} looks",
            "redraws": redraws,
            "wrong": alarms / redraws,
            "control": "an exact test of fixed size at every look",
            "control wrong": peeks / redraws,
        }


def drifts(redraws: int) -> Iterator[Row]:
    """Test warnings: wrong if the stream has the certified distribution."""
    streams, size = max(redraws // 10, 1), 200
    rng, warned = np.random.default_rng(5), 0
    for _ in range(streams):
        values = rng.normal(size=size + STEPS)
        tests = Drift({"statistic": values[:size].tolist()}, DELTA)
        warned += any(tests.see({"statistic": v}) for v in values[size:].tolist())
    yield {
        "claim": "drift",
        "population": f"no drift, {STEPS} looks",
        "redraws": streams,
        "wrong": warned / streams,
    }


CLAIMS = (
    broken_rates,
    gains,
    clusters,
    sequential_looks,
    families,
    batch_means,
    thresholds,
    monitors,
    drifts,
)

if __name__ == "__main__":
    main()
