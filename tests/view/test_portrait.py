"""A decision for the eye: what is drawn, what tables show of it, and hostile text in each."""

import io
import re
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import families
import numpy as np
import pytest
from rich.console import Console
from test_explanation import decision, spatial

from lastword import Theta, Tracer
from lastword.view.palette import LOOKS
from lastword.view.portrait import letter, portrait
from lastword.view.table import terminal_table

HOSTILE = "<script>alert(1)</script>"


@cache
def tracer() -> Tracer:
    return Tracer(families.build("llama"), families.tokenizer(), invariant=2.0)


@pytest.mark.parametrize("read", ["decide", "all"])
def test_depths_that_were_read_are_drawn_with_the_bases_own_probabilities_last(read):
    found = tracer().correct("w5 w6 w7", ["w8 w9", "w10", "w11 w12"], read=read)
    lines = drawn_lines(found.plot().svg)
    depths = np.flatnonzero(~np.isnan(found.trajectory).any(axis=0))
    assert len(lines) == 3 and (len(depths) == 7 if read == "all" else len(depths) < 7)
    for line, before in zip(lines, found.base_probabilities, strict=True):
        assert line[:, 0] == pytest.approx(34 + 514 * depths / 6, abs=0.06)
        assert line[-1, 1] == pytest.approx(8 + 164 * (1 - before), abs=0.06)
    # Probabilities of a depth add up to one: so do the heights above the axis.
    assert sum(172 - line[:, 1] for line in lines) == pytest.approx(164, abs=0.4)
    shares = zip(found.base_probabilities, found.probabilities, strict=True)
    assert all(f">{b:.3f} → {u:.3f}<" in found.plot().svg for b, u in shares)


def drawn_lines(svg):
    """The points of every line of a drawing."""
    lines = [e for e in ElementTree.fromstring(svg) if e.tag.endswith("polyline")]
    return [np.array([p.split(",") for p in e.get("points").split()], float) for e in lines]


def test_truth_is_green_the_false_winner_red_and_the_rest_grey():
    record = replace(spatial("base", 2), base_index=2)

    def roles(**changes):
        return [candidate.role for candidate in portrait(replace(record, **changes)).candidates]

    assert roles(truthful=(False, True, False)) == ["corrected", "truthful", "winner"]
    assert roles(truthful=(False, True, False), index=2) == ["other", "truthful", "winner"]
    assert roles(truthful=(False, False, True), index=2) == ["other", "other", "truthful"]
    assert roles() == ["corrected", "other", "mix"]
    assert LOOKS["other"].dash == "dash" and LOOKS["truthful"].dash == "solid"


@pytest.mark.parametrize(
    ("operator", "chosen", "name"),
    [("decisive", (5,), "ℓ* = 5"), ("early", (0,), "depth 0"), ("mix", (4, 7, 11, 12), "")],
)
def test_the_chosen_depths_are_those_whose_scores_decide(operator, chosen, name):
    read = {"trajectory": np.zeros((3, 13)), "operator": operator}
    seen = portrait(replace(spatial("decisive", 5), **read), Theta())
    assert (seen.deciding_depths, seen.deciding_name) == (chosen, name)
    assert (seen.window, seen.depth, seen.sharpest) == ((6, 10), 12, 5)
    unread = read | {"operator": "base", "decisive_layer": None}
    stands = portrait(replace(spatial("base", 2), **unread))
    assert (stands.deciding_depths, stands.window, stands.sharpest) == ((), None, None)


def test_letters_go_on_after_z():
    assert [letter(i) for i in (0, 25, 26, 53)] == ["A", "Z", "A1", "B2"]


def test_a_terminal_shows_texts_as_text_and_counts_at_the_right():
    seen = portrait(decision())
    table = terminal_table(seen, {"answer": ["[red]x", "it is blue"], "sampled": (10, 2)})
    said = io.StringIO()
    Console(file=said, width=60).print(table)
    first = next(line for line in said.getvalue().splitlines() if "[red]x" in line)
    assert re.search(r"10 +0\.550 +0\.269$", first.rstrip())


def test_the_depth_that_decided_is_marked():
    marked = {
        operator: re.findall(r"dasharray=.2 3.><title>([^<]*)<", made.plot().svg)
        for operator, made in {
            "decisive": spatial("decisive", 2),
            "base": spatial("base", 3),
            "early": decision(operator="early"),
            "mix": decision(),
        }.items()
    }
    assert marked == {"decisive": ["ℓ* = 2"], "base": [], "early": ["depth 0"], "mix": []}


def test_a_notebook_shows_answers_numbers_and_reasons():
    shown = decision()._repr_html_()
    assert "<s>it is red</s>" in shown and "<strong>it is blue</strong>" in shown
    assert f"{decision().probabilities[1]:.3f}" in shown
    assert "The answer changes from" in shown
    assert "<s>" not in decision(index=0)._repr_html_()


def test_a_notebook_draws_the_trajectory_that_was_read_without_scripts_or_links():
    found = tracer().correct("w5 w6 w7", ["w8 w9", "w10", "w11 w12"], read="all")
    shown = found._repr_html_()
    lines = drawn_lines(shown[shown.index("<svg") : shown.index("</svg>") + 6])
    assert [len(line) for line in lines] == [7, 7, 7]
    assert "<script" not in shown and "href" not in shown and "src=" not in shown
    assert "<svg" not in decision()._repr_html_()  # no depth was read


def test_text_of_candidates_is_never_markup():
    drawn = replace(decision(candidates=(HOSTILE, "it is blue")), trajectory=np.zeros((2, 5)))
    assert "<svg" in drawn._repr_html_() and "<script" not in drawn._repr_html_()
    hostile = decision(candidates=(HOSTILE, "it is blue"))
    assert HOSTILE not in hostile._repr_html_() and "&lt;script" in hostile._repr_html_()
    assert HOSTILE not in hostile.plot().svg
