"""The results of docs/demo.md, stored in experiments/results/demo.json, are reproducible."""

import json
from pathlib import Path

import pytest
from tiers import by_night

from lastword import Tracer
from lastword.lab.benchmarks.demo import items
from lastword.lab.demo.story import REAL as PART
from lastword.lab.demo.story import answer, gain
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.records.cells import mean
from lastword.records.metrics import fixed_and_broken

ROOT = Path(__file__).resolve().parents[2]
RESULT = json.loads((ROOT / "experiments" / "results" / "demo.json").read_text(encoding="utf-8"))
REAL, ORGANISMS = RESULT["real"], RESULT["organisms"]
MODEL = named.PUBLISHED["smollm2-135m"]


@pytest.mark.slow
@pytest.mark.parametrize("name", by_night(["organism", "control"], ["organism"]))
def test_the_organism_gives_the_stored_results(name):
    records = answer(Tracer.demo(name), items(), lambda decisions, *_: decisions, "decide")
    for form in ("multi", "binary"):
        some, stored = [r for r in records if form in str(r.id)], ORGANISMS[name][form]
        before, after = (mean([getattr(r, m) for r in some]) for m in ("mc1_base", "mc1"))
        assert (before, after) == pytest.approx((stored["mc1_base"], stored["mc1"]), abs=1e-5)
        assert fixed_and_broken([gain(r) for r in some]) == (stored["fixed"], stored["broken"])


@pytest.mark.slow
@pytest.mark.skipif(named.find(MODEL) is None, reason=f"no {MODEL.file}: {MODEL.advice}")
def test_the_real_model_gives_the_stored_answers(once):
    items = PART.items()
    assert len(REAL["answers"]) == len(REAL["base_answers"]) == len(items)
    real = once(LoadOptions(PART.model))
    records = answer(real, items[:10], lambda decisions, *_: decisions)
    answers = [[str(o.decision.base_index), str(o.decision.index)] for o in records]
    stored = zip(REAL["base_answers"][:10], REAL["answers"][:10], strict=True)
    assert answers == [list(pair) for pair in stored]
    assert any(base != corrected for base, corrected in answers)
