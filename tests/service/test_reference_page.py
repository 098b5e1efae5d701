"""`/docs` in a headless Chromium that may reach nothing but the service."""

import json

import pytest
from browser import assert_accessible
from served import running

from lastword import Tracer
from lastword.service.reference import routes

pytestmark = pytest.mark.slow


def test_the_reference_shows_every_route_and_lets_one_be_tried(chromium):
    with running(Tracer.demo(), token="letmein") as served:
        served.client.auth = ("me", "letmein")
        schema = served.client.get("/openapi.json").json()
        (example,) = schema["components"]["schemas"]["ItemBody"]["examples"]
        decision = served.client.post("/v1/correct", json=example).json()
        credentials = {"username": "me", "password": "letmein"}
        with chromium.empty(http_credentials=credentials) as watched:
            view = watched.page
            view.goto(f"{served.url}/docs")
            view.wait_for_selector("html[data-ready]")
            assert view.locator(".route h2 code").all_inner_texts() == list(schema["paths"])
            bar = view.locator(".contents .column")
            assert bar.evaluate("node => node.scrollWidth <= node.clientWidth")  # all are seen
            route = view.locator("#correct")
            assert json.loads(route.locator("textarea").input_value()) == example
            route.get_by_text("Try it").click()
            assert json.loads(route.locator(".came pre").inner_text()) == decision
            route.locator("textarea").fill(
                '{"prompt": "<b>x</b>", "candidates": ["<i>"], "<u>": 1}'
            )
            route.get_by_text("Try it").click()
            view.wait_for_selector("#correct .came .alert")
            assert "invalid_body" in route.locator(".came pre").inner_text()
            assert view.locator(".came b, .came u").count() == 0
            for details in view.locator("details").all():
                details.evaluate("node => (node.open = true)")
            assert_accessible(view)
            assert [r for r in watched.requests if not r.startswith(served.url)] == []
            assert [c for c in watched.complaints if "status of 422" not in c] == []


def test_every_body_has_an_example_that_the_service_takes():
    with running(Tracer.demo()) as served:
        for route in routes(served.client.get("/openapi.json").json()):
            if route["kind"] and route["name"] != "feedback":  # which answers what was asked before
                body = json.loads(route["example"])
                answer = served.client.post(route["path"], json=body)
                bare = "no chat template" in answer.text  # the organism's tokenizer
                assert answer.status_code == 200 or bare, (route["path"], answer.text)
