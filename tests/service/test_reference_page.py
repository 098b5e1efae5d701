"""`/docs` in a headless Chromium that may reach nothing but the service."""

import json

import pytest
from browser import chromium
from served import running

from tracelm import Tracer

pytestmark = pytest.mark.slow


def test_the_reference_shows_every_route_and_lets_one_be_tried(tmp_path):
    with running(Tracer.demo(), token="letmein") as served:
        served.client.auth = ("me", "letmein")
        schema = served.client.get("/openapi.json").json()
        (example,) = schema["components"]["schemas"]["ItemBody"]["examples"]
        decision = served.client.post("/v1/correct", json=example).json()
        credentials = {"username": "me", "password": "letmein"}
        with chromium(tmp_path, http_credentials=credentials) as watched:
            watched.page.goto(f"{served.url}/docs")
            watched.page.wait_for_selector("#operations-default-correct")
            shown = watched.page.locator(".opblock-summary-path").all_inner_texts()
            assert [s.replace("\u200b", "") for s in shown] == list(schema["paths"])
            route = watched.page.locator("#operations-default-correct")
            route.locator(".opblock-summary-control").click()
            route.get_by_text("Try it out").click()
            route.get_by_text("Execute", exact=True).click()
            answer = route.locator(".live-responses-table .highlight-code").first
            assert json.loads(answer.locator("code").inner_text()) == decision
            assert watched.complaints == []
            assert [r for r in watched.requests if not r.startswith(served.url)] == []
            watched.page.screenshot(path=tmp_path / "docs.png", full_page=True)
            assert (tmp_path / "docs.png").stat().st_size > 10_000
