"""The pages in a Chromium without network agree with the API and the library."""

import json
import shlex
from urllib.parse import quote, urlencode

import numpy as np
import populations
import pytest
from browser import PHONE, assert_accessible
from scipy.special import softmax
from served import running

from lastword import Choice, Decider, Option, Predicate, Tracer
from lastword.decide.answer import answer_of
from lastword.decide.batch import Scope
from lastword.service import pages
from lastword.text.items import Item
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms

pytestmark = pytest.mark.slow
EXAMPLES = json.loads((pages.ASSETS / "examples.json").read_text(encoding="utf-8"))
ORGANISM = EXAMPLES["ask"]["lastword/demo-organism"]
PROMPT = "Question: Which goods come from Baevwick? Answer:"
CANDIDATES = ["green wool combs", "pale cedar boats", "clay lamps"]
REQUEST = {"prompt": PROMPT, "candidates": CANDIDATES, "view": True}
TEXT = "Which goods come from Baevwick?"
GOODS = Choice("What is sold?", ["green wool combs", "clay lamps", Option("boats", "of cedar")])
HOSTILE = "</script><b>b</b><img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def model():
    return Tracer.demo()


@pytest.fixture(scope="module")
def served(model):
    with running(model, explorer=True, body_bytes=20_000) as service:
        yield service


@pytest.fixture(scope="module")
def corrected():
    with running(Decider.demo(correction="pmi@0.5"), explorer=True) as service:
        yield service


def open_page(chromium, url):
    with chromium.empty() as watched:
        watched.page.goto(url)
        watched.page.wait_for_selector("html[data-ready]")
        yield watched.page
    server = url.removesuffix("/decide")
    assert all(request.startswith(server) for request in watched.requests)
    assert all("status of 4" in complaint for complaint in watched.complaints)


@pytest.fixture
def page(served, chromium):
    yield from open_page(chromium, served.url)


@pytest.fixture
def decide(corrected, chromium):
    yield from open_page(chromium, f"{corrected.url}/decide")


def ask(page, prompt, candidates):
    page.fill("textarea[name=prompt]", prompt)
    page.fill("textarea[name=candidates]", "\n".join(candidates))
    page.click("#ask .act")
    page.wait_for_selector("#answer[aria-busy=false]")


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


def test_the_first_page_shows_an_example_with_all_its_parts(page, model):
    first = ORGANISM[0]
    decision = model.correct(first["prompt"], first["candidates"], read="all")
    assert decision.corrected
    answers = page.inner_text("#answer .answers").split(" → ")
    assert answers == [decision.base_answer, decision.answer]
    text = page.text_content("#answer .told")
    assert f"d_eff = {decision.d_eff:.5g} > 1.0015" in text and "(true)" in text
    assert page.locator("#answer .gates tbody tr").count() == len(decision.gates)
    count = len(decision.candidates)
    assert page.locator("#answer .drawing .curve").count() == count
    assert page.locator("#answer .drawing .blind").count() == count
    pi = softmax(decision.trajectory, axis=0)
    for depth in (0, 4, 12):
        page.fill("#answer .depth input", str(depth))
        shares = page.locator("#answer .readings .share").all_inner_texts()
        shown = [float(share.rstrip("%")) for share in shares]
        assert shown == pytest.approx(100 * pi[:, depth], abs=0.11)
    assert "Nothing is certified" in page.inner_text(".models")


def test_the_view_has_the_blind_trajectory_of_the_library(served, model):
    (encoded,) = model.encode([Item(PROMPT, tuple(CANDIDATES), blind_prompt="Answer:")])
    (decision,) = model.decide_group([encoded], Scope("all", "all"))
    response = served.client.post("/v1/correct", json=REQUEST | {"blind_prompt": "Answer:"}).json()
    packed = response["view"]["item"]["panels"][1]
    curves = np.cumsum(packed["blind"], axis=1) / packed["unit"]
    assert curves == pytest.approx(decision.blind_trajectory, abs=1e-3)
    plain = served.client.post("/v1/correct", json=REQUEST | {"view": False}).json()
    assert "view" not in plain
    assert response["answer"] == plain["answer"]
    assert response["scores"] == pytest.approx(plain["scores"], abs=1e-4)


