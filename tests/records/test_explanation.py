"""Explanations: which gates held, which did not, and the resulting answer."""

from dataclasses import replace

import numpy as np
from decided import decided

from lastword import Theta
from lastword.records.explanation import explain
from lastword.rule.operators import Gate


def decision(**changes):
    gates = {"invariant": Gate(2.5, 1.0, True), "sharper": Gate(0.8, 0.0, True)}
    values: dict = dict(candidates=("it is red", "it is blue"), regime="scalar", operator="mix")
    values |= dict(d_eff=1.0, invariant=2.5, decisive_layer=None, mixing=-1.0)
    values |= dict(gates=gates | {"shift": Gate(-0.25, 0.0, False)})
    scores, base = changes.pop("scores", (-2.0, -1.0)), changes.pop("base_scores", (-1.0, -1.2))
    return decided(scores, base, **values | changes)


def spatial(operator, layer, **gates):
    bounds = {"changes": (True, True), "log_margin_ratio": (2.0, 1.0), "entropy": (0.9, 0.7)}
    shown = {
        name: Gate(value, bound, None if value is None else value is True or value > bound)
        for name, (value, bound) in (bounds | gates).items()
    }
    values = dict(candidates=("a", "b", "c"), regime="candidate-space", operator=operator)
    values |= dict(scores=(-2.0, -1.0, -3.0), base_scores=(-1.0, -1.2, -4.0), d_eff=1.25)
    values |= dict(gates=shown, decisive_layer=layer, mixing=None)
    return decision(**values, index=1 if operator == "decisive" else 0)


def unsure(best):
    """Return a decision that uses depth 0 if the model's best score is below -1."""
    early = best < -1
    gates = {"invariant": Gate(0.4, 1.0, False), "confidence": Gate(best, -1.0, early)}
    name = "early" if early else "base"
    return decision(operator=name, index=int(early), gates=gates, mixing=None)


def test_every_kind_of_answer_is_explained():
    duller = {"invariant": Gate(2.5, 1.0, True), "sharper": Gate(-0.1, 0.0, False)}
    alone = dict(scores=(-1.0,), base_scores=(-1.0,), base_index=0, index=0)
    never = {"changes": (None, True)}
    truths = dict(truthful=(False, True, False))
    shorter, true = dict(operator="base", index=0, mixing=0.0), spatial("decisive", 7)
    for answer, words in (
        (decision(), "(2.5 > 1)|lower by −0.25 nats a token|away from T (λ = −1)|to “it is"),
        (decision(**shorter, gates=duller), "no further than the model"),
        (unsure(-1.2), "is not confident (−1.2 < −1 |depth 0|without having read"),
        (unsure(-0.3), "confident enough (−0.3 > −1 |stays “it is red”"),
        (replace(true, **truths), "sharpest depth is 7|All three|“b” (true)"),
        (spatial("base", None, **never, entropy=(0.5, 0.7)), "made up its mind|Not all gates"),
        (spatial("decisive", 3, log_margin_ratio=(1.00004, 1.0)), "(1.00004 > 1)"),
        (spatial("base", None, **never, log_margin_ratio=(-np.inf, 1.0)), "(−∞ < 1)"),
        (decision(candidates=("x",), **alone), "nothing to choose"),
        (decision(method="dola"), "The scores of dola decide."),
        (decision(tied=True), "shared by several candidates"),
        (decision(truncated=12), "cut by 12 tokens"),
        (decision(candidates=("y" * 200, "it is blue")), "yy…”"),
    ):
        text = explain(answer)
        assert all(word in text for word in words.split("|")), text
    assert "(d_eff = 1.25 > 1.0015)" in explain(spatial("base", 2), Theta(tau_dim=1.0015))
    assert "evidence" not in explain(unsure(-1.2)), "depth 0 has not read the question"
