"""The pages in a Chromium without network agree with the API and the library."""

import json
import shlex
from urllib.parse import quote

import pytest
from browser import PHONE, assert_accessible
from served import running

from lastword import Choice, Decider, Option, Predicate
from lastword.decide.answer import answer_of
from lastword.service import pages

pytestmark = pytest.mark.slow
EXAMPLE = json.loads((pages.ASSETS / "examples.json").read_text(encoding="utf-8"))["decide"][0]
TEXT = "Which goods come from Baevwick?"
GOODS = Choice("What is sold?", ["green wool combs", "clay lamps", Option("boats", "of cedar")])
HOSTILE = "</script><b>b</b><img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def served():
    with running(Decider.demo(correction="pmi@0.5"), explorer=True) as service:
        yield service


@pytest.fixture(scope="module")
def uncorrected():
    with running(Decider.demo()) as service:
        yield service


@pytest.fixture
def page(served, chromium):
    with chromium.empty() as watched:
        watched.page.goto(served.url)
        watched.page.wait_for_selector("html[data-ready]")
        yield watched.page
    assert all(request.startswith("http://127.0.0.1:") for request in watched.requests)
    assert all("status of 4" in complaint for complaint in watched.complaints)


def write(page, options="green wool combs\n clay lamps \n\nboats | of cedar"):
    """Fill in only the question `GOODS`, and wait for its answer."""
    page.fill("textarea[name=input]", TEXT)
    while page.locator(".question").count() > 1:
        page.locator(".question .reset").last.click()
    box = page.locator(".question")
    box.locator("select").select_option("choice")
    box.locator("[name=instructions]").fill(GOODS.instructions)
    box.locator("[name=options]").fill(options)
    page.get_by_role("button", name="Decide", exact=True).click()
    page.wait_for_selector("#decisions[aria-busy=false]")


def test_text_from_users_is_shown_as_text(page, served):
    question = {"type": "choice", "instructions": HOSTILE, "choices": [HOSTILE, "b"]}
    links = (
        json.dumps({"input": HOSTILE, "questions": [question]}),
        json.dumps({"questions": [3, {"type": HOSTILE, "choices": [{}, None, 3]}]}),
        json.dumps([1]),
        HOSTILE,
    )
    for address in (HOSTILE, "decide?%", *(f"decide?{quote(link)}" for link in links)):
        page.goto("about:blank")
        page.goto(f"{served.url}/#{address}")
        page.wait_for_selector("html[data-ready]")
        assert page.title() == "lastword explorer"
        assert page.locator("main b, main img, main script").count() == 0


def test_answers_with_and_without_the_text_are_those_of_the_library(page, served):
    model = served.service.decider
    write(page)
    expected = model.decide(TEXT, {"q": GOODS})["q"]
    blank = model.decide("", {"q": GOODS})["q"].decision
    alone = answer_of(GOODS, blank.as_base()).probabilities
    assert page.locator("#decisions h3 span").first.inner_text() == expected.choice
    assert f"{expected.probability:.1%}" in page.locator("#decisions h3").first.inner_text()
    rows = page.locator("#decisions .decision > .candidates")
    names = rows.locator(".text").all_inner_texts()
    shares = [s.rstrip("%") for s in rows.locator(".share").all_inner_texts()]
    shown = {
        name.split("\n")[0]: (float(a), float(b))
        for name, a, b in zip(names, shares[::2], shares[1::2], strict=True)
    }
    for option, without, p in zip(GOODS.options, alone, expected.probabilities, strict=True):
        assert shown[option.text] == pytest.approx((100 * without, 100 * p), abs=0.11)
    assert "of cedar" in rows.inner_text()
    assert "by pmi@0.5" in page.locator("#decisions .tags").first.inner_text()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector("#decisions[aria-busy=false]")
    assert page.input_value("textarea[name=input]") == TEXT
    assert page.locator("#decisions h3 span").first.inner_text() == expected.choice
    # The details of the answer at each depth.
    page.click("#decisions .decision > details > summary")
    page.wait_for_selector("#decisions .drawing .curve")
    assert page.locator("#decisions .drawing .curve").count() == len(GOODS.options)
    assert page.locator("#decisions .drawing .blind").count() == len(GOODS.options)
    assert "The scores of pmi@0.5 decide" in page.text_content("#decisions .told")
    assert "Text: " + TEXT in page.text_content("#decisions pre")


def test_every_kind_of_question_is_answered_and_an_invalid_one_is_reported(page, served):
    assert page.input_value("textarea[name=input]") == EXAMPLE["input"]
    assert page.locator("#decisions .decision").count() == 3
    statement = EXAMPLE["questions"][1]["instructions"]
    model = served.service.decider
    p = model.decide(EXAMPLE["input"], {"q": Predicate(statement)})["q"].probability
    heading = page.locator("#decisions .decision").nth(1).locator("h3").first.inner_text()
    assert heading == f"{'yes' if p > 0.5 else 'no'} with probability {max(p, 1 - p):.1%}"
    write(page, "one alone")
    assert "questions.0: 1 choice, expected" in page.inner_text("#decisions [role=alert]")
    assert page.locator("#calls pre").count() == 0


def test_the_calls_to_copy_return_the_same_answer(page, served):
    page.fill("textarea[name=input]", "It's \"theirs\", isn't it?\n$HOME `date`")
    page.get_by_role("button", name="Decide", exact=True).click()
    page.wait_for_selector("#decisions[aria-busy=false]")
    curl, python = page.locator("#calls pre").all_text_contents()
    words = shlex.split(curl)
    assert words[:3] == ["curl", "-s", f"{served.url}/v1/decisions"]
    body = json.loads(words[words.index("-d") + 1])
    response = served.client.post("/v1/decisions", json=body)
    assert response.status_code == 200, response.text
    choice = page.locator("#decisions h3 span").first.inner_text()
    assert response.json()["answers"][0]["choice"] == choice
    arguments = {}
    call = python[python.index("client.decisions.create") :].removeprefix("client.decisions.")
    exec(call, {"create": lambda **keywords: arguments.update(keywords)})
    assert arguments == body


@pytest.mark.parametrize("path", ["", "docs"])
def test_the_pages_are_accessible_and_fit_a_phone(page, served, path):
    page.goto(f"{served.url}/{path}")
    page.wait_for_selector("html[data-ready]")
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_reference_shows_every_route_and_its_example_works(page, uncorrected):
    page.goto(f"{uncorrected.url}/docs")
    page.wait_for_selector("html[data-ready]")
    schema = uncorrected.client.get("/openapi.json").json()
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


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_allows_only_scripts_of_the_service(served, path):
    response = served.client.get(path)
    policy = response.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
    assert "unsafe" not in response.headers["content-security-policy"]
    assert "<script>" not in response.text and "//" not in response.text


def test_the_pages_need_the_token(served, chromium):
    with running(served.service.decider, explorer=True, token="letmein") as guarded:
        for path in ("/", "/docs", "/static/call.js", "/static/palette.css"):
            assert guarded.client.get(path).status_code == 401
        credentials = {"username": "me", "password": "letmein"}
        with chromium.empty(http_credentials=credentials) as watched:
            watched.page.goto(guarded.url)
            watched.page.wait_for_selector("#decisions .decision")