def test_a_link_holds_the_question(page):
    ask(page, PROMPT, CANDIDATES)
    text, link = page.text_content("#answer .told"), page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector("#answer .drawing")
    assert page.input_value("textarea[name=candidates]").split("\n") == CANDIDATES
    assert page.text_content("#answer .told") == text
    page.select_option("select[name=example]", index=2)
    is_text = "(t, same) => (document.querySelector('#answer .told').textContent === t)"
    page.wait_for_function(f"t => !({is_text})(t)", arg=text)
    page.go_back()
    page.wait_for_function(f"t => ({is_text})(t)", arg=text)


def test_text_from_users_is_shown_as_text(page, served):
    ask(page, "<b>Q</b>", [HOSTILE, "lamps"])
    assert HOSTILE in page.inner_text("#answer")
    words = {"prompt": HOSTILE, "candidate": [HOSTILE, "b"], "true": HOSTILE}
    question = {"type": "choice", "instructions": HOSTILE, "choices": [HOSTILE, "b"]}
    links = (
        json.dumps({"input": HOSTILE, "questions": [question]}),
        json.dumps({"questions": [3, {"type": HOSTILE, "choices": [{}, None, 3]}]}),
        json.dumps([1]),
        HOSTILE,
    )
    for address in (
        f"#ask?{urlencode(words, doseq=True)}",
        f"#{HOSTILE}",
        "decide#decide?%",
        *(f"decide#decide?{quote(link)}" for link in links),
    ):
        page.goto("about:blank")
        page.goto(f"{served.url}/{address}")
        page.wait_for_selector("html[data-ready]")
        assert page.title() in ("lastword explorer", "lastword decide")
        assert page.locator("main b, main img, main script").count() == 0


def test_answers_with_and_without_the_text_are_those_of_the_library(decide, corrected):
    model = corrected.service.decider
    write(decide)
    expected = model.decide(TEXT, {"q": GOODS})["q"]
    blank = model.decide("", {"q": GOODS})["q"].decision
    alone = answer_of(GOODS, blank.as_base()).probabilities
    assert decide.locator("#decisions h3 span").first.inner_text() == expected.choice
    assert f"{expected.probability:.1%}" in decide.locator("#decisions h3").first.inner_text()
    rows = decide.locator("#decisions .decision > .candidates")
    names = rows.locator(".text").all_inner_texts()
    shares = [s.rstrip("%") for s in rows.locator(".share").all_inner_texts()]
    shown = {
        name.split("\n")[0]: (float(a), float(b))
        for name, a, b in zip(names, shares[::2], shares[1::2], strict=True)
    }
    for option, without, p in zip(GOODS.options, alone, expected.probabilities, strict=True):
        assert shown[option.text] == pytest.approx((100 * without, 100 * p), abs=0.11)
    assert "of cedar" in rows.inner_text()
    assert "by pmi@0.5" in decide.locator("#decisions .tags").first.inner_text()
    # The details of the answer at each depth.
    decide.click("#decisions .decision > details > summary")
    decide.wait_for_selector("#decisions .drawing .curve")
    assert decide.locator("#decisions .drawing .curve").count() == len(GOODS.options)
    assert decide.locator("#decisions .drawing .blind").count() == len(GOODS.options)
    assert "The scores of pmi@0.5 decide" in decide.text_content("#decisions .told")
    assert "Text: " + TEXT in decide.text_content("#decisions pre")


def test_every_kind_of_question_is_answered_and_an_invalid_one_is_reported(decide, corrected):
    example = EXAMPLES["decide"][0]
    assert decide.input_value("textarea[name=input]") == example["input"]
    assert decide.locator("#decisions .decision").count() == 3
    statement = example["questions"][1]["instructions"]
    model = corrected.service.decider
    p = model.decide(example["input"], {"q": Predicate(statement)})["q"].probability
    heading = decide.locator("#decisions .decision").nth(1).locator("h3").first.inner_text()
    assert heading == f"{'yes' if p > 0.5 else 'no'} with probability {max(p, 1 - p):.1%}"
    write(decide, "one alone")
    assert "questions.0: 1 choice, expected" in decide.inner_text("#decisions [role=alert]")
    assert decide.locator("#calls pre").count() == 0


