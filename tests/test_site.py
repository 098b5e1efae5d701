"""The documentation as a site: every page in the report's design, on a phone and in the dark."""

from pathlib import Path

import pytest
from browser import DESKTOP, assert_accessible

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow

# Tables that reach beyond what holds them, or beyond the window: their first words.
CUT = """() => [...document.querySelectorAll('main table')].filter(table => {
    const right = table.getBoundingClientRect().right;
    for (let box = table.parentElement; box !== document.body; box = box.parentElement)
        if (right > box.getBoundingClientRect().right + 1) return true;
    return right > window.innerWidth;
}).map(table => table.innerText.slice(0, 60))"""
MISSING = "() => [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
WIDER = "() => document.documentElement.scrollWidth > window.innerWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    config = pytest.importorskip("mkdocs.config")
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_the_site_is_accessible(site, chromium):
    with chromium.empty() as watched:
        for page in ("index.html", "trust/index.html", "service/index.html"):
            watched.page.goto((site / page).as_uri())
            assert_accessible(watched.page)
        assert watched.requests == []


def test_no_table_is_cut_on_a_desktop_and_every_picture_is_there(site, chromium):
    pages = [path for path in sorted(site.rglob("index.html")) if path.parent.name != "search"]
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    with chromium.empty(viewport=DESKTOP) as watched:
        for path in pages:
            watched.page.goto(path.as_uri())
            found = [watched.page.evaluate(program) for program in (CUT, MISSING, WIDER)]
            assert found == [[], [], False], path.parent.name
