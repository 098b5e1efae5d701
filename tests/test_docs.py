"""The docs name code that exists, the constants that it has, and paths that lead somewhere."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from lastword.rule.theta import Theta

ROOT = Path(__file__).resolve().parents[1]
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
# The changelog names what was, too.
PRESENT = "\n".join(p.read_text(encoding="utf-8") for p in PAGES if p.name != "CHANGELOG.md")
NAMED = sorted(set(re.findall(r"`(lastword(?!\.toml)(?:\.\w+)+)`", PRESENT)))
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


def test_tests_that_the_pages_name_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PRESENT)
    assert named
    for path, name in named:
        assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), name


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
    for folder in ("src", "tests", "experiments", "docs"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
            for found in cited.finditer(path.read_text(encoding="utf-8")):
                numbers = {int(n) for n in found.groups() if n}
                assert numbers <= set(range(1, len(sections) + 1)), f"{path}: {found[0]}"


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in PAGES))
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in LINKS.findall(path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("target", ["demo", "quick", "test", "fresh", "coverage", "check"])
def test_make_targets_of_the_pages_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
