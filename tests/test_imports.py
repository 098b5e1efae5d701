"""Imports point one way, and the command line answers without the libraries that compute."""

import ast
import doctest
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lastword

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src"
ROOT = PACKAGE / "lastword"
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"

OPEN = {"errors", "theta"}  # to every room


def rooms() -> dict[str, set[str]]:
    """What each room may import, as CONTRIBUTING has it: `name  what it holds`, `<- names`."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    allowed: dict[str, set[str]] = {}
    for line in text.split("<!-- layers -->")[1].strip().strip("`").strip().splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            allowed[name] = set()
        else:
            allowed[name] |= set(line.split()) - {"<-"}
    return allowed


ALLOWED = rooms()
HEAVY = set(
    "accelerate datasets lm_eval matplotlib numpy pandas pyarrow scipy tokenizers torch "
    "transformers".split()
)


def modules() -> dict[str, Path]:
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


@cache
def imported(path: Path) -> tuple[set[str], set[str]]:
    """Modules of ours that a file imports: when it is loaded, and anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def ours(nodes: Iterable[ast.AST]) -> set[str]:
        found = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
        return {target for node in found for target in targets(node)}

    return ours(tree.body), ours(ast.walk(tree))


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names if a.name in MODULES]
    assert node.level == 0, "imports are absolute"
    full = [f"{node.module}.{a.name}" for a in node.names]
    return [name if name in MODULES else node.module for name in full if node.module in MODULES]


def room(module: str) -> str:
    """The folder, or the module beside the folders, that a module belongs to."""
    return module.split(".")[1]


def edges(module: str) -> set[str]:
    """Rooms whose modules this one imports, at load or later."""
    return {room(name) for name in imported(MODULES[module])[1] - {"lastword"}} - {room(module)}


def test_every_room_is_listed():
    there = {room(module) for module in set(MODULES) - {"lastword"}}
    assert there == set(ALLOWED), "CONTRIBUTING's list of rooms and src/lastword differ"
    assert len([name for name in there if (ROOT / f"{name}.py").is_file()]) <= 5  # and __init__


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"lastword"}))
def test_a_module_imports_what_its_room_may(module):
    assert edges(module) - OPEN <= ALLOWED[room(module)]


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_no_arrow_is_left_that_nothing_uses(name):
    modules = [module for module in set(MODULES) - {"lastword"} if room(module) == name]
    assert set().union(*map(edges, modules)) - OPEN == ALLOWED[name]


def test_no_room_and_no_module_imports_itself_in_a_circle():
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError, which names the circle
    # A package's __init__ may gather its own modules, which then do not import the package.
    graph = {name: imported(path)[0] - {name} for name, path in MODULES.items()}
    assert set(TopologicalSorter(graph).static_order()) >= set(MODULES)


def test_every_public_name_is_found_and_told():
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    for name in lastword.__all__:
        assert getattr(lastword, name).__name__ == name
        assert name in dir(lastword)
        assert name in lastword.__doc__ and f"`{name}`" in page
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        lastword.Nothing  # noqa: B018


def test_the_example_of_the_package_runs():
    done = doctest.testmod(lastword)
    assert done.attempted >= 5 and done.failed == 0


def test_the_documentation_imports_what_the_package_calls_public():
    pages = [p for g in ("*.md", "docs/*.md", "examples/**/*.py") for p in REPOSITORY.glob(g)]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    modules = set(re.findall(r"^(?:from|import) (lastword\.[\w.]+)", text, flags=re.MULTILINE))
    named = re.findall(r"`(lastword\.[\w.]+)`", lastword.__doc__)
    assert modules
    assert [m for m in modules if not any(f"{m}.".startswith(f"{n}.") for n in named)] == []


@pytest.mark.parametrize(
    "program",
    [
        "import lastword",
        "from lastword import Item, Theta",
        *(
            f"import sys; sys.argv = ['lastword', *{arguments}]\nfrom lastword.cli import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code"
            for arguments in (["--help"], ["--version"], ["correct", "--help"])
        ),
    ],
)
def test_nothing_heavy_is_imported_by(program):
    report = "import sys; print('\\n', *sorted(n for n in sys.modules if '.' not in n))"
    assert HEAVY & set(printed(f"{program}\n{report}").splitlines()[-1].split()) == set()


def printed(program: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.check_output([sys.executable, "-c", program], text=True)


def test_the_first_answer_loads_few_of_our_lines():
    program = (
        "import sys\nfrom lastword import Tracer\nTracer.demo().correct('Is', ['a', 'b'])\n"
        "ours = (m for n, m in sys.modules.items() if n.partition('.')[0] == 'lastword')\n"
        "print(sum(sum(1 for _ in open(m.__file__, encoding='utf-8')) for m in ours))"
    )
    assert int(printed(program)) <= 8_100


def test_what_reads_records_alone_does_without_torch():
    rooms = ("report.ablation", "records.stored", "report.build", "cli.merge", "cli.report")
    program = f"import sys, lastword.{', lastword.'.join(rooms)}; print('torch' in sys.modules)"
    assert printed(program) == "False\n"


def test_no_module_is_named_for_nothing():
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert [m for m in MODULES if set(m.split(".")) & vague] == []
