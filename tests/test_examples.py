"""The examples run as they say, on the embedded model, and what they print holds."""

import ast
import csv
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from served import running
from topics import write_csv

from lastword import Decider, ProbeClassifier, Tracer
from lastword.decide.questions_file import read_questions
from lastword.lab.demo import items

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def tickets() -> list[dict[str, str]]:
    with (EXAMPLES / "tickets.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("probed", [False, True])
def test_router(run, tmp_path, probed):
    """The model answers, or a probe does that defers what is like no labelled ticket."""
    labelled, unlabelled = tickets()[:80], tickets()[-25:]
    asked = {"team": read_questions(EXAMPLES / "questions.yaml")["team"]}
    tracer = Decider.demo(overflow="truncate")
    if probed:
        classifier = ProbeClassifier(tracer.tracer, asked["team"].instructions)
        classifier.fit(*zip(*((row["text"], row["team"]) for row in labelled), strict=True))
        tracer = Decider.demo(overflow="truncate", probes=[classifier.probe_], unlike=0.1)
    with running(tracer) as served:
        table = write_csv(tmp_path / "tickets.csv", [*labelled[:3], *unlabelled])
        routed = run("router.py", str(table), served.url).splitlines()
    answers = [own["team"] for own in tracer.decide_many([r["text"] for r in unlabelled], asked)]
    assert len(routed) == 25 and all(row["team"] for row in labelled)
    assert len((EXAMPLES / "router.py").read_text(encoding="utf-8").splitlines()) <= 45
    for line, row, answer in zip(routed, unlabelled, answers, strict=True):
        who = "a person" if answer.deferred else answer.choice
        said, sure = line.rsplit(maxsplit=1)
        assert said == f"{row['id']} {who}" and sure == f"{answer.probability:.0%}"
    deferred = sum(answer.deferred for answer in answers)
    assert 0 < deferred < 25 if probed else deferred == 0
    assert {answer.method for answer in answers} == {classifier.probe_.name if probed else "model"}


def test_promptfoo():
    """What its HTTP provider sends and takes from the answer, for each of its tests."""
    plan = yaml.safe_load((EXAMPLES / "promptfoo.yaml").read_text(encoding="utf-8"))
    (provider,) = plan["providers"]
    config, path = provider["config"], httpx.URL(provider["id"]).path
    assert config["transformResponse"] == "json.answers[0].choice"
    with running(Decider.demo()) as served:
        for test in plan["tests"]:
            body = config["body"] | {"input": test["vars"]["text"]}
            answer = httpx.request(config["method"], served.url + path, json=body).json()
            (check,) = test["assert"]
            assert (check["type"], check["value"]) == ("equals", answer["answers"][0]["choice"])


def test_guard(run, tmp_path):
    out = run("guard.py", str(tmp_path / "kept"))
    known = list(Tracer.demo().correct_many(items()[:24]))
    changed = [place for place, d in enumerate(known, start=1) if d.corrected]
    assert changed, "the example shows nothing"
    assert out.splitlines()[-1] == f"24 answered, {len(changed)} corrected"
    kept = sorted((tmp_path / "kept").glob("*.html"))
    assert [int(path.stem) for path in kept] == changed
    assert known[changed[0] - 1].answer in kept[0].read_text(encoding="utf-8")


def test_harness(run):
    out = run("harness.py")
    found = dict(re.findall(r"^(\S+) +acc (\d\.\d+)$", out, flags=re.MULTILINE))
    asked = items()[:40]
    known = list(Tracer.demo().correct_many(asked))
    for method, index in {"base-mean": "base_index", "trace": "index"}.items():
        right = [i.truthful[getattr(d, index)] for i, d in zip(asked, known, strict=True)]
        assert float(found[method]) == pytest.approx(sum(right) / 40, abs=0.001)
    assert set(found) == {"base-sum", "base-mean", "trace"}


def run_cells(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Run a notebook's cells in order; return what each ends with, and its names."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    programs = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert not any(c.get("outputs") or c.get("execution_count") for c in cells)
    names: dict[str, Any] = {}
    seen = []
    for program in programs:
        *body, last = ast.parse(program).body
        exec(compile(ast.Module(body, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            seen.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
        else:
            exec(compile(ast.Module([last], []), name, "exec"), names)
    return seen, names


def test_tour():
    """Every cell runs, and what a cell ends with is shown; nothing that moves is kept in it."""
    seen, names = run_cells("tour.ipynb")
    share, table, decision, gates, frame, _ = seen
    assert share > 0.6 and table.argmax(axis=1).tolist() == [0, 1]
    assert "<table" in decision._repr_html_() and decision.answer == "pale cedar boats"
    assert gates and len(frame) == 2
    assert names["right"] > names["base"]


def test_trace(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    seen, names = run_cells("trace.ipynb")
    shape, figure, dimensions, layers, gates, decision, alike, scalar, apart = seen
    tracer, item = Tracer.demo(), names["item"]
    known = tracer.correct(item.prompt, item.candidates)
    assert shape == (4, tracer.profile.depth + 1)
    assert [line.get_label() for line in figure.axes[0].lines] == list(item.candidates)
    assert dimensions[0] == pytest.approx(dimensions[1]) and dimensions[1] > dimensions[2]
    assert layers[0] == layers[1] == known.decisive_layer
    assert list(gates.index) == list(known.gates) and gates["holds"].all()
    assert decision.answer == known.answer == "secret market colours" and known.corrected
    assert alike.shape == (6, 8) and set(alike.to_numpy().flat) == {known.answer}
    # Each cell is the answer of a tracer with that reading of I(M).
    assert scalar.regime == "scalar" and len(set(apart.to_numpy().flat)) > 1
    for (name, value), column in zip(tracer.invariant_readings.items(), apart, strict=True):
        assert column.startswith(name)
        by = Tracer(tracer.backbone.model, tracer.tokenizer, invariant=value).correct(
            names["scalar"].prompt, names["scalar"].candidates
        )
        assert by.answer == apart.loc[tracer.theta.scorer.reading, column]
