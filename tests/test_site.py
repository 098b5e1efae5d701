"""The documentation as a site is accessible, on a phone and in the dark."""

from pathlib import Path

import pytest
from browser import assert_accessible

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


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
