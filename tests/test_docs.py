"""Code and constants in the docs exist; `mkdocs build --strict` checks their links."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from lastword.rule.theta import Theta

ROOT = Path(__file__).resolve().parents[1]
METHOD = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
# The changelog also names removed code.
PRESENT = "\n".join(p.read_text(encoding="utf-8") for p in PAGES if p.name != "CHANGELOG.md")
NAMED = sorted(set(re.findall(r"`(lastword(?!\.toml)(?:\.\w+)+)`", PRESENT)))


def look_up(name: str) -> object:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            fields = getattr(value, "__dataclass_fields__", {})
            value = fields[attribute] if attribute in fields else getattr(value, attribute)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", NAMED)
def test_code_in_the_pages_exists(name):
    look_up(name)


def test_the_method_page_names_every_constant_and_switch_of_theta():
    values = Theta().to_dict()
    for group in ("scorer", "invariant", "tokens"):
        values |= {f"{group}.{name}": value for name, value in values.pop(group).items()}
    for name in values:
        assert f"`{name}`" in METHOD, name
