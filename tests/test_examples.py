"""The examples run on the embedded model, and their output is right."""

import ast
import csv
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
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


def test_router(run, tmp_path):
    """The answers are a probe's, which defers tickets unlike the labelled ones."""
    labelled, unlabelled = tickets()[:80], tickets()[-25:]
    questions = {"team": read_questions(EXAMPLES / "questions.yaml")["team"]}
    tracer = Tracer.demo(overflow="truncate")
    classifier = ProbeClassifier(tracer, questions["team"].instructions)
    classifier.fit(*zip(*((row["text"], row["team"]) for row in labelled), strict=True))
    decider = Decider.demo(overflow="truncate", probes=[classifier.probe_], novelty=0.1)
    with running(decider) as served:
        table = write_csv(tmp_path / "tickets.csv", [*labelled[:3], *unlabelled])
        routed = run("router.py", str(table), served.url).splitlines()
    texts = [row["text"] for row in unlabelled]
    answers = [answer["team"] for answer in decider.decide_many(texts, questions)]
    for line, row, answer in zip(routed, unlabelled, answers, strict=True):
        who = "a person" if answer.deferred else answer.choice
        text, share = line.rsplit(maxsplit=1)
        assert text == f"{row['id']} {who}" and share == f"{answer.probability:.0%}"
    assert 0 < sum(answer.deferred for answer in answers) < 25


def test_promptfoo():
    """Requests and answers of its HTTP provider are right, for each of its tests."""
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
    out = run("guard.py", str(tmp_path / "pages"))
    expected = list(Tracer.demo().correct_many(items()[:24]))
    changed = [place for place, d in enumerate(expected, start=1) if d.corrected]
    assert changed, "the example shows nothing"
    assert out.splitlines()[-1] == f"24 answered, {len(changed)} corrected"
    pages = sorted((tmp_path / "pages").glob("*.html"))
    assert [int(path.stem) for path in pages] == changed
    assert expected[changed[0] - 1].answer in pages[0].read_text(encoding="utf-8")


def test_harness(run):
    out = run("harness.py")
    accuracies = dict(re.findall(r"^(\S+) +acc (\d\.\d+)$", out, flags=re.MULTILINE))
    some = items()[:40]
    expected = list(Tracer.demo().correct_many(some))
    for method, index in {"base-mean": "base_index", "trace": "index"}.items():
        right = [i.truthful[getattr(d, index)] for i, d in zip(some, expected, strict=True)]
        assert float(accuracies[method]) == pytest.approx(sum(right) / 40, abs=0.001)
    assert set(accuracies) == {"base-sum", "base-mean", "trace"}


def run_cells(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Run a notebook's cells in order; return their final values, and its names."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    programs = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert not any(c.get("outputs") or c.get("execution_count") for c in cells)
    names: dict[str, Any] = {}
    outputs = []
    for program in programs:
        *body, last = ast.parse(program).body
        exec(compile(ast.Module(body, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            outputs.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
        else:
            exec(compile(ast.Module([last], []), name, "exec"), names)
    return outputs, names


def test_tour():
    """Every cell runs, and its final value is right."""
    outputs, names = run_cells("tour.ipynb")
    share, table, decision, gates, frame, _ = outputs
    assert share > 0.6 and table.argmax(axis=1).tolist() == [0, 1]
    assert decision.answer == "pale cedar boats"
    assert gates and len(frame) == 2
    assert names["right"] > names["base"]


def test_trace(monkeypatch):
    """The notebook computes Algorithm 1 by itself, and agrees with lastword to 1e-6."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    outputs, names = run_cells("trace.ipynb")
    decision, shape, figure, dimensions, layers, t, invariants, answers, variants, table = outputs
    tracer = Tracer.demo()
    expected = tracer.correct(names["prompt"], names["candidates"])
    assert decision.answer == expected.answer == "secret market colours" and expected.corrected
    assert shape == (4, tracer.profile.depth + 1)
    assert [line.get_label() for line in figure.axes[0].lines] == names["candidates"]
    assert dimensions[0] == pytest.approx(dimensions[1]) and dimensions[1] > dimensions[2]
    assert layers[0] == layers[1] == expected.decisive_layer
    assert t[0] == pytest.approx(t[1], abs=1e-6) and answers[0] == answers[1]
    assert invariants[0] == pytest.approx(invariants[1], abs=1e-12)
    assert variants.shape == (6, 8) and len(set(variants.to_numpy().flat)) > 1
    assert table["operator"].tolist() == ["decisive", "early", "mix"]
    assert np.nanmax(table.drop(columns="operator").to_numpy(float)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tour.ipynb", "trace.ipynb"])
def test_jupyter_executes_the_notebooks(name):
    nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))
    client = nbclient.NotebookClient(nbformat.read(EXAMPLES / name, as_version=4), timeout=300)
    client.execute()  # raises the error of a cell
