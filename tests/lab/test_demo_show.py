"""`lastword demo`: its output and its page."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from browser import assert_accessible
from decided import decided
from rich.console import Console

from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.lab.demo.show import show, write_page
from lastword.lab.demo.story import ORGANISM, judge, story
from lastword.rule.answer import Gate
from lastword.text.items import Item
from lastword.trust.terms import Terms


def judged(base, scores, operator="base", changes=False, truth=0, blind=(0.0, -1.0)):
    """Return an outcome of two candidates on a model of four blocks."""
    names = ("<b>long true</b>", "false")
    item = Item("Q", names, id="x", truthful=(truth == 0, truth == 1), blind_prompt="A")
    decision = decided(
        scores,
        base,
        candidates=names,
        operator=operator,
        gates={"changes": Gate(changes, True, changes)},
        trajectory=np.array([[-1.0, -1.0, -0.1, -2.0, base[0]], [-1.0, -2, -9, -1, base[1]]]),
        blind_scores=np.array(blind),
    )
    return judge(item, decision)


RIGHT = judged((-1.0, -2.0), (-1.0, -2.0))
WON = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)
LOST = judged((-1.0, -2.0), (-2.0, -1.0), "mix")
EARLY = judged((-1.0, -2.0), (-2.0, -1.0), "early")
CORRECTED, BROKEN = "first correction from depth 3 on", "first break from depth 3 on"
CERTIFIED = f"{CORRECTED}, of those that the certificate allows"
WITHHELD = f"{BROKEN}, of those that the certificate does not allow"


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_examples_are_decided_by_layers_above_the_second(layer):
    shallow = replace(WON, decisive_layer=layer)
    chosen = story_of([EARLY, shallow, *([RIGHT] * 298)]).examples
    assert [*chosen] == ([CORRECTED] if layer == 3 else [])


def distinct(outcomes):
    """Return the outcomes with distinct questions, because equal ones count once."""
    return [replace(o, prompt=f"Q {i}") for i, o in enumerate(outcomes)]


def story_of(outcomes, alpha=0.05):
    return story(ORGANISM, Tracer.demo("organism"), distinct(outcomes), Terms(alpha=alpha))


SURE = judged((-2.0, -1.0), (-0.1, -9.0), "decisive", changes=True)  # a margin of 8.9 nats
DOUBTFUL = judged((-1.0, -2.0), (-2.0, -1.0), "decisive", changes=True)


def many():
    """Return outcomes whose breaks exceed 2% unless a margin excludes them."""
    return [DOUBTFUL, *([SURE] * 40), *([DOUBTFUL] * 14), *([RIGHT] * 445)]


def test_the_story_follows_the_certificate():
    result = story_of(many(), alpha=0.02)
    assert result.finding.policy.margin == 3
    prompts = {rule: record.prompt for rule, record in result.examples.items()}
    assert prompts == {CERTIFIED: "Q 1", WITHHELD: "Q 0"}  # the first of SURE, of DOUBTFUL
    assert [accuracy[1:] for accuracy in result.accuracies] == [
        (0.5, 0, 0),
        (460 / 500, 0, 0),
        (485 / 500, 40, 15),
        (1, 40, 0),
    ]
    assert result.headline.endswith("under its certificate it corrected 40 and broke 0")


def test_a_story_without_certificate():
    result = story_of([WON, LOST, *([RIGHT] * 298)])
    assert result.finding.chosen is None
    assert result.accuracies[3].right == result.accuracies[1].right
    prompts = {rule: record.prompt for rule, record in result.examples.items()}
    assert prompts == {CORRECTED: "Q 0", WITHHELD: "Q 1"}
    assert result.headline.endswith("its certificate keeps it off")


def stories():
    part = replace(ORGANISM, title="a <title>", note="a <note>")
    result = replace(story_of([WON, LOST, *([RIGHT] * 298)]), part=part)
    return [replace(result, examples={CORRECTED: WON, BROKEN: LOST})]


def test_the_page_needs_no_network_and_escapes_candidates(chromium, tmp_path):
    path = tmp_path / "demo.html"
    write_page(path, stories())
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*\b(src|href)=[^>]*(//|\.)", html)
    assert "a &lt;note&gt;" in html and "a &lt;title&gt;" in html
    assert len(html) < 200_000
    with chromium.opened(path) as watched:
        view = watched.page
        view.wait_for_function("document.querySelectorAll('.item .drawing').length == 2")
        assert view.locator(".item b").count() == 0
        assert view.locator(".item .candidates .text").first.inner_text().startswith("<b>long true")
        assert view.locator(".item .bar.after .share").first.inner_text() == "100.0%"
        assert view.locator(".item").nth(1).locator(".window, .chosen").count() == 4
        chart = view.locator(".effects").bounding_box()
        assert chart["y"] + chart["height"] < view.viewport_size["height"]
        widths = [bar.bounding_box()["width"] for bar in view.locator(".effects .fill").all()]
        assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)  # nearly 1, and 1/2
        assert_accessible(view)
        watched.assert_quiet()
    with pytest.raises(InputError, match="cannot write"):
        write_page(tmp_path / "absent" / "demo.html", stories())


def test_the_demo_imports_nothing_of_the_lab_extra():
    program = "import sys, lastword.lab.demo.show; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not {"pandas", "pyarrow", "matplotlib", "datasets"} & set(done.stdout.split())
    assert "lastword.records.document" in done.stdout


def run_demo(page, parts, **options):
    """Return what `lastword demo` prints in 80 columns, and its figures."""
    text = io.StringIO()
    figures = show(Console(file=text, width=80), page, parts, **options)
    return text.getvalue(), figures


def test_the_demo_shows_an_allowed_correction_and_a_forbidden_break(tmp_path):
    page, advice = tmp_path / "d.html", [("lastword demo --all", "every item")]
    text, figures = run_demo(page, {ORGANISM: Tracer.demo("organism")}, advice=advice)
    assert len(text.splitlines()) <= 25
    words = " ".join(text.split())
    assert re.search(r"the correction \([\d.]+ nats\) is allowed", words)
    assert re.search(r"the break \([\d.]+ nats\) is not allowed", words)
    assert re.search(r"allowed +overrides by", words) and "every item" in words
    assert page.name in "".join(text.split())  # a long path is wrapped
    assert set(figures["organism"]["examples"]) == {CERTIFIED, WITHHELD}
    effect = figures["organism"]["accuracies"][2]
    html = page.read_text(encoding="utf-8")
    assert f"{effect['fixed']} corrected, {effect['broken']} broken" in html
    assert "right answers to 450 questions" in html


@pytest.fixture
def names(monkeypatch, tmp_path):
    """Return a list of the names of models that the demo would show."""
    shown: list[str] = []

    def show(console, page, parts, advice, watch):
        shown[:] = [part.name for part in parts]
        return {"organism": {"items": 1}}

    monkeypatch.setattr("lastword.lab.demo.show.show", show)
    monkeypatch.chdir(tmp_path)
    return shown


def test_without_the_real_model_the_demo_prints_how_to_get_it(run, names, monkeypatch, tmp_path):
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    assert (run("demo"), names) == ((0, "", ""), ["Organism"])
    code, out, err = run("demo", "--all")
    assert (code, err, names) == (0, "", ["Organism"])
    assert out.startswith("Without a real model: ") and "`lastword get smollm2-135m`" in out
    code, out, err = run("demo", "--all", "--json")
    assert code == 0 and err.startswith("Without a real model: ")
    assert json.loads(out) == {"organism": {"items": 1}}
