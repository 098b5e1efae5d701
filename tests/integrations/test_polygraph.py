"""The example of lm-polygraph: its numbers are the rule's own, and its metric takes them."""

import runpy
from pathlib import Path

import pytest

from lastword import Tracer
from lastword.lab.demo import items

pytest.importorskip(
    "lm_polygraph", reason="lm_polygraph brings spacy and its like: in an environment of its own"
)
pytestmark = pytest.mark.filterwarnings("default")

EXAMPLE = Path(__file__).parents[2] / "examples" / "polygraph" / "uncertainty.py"


def test_the_estimators_are_the_rules_numbers_and_polygraph_judges_them(capsys):
    program = runpy.run_path(str(EXAMPLE))
    decisions = list(Tracer.demo().correct_many(items()[:24], read="all"))
    found = {str(e): e({"decisions": decisions}) for e in program["ESTIMATORS"]}
    assert list(found["TraceDimension"]) == [d.d_eff for d in decisions]
    compared = 0
    for place, decision in enumerate(decisions):
        gates = decision.gates
        for name, estimator in (
            ("log_margin_ratio", "TraceMarginRatio"),
            ("entropy", "TraceEntropy"),
        ):
            if name in gates:
                assert found[estimator][place] == pytest.approx(gates[name].value, rel=1e-6)
                compared += 1
    assert compared > 10
    program["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(found)
    assert all(0 < float(line.split()[-1]) <= 1 for line in lines)
