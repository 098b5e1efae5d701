"""A headless Chromium that may reach nothing, for tests that open a page; skipped where absent."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = "--no-sandbox --disable-gpu --disable-quic --disable-background-networking".split()
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 30_000  # a busy machine is slow, not wrong


class Watched:
    """A page of Playwright with its console messages and requests.

    Attributes:
        complaints: Errors and warnings of its console, and exceptions.
        requests: Addresses that it requested, except its file and data in it.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._log)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)

    def _log(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.requests.append(request.url)

    def assert_quiet(self) -> None:
        assert self.complaints == [] and self.requests == []


class Chromium:
    """One browser for all pages of a test file; each page has its context."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    @contextmanager
    def empty(self, **options: Any) -> Iterator[Watched]:
        """Yield an empty page, with options of Playwright's context."""
        context = self._browser.new_context(**({"viewport": DESKTOP} | options))
        try:
            yield Watched(context.new_page())
        finally:
            context.close()

    @contextmanager
    def opened(
        self, path: Path, *, viewport: dict[str, int] = DESKTOP, scheme: str = "light"
    ) -> Iterator[Watched]:
        """Yield a page with a file whose items are ready."""
        with self.empty(viewport=viewport, color_scheme=scheme) as watched:
            watched.page.goto(path.as_uri())
            watched.page.wait_for_selector("html[data-ready]")
            yield watched


@contextmanager
def started() -> Iterator[Chromium]:
    """Start Chromium until the block ends; its thread runs an event loop until then."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("no chromium: install it to open pages in tests")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=ARGUMENTS)
        try:
            yield Chromium(browser)
        finally:
            browser.close()


def assert_accessible(page: Any) -> None:
    """Assert that axe-core finds no fault and nothing scrolls sideways, on phone and desktop."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for size in (PHONE, DESKTOP):
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            violations = axe.run(page).response["violations"]
            faults = [(v["id"], [n["target"] for n in v["nodes"]]) for v in violations]
            assert faults == [], (size, scheme, faults)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
