"""A decision for the eye: what is drawn, what a notebook shows, and hostile text in both."""

from functools import cache

import families
import numpy as np
import pytest
from test_explanation import decision, spatial

from tracelm import Tracer

HOSTILE = "<script>alert(1)</script>"


@cache
def tracer() -> Tracer:
    return Tracer(families.build("llama"), families.tokenizer(), invariant=2.0)


@pytest.mark.parametrize("read", ["decide", "all"])
def test_depths_that_were_read_are_drawn_with_the_bases_own_probabilities_last(read):
    found = tracer().correct("w5 w6 w7", ["w8 w9", "w10", "w11 w12"], read=read)
    figure = found.plot()
    lines = [trace for trace in figure.data if trace.type == "scatter"]
    depths = np.flatnonzero(~np.isnan(found.trajectory).any(axis=0))
    assert len(lines) == 3 and (len(depths) == 7 if read == "all" else len(depths) < 7)
    for place, line in enumerate(lines):
        assert list(line.x) == list(depths)
        assert line.y[-1] == pytest.approx(found.base_probabilities[place])
    assert sum(line.y[0] for line in lines) == pytest.approx(1)
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    assert list(bars["base"].x) == pytest.approx(list(found.base_probabilities))
    assert list(bars["corrected"].x) == pytest.approx(list(found.probabilities))


def test_the_depth_that_decided_is_marked():
    marked = {
        operator: [shape.x0 for shape in made.plot().layout.shapes]
        for operator, made in {
            "decisive": spatial("decisive", 2),
            "base": spatial("base", 3),
            "early": decision(operator="early"),
            "mix": decision(),
        }.items()
    }
    assert marked == {"decisive": [2], "base": [], "early": [0], "mix": []}


def test_a_notebook_shows_answers_numbers_and_reasons():
    shown = decision()._repr_html_()
    assert "<s>it is red</s>" in shown and "<b>it is blue</b>" in shown
    assert f"{decision().probabilities[1]:.3f}" in shown
    assert "The answer changes from" in shown
    assert "<s>" not in decision(index=0)._repr_html_()


def test_text_of_candidates_is_never_markup():
    hostile = decision(candidates=(HOSTILE, "it is blue"))
    assert HOSTILE not in hostile._repr_html_() and "&lt;script" in hostile._repr_html_()
    assert HOSTILE not in hostile.plot().to_json()
