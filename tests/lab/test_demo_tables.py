"""What docs/demo.md tells, as experiments/results/demo.json has it, still comes out."""

import json
from pathlib import Path

import pytest
from tiers import needs_evidence

from lastword import Tracer, load_records
from lastword.lab.benchmarks.demo import items
from lastword.lab.demo.story import BROKEN, CORRECTED, answer, gain
from lastword.lab.demo.story import REAL as PART
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.records.cells import mean
from lastword.records.metrics import fixed_and_broken
from lastword.service.pages import ASSETS

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "experiments" / "results" / "demo.json").read_text(encoding="utf-8"))
REAL, ORGANISMS = RESULT["real"], RESULT["organisms"]
EVIDENCE = ROOT / "experiments" / "results" / "evidence" / "own"
MODEL = named.PUBLISHED["smollm2-135m"]


@needs_evidence
def test_the_explorers_examples_are_the_first_of_their_sort():
    records = load_records(EVIDENCE / "lastword--smollm2-135m" / "everyday").set_index("id")
    firsts: dict[str, str] = {}
    answers = zip(PART.items(), REAL["base_answers"], REAL["answers"], strict=True)
    for item, base, corrected in answers:
        assert item.truthful is not None
        change = item.truthful[int(corrected)] - item.truthful[int(base)]
        deep = not records["decisive_layer"][item.id] <= 2  # nan where no depth decided
        rules = ((CORRECTED, change > 0 and deep), (BROKEN, change < 0 and deep))
        for rule, holds in (*rules, ("stays", base == corrected)):
            if holds:
                firsts.setdefault(rule, item.prompt)
    shown = json.loads((ASSETS / "examples.json").read_text())["ask"]["lastword/smollm2-135m"]
    assert [firsts[rule] for rule in (CORRECTED, BROKEN, "stays")] == [e["prompt"] for e in shown]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["organism", "control"])
def test_the_organism_still_answers_so(name):
    records = answer(Tracer.demo(name), items(), lambda decisions, *_: decisions, "decide")
    for form in ("multi", "binary"):
        some, kept = [r for r in records if form in str(r.id)], ORGANISMS[name][form]
        before, after = (mean([getattr(r, m) for r in some]) for m in ("mc1_base", "mc1"))
        assert (before, after) == pytest.approx((kept["mc1_base"], kept["mc1"]), abs=1e-5)
        assert fixed_and_broken([gain(r) for r in some]) == (kept["fixed"], kept["broken"])


@pytest.mark.slow
@pytest.mark.skipif(named.find(MODEL) is None, reason=f"no {MODEL.file}: {MODEL.advice}")
def test_the_real_model_still_answers_so(once):
    items = PART.items()
    assert len(REAL["answers"]) == len(REAL["base_answers"]) == len(items)
    real = once(LoadOptions(PART.model))
    records = answer(real, items[:24], lambda decisions, *_: decisions)
    found = [[str(o.decision.base_index), str(o.decision.index)] for o in records]
    kept = zip(REAL["base_answers"][:24], REAL["answers"][:24], strict=True)
    assert found == [list(pair) for pair in kept]
    assert any(base != corrected for base, corrected in found)
