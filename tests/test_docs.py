"""The docs name code that exists, the constants that it has, and commands that run."""

import json
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tracelm.cli import main
from tracelm.theta import Theta

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
# The changelog names what was, too.
PRESENT = "\n".join(p.read_text(encoding="utf-8") for p in PAGES if p.name != "CHANGELOG.md")
NAMED = sorted(set(re.findall(r"`(tracelm(?!\.toml)(?:\.\w+)+)`", PRESENT)))
LINKS = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def look_up(name: str) -> object:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields[attribute] if attribute in fields else getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMED)
def test_code_that_the_pages_name_exists(name):
    look_up(name)


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"`((?:src|tests|docs)/[\w./]+)`", PRESENT)))
)
def test_paths_that_the_pages_name_exist(name):
    assert (ROOT / name).exists()


def test_the_method_page_names_every_constant_and_switch_of_theta():
    values = Theta().to_dict()
    for group in ("scorer", "invariant", "tokens"):
        values |= {f"{group}.{name}": value for name, value in values.pop(group).items()}
    for name in values:
        assert f"`{name}`" in METHOD, name


def test_the_method_page_has_every_equation():
    numbers = {int(n) for n in re.findall(r"\((\d+)\)$", METHOD, flags=re.MULTILINE)}
    assert numbers >= set(range(1, 20))


def test_the_method_page_has_every_section_that_is_cited():
    sections = re.findall(r'^<a id="section-(\d+)"></a>\n## (\d+)\. ', METHOD, flags=re.MULTILINE)
    assert [int(n) for pair in sections for n in pair] == [
        n for n in range(1, len(sections) + 1) for _ in range(2)
    ]
    cited = re.compile(r"[Mm]ethod, sections? (\d+)(?:(?: and|, | to) (\d+))?")
    for folder in ("src", "tests", "benchmarks", "docs"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            for found in cited.finditer(path.read_text(encoding="utf-8")):
                numbers = {int(n) for n in found.groups() if n}
                assert numbers <= set(range(1, len(sections) + 1)), f"{path}: {found[0]}"


@pytest.mark.parametrize(
    "page",
    sorted(p.relative_to(ROOT).as_posix() for p in PAGES),
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in LINKS.findall(path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


# What the README shows is run, with the embedded model in place of one from the hub.


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands(start: str) -> list[str]:
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(start)]


@pytest.mark.parametrize("line", commands("tracelm correct"))
def test_commands_of_the_readme(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    item = {"prompt": "Where is it?", "candidates": ["in the north", "in the south"]}
    Path("items.jsonl").write_text(json.dumps(item) + "\n")
    arguments = shlex.split(line.replace("Qwen/Qwen3-0.6B", "tracelm/demo-organism"))
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.startswith("warning: `early` decided")]
    if "--output" in arguments:
        assert said == ["tracelm: wrote decisions.jsonl: 1 answered, 1 of them corrected"]
        assert json.loads(Path("decisions.jsonl").read_text())["answer"] in item["candidates"]
    else:
        assert out.startswith("base ") and "\ncorrected " in out and "The answer " in out
        assert said == []


def test_a_report_in_the_three_commands_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first = commands("tracelm eval")[0]
    for line in (first, commands("tracelm report")[0], commands("tracelm ablate")[0]):
        more = ["--limit", "12"] if line == first else []
        monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True) + more)
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0, capsys.readouterr().err
    assert "Drop signed mixing" in capsys.readouterr().out
    assert Path("report/index.html").stat().st_size > 1_000_000


@pytest.mark.parametrize("program", blocks("python"))
def test_python_of_the_readme(program, capsys):
    exec(program, {})
    assert " -> " in capsys.readouterr().out


@pytest.mark.parametrize("target", ["demo", "quick", "test", "coverage", "check"])
def test_make_targets_of_the_pages_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
