"""`lastword demo`: what it prints and the page that it writes."""

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from browser import assert_accessible
from rich.console import Console

from lastword.benchmarks.demo import items
from lastword.cli import main
from lastword.demo import organism, real
from lastword.demo.figures import Figures, figures
from lastword.demo.organism import early_table
from lastword.demo.outcome import (
    BROKEN,
    GATED,
    REPAIRED,
    STAYS,
    answer,
    examples,
    judge,
    score,
)
from lastword.demo.page import write_page
from lastword.demo.section import Grid, Section
from lastword.demo.show import show, show_short
from lastword.demo.story import CERTIFIED, WITHHELD, story
from lastword.demo.terminal import shades, story_lines
from lastword.errors import InputError
from lastword.model import named
from lastword.records.decision import Decision
from lastword.rule.answer import Gate
from lastword.text.items import Item
from lastword.theta import Theta
from lastword.tracer import Tracer
from lastword.trust.terms import Terms
from lastword.view.portrait import portrait


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
        decisive_layer=3,
        mixing=None,
        trajectory=np.array([[-1.0, -1.0, -0.1, -2.0, base[0]], [-1.0, -2, -9, -1, base[1]]]),
        t_scores=None,
        tied=False,
        blind_scores=np.array(blind),
    )
    return judge(item, decision)


RIGHT = judged((-1.0, -2.0), (-1.0, -2.0))
WON = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)
LOST = judged((-1.0, -2.0), (-2.0, -1.0), "mix")
EARLY = judged((-1.0, -2.0), (-2.0, -1.0), "early")
STOPPED = judged((-1.0, -2.0), (-1.0, -2.0), changes=True)


def test_means_and_counts_of_some_outcomes():
    s = score([RIGHT, WON, LOST, WON])
    assert (s.items, s.fixed, s.broken) == (4, 2, 1)
    assert (s.mc1_base, s.mc1) == (0.5, 0.75)
    assert s.mc2_base == pytest.approx(0.5) and s.mc2 == pytest.approx(0.75, abs=1e-3)
    assert np.isnan(score([]).mc1)


def test_early_is_judged_on_the_items_that_it_decides_beside_its_baselines():
    table = early_table({"some": [RIGHT, EARLY, WON], "none": [RIGHT]})
    rows = zip(*(column.cells for column in table.columns), strict=True)
    assert [row[1:] for row in rows] == [("1", "100.0", "0.0", "100.0", "0.0"), ("0", *"––––")]


def test_examples_are_the_first_by_rule_and_absent_where_there_is_none():
    again = replace(WON, item=replace(WON.item, id="again"))
    some = [RIGHT, STOPPED, LOST, WON, again]
    firsts = {REPAIRED: WON, BROKEN: LOST, GATED: STOPPED}
    assert examples(some, REPAIRED, BROKEN, GATED) == firsts
    assert examples([LOST, STOPPED, RIGHT], STAYS) == {STAYS: STOPPED}
    assert examples([RIGHT], REPAIRED, BROKEN, GATED) == {}


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_what_depths_1_and_2_decide_is_no_example(layer):
    shallow = replace(WON, decision=replace(WON.decision, decisive_layer=layer))
    assert examples([EARLY, shallow], REPAIRED, BROKEN) == (
        {REPAIRED: shallow} if layer == 3 else {}
    )


def test_a_trajectory_is_drawn_as_one_shade_a_depth():
    lines = [shades(candidate.shares) for candidate in portrait(WON.record.decision).candidates]
    assert [len(line) for line in lines] == [5, 5]
    assert lines[0][2] == "█" and lines[1][2] == " " and lines[0][0] == lines[1][0] == "▄"


def apart(outcomes):
    """The same outcomes of as many other questions: one question often asked is one draw."""
    return [replace(o, item=replace(o.item, prompt=f"Q {i}")) for i, o in enumerate(outcomes)]


def tale(outcomes, alpha=0.05):
    return story(Tracer.demo("organism"), "demo", apart(outcomes), Terms(alpha=alpha))


def decided(story):
    return {rule: outcome.decision for rule, outcome in story.examples.items()}


SURE = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)  # by 8.9 nats
DOUBTFUL = judged((-1.0, -2.0), (-2.0, -1.0), "decisive", changes=True)


def many():
    """Forty sure repairs and fifteen doubtful breaks: only a margin between them keeps to 2%."""
    return [DOUBTFUL, *([SURE] * 40), *([DOUBTFUL] * 14), *([RIGHT] * 445)]


