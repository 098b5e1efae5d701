"""The page of the reference in a Chromium without network agrees with the API."""

import json

import pytest
from browser import PHONE, assert_accessible
from served import running

from lastword import Decider

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served():
    with running(Decider.demo()) as service:
        yield service


@pytest.fixture
def page(served, chromium):
    with chromium.empty() as watched:
        watched.page.goto(f"{served.url}/docs")
        watched.page.wait_for_selector("html[data-ready]")
        yield watched.page
    assert all(request.startswith(served.url) for request in watched.requests)
    assert all("status of 4" in complaint for complaint in watched.complaints)


def test_the_reference_shows_every_route_and_its_example_works(page, served):
    schema = served.client.get("/openapi.json").json()
    assert page.locator(".route h2 code").all_inner_texts() == list(schema["paths"])
    bar = page.locator(".contents .column")
    assert bar.evaluate("node => node.scrollWidth <= node.clientWidth")  # every route is visible
    for route in page.locator(".route").all():
        route.get_by_text("Try it").click()
        status = route.locator(".came p").inner_text().split()[0]
        expected = "409" if route.get_attribute("id") == "feedback" else "200"  # no certificate
        assert status == expected, route.inner_text()
    route = page.locator("#correct")
    (example,) = schema["components"]["schemas"]["ItemBody"]["examples"]
    assert json.loads(route.locator("textarea").input_value()) == example
    route.locator("textarea").fill('{"prompt": "<b>x</b>", "candidates": ["<i>"], "<u>": 1}')
    route.get_by_text("Try it").click()
    page.wait_for_selector("#correct .came .alert")
    assert "invalid_body" in route.locator(".came pre").inner_text()
    assert page.locator(".came b, .came u").count() == 0


def test_the_page_is_accessible_and_fits_a_phone(page):
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_page_needs_the_token_and_allows_only_scripts_of_the_service(served, chromium):
    response = served.client.get("/docs")
    policy = response.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
    assert "unsafe" not in response.headers["content-security-policy"]
    assert "<script>" not in response.text and "//" not in response.text
    with running(served.service.decider, token="letmein") as guarded:
        for path in ("/docs", "/static/call.js", "/static/palette.css"):
            assert guarded.client.get(path).status_code == 401
        credentials = {"username": "me", "password": "letmein"}
        with chromium.empty(http_credentials=credentials) as watched:
            watched.page.goto(f"{guarded.url}/docs")
            watched.page.wait_for_selector(".route")
