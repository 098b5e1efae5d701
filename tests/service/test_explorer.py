"""The explorer in a headless Chromium that may reach nothing, and its routes behind the guard."""

import json
import socket
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import populations
import pytest
from browser import assert_accessible
from scipy.special import softmax
from served import running
from synthetic import synthetic_grid, write_cells

from lastword import Tracer
from lastword.batch import Scope
from lastword.demo.outcome import answer
from lastword.demo.outcome import examples as firsts
from lastword.service.explorer import examples
from lastword.text.items import Item
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms

pytestmark = pytest.mark.slow
PROMPT = "Question: Which goods come from Baevwick? Answer:"
CANDIDATES = ["green wool combs", "pale cedar boats", "clay lamps"]
ASKED = {"model": "organism", "prompt": PROMPT, "candidates": CANDIDATES}


@pytest.fixture(scope="module")
def model():
    return Tracer.demo()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    grid = synthetic_grid(1, 12)
    other = grid[grid["benchmark"] == "halueval-qa"].assign(benchmark="halueval-qa@own6")
    write_cells(pd.concat([grid, other]), folder)
    return folder


def mounted(runs=None):
    from lastword.service.explorer.page import mount

    return lambda app: mount(app, {"organism": app.state.service.corrector}, runs)


@pytest.fixture(scope="module")
def served(model, runs):
    with running(model, mounted(runs), body_bytes=20_000) as service:
        yield service


@pytest.fixture
def page(served, chromium):
    with chromium.empty() as watched:
        watched.page.goto(served.url)
        watched.page.wait_for_selector("html[data-ready]")
        watched.page.wait_for_selector("#answer .drawing")
        yield watched
    assert [r for r in watched.requests if not r.startswith(served.url)] == []
    assert [c for c in watched.complaints if "status of 422" not in c] == []


def ask(page, prompt: str, candidates: list[str]) -> None:
    page.fill("textarea[name=prompt]", prompt)
    page.fill("textarea[name=candidates]", "\n".join(candidates))
    page.click("#ask .act")
    page.wait_for_selector("#answer[aria-busy=false]")


def test_it_opens_on_a_worked_example_with_all_that_there_is_to_see(page, model):
    screen = page.page
    first = examples.examples("lastword/demo-organism")[0]
    decision = model.correct(first["prompt"], first["candidates"], read="all")
    assert decision.corrected
    assert screen.inner_text("#answer .answers").split(" → ") == [
        decision.base_answer,
        decision.answer,
    ]
    told = screen.text_content("#answer .told")
    assert f"d_eff = {decision.d_eff:.5g} > 1.0015" in told and "(true)" in told
    assert screen.locator("#answer .gates tbody tr").count() == len(decision.gates)
    count = len(decision.candidates)
    assert screen.locator("#answer .drawing .curve").count() == count
    assert screen.locator("#answer .drawing .blind").count() == count
    pi = softmax(decision.trajectory, axis=0)
    for depth in (0, 4, 12):
        screen.fill("#answer .depth input", str(depth))
        shares = screen.locator("#answer .readings .share").all_inner_texts()
        shown = [float(share.rstrip("%")) for share in shares]
        assert shown == pytest.approx(100 * pi[:, depth], abs=0.11)
    assert "Nothing is certified" in screen.inner_text(".models")


def test_the_examples_are_what_the_demo_chooses(model):
    chosen = firsts(answer(model, examples._world(), lambda d, *_: d), *examples.ORGANISM)
    assert {rule: o.item.id for rule, o in chosen.items()} == examples.ORGANISM
    names = [example["name"] for example in examples.examples("lastword/smollm2-135m")]
    assert [name.split(":")[0] for name in names] == ["repaired", "broken", "kept"]
    assert all(":" not in example["name"] for example in examples.examples("org/other"))


def test_the_blind_trajectory_is_the_librarys(served, model):
    item = Item(PROMPT, tuple(CANDIDATES), blind_prompt="Answer:")
    (encoded,) = model.encode([item])
    (decision,) = model.decide_group([encoded], Scope("all", "all"))
    view = served.client.post("/explorer/answer", json=ASKED | {"blind_prompt": "Answer:"}).json()
    packed = view["item"]["panels"][1]
    shown = np.cumsum(packed["blind"], axis=1) / packed["unit"]
    assert shown == pytest.approx(decision.blind_trajectory, abs=1e-3)