def test_the_story_is_the_certificates():
    told = tale(many(), alpha=0.02)
    assert told.finding.policy.margin == 3
    assert decided(told) == {CERTIFIED: SURE.decision, WITHHELD: DOUBTFUL.decision}
    assert (told.corrected.fixed, told.corrected.broken) == (40, 15)
    assert (told.certified.fixed, told.certified.broken) == (40, 0)
    assert told.base == 460 / 500 and told.chance == 0.5
    assert told.corrected.right == 485 / 500 and told.certified.right == 1
    assert told.headline.endswith("under its certificate it repaired 40 and broke 0")


def test_where_nothing_is_certified_the_story_says_so():
    told = tale([WON, LOST, *([RIGHT] * 298)])
    assert told.finding.chosen is None and told.certified.right == told.base
    assert decided(told) == {REPAIRED: WON.decision, WITHHELD: LOST.decision}
    assert told.headline.endswith("its certificate keeps it off")


def section(**changes):
    grid = Grid("by <depth>", ("who", "MC1"), (("<b>TRACE</b>", "12.5"),))
    cases = {REPAIRED: WON, BROKEN: LOST}
    told = tale([WON, LOST, *([RIGHT] * 298)])
    whole = Section("title", "Model", "a <note>", told, (grid,), ("correction <hurts>",), cases, {})
    return replace(whole, **changes)


def box(node):
    found = node.bounding_box()
    assert found is not None
    return found


def test_the_page_needs_no_network_and_escapes_candidates(chromium, tmp_path):
    path = tmp_path / "demo.html"
    write_page(path, [section()], Theta())
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=[^>]*(//|\.)", html)
    assert "a &lt;note&gt;" in html and "correction &lt;hurts&gt;" in html and "12.5" in html
    assert "by &lt;depth&gt;" in html and "&lt;b&gt;TRACE&lt;/b&gt;" in html
    assert len(html) < 200_000
    with chromium.opened(path) as watched:
        view = watched.page
        view.wait_for_function("document.querySelectorAll('.item .drawing').length == 2")
        assert view.locator(".item b").count() == 0
        assert view.locator(".item .candidates .text").first.inner_text().startswith("<b>long true")
        assert view.locator(".item .bar.after .share").first.inner_text() == "100.0%"
        assert view.locator(".item").nth(1).locator(".window, .chosen").count() == 4
        chart = view.locator(".effects").bounding_box()
        assert chart is not None and chart["y"] + chart["height"] < view.viewport_size["height"]
        widths = [bar["width"] for bar in map(box, view.locator(".effects .fill").all())]
        assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)  # nearly 1 beside 1/2
        assert_accessible(view)
        watched.assert_quiet()
    with pytest.raises(InputError, match="cannot write"):
        write_page(tmp_path / "absent" / "demo.html", [section()], Theta())


def test_the_demo_needs_nothing_of_the_eval_extra():
    program = "import sys, lastword.demo.show; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not {"pandas", "pyarrow", "matplotlib", "datasets"} & set(done.stdout.split())
    assert "lastword.report.document" in done.stdout


def unwatched(decisions, *_):
    return decisions


@pytest.fixture
def few(monkeypatch):
    """Twelve items of the world, which the organism's part shows in place of all."""
    chosen = items()[:6] + items()[-6:]
    monkeypatch.setattr(organism, "items", lambda: chosen)
    monkeypatch.setattr(organism, "TERMS", Terms(alpha=0.5))  # what twelve items can promise
    return chosen


def printed(*arguments):
    text = io.StringIO()
    show(Console(file=text, width=80), *arguments)
    return text.getvalue()


def test_the_demo_prints_every_model_form_kind_and_operator(few, tmp_path):
    seen = []

    def watch(decisions, task, total):
        seen.append((task, total))
        return decisions

    text = printed(tmp_path / "demo.html", None, True, watch)
    assert [total for _, total in seen] == [12] * 4
    for word in ("organism", "control", "contested", "revised", "unseen", "decisive", "early"):
        assert word in text
    assert "no evidence" in text and "question-blind" in text
    assert (tmp_path / "demo.html").is_file()


