"""The example of lm-polygraph: its estimators are numbers of the rule, and its metric works."""

import runpy
from pathlib import Path

import pytest

from lastword import Tracer
from lastword.lab.demo import items

pytest.importorskip(
    "lm_polygraph", reason="lm_polygraph needs spacy and others: use a separate environment"
)
pytestmark = pytest.mark.filterwarnings("default")

EXAMPLE = Path(__file__).parents[2] / "examples" / "polygraph" / "uncertainty.py"


def test_the_estimators_are_numbers_of_the_rule_and_polygraph_scores_them(capsys):
    program = runpy.run_path(str(EXAMPLE))
    decisions = list(Tracer.demo().correct_many(items()[:24], read="all"))
    estimates = {
        str(estimator): estimator({"decisions": decisions}) for estimator in program["ESTIMATORS"]
    }
    assert list(estimates["TraceDimension"]) == [d.d_eff for d in decisions]
    compared = 0
    for place, decision in enumerate(decisions):
        gates = decision.gates
        for name, title in (("log_margin_ratio", "TraceMarginRatio"), ("entropy", "TraceEntropy")):
            if name in gates:
                assert estimates[title][place] == pytest.approx(gates[name].value, rel=1e-6)
                compared += 1
    assert compared > 10
    program["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(estimates)
    assert all(0 < float(line.split()[-1]) <= 1 for line in lines)