def test_a_moved_threshold_shows_what_the_rule_would_do_and_moves_nothing(page, served, model):
    screen = page.page
    kept = screen.text_content("#answer .told")
    row = screen.locator("#answer .threshold", has_text="entropy of the last depth")
    row.locator("input").fill("0.95")
    screen.wait_for_selector("#answer .outcome .chip")
    assert f"the answer would be “{CANDIDATES[2]}” by base" in screen.inner_text("#answer .outcome")
    assert screen.locator("#answer .told").first.text_content() == kept
    row.get_by_role("button").click()
    screen.wait_for_selector("#answer .outcome .note")
    assert served.service.corrector.tracer.theta == model.theta
    # By the rule itself, under another Theta, on every threshold that decides.
    moved = {"tau_H": 0.95}
    other = Tracer.demo(theta=model.theta.from_dict(moved)).correct(PROMPT, CANDIDATES)
    view = served.client.post("/explorer/answer", json=ASKED | {"thresholds": moved}).json()
    assert view["what_if"]["operator"] == other.operator
    assert view["what_if"]["answer"] == other.answer


def test_a_threshold_is_asked_about_without_asking_the_model_again(served):
    before = served.metric("lastword_batch_items_count")
    body = ASKED | {"prompt": f"{PROMPT} again"}
    for entropy in (0.1, 0.5, 0.9):
        answer = served.client.post(
            "/explorer/answer", json=body | {"thresholds": {"tau_H": entropy}}
        )
        assert answer.status_code == 200
    assert served.metric("lastword_batch_items_count") == before + 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"thresholds": {"eta": 2.0}}, "item"),
        ({"thresholds": {"tau_H": "high"}}, "invalid_body"),
        ({"model": "another"}, "not_found"),
        ({"candidates": []}, "invalid_body"),
        ({"candidates": ["same", "same"]}, "item"),
        ({"more": 1}, "invalid_body"),
    ],
)
def test_what_cannot_be_shown_is_one_error(served, changes, code):
    answer = served.client.post("/explorer/answer", json=ASKED | changes)
    assert answer.json()["error"]["code"] == code and "\n" not in answer.text


def test_a_link_holds_the_question(page, served):
    screen = page.page
    ask(screen, PROMPT, CANDIDATES)
    told, link = screen.text_content("#answer .told"), screen.url
    screen.goto("about:blank")
    screen.goto(link)
    screen.wait_for_selector("#answer .drawing")
    assert screen.input_value("textarea[name=candidates]").split("\n") == CANDIDATES
    assert screen.text_content("#answer .told") == told
    screen.select_option("select[name=example]", index=2)
    screen.wait_for_function(
        "t => document.querySelector('#answer .told').textContent !== t", arg=told
    )
    screen.go_back()
    screen.wait_for_function(
        "t => document.querySelector('#answer .told').textContent === t", arg=told
    )


HOSTILE = "</script><b>b</b><img src=x onerror=document.title=1>"


def test_text_of_others_is_text(page, served):
    screen = page.page
    ask(screen, "<b>Q</b>", [HOSTILE, "lamps"])
    assert HOSTILE in screen.inner_text("#answer")
    words = {"model": HOSTILE, "prompt": HOSTILE, "candidate": [HOSTILE, "b"], "true": HOSTILE}
    for address in (f"#ask?{urlencode(words, doseq=True)}", f"#item-0-{HOSTILE}", f"#{HOSTILE}"):
        screen.goto("about:blank")
        screen.goto(f"{served.url}/{address}")
        screen.wait_for_selector("html[data-ready]")
        screen.wait_for_selector("#answer[aria-busy=false]")
        assert screen.title() == "lastword explorer"
        assert screen.locator("#answer b, #answer img, #answer script").count() == 0


def test_a_bad_item_is_told_on_the_page(page):
    screen = page.page
    ask(screen, PROMPT, ["clay lamps", "clay lamps"])
    assert "same tokens" in screen.inner_text("#answer [role=alert]")
    ask(screen, PROMPT, CANDIDATES)
    assert screen.locator("#answer .drawing .curve").count() == 3


def test_every_record_of_every_template_is_shown(page, served, runs):
    screen = page.page
    benchmarks = screen.locator("select[name=benchmark] option").all_inner_texts()
    assert "halueval-qa@own6" in benchmarks and "halueval-qa" in benchmarks
    screen.select_option("select[name=benchmark]", label="halueval-qa@own6")
    screen.select_option("select[name=outcome]", label="fixed")
    screen.locator("#items .list li button").first.click()
    screen.wait_for_selector("#items .item .drawing")
    told = screen.text_content("#items .item .told")
    assert "The answer changes" in told and "(true)." in told
    screen.locator("#items .threshold input").first.fill("1")
    screen.wait_for_selector("#items .outcome .chip")
    for cell in range(len(benchmarks) - 1):
        answer = served.client.post("/explorer/record", json={"cell": cell, "item": 3})
        assert answer.status_code == 200 and answer.json()["text"]["candidates"]
    for absent in ({"cell": 99, "item": 0}, {"cell": 0, "item": 99}):
        assert served.client.post("/explorer/record", json=absent).status_code == 404


