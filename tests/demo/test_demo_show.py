"""`tracelm demo`: what it prints and the page that it writes."""

import io
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from browser import opened
from rich.console import Console

from tracelm.benchmarks.world import Label, benchmark
from tracelm.demo import outcome as outcome_module
from tracelm.demo.outcome import Outcome, early, outcomes, score, worked
from tracelm.demo.page import write_page
from tracelm.demo.show import shades, show
from tracelm.errors import InputError
from tracelm.rule.decision import Decision, Gate
from tracelm.text.items import Item
from tracelm.theta import Theta
from tracelm.view.portrait import portrait


def judged(base, scores, operator="base", changes=False, truth=0, blind=(0.0, -1.0)):
    """An outcome of two candidates on a model of four blocks."""
    names = ("<b>long true</b>", "false")
    item = Item("Q", names, id="x", truthful=(truth == 0, truth == 1), blind_prompt="A")
    base, scores = np.array(base), np.array(scores)
    decision = Decision(
        candidates=names,
        index=int(scores.argmax()),
        base_index=int(base.argmax()),
        regime="candidate-space",
        operator=operator,
        scores=scores,
        base_scores=base,
        d_eff=1.5,
        invariant=0.5,
        gates={"changes": Gate(changes, True, changes)},
        decisive_layer=2,
        mixing=None,
        trajectory=np.array([[-1.0, -1.0, -0.1, -2.0, base[0]], [-1.0, -2, -9, -1, base[1]]]),
        t_scores=None,
        tied=False,
        blind_scores=np.array(blind),
    )
    made = outcome_module._judge(item, Label("clean", "multi", "seen"), decision)
    assert isinstance(made, Outcome)
    return made


RIGHT = judged((-1.0, -2.0), (-1.0, -2.0))
FIXED = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)
BROKEN = judged((-1.0, -2.0), (-2.0, -1.0), "early")
HELD = judged((-1.0, -2.0), (-1.0, -2.0), changes=True)


def test_means_and_counts_of_some_outcomes():
    s = score([RIGHT, FIXED, BROKEN, FIXED])
    assert (s.items, s.fixed, s.broken) == (4, 2, 1)
    assert (s.mc1_base, s.mc1) == (0.5, 0.75)
    assert s.mc2_base == pytest.approx(0.5) and s.mc2 == pytest.approx(0.75, abs=1e-3)
    assert np.isnan(score([]).mc1)


def test_early_is_judged_on_the_items_that_it_decides_beside_its_baselines():
    e = early([RIGHT, BROKEN, FIXED])
    assert (e.items, e.base, e.early, e.blind, e.shortest) == (1, 1.0, 0.0, 1.0, 0.0)
    assert early([RIGHT]).items == 0 and np.isnan(early([RIGHT]).blind)


def test_worked_items_are_the_first_by_rule_and_absent_where_there_is_none():
    second = replace(FIXED, label=Label("revised", "multi", "seen"))
    chosen = list(worked([RIGHT, HELD, BROKEN, FIXED, second]).values())
    assert chosen[0] is FIXED and chosen[1] is BROKEN and chosen[2] is HELD
    assert worked([RIGHT]) == {}


def test_a_trajectory_is_drawn_as_one_shade_a_depth():
    lines = [shades(candidate) for candidate in portrait(FIXED.record).candidates]
    assert [len(line) for line in lines] == [5, 5]
    assert lines[0][2] == "█" and lines[1][2] == " " and lines[0][0] == lines[1][0] == "▄"


def test_the_page_needs_no_network_and_escapes_candidates(tmp_path):
    path = tmp_path / "demo.html"
    write_page(path, "a <note>", {"first": FIXED, "second": BROKEN}, Theta())
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=[^>]*(//|\.)", html)
    assert "a &lt;note&gt;" in html and len(html) < 2_000_000
    with opened(path, tmp_path / "browser") as watched:
        view = watched.page
        view.wait_for_function("document.querySelectorAll('.item .js-plotly-plot').length == 2")
        assert view.locator(".item b").count() == 0
        assert view.locator(".item .candidates .text").first.inner_text().startswith("<b>long true")
        assert view.locator(".item .bar.after .share").first.inner_text() == "100.0%"
        assert view.locator(".item").nth(1).locator(".shapelayer path").count() == 2
        watched.assert_quiet()
    with pytest.raises(InputError, match="cannot write"):
        write_page(tmp_path / "absent" / "demo.html", "", {}, Theta())


def test_the_demo_needs_nothing_of_the_eval_extra():
    program = "import sys, tracelm.demo.show; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not {"pandas", "pyarrow", "matplotlib", "datasets"} & set(done.stdout.split())
    assert "tracelm.report.document" in done.stdout


@pytest.fixture
def few(monkeypatch):
    chosen = benchmark()[:6] + benchmark()[-6:]
    monkeypatch.setattr(outcome_module, "benchmark", lambda: chosen)
    return chosen


def test_the_demo_prints_every_model_form_kind_and_operator(few, tmp_path):
    text, seen = io.StringIO(), []

    def watch(decisions, task, total):
        seen.append((task, total))
        return decisions

    show(Console(file=text, width=100), tmp_path / "demo.html", watch)
    printed = text.getvalue()
    assert [total for _, total in seen] == [12] * len(seen)
    for word in ("organism", "control", "contested", "revised", "unseen", "decisive", "early"):
        assert word in printed
    assert "no evidence" in printed and "question-blind" in printed
    assert (tmp_path / "demo.html").is_file()


def test_outcomes_keep_the_order_of_the_benchmark_and_their_own_item(few):
    from tracelm.tracer import Tracer

    answered = outcomes(Tracer.demo("organism"), lambda decisions, *_: decisions)
    assert [o.item.id for o in answered] == [item.id for item, _ in few]
    assert [o.decision.id for o in answered] == [item.id for item, _ in few]
