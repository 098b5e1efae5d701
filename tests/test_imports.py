"""Imports point one way, and the command line answers without the libraries that compute."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tracelm

ROOT = Path(tracelm.__file__).parent
PACKAGE = ROOT.parent

# A module imports from layers above its own and from its own, never from one below. The longest
# name that fits a module says where it stands.
LAYERS = (
    ("errors", "words", "report.palette"),
    ("theta", "geometry", "items", "decision", "portrait"),
    ("tokens", "forest", "families", "supported", "demo"),
    (
        "backbone",
        "readout",
        "scorer",
        "adapter",
        "checkpoint",
        "dequantise",
        "layouts",
        "hub",
        "invariant",
        "invariant_cache",
        "operators",
        "check",
        "loading",
        "memory",
        "quantisation",
        "ranks",
        "memory",
        "quantisation",
        "ranks",
        "batch",
        "presets",
        "evidence",
    ),
    ("router",),
    ("tracer", "asking"),
    (
        "methods",
        "decoding",
        "evaluation",
        "benchmarks",
        "integrations",
        "service",
        "engines",
        "followers",
        "bench",
    ),
    ("report", "demo.outcome", "demo.page", "demo.show", "service.charts", "service.explorer"),
    ("cli", "__main__"),
)
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
HEAVY = {
    "accelerate",
    "datasets",
    "lm_eval",
    "matplotlib",
    "numpy",
    "pandas",
    "plotly",
    "pyarrow",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
}


def modules() -> dict[str, Path]:
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


def imported(path: Path) -> tuple[set[str], set[str]]:
    """Modules of ours that a file imports: when it is loaded, and anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_load = {
        target
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in targets(node)
    }
    anywhere = {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in targets(node)
    }
    return at_load, anywhere


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name in MODULES]
    assert node.level == 0, "imports are absolute"
    full = [f"{node.module}.{a.name}" for a in node.names]
    return [name if name in MODULES else node.module for name in full if node.module in MODULES]


def layer(module: str) -> int:
    parts = module.removeprefix("tracelm").strip(".").split(".")
    for length in range(len(parts), 0, -1):
        depth = LAYER.get(".".join(parts[:length]))
        if depth is not None:
            return depth
    raise AssertionError(f"{module} has no place in LAYERS; give it one")


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"tracelm"}))
def test_imports_point_one_way(module):
    _, anywhere = imported(MODULES[module])
    upward = [name for name in anywhere - {"tracelm"} if layer(name) > layer(module)]
    assert upward == [], f"{module} imports what is built on it"


def test_no_module_imports_itself_in_a_circle():
    graph = {name: imported(path)[0] - {name} for name, path in MODULES.items()}
    # A package's __init__ may gather its own modules, which then do not import the package.
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")
    assert set(order) >= set(MODULES)


def test_every_public_name_is_found():
    for name in tracelm.__all__:
        assert getattr(tracelm, name).__name__ == name
        assert name in dir(tracelm)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tracelm.Nothing  # noqa: B018


@pytest.mark.parametrize(
    "program",
    [
        "import tracelm",
        "from tracelm import Item, Theta",
        *(
            f"import sys; sys.argv = ['tracelm', *{arguments}]\nfrom tracelm.cli import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code"
            for arguments in (["--help"], ["--version"], ["correct", "--help"])
        ),
    ],
)
def test_nothing_heavy_is_imported_by(program):
    report = "import sys; print(*sorted(n for n in sys.modules if '.' not in n), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stderr.split()) == set()


def test_no_module_is_named_for_nothing():
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert [m for m in MODULES if set(m.split(".")) & vague] == []