@pytest.mark.slow
def test_the_real_model_comes_first_with_its_figures_and_what_to_do(few, tmp_path):
    text = printed(tmp_path / "demo.html", Tracer.demo("organism"))  # stands in for a real one
    first, _, second = text.partition(organism.TITLE)
    assert real.TITLE in first and "question-blind" in second
    for words in ("demo-organism on everyday: 300 items, 70 pairs", "shortest candidate"):
        assert words in first and words not in second
    assert re.search(r"On these 300 items\s+correction", first)
    assert "lastword certify` on" in first and "allowed: " in first
    assert "…" not in first.partition("on everyday")[2], "a strip is cut at 80 columns"
    html = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert html.index(real.TITLE) < html.index(organism.TITLE)
    # The table of all items stands on the page as it does in the terminal.
    row = re.search(r"^ shortest candidate +(.+)$", first, flags=re.MULTILINE)
    assert row is not None
    for number in row[1].split():
        assert f'<td class="number">{number}</td>' in html


def test_the_short_demo_parts_a_repair_from_a_break_in_25_lines(tmp_path):
    text = io.StringIO()
    page = tmp_path / "d.html"
    advice = [("lastword demo --all", "every table")]
    figures = show_short(Console(file=text, width=80), page, advice)["short"]
    lines = text.getvalue().splitlines()
    assert len(lines) <= 25
    shown = " ".join(text.getvalue().split())
    assert re.search(r"the repair \([\d.]+ nats\) is allowed", shown)
    assert re.search(r"the break \([\d.]+ nats\) is not allowed", shown)
    assert re.search(r"allowed +overrides by", shown) and "nothing about other models" in shown
    assert page.name in "".join(text.getvalue().split())  # a long path folds
    assert set(figures["examples"]) == {CERTIFIED, WITHHELD}
    again = answer(Tracer.demo("organism"), items(), unwatched, whole=False)
    gains = [o.gain for o in again]
    effect = figures["corrected"]
    assert [effect["fixed"], effect["broken"]] == [
        sum(g > 0 for g in gains),
        sum(g < 0 for g in gains),
    ]
    html = page.read_text(encoding="utf-8")
    assert f"{effect['fixed']} repaired, {effect['broken']} broken" in html
    assert "right answers to 450 questions" in html


def test_a_long_answer_is_cut_in_the_terminal():
    names = ("a long answer that goes on and on and on", "no")
    long = replace(SURE, decision=replace(SURE.decision, candidates=names))
    text = io.StringIO()
    told = replace(tale(many(), alpha=0.02), examples={CERTIFIED: long})
    Console(file=text, width=80).print(story_lines(told, "", []))
    assert "no → a long answer that goes on…, which is true" in text.getvalue()


def test_outcomes_keep_the_order_of_the_items(few):
    answered = answer(Tracer.demo("organism"), few, unwatched)
    assert [o.item.id for o in answered] == [item.id for item in few]
    assert [o.decision.id for o in answered] == [item.id for item in few]


# Figures of the real model, counted by hand: two pairs and a fact on a model of four blocks, and
# as many items more, which nothing changes, as a certificate needs.


def asked(id, base, scores, truth, operator="base", inside=(-1.0, -2.0), blind=(0.0, -1.0)):
    made = judged(base, scores, operator, truth=truth, blind=blind)
    trajectory = made.decision.trajectory.copy()
    trajectory[:, 2] = inside
    decision = replace(made.decision, trajectory=trajectory, decisive_layer=2)
    return judge(replace(made.item, id=id, prompt=id), decision)


FIRST, SECOND = (-1.0, -2.0), (-2.0, -1.0)


@pytest.fixture(scope="module")
def found() -> Figures:
    outcomes = [
        asked("pair/001/a", FIRST, FIRST, truth=0),
        asked("pair/001/b", SECOND, FIRST, truth=1, operator="decisive"),
        asked("pair/002/a", SECOND, FIRST, truth=0, operator="decisive"),
        asked("pair/002/b", SECOND, SECOND, truth=1, inside=SECOND),
        asked("plain/001", FIRST, SECOND, truth=0, operator="mix"),
    ]
    more = [asked(f"popular/{i:03}", FIRST, FIRST, truth=0) for i in range(300)]
    return figures(Tracer.demo("organism"), [*outcomes, *more])


