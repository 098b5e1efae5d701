"""Packages outside the tree: the examples, as a package manager leaves them."""

import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lastword.benchmarks import catalogue, find
from lastword.errors import InputError
from lastword.files import plugins
from lastword.methods import correction_of
from lastword.methods.contract import Evidence, Facts
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Step
from lastword.rule.router import Verdict

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    modules: list[str] = []

    def put(example: str) -> None:
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
    plugins.forget()
    yield put
    plugins.forget()
    for name in modules:
        sys.modules.pop(name, None)


def test_a_benchmark_outside_the_tree_is_one_of_the_table(install: Install) -> None:
    install("benchmark")
    benchmark = find("sums")
    dataset = benchmark.load(None, limit=3)
    items = dataset.items(benchmark.template())
    assert [i.prompt for i in items] == ["1 + 1 =", "1 + 2 =", "1 + 3 ="]
    assert items[1].candidates == ("3", "4", "2") and items[1].blind_prompt == "the sum ="
    assert list(catalogue())[-1] == "sums"


def test_a_correction_outside_the_tree_decides(install: Install) -> None:
    install("correction")
    surer = correction_of("surer", Facts(2, 10, 1.0))

    def decided(base: list[float], blind: list[float]) -> list[float]:
        S, other = np.full((2, 3), np.nan), np.full((2, 3), np.nan)
        tokens = np.array([1, 1])
        steps: list[Step] = []
        while True:
            seen, unseen = Trajectory(S), Trajectory(other)
            answer = surer.next(Evidence(("a", "b"), tokens, seen, None, unseen, tokens))
            if isinstance(answer, Verdict):
                assert steps == [Step(frozenset([2]), blind=frozenset([2]))]
                assert answer.correction.operator == "surer"
                return answer.correction.scores.tolist()
            steps.append(answer)
            S[:, 2], other[:, 2] = base, blind

    assert decided([-1.0, -2.0], [-1.0, -2.75]) == [0.0, 0.75]
    assert decided([-1.0, -2.0], [-1.0, -2.5]) == [-1.0, -2.0]


def test_what_is_no_benchmark_of_its_name_is_refused(install: Install, tmp_path: Path) -> None:
    install("benchmark")
    (entries,) = tmp_path.glob("*.dist-info/entry_points.txt")
    for line, what in (
        ("other = lastword_sums:SUMS", "lastword-sums adds under the name other no Benchmark"),
        ("demo = lastword_sums:SUMS", "a benchmark under the name demo, which is taken"),
        ("sums = lastword_sums:NONE", "the benchmark sums of lastword-sums fails"),
    ):
        entries.write_text(f"[lastword.benchmarks]\n{line}\n")
        plugins.forget()
        with pytest.raises(InputError, match=what):
            find("sums")