def test_the_page_is_accessible(page):
    screen = page.page
    screen.locator("#answer .threshold input").nth(2).fill("0.95")
    screen.wait_for_selector("#answer .outcome .chip")
    screen.locator("#items .list li button").nth(3).click()
    screen.wait_for_selector("#items .item .drawing")
    assert_accessible(screen)


def test_the_page_runs_no_script_but_its_own(served):
    answer = served.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    own = answer.text.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert "script-src 'sha256-" in own and "unsafe" not in own.partition("style-src")[0]
    assert "googleapis" not in answer.text and len(answer.text) < 200_000


def test_paths_that_the_page_does_not_need_are_none(served):
    client = served.client
    for path in ("/gradio_api/upload", "/gradio_api/run/predict", "/login", "/explorer"):
        assert client.post(path, json={}).status_code == 404
    for path in ("/gradio_api/file=/etc/passwd", "/config", "/explorer/", "/explorer/../etc"):
        assert client.get(path).status_code == 404
    assert client.get("/explorer/answer").status_code == 405
    assert client.get("/v1/correct").status_code == 405


@pytest.mark.parametrize("folder", ["static", "assets", "explorer", "docs-files", "docs"])
@pytest.mark.parametrize(
    "climb",
    ["../" * 9, "%2e%2e/" * 9, "..%2f" * 9, "%2e%2e%2f" * 9, "..\\" * 9, "%5c..%5c" * 9, "/"],
)
def test_no_path_climbs_out_of_the_page(served, folder, climb):
    for wanted in ("etc/passwd", "proc/self/environ"):
        with socket.create_connection(("127.0.0.1", int(served.url.rsplit(":", 1)[1]))) as raw:
            path = f"/{folder}/{climb}{wanted}"  # as it stands: a client would tidy it up
            raw.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n".encode())
            raw.sendall(b"connection: close\r\n\r\n")
            answer = b"".join(iter(lambda: raw.recv(65536), b""))
        assert answer.split()[1] in (b"404", b"403"), path
        assert b"root:" not in answer and b"PATH=" not in answer
    assert served.events("failure") == []


def test_its_routes_stand_under_the_limits_of_the_service(served):
    client = served.client
    foreign = client.post("/explorer/answer", json=ASKED, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert client.post("/explorer/answer", json=ASKED | {"more": "x" * 20_000}).status_code == 413
    plain = client.post("/explorer/answer", content=json.dumps(ASKED))
    assert plain.status_code == 415


def test_the_page_asks_for_the_token(model, chromium):
    with running(model, mounted(), token="letmein") as guarded:
        for path in ("/", "/explorer/models"):
            assert guarded.client.get(path).status_code == 401
        assert guarded.client.post("/explorer/answer", json=ASKED).status_code == 401
        credentials = {"username": "me", "password": "letmein"}
        with chromium.empty(http_credentials=credentials) as watched:
            watched.page.goto(guarded.url)
            watched.page.wait_for_selector("#answer .drawing")
            assert watched.page.locator("#items").count() == 0


def test_the_page_tells_what_is_certified_and_whether_it_holds(chromium):
    policy = Policy(("decisive", "early"), 0.25)
    certificate = populations.certificate(
        Tracer.demo().subject, policy, Terms(0.1), 18, 1, 120, date="2026-11-21"
    )
    with running(Tracer.demo(certificate=certificate), mounted()) as service:
        (told,) = service.client.get("/explorer/models").json()["models"]
        assert told["told"][0].startswith("Certified") and not told["alerts"]
        assert "Labels that came back: 0" in told["told"][-1] and "No alarm" in told["told"][-1]
        monitor = service.service.corrector.oversight.monitor
        while not monitor.alarm:
            monitor = monitor.seen(True)
        service.service.corrector.oversight.monitor = monitor
        (told,) = service.client.get("/explorer/models").json()["models"]
        assert told["alerts"] == ["Alarm: more was broken than was promised."]
        with chromium.empty() as watched:
            watched.page.goto(service.url)
            watched.page.wait_for_selector("html[data-ready]")
            assert "Alarm: more was broken" in watched.page.inner_text("#models .alert")
