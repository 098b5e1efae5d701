"""The explorer's page Decide, in a headless Chromium, held to the library and to the API."""

import json
import shlex
from urllib.parse import quote

import numpy as np
import pytest
from browser import PHONE, assert_accessible
from served import running

from lastword import Choice, Option, Predicate, Tracer
from lastword.decisions.answer import Probed, answer_from, probabilities_of, words_of
from lastword.service.explorer.deciding import EXAMPLES, _sure

pytestmark = pytest.mark.slow
TEXT = "Which goods come from Baevwick?"
GOODS = Choice("What is sold?", ["green wool combs", "clay lamps", Option("boats", "of cedar")])
ASKED = {
    "type": "choice",
    "instructions": GOODS.instructions,
    "choices": ["green wool combs", "clay lamps", {"value": "boats", "description": "of cedar"}],
}
BODY = {"model": "organism", "input": TEXT, "questions": [ASKED]}


@pytest.fixture(scope="module")
def model():
    return Tracer.demo(correction="pmi@0.5")


def mounted(app):
    from lastword.service.explorer.page import mount

    mount(app, {"organism": app.state.service.corrector})


@pytest.fixture(scope="module")
def served(model):
    with running(model, mounted, body_bytes=20_000) as service:
        yield service


@pytest.fixture
def page(served, chromium):
    with chromium.empty() as watched:
        watched.page.goto(f"{served.url}/decide")
        watched.page.wait_for_selector("html[data-ready]")
        yield watched
    assert [r for r in watched.requests if not r.startswith(served.url)] == []
    assert [c for c in watched.complaints if "status of 4" not in c] == []


@pytest.mark.parametrize(("yes", "said"), [(0.104, "no"), (0.896, "yes")])
def test_a_predicate_is_as_sure_as_what_it_says(yes, said):
    question = Predicate("It holds.")
    answer = answer_from(
        question, np.array([yes, 1 - yes]), Probed("probe@1", 1.0), calibrated=True
    )
    assert (words_of(answer), _sure(answer)) == (said, "with probability 89.6%")


def decide(screen) -> None:
    screen.get_by_role("button", name="Decide", exact=True).click()
    screen.wait_for_selector("#decisions[aria-busy=false]")


def write(screen) -> None:
    """The question of `BODY` alone in the form."""
    screen.fill("textarea[name=input]", TEXT)
    while screen.locator(".question").count() > 1:
        screen.locator(".question .reset").last.click()
    box = screen.locator(".question")
    box.locator("select").select_option("choice")
    box.locator("[name=instructions]").fill(GOODS.instructions)
    box.locator("[name=options]").fill("green wool combs\n clay lamps \n\nboats | of cedar")


def test_it_opens_on_a_text_with_a_question_of_every_kind(page):
    screen = page.page
    assert screen.input_value("textarea[name=input]") == EXAMPLES[0]["input"]
    assert screen.locator("#decisions .decision").count() == len(EXAMPLES[0]["questions"]) == 3
    kinds = screen.eval_on_selector_all(".question select", "all => all.map(s => s.value)")
    assert kinds == ["choice", "predicate", "score"]
    assert screen.locator("#decisions .decision").nth(1).locator("h3").inner_text().split()[0] in (
        "yes",
        "no",
    )


def test_answers_are_the_librarys_with_the_text_and_without(page, model):
    screen = page.page
    write(screen)
    decide(screen)
    own = model.decide(TEXT, {"q": GOODS}).choices["q"]
    alone = probabilities_of(GOODS, model.decide("", {"q": GOODS})["q"].decision.base_scores)
    assert screen.locator("#decisions .decision").count() == 1
    assert screen.locator("#decisions h3 span").inner_text() == own.choice
    assert f"{own.probability:.1%}" in screen.inner_text("#decisions h3")
    names = screen.locator("#decisions .candidates .text").all_inner_texts()
    shares = [s.rstrip("%") for s in screen.locator("#decisions .share").all_inner_texts()]
    shown = {
        name.split("\n")[0]: (float(a), float(b))
        for name, a, b in zip(names, shares[::2], shares[1::2], strict=True)
    }
    for option, without, p in zip(GOODS.options, alone, own.probabilities, strict=True):
        assert shown[option.text] == pytest.approx((100 * without, 100 * p), abs=0.06)
    assert "of cedar" in screen.inner_text("#decisions .candidates")
    assert "by pmi@0.5" in screen.inner_text("#decisions .tags")