def test_figures_of_whoever_chooses(found):
    assert (found.items, found.pairs) == (305, 2)
    rights = {name: (r.sorts["pair"], r.pairs) for name, r in found.choosers.items()}
    assert rights == {
        "the model": (0.75, 0.5),
        "TRACE": (0.75, 0.5),
        "question left out": (0.5, 0.0),
        "shortest candidate": (0.5, 0.0),
        "longest candidate": (0.5, 0.0),
        "first candidate": (0.5, 0.0),
    }
    assert found.choosers["the model"].mc1 == 304 / 305
    assert found.choosers["TRACE"].mc1 == 303 / 305
    assert found.choosers["TRACE"].sorts["plain"] == 0.0
    # The false candidate is the shorter one.
    assert found.choosers["shortest candidate"].sorts["plain"] == 0.0


def test_figures_by_operator_and_of_all(found):
    counts = {name: (d.items, d.fixed, d.broken) for name, d in found.operators.items()}
    assert counts == {"base": (302, 0, 0), "decisive": (2, 1, 1), "mix": (1, 0, 1)}
    assert found.operators["decisive"].mc1_blind == 0.5
    assert (found.judgement.fixed, found.judgement.broken) == (1, 2)
    assert found.judgement.finding == "unclear"
    assert found.certificate[1] == "allowed: nothing: keep correction off"


def test_figures_by_depth(found):
    depths = found.depths
    # Depth 2 answers the first pair's questions alike, the last depth the second's.
    assert depths.alike == [1.0, 1.0, 0.5, 1.0, 0.5]
    assert (depths.decided, depths.decided_alike) == (2, 1)
    assert depths.mc1[2] == depths.mc1[4] == 304 / 305
    assert depths.apart[2] == depths.apart[4] == 1.0


# The command


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `lastword demo`: its exit code, what was to be shown, and what it printed."""

    def call(*arguments):
        shown = []

        def show(*given):
            shown.append(given[2:4])
            return {"organisms": {"organism": {"invariant": 0.5}}}

        def show_short(console, page, advice, watch):
            shown.append([name for name, _ in advice])
            return {"short": {"items": 1}}

        monkeypatch.setattr("lastword.demo.show.show", show)
        monkeypatch.setattr("lastword.demo.show.show_short", show_short)
        page = tmp_path / "demo.html"
        monkeypatch.setattr(sys, "argv", ["lastword", "demo", "--page", str(page), *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, shown, *capsys.readouterr()

    return call


@pytest.fixture
def absent(monkeypatch, tmp_path):
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named, "find_spec", lambda _: None)


def test_without_the_file_a_line_says_how_to_get_it_and_the_organism_is_shown(run, absent):
    code, shown, out, err = run("--all")
    assert (code, shown, err) == (0, [(None, True)], "")
    assert out.startswith("Without a real model: ") and "`lastword get smollm2-135m`" in out
    assert out.count("\n") == 1


def test_the_real_model_alone_needs_its_file(run, absent):
    code, shown, out, err = run("--real")
    assert (code, shown, out) == (1, [], "") and "`lastword get smollm2-135m`" in err


def test_the_organism_alone_needs_no_file(run, absent):
    assert run("--organism") == (0, [(None, True)], "", "")


def test_the_figures_are_printed_as_json_alone(run, absent):
    code, _, out, err = run("--all", "--json")
    assert code == 0 and err.startswith("Without a real model: ")
    assert json.loads(out) == {"organisms": {"organism": {"invariant": 0.5}}}


def test_the_figures_for_programs_are_those_that_are_shown(few, tmp_path):
    console = Console(quiet=True)
    figures = show(console, None, None)["organisms"]
    assert set(figures) == {"organism", "control", "mix", "mix-control"}
    outcomes = answer(Tracer.demo("organism"), few, unwatched)
    multi = score([o for o in outcomes if str(o.item.id).startswith("multi/")])
    assert figures["organism"]["multi"] == asdict(multi) and multi.items


def test_the_short_demo_needs_no_file_and_says_how_to_get_it(run, absent):
    names = ["lastword get smollm2-135m", "lastword try FILE", "lastword demo --all"]
    assert run() == (0, [names], "", "")
    code, _, out, err = run("--json")
    assert (code, json.loads(out), err) == (0, {"short": {"items": 1}}, "")


def test_both_are_shown_unless_one_is_asked_for(run, monkeypatch):
    monkeypatch.setattr(real, "NAME", "lastword/demo-organism")
    for arguments, organisms in (
        (("--all",), True),
        (("--real",), False),
        (("--real", "--organism"), True),
    ):
        code, [(tracer, also)], out, err = run(*arguments)
        assert (code, also, out, err) == (0, organisms, "", "")
        assert isinstance(tracer, Tracer)