def test_the_calls_to_copy_return_the_same_answer(decide, corrected):
    decide.fill("textarea[name=input]", "It's \"theirs\", isn't it?\n$HOME `date`")
    decide.get_by_role("button", name="Decide", exact=True).click()
    decide.wait_for_selector("#decisions[aria-busy=false]")
    curl, python = decide.locator("#calls pre").all_text_contents()
    words = shlex.split(curl)
    assert words[:3] == ["curl", "-s", f"{corrected.url}/v1/decisions"]
    body = json.loads(words[words.index("-d") + 1])
    response = corrected.client.post("/v1/decisions", json=body)
    assert response.status_code == 200, response.text
    choice = decide.locator("#decisions h3 span").first.inner_text()
    assert response.json()["answers"][0]["choice"] == choice
    arguments = {}
    call = python[python.index("client.decisions.create") :].removeprefix("client.decisions.")
    exec(call, {"create": lambda **keywords: arguments.update(keywords)})
    assert arguments == body


@pytest.mark.parametrize("path", ["", "decide", "docs"])
def test_the_pages_are_accessible_and_fit_a_phone(page, served, path):
    page.goto(f"{served.url}/{path}")
    page.wait_for_selector("html[data-ready]")
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    assert_accessible(page)
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_reference_shows_every_route_and_its_example_works(page, served):
    page.goto(f"{served.url}/docs")
    page.wait_for_selector("html[data-ready]")
    schema = served.client.get("/openapi.json").json()
    assert page.locator(".route h2 code").all_inner_texts() == list(schema["paths"])
    bar = page.locator(".contents .column")
    assert bar.evaluate("node => node.scrollWidth <= node.clientWidth")  # every route is visible
    for route in page.locator(".route").all():
        route.get_by_text("Try it").click()
        status = route.locator(".came p").inner_text().split()[0]
        # The demo model has no chat template, and feedback needs a certificate.
        no_template = "no chat template" in route.locator(".came pre").inner_text()
        expected = "409" if route.get_attribute("id") == "feedback" else "200"
        assert status == expected or no_template, route.inner_text()
    route = page.locator("#correct")
    (example,) = schema["components"]["schemas"]["ItemBody"]["examples"]
    assert json.loads(route.locator("textarea").input_value()) == example
    route.locator("textarea").fill('{"prompt": "<b>x</b>", "candidates": ["<i>"], "<u>": 1}')
    route.get_by_text("Try it").click()
    page.wait_for_selector("#correct .came .alert")
    assert "invalid_body" in route.locator(".came pre").inner_text()
    assert page.locator(".came b, .came u").count() == 0


@pytest.mark.parametrize("path", ["/", "/decide", "/docs"])
def test_a_page_allows_only_scripts_of_the_service(served, path):
    response = served.client.get(path)
    policy = response.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= {*policy}
    assert "unsafe" not in response.headers["content-security-policy"]
    assert "<script>" not in response.text and "//" not in response.text


def test_the_pages_need_the_token(model, chromium):
    with running(model, explorer=True, token="letmein") as guarded:
        for path in ("/", "/decide", "/docs", "/static/call.js", "/static/palette.css"):
            assert guarded.client.get(path).status_code == 401
        credentials = {"username": "me", "password": "letmein"}
        with chromium.empty(http_credentials=credentials) as watched:
            watched.page.goto(guarded.url)
            watched.page.wait_for_selector("#answer .drawing")


def test_the_page_shows_the_certificate_and_its_alarm(chromium):
    policy = Policy(("decisive", "early"), 0.25)
    subject = Decider.demo().subject
    certificate = populations.certificate(
        subject, policy, Terms(0.1), 18, 1, 120, date="2026-11-21"
    )
    with running(Decider.demo(certificate=certificate), explorer=True) as service:
        oversight = service.service.oversight
        for alarm in (False, True):
            while oversight.alarm is not alarm:
                oversight.monitors["breaks"] = oversight.monitors["breaks"].seen(True)
            with chromium.empty() as watched:
                watched.page.goto(service.url)
                watched.page.wait_for_selector("html[data-ready]")
                text = watched.page.inner_text("#model")
            assert "Certified 2026-11-21: decisive and early may override" in text
            assert ("Alarm: more was broken" in text) is alarm and ("No alarm" in text) is not alarm