def test_what_is_behind_an_answer_is_told_depth_by_depth(page, model):
    screen = page.page
    write(screen)
    decide(screen)
    screen.click("#decisions .decision > details > summary")
    screen.wait_for_selector("#decisions .drawing .curve")
    assert screen.locator("#decisions .drawing .curve").count() == len(GOODS.options)
    assert screen.locator("#decisions .drawing .blind").count() == len(GOODS.options)
    assert "The scores of pmi@0.5 decide" in screen.text_content("#decisions .told")
    assert "pmi@0.5" in screen.inner_text("#decisions details .key-line")
    assert "Text: " + TEXT in screen.text_content("#decisions pre")


def test_the_calls_to_copy_give_the_same_answer(page, served, model):
    screen = page.page
    write(screen)
    screen.fill("textarea[name=input]", "It's \"theirs\", isn't it?\n$HOME `date`")
    decide(screen)
    curl, python = screen.locator("#calls pre").all_text_contents()
    words = shlex.split(curl)
    assert words[:3] == ["curl", "-s", f"{served.url}/v1/decisions"]
    body = json.loads(words[words.index("-d") + 1])
    answer = served.client.post("/v1/decisions", json=body)
    assert answer.status_code == 200, answer.text
    screen_says = screen.locator("#decisions h3 span").inner_text()
    assert answer.json()["answers"][0]["choice"] == screen_says
    asked = {}
    names = {"create": lambda **given: asked.update(given)}
    code = python.replace("from openai import OpenAI", "")
    call = code[code.index("client.decisions.create") :].removeprefix("client.decisions.")
    exec(call, names)
    assert asked == body


def test_a_link_holds_text_and_questions(page, served):
    screen = page.page
    write(screen)
    decide(screen)
    link, told = screen.url, screen.inner_text("#decisions h3")
    screen.goto("about:blank")
    screen.goto(link)
    screen.wait_for_selector("html[data-ready]")
    assert screen.inner_text("#decisions h3") == told
    assert screen.input_value(".question [name=options]").endswith("boats | of cedar")
    screen.select_option("select[name=example]", label="a review")
    screen.wait_for_function("() => document.querySelectorAll('#decisions .decision').length === 2")
    screen.go_back()
    screen.wait_for_function("() => document.querySelectorAll('#decisions .decision').length === 1")


def test_text_of_others_is_text(page, served):
    screen = page.page
    hostile = "</script><b>b</b><img src=x onerror=document.title=1>"
    question = {"type": "choice", "instructions": hostile, "choices": [hostile, "b"]}
    for words in (
        json.dumps(BODY | {"input": hostile, "questions": [question]}),
        json.dumps({"questions": [3, {"type": hostile, "choices": [{}, None, 3]}]}),
        json.dumps([1]),
        hostile,
        "%",
    ):
        screen.goto("about:blank")
        screen.goto(f"{served.url}/decide#decide?{quote(words) if words != '%' else words}")
        screen.wait_for_selector("html[data-ready]")
        assert screen.title() == "lastword decide"
        assert screen.locator("#decide b, #decide img, #decide script").count() == 0


def test_a_bad_question_is_told_on_the_page(page):
    screen = page.page
    write(screen)
    screen.fill(".question [name=options]", "one alone")
    decide(screen)
    assert "1 choice, expected" in screen.inner_text("#decisions [role=alert]")
    assert screen.locator("#calls pre").count() == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "another"}, "not_found"),
        ({"questions": []}, "invalid_body"),
        ({"questions": [{"type": "choice", "choices": ["a", "a"]}]}, "invalid_body"),
        ({"questions": [ASKED] * 401}, "body_too_large"),
        ({"more": 1}, "invalid_body"),
    ],
)
def test_what_cannot_be_asked_is_one_error(served, changes, code):
    answer = served.client.post("/explorer/decide", json=BODY | changes)
    assert answer.json()["error"]["code"] == code and "\n" not in answer.text
    assert served.client.post("/explorer/story", json=BODY | {"place": 1}).status_code == 404


def test_the_page_is_accessible_and_fits_a_phone(page):
    screen = page.page
    screen.click("#decisions .decision > details > summary")
    screen.wait_for_selector("#decisions .drawing .curve")
    assert_accessible(screen)
    screen.set_viewport_size(PHONE)
    assert screen.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_predicate_is_asked_as_the_library_asks_it(served, model):
    told = served.client.post(
        "/explorer/decide",
        json=BODY | {"questions": [{"type": "predicate", "instructions": "It asks."}]},
    ).json()
    p = model.decide(TEXT, {"q": Predicate("It asks.")}).predicates["q"].probability
    (answer,) = told["answers"]
    assert [o["text"] for o in answer["options"]] == ["yes", "no"]
    assert answer["options"][0]["probability"] == pytest.approx(p, abs=1e-4)
    assert told["served"] == "lastword/demo-organism" and not told["token"]
