"""Plugins outside the tree: the examples, installed like by a package manager."""

import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import families
import numpy as np
import pytest

from lastword import Tracer
from lastword.decide.batch import Scope
from lastword.errors import InputError
from lastword.files import plugins
from lastword.lab.benchmarks import catalogue, find
from lastword.methods import correction_of, entry, resolve
from lastword.methods import table as methods_table
from lastword.methods.contract import Evidence, Facts
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Step
from lastword.rule.router import Ruling

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    modules: list[str] = []

    def install_example(example: str) -> None:
        project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text())["project"]
        name = project["name"].replace("-", "_")
        shutil.copy(EXAMPLES / example / f"{name}.py", tmp_path)
        folder = tmp_path / f"{name}-{project['version']}.dist-info"
        folder.mkdir()
        ((group, points),) = project["entry-points"].items()
        lines = [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        (folder / "METADATA").write_text(f"Name: {project['name']}\nVersion: 0.1.0\n")
        modules.append(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._entries.cache_clear()
    yield install_example
    plugins._entries.cache_clear()
    for name in modules:
        sys.modules.pop(name, None)


def test_a_benchmark_outside_the_tree_is_in_the_catalogue(install):
    install("benchmark")
    benchmark = find("sums")
    dataset = benchmark.load(None, limit=3)
    items = dataset.items(benchmark.template())
    assert [i.prompt for i in items] == ["1 + 1 =", "1 + 2 =", "1 + 3 ="]
    assert items[1].candidates == ("3", "4", "2") and items[1].blind_prompt == "the sum ="
    assert list(catalogue())[-1] == "sums"


def test_a_correction_outside_the_tree_decides(install):
    install("correction")
    surer, tokens = correction_of("surer", Facts(2, 10, 1.0)), np.array([1, 1])
    S, blind_S = np.full((2, 3), np.nan), np.full((2, 3), np.nan)

    def next_step() -> Step | Ruling:
        trajectory, blind = Trajectory(S), Trajectory(blind_S)
        return surer.next(Evidence(("a", "b"), tokens, trajectory, None, blind, tokens))

    assert next_step() == Step(frozenset([2]), blind=frozenset([2]))
    S[:, 2] = [-1.0, -2.0]
    for blind, scores in ((-2.75, [0.0, 0.75]), (-2.5, [-1.0, -2.0])):
        blind_S[:, 2] = [-1.0, blind]
        verdict = next_step()
        assert isinstance(verdict, Ruling) and verdict.correction.operator == "surer"
        assert verdict.correction.scores.tolist() == scores


def test_a_method_outside_the_tree_scores(install):
    install("method")
    engine = Tracer(families.build("llama"), families.tokenizer())
    assert entry("last-agreeing").source == "lastword-last-agreeing"
    encoded = engine.encode(families.random_items(3, 4, candidates=(2, 3)))
    compared = engine.compare(encoded, resolve(["last-agreeing", "dola"], engine.facts))
    for decision, scores in zip(engine.decide_group(encoded, Scope("all")), compared, strict=True):
        S = decision.trajectory
        agreeing = [d for d in range(6) if S[:, d].argmax() == S[:, d + 1].argmax()]
        expected = S[:, agreeing[-1]] if agreeing else S[:, 6]
        np.testing.assert_allclose(scores["last-agreeing"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("group", "line", "message"),
    [
        ("benchmarks", "other = lastword_sums:SUMS", "not a Benchmark with that name"),
        ("benchmarks", "demo = lastword_sums:SUMS", "demo, but this name is taken"),
        ("benchmarks", "sums = lastword_sums:NONE", "benchmark sums of"),
        ("methods", "bad = broken_module:make", "method bad of"),
        ("methods", "dola = broken_module:make", "dola, but this name is taken"),
    ],
)
def test_an_invalid_entry_point_is_refused(install, tmp_path, group, line, message):
    install("benchmark")
    (entries,) = tmp_path.glob("*.dist-info/entry_points.txt")
    entries.write_text(f"[lastword.{group}]\n{line}\n")
    plugins._entries.cache_clear()
    with pytest.raises(InputError, match=message):
        find("sums") if group == "benchmarks" else methods_table.catalogue()
