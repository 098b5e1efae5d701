"""The results in experiments/results/demo.json are reproducible."""

import json
from pathlib import Path

import pytest
from tiers import by_night

from lastword import Tracer
from lastword.decide.batch import Scope
from lastword.lab.benchmarks import find
from lastword.lab.demo import answer, items
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.records.cells import mean
from lastword.records.metrics import fixed_and_broken, mc2
from lastword.rule.geometry import Trajectory
from lastword.rule.router import next_step

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
RESULT = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))
REAL, ORGANISMS = RESULT["real"], RESULT["organisms"]
MODEL = named.PUBLISHED["smollm2-135m"]
# Items of `everyday` that SmolLM2 answers differently under another reading of T, `floor-anchor`.
BY_READING = ("popular/042", "pair/051/b", "pair/056/a")


@pytest.mark.slow
@pytest.mark.parametrize("name", by_night(ORGANISMS, ["organism", "mix"]))
def test_the_embedded_models_give_the_stored_results(name):
    records = answer(Tracer.demo(name), items())
    for form in ("multi", "binary"):
        some, stored = [r for r in records if form in str(r.id)], ORGANISMS[name][form]
        means = {"mc1_base": mean([r.share("mc1", base=True) for r in some])}
        means["mc1"] = mean([r.share("mc1") for r in some])
        means["mc2"] = mean([mc2(r.scores, r.truthful) for r in some])
        assert means == pytest.approx({key: stored[key] for key in means}, abs=1e-5)
        assert fixed_and_broken([r.gain for r in some]) == (stored["fixed"], stored["broken"])


@pytest.mark.slow
@pytest.mark.skipif(MODEL.place is None, reason=f"no {MODEL.file}: {MODEL.advice}")
def test_the_real_model_gives_the_stored_answers(once):
    everyday = find("everyday")
    items = everyday.load().items(everyday.template())
    assert len(REAL["answers"]) == len(REAL["base_answers"]) == len(items)
    pairs = zip(REAL["base_answers"], REAL["answers"], strict=True)
    stored = {item.id: pair for item, pair in zip(items, pairs, strict=True)}
    real = once(LoadOptions(REAL["model"]))
    chosen = [*items[:10], *(item for item in items if item.id in BY_READING)]
    decisions = real.correct_encoded(real.encode(chosen), Scope("all", "none", readings=True))
    answers = {decision.id: decision for decision in decisions}
    assert len(answers) == 10 + len(BY_READING)
    for id, given in answers.items():
        assert (str(given.base_index), str(given.index)) == stored[id], id
    assert any(given.corrected for given in answers.values())
    for id in BY_READING:
        given = answers[id]
        rulings = {
            name: next_step(Trajectory(given.trajectory, t), real.invariant, real.theta)
            for name, t in given.t_readings.items()
        }
        places = {name: ruling.scores.argmax() for name, ruling in rulings.items()}
        assert places["clip-anchor"] == given.index != places["floor-anchor"], id
