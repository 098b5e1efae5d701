"""A decision in words: what held, what did not, and what the answer became."""

import json
from dataclasses import replace

import numpy as np
import pytest
from decided import decided

from lastword import Theta
from lastword.records.record import Record
from lastword.rule.answer import Gate
from lastword.text.shorten import shorten
from lastword.view.explanation import explain, gist


def decision(**changes):
    values = dict(
        candidates=("it is red", "it is blue"),
        regime="scalar",
        operator="mix",
        d_eff=1.0,
        invariant=2.5,
        gates={
            "invariant": Gate(2.5, 1.0, True),
            "sharper": Gate(0.8, 0.0, True),
            "shift": Gate(-0.25, 0.0, False),
        },
        decisive_layer=None,
        mixing=-1.0,
    )
    scores, base = changes.pop("scores", (-2.0, -1.0)), changes.pop("base_scores", (-1.0, -1.2))
    return decided(scores, base, **values | changes)


def spatial(operator, layer, **gates):
    held = {"changes": (True, True), "log_margin_ratio": (2.0, 1.0), "entropy": (0.9, 0.7)}
    shown = {
        name: Gate(value, bound, None if value is None else value is True or value > bound)
        for name, (value, bound) in (held | gates).items()
    }
    return decision(
        candidates=("a", "b", "c"),
        regime="candidate-space",
        operator=operator,
        scores=(-2.0, -1.0, -3.0),
        base_scores=(-1.0, -1.2, -4.0),
        d_eff=1.25,
        gates=shown,
        decisive_layer=layer,
        mixing=None,
        index=1 if operator == "decisive" else 0,
    )


def told(value, **more):
    return explain(replace(value, **more))


def test_a_mixed_answer_says_why_and_what_changed():
    text = told(decision())
    assert "With two candidates" in text
    assert "I(M) is high (2.5 > 1)" in text
    assert "lower by −0.25 nats a token, so scores move away from T (λ = −1)" in text
    assert text.endswith("The answer changes from “it is red” to “it is blue”.")


def test_a_scorer_that_is_not_sharper_leaves_the_base():
    gates = {"invariant": Gate(2.5, 1.0, True), "sharper": Gate(-0.1, 0.0, False)}
    text = told(decision(operator="base", index=0, mixing=0.0, gates=gates))
    assert "no further than the model does" in text
    assert text.endswith("The answer stays “it is red”.")


@pytest.mark.parametrize("operator", ["early", "base"])
def test_the_earliest_state_is_never_called_evidence_from_the_question(operator):
    best = -1.2 if operator == "early" else -0.3
    gates = {
        "invariant": Gate(0.4, 1.0, False),
        "confidence": Gate(best, -1.0, operator == "early"),
    }
    text = told(decision(operator=operator, gates=gates, mixing=None))
    assert "evidence" not in text and "recover" not in text
    assert ("without having read the question" in text) == (operator == "early")
    assert (f"{best} < −1".replace("-", "−") in text) == (operator == "early")


def test_a_decisive_layer_is_named_with_its_gates():
    text = told(spatial("decisive", 7), truthful=(False, True, False))
    assert "The sharpest depth is 7. It prefers another answer." in text
    assert "2 > 1" in text and "0.9 > 0.7" in text and "All three gates hold" in text
    assert text.endswith("from “a” (false) to “b” (true).")


def test_gates_that_were_not_asked_are_not_told():
    text = told(spatial("base", None, changes=(None, True), entropy=(0.5, 0.7)))
    assert "sharpest" not in text and "prefers" not in text
    assert "has made up its mind (entropy 0.5 < 0.7" in text
    assert "Not all gates hold" in text


def test_digits_tell_a_value_from_its_threshold():
    text = told(spatial("decisive", 3, log_margin_ratio=(1.00004, 1.0)))
    assert "1.00004 > 1" in text


def test_with_theta_the_dimension_stands_beside_its_threshold():
    record = spatial("base", 2)
    assert "(d_eff = 1.25 > 1.0015)" in explain(record, Theta(tau_dim=1.0015))
    assert "(d_eff = 1.25)" in explain(record)
    assert "(d_eff = 1 < 1.0015)" in explain(decision(), Theta(tau_dim=1.0015))


def test_an_infinite_ratio_is_a_sign_not_a_word():
    text = told(spatial("base", None, changes=(None, True), log_margin_ratio=(-np.inf, 1.0)))
    assert "−∞ < 1" in text and "inf" not in text


def test_one_candidate_failure_peer_tie_and_truncation():
    alone = np.array([-1.0])
    one = decision(candidates=("x",), scores=alone, base_scores=alone, base_index=0, index=0)
    assert told(one) == "There is one candidate, so there is nothing to choose."
    assert told(decision(method="dola")).startswith("The scores of dola decide.")
    assert "shared by several" in told(decision(tied=True))
    assert "the prompt was cut by 12 tokens" in told(decision(truncated=12))


def test_a_long_candidate_is_cut_and_a_record_reads_the_same():
    long = decision(candidates=("y" * 200, "it is blue"))
    assert "y" * 79 + "…" in told(long) and "y" * 80 not in told(long)
    told_once = long.to_dict(full=True) | {"candidates": list(long.candidates), "prompt": "?"}
    row = told_once | {"gates": json.dumps(told_once["gates"]), "decisive_layer": float("nan")}
    assert explain(Record.read(row | {"trajectory": long.trajectory}).decision) == explain(long)


def test_the_gist_is_one_line_by_whatever_decided():
    assert gist(spatial("decisive", 7)).startswith("Depth 7 tells the candidates apart")
    assert "own answer" in gist(spatial("base", None))
    assert "T tells" in gist(decision())
    assert "has not read the question" in gist(decision(operator="early"))
    assert gist(decision(method="dola")) == "The scores of dola decide."


def test_text_is_cut_after_a_word_unless_the_last_one_is_long():
    assert shorten("the quick brown fox", 16) == "the quick brown…"
    assert shorten("a " + "y" * 30, 16) == "a " + "y" * 13 + "…"
    assert shorten("the quick", 9) == "the quick"
