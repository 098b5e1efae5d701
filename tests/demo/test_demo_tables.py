"""The tables of docs/demo.md are those of experiments/results/demo.json, and still come out."""

import json
from pathlib import Path
from typing import Any

import pytest

from lastword import Tracer, load_records
from lastword.benchmarks.demo import items
from lastword.demo.outcome import BROKEN, REPAIRED, STAYS, answer, average
from lastword.demo.story import REAL as PART
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.records.metrics import fixed_and_broken
from lastword.service.pages import ASSETS

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "experiments" / "results" / "demo.json").read_text(encoding="utf-8"))
REAL, ORGANISMS = RESULT["real"], RESULT["organisms"]
EVIDENCE = ROOT / "experiments" / "results" / "evidence" / "own"
DEMO = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
MODEL = named.PUBLISHED["smollm2-135m"]

Rows = dict[str, list[str]]


def table(page: str, heading: str) -> Rows:
    """The cells of a Markdown table by the first of each row."""
    lines = page[page.index(f"| {heading}") :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]
    return {first: rest for first, *rest in cells}


def percent(*shares: float) -> list[str]:
    return [f"{100 * share:.1f}" for share in shares]


def counts(of: dict[str, Any]) -> list[str]:
    return [str(of["fixed"]), str(of["broken"])]


def beside(name: str) -> list[str]:
    return counts(REAL["judgement"]) if name == "TRACE" else ["", ""]


def test_the_real_models_tables_of_the_page():
    shown = table(DEMO, "chooses |")
    assert list(shown) == list(REAL["choosers"])
    for name, right in REAL["choosers"].items():
        shares = percent(right["mc1"], *right["sorts"].values(), right["pairs"])
        assert shown[name] == shares + beside(name), name
    shown = table(DEMO, "decides |")
    assert set(shown) == set(REAL["operators"])
    for name, of in REAL["operators"].items():
        shares = percent(of["mc1_base"], of["mc1"], of["mc1_blind"])
        assert shown[name] == [str(of["items"]), *shares, *counts(of)], name
    assert f"McNemar p = {REAL['judgement']['p']:.3g}" in DEMO
    assert f"I(M) {REAL['invariant']:.2f}" in DEMO
    assert REAL["certificate"][1] in DEMO
    assert REAL["judgement"]["finding"] == "hurts"
    assert REAL["certificate"][1] == "allowed: nothing: keep correction off"


def test_why_it_loses_is_what_was_measured():
    shown, depths = table(DEMO, "| 1..29 |"), REAL["depths"]
    for name, key, scale, digits in (
        ("MC1", "mc1", 100, 1),
        ("pairs answered alike", "alike", 100, 1),
        ("two best apart, nats", "apart", 1, 2),
    ):
        _, *inside, last = depths[key]
        mean = sum(inside) / len(inside)
        assert shown[name] == [f"{scale * value:.{digits}f}" for value in (mean, last)], name
    said = " ".join(DEMO.split())
    assert f"Of the {depths['decided']} questions of pairs that `decisive` decides" in said
    assert f"the same answer in {depths['decided_alike']}." in said


def test_the_explorers_examples_are_the_first_of_their_sort():
    records = load_records(EVIDENCE / "lastword--smollm2-135m" / "everyday").set_index("id")
    firsts: dict[str, str] = {}
    answers = zip(PART.items(), REAL["base_answers"], REAL["answers"], strict=True)
    for item, base, corrected in answers:
        assert item.truthful is not None
        gain = item.truthful[int(corrected)] - item.truthful[int(base)]
        deep = not records["decisive_layer"][item.id] <= 2  # nan where no depth decided
        rules = ((REPAIRED, gain > 0 and deep), (BROKEN, gain < 0 and deep))
        for rule, holds in (*rules, (STAYS, base == corrected)):
            if holds:
                firsts.setdefault(rule, item.prompt)
    shown = json.loads((ASSETS / "examples.json").read_text())["ask"]["lastword/smollm2-135m"]
    assert [firsts[rule] for rule in (REPAIRED, BROKEN, STAYS)] == [e["prompt"] for e in shown]


def test_the_pages_table_of_the_embedded_models():
    shown = table(DEMO, "| n | MC1 | MC2-style |")
    assert len(shown) == 14
    for what, cells in shown.items():
        name, part = named_part(what)
        of = ORGANISMS[name][part]
        mc1, mc2 = ((of[f"{m}_base"], of[m]) for m in ("mc1", "mc2"))
        shares = [f"{100 * a:.1f} → {100 * b:.1f}" for a, b in (mc1, mc2)]
        assert cells == [str(of["items"]), *shares, f"{of['fixed']} / {of['broken']}"], what


def named_part(row: str) -> tuple[str, str]:
    """`organism, multi, I(M) 0.50`, or a part of that model's multiple-choice items."""
    if row.startswith("– "):
        return "organism", f"multi/{row.removeprefix('– ').split()[0]}"
    name, form, *invariant = row.split(", ")
    if invariant:
        assert invariant[0] == f"I(M) {ORGANISMS[name]['invariant']:.2f}"
    return name, form


def unwatched(decisions, *_):
    return decisions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["organism", "control"])
def test_the_organism_still_answers_so(name):
    outcomes = answer(Tracer.demo(name), items(), unwatched, "decide")
    for form in ("multi", "binary"):
        some, kept = [o for o in outcomes if form in str(o.item.id)], ORGANISMS[name][form]
        before, after = (average(getattr(o, m) for o in some) for m in ("mc1_base", "mc1"))
        assert (before, after) == pytest.approx((kept["mc1_base"], kept["mc1"]), abs=1e-5)
        assert fixed_and_broken([o.gain for o in some]) == (kept["fixed"], kept["broken"])


@pytest.mark.slow
@pytest.mark.skipif(named.find(MODEL) is None, reason=f"no {MODEL.file}: {MODEL.advice}")
def test_the_real_model_still_answers_so(once):
    items = PART.items()
    assert len(REAL["answers"]) == len(REAL["base_answers"]) == len(items)
    outcomes = answer(once(LoadOptions(PART.model)), items[:24], unwatched)
    found = [[str(o.decision.base_index), str(o.decision.index)] for o in outcomes]
    kept = zip(REAL["base_answers"][:24], REAL["answers"][:24], strict=True)
    assert found == [list(pair) for pair in kept]
    assert any(base != corrected for base, corrected in found)
