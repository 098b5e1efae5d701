"""The docs name code that exists and the constants that the code has."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tracelm.theta import Theta

ROOT = Path(__file__).resolve().parents[1]
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tracelm\.[\w.]+)`", METHOD)))
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
def test_code_that_the_method_page_names_exists(name):
    look_up(name)


def test_the_method_page_names_every_constant_and_switch_of_theta():
    values = Theta().to_dict()
    for group in ("scorer", "invariant", "tokens"):
        values |= {f"{group}.{name}": value for name, value in values.pop(group).items()}
    for name in values:
        assert f"`{name}`" in METHOD, name


def test_the_method_page_has_every_equation():
    numbers = {int(n) for n in re.findall(r"\((\d+)\)$", METHOD, flags=re.MULTILINE)}
    assert numbers >= set(range(1, 20))


@pytest.mark.parametrize(
    "page",
    sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*")]),
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in LINKS.findall(path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"
