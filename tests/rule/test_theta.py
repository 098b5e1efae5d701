"""Theta: the paper's constants, the depths they give, and invalid values (method, 3 and 8)."""

import json

import pytest

from lastword.errors import ThetaError
from lastword.rule.theta import InvariantTheta, ScorerTheta, Theta


def test_constants_are_the_papers():
    values = Theta().to_dict()
    scorer = values.pop("scorer")
    assert values == {
        "rho_minus": 0.5,
        "rho_plus": None,
        "rho_e": 0.2,
        "rho_m": 0.5,
        "tau_dim": 1.0015,
        "tau_I": 1.0,
        "tau_logr": 1.0,
        "tau_H": 0.7,
        "eps_H": 0.1,
        "delta_r": 1e-12,
        "eta": 1.0,
        "gamma": -1.0,
        "invariant": {"output_rows": "stored", "block": "zero", "norm": "stored"},
        "tokens": {"join": "text"},
    }
    assert scorer == {
        "anchors": (0.2692, 0.5769, 0.8461, 1.0),
        "features": (0.5, 0.6923, 0.8461, 1.0),
        "k_min": 50,
        "k_fraction": 0.005,
        "quorum": 0.75,
        "weights": (0.3, 0.5, 0.2),
        "lambda_0": 0.5,
        "gamma_alpha": 5.0,
        "outside": "clip",
        "floor": "anchor",
    }


def test_invariant_blocks():
    assert Theta().invariant_blocks(26) == (5, 13)
    assert Theta().invariant_blocks(5) == (1, 2)  # 0.2 * 5 is exactly 1
    assert Theta(invariant=InvariantTheta(block="depth")).invariant_blocks(26) == (4, 12)
    assert Theta(invariant=InvariantTheta(block="depth")).invariant_blocks(4) == (0, 1)


def test_toml_overrides_by_name(tmp_path):
    path = tmp_path / "theta.toml"
    path.write_text(
        'tau_dim = 1.01\neta = 1\n[scorer]\noutside = "clip"\nanchors = [0.5, 1]\nk_min = 3\n'
        '[invariant]\nblock = "depth"\n[tokens]\njoin = "ids"\n'
    )
    with pytest.raises(ThetaError, match="cannot read Theta"):
        Theta.from_toml(tmp_path / "none.toml")
    theta = Theta.from_toml(path)
    assert theta.tau_dim == 1.01 and theta.eta == 1.0
    assert theta.scorer == ScorerTheta(anchors=(0.5, 1.0), outside="clip", k_min=3)
    assert theta.invariant.block == "depth" and theta.tokens.join == "ids"
    assert Theta.from_dict(json.loads(json.dumps(theta.to_dict()))) == theta


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tau_dmi = 1", "tau_dmi is an unknown name; known: rho_minus"),
        ("[scorer]\ninside = 1", "Theta: scorer.inside is an unknown"),
        ('[scorer]\noutside = "in"', "'clip', 'floor' or 'final'"),
        ("scorer = 1", "scorer: .*, not 1"),
        ('tau_dim = "1"', "tau_dim: .*, not '1'"),
        ("tau_dim = true", "tau_dim: .*, not True"),
        ("tau_dim = nan", "tau_dim: .*, not nan"),
        ("[scorer]\nk_min = 1.5", "scorer.k_min: .*, not 1.5"),
        ("[scorer]\nweights = [1, 2]", "scorer.weights"),
        ("[scorer]\nanchors = [0.5, 2]", r"depth fractions in \(0, 1\]"),
        ("[scorer]\nanchors = []", "one anchor"),
        ("rho_minus = 0.9\nrho_plus = 0.5", "rho_minus < rho_plus"),
        ("rho_plus = 0", "rho_minus < rho_plus"),
        ("rho_plus = 1.5", "rho_minus < rho_plus"),
        ("rho_e = 0.9", "rho_e <= rho_m"),
        ("rho_m = 1", "rho_e <= rho_m"),
        ("eta = -1", "eta at least 0"),
        ("eps_H = 0", "eps_H and delta_r"),
        ("delta_r = 0", "eps_H and delta_r"),
        ("[scorer]\nk_min = 0", "k_min at least 1"),
        ("[scorer]\nlambda_0 = 1.5", "lambda_0 in"),
        ("tau_dim = ", "cannot read Theta"),
        ("x = " + "[" * 5000, "cannot read Theta"),
    ],
)
def test_invalid_values_are_refused(tmp_path, text, message):
    path = tmp_path / "theta.toml"
    path.write_text(text)
    with pytest.raises(ThetaError, match=message) as raised:
        Theta.from_toml(path)
    assert "\n" not in str(raised.value)


def test_the_ends_of_a_range_are_accepted_and_a_larger_eta_is_marked():
    theta = Theta(rho_minus=0.0, scorer=ScorerTheta(k_fraction=1.0), eta=1.5)
    assert theta.window(8) == range(7)
    assert theta.outside_paper and not Theta().outside_paper


@pytest.mark.parametrize("values", [None, 1, [], "rho_e"])
def test_only_a_table_is_read(values):
    with pytest.raises(ThetaError, match="Theta is a table, not"):
        Theta.from_dict(values)
