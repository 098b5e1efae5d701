"""What the rule would do under other thresholds: the same as a tracer with that Theta does."""

from dataclasses import replace

import numpy as np
import pytest
from families import build, tokenizer

from lastword import Tracer
from lastword.errors import InputError
from lastword.rule.what_if import THRESHOLDS, measures, what_if, with_thresholds
from lastword.theta import Theta

PROMPT = "w5 w6"
CANDIDATES = ["w7 w8", "w9", "w10 w11 w12"]


def tracer(theta=None):
    return Tracer(build("llama"), tokenizer(), invariant=2.0, theta=theta or Theta())


@pytest.fixture(scope="module")
def record():
    return tracer().correct(PROMPT, CANDIDATES, read="all")


@pytest.mark.parametrize(
    "thresholds",
    [
        {},
        {"tau_dim": 3.0},
        {"tau_dim": 3.0, "tau_I": 5.0},
        {"tau_dim": 3.0, "tau_I": 5.0, "gamma": -100.0},
        {"tau_logr": -50.0, "tau_H": 0.0},
    ],
)
def test_it_is_what_a_tracer_with_that_theta_decides(record, thresholds):
    theta = with_thresholds(Theta(), thresholds)
    asked, real = what_if(record, theta), tracer(theta).correct(PROMPT, CANDIDATES, read="all")
    for name in ("index", "base_index", "regime", "operator", "gates", "decisive_layer", "mixing"):
        assert getattr(asked, name) == getattr(real, name), name
    assert asked.scores == pytest.approx(real.scores)


def test_a_threshold_acts_where_it_passes_what_it_is_held_against(record):
    values = measures(record, Theta())
    assert list(values) == list(THRESHOLDS)
    for side, regime in ((-1e-9, "candidate-space"), (1e-9, "scalar")):
        theta = with_thresholds(Theta(), {"tau_dim": values["tau_dim"] + side})
        assert what_if(record, theta).regime == regime
    for name, gate in (("tau_logr", "log_margin_ratio"), ("tau_H", "entropy")):
        for side, holds in ((-1e-6, True), (1e-6, False)):
            theta = with_thresholds(Theta(), {"tau_dim": 1.0, name: values[name] + side})
            assert what_if(record, theta).gates[gate].holds is holds


def test_what_is_no_threshold_or_was_not_read_is_refused(record):
    with pytest.raises(InputError, match="eta is no"):
        with_thresholds(Theta(), {"eta": 2.0})
    with pytest.raises(InputError, match="a finite number"):
        with_thresholds(Theta(), {"gamma": np.inf})
    with pytest.raises(InputError, match="not read whole"):
        what_if(replace(record, t_scores=None), with_thresholds(Theta(), {"tau_dim": 3.0}))
