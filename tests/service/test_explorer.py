"""The explorer in a headless Chromium that may reach nothing, and its routes behind the guard."""

import gc
import json
import socket

import httpx
import pandas as pd
import pytest
from browser import PATIENCE_MS, chromium
from records import synthetic_grid, write_cells
from served import running

from tracelm import Tracer

pytestmark = [
    pytest.mark.slow,
    # Gradio leaves event loops open, which Python tells when it collects them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # what it asks of pandas
]
PROMPT = "Question: Which goods come from Baevwick? Answer:"
CANDIDATES = ["green wool combs", "pale cedar boats", "clay lamps"]


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


@pytest.fixture(scope="module")
def served(model, runs):
    from tracelm.service.explorer import mount

    def both(app):
        mount(app, {"organism": app.state.service.corrector}, runs)

    with running(model, both, body_bytes=20_000) as service:
        yield service
    gc.collect()


@pytest.fixture
def page(served, tmp_path):
    with chromium(tmp_path) as watched:
        watched.page.goto(served.url)
        watched.page.wait_for_selector("#correct")
        yield watched
    assert [r for r in watched.requests if not r.startswith(served.url)] == []
    assert watched.complaints == []


def lines_of(page, place: str) -> list[str]:
    """What the plot's curves are, as drawn."""
    return page.eval_on_selector_all(
        f"{place} .scatterlayer .js-line", "lines => lines.map(l => l.getAttribute('d'))"
    )


def ask(page, prompt: str, candidates: list[str]) -> None:
    page.fill("#prompt textarea", prompt)
    page.fill("#candidates textarea", "\n".join(candidates))
    page.click("#correct")


def test_a_question_is_typed_and_the_plot_changes(page, served, model, tmp_path):
    screen = page.page
    ask(screen, PROMPT, CANDIDATES)
    screen.wait_for_function(
        "document.querySelectorAll('#trajectory .scatterlayer .js-line').length == 3"
    )
    first = lines_of(screen, "#trajectory")
    decision = model.correct(PROMPT, CANDIDATES)
    told = screen.inner_text("#answer")
    assert decision.answer in told and decision.base_answer in told
    assert len(screen.query_selector_all("#answer li")) == len(decision.gates)
    for before, after in zip(decision.base_probabilities, decision.probabilities, strict=True):
        assert f"{before:.3f}" in told and f"{after:.3f}" in told
    assert len(screen.query_selector_all("#bars .bars .point")) == 6

    ask(screen, PROMPT, [*CANDIDATES, "amber glass masks"])
    screen.wait_for_function(
        "document.querySelectorAll('#trajectory .scatterlayer .js-line').length == 4"
    )
    assert lines_of(screen, "#trajectory")[:3] != first
    screen.screenshot(path=tmp_path / "explorer.png", full_page=True)
    assert (tmp_path / "explorer.png").stat().st_size > 10_000


def test_text_of_others_is_text(page):
    screen = page.page
    hostile = "<img src=x onerror=document.title='taken'><b>bold</b>"
    ask(screen, f"{PROMPT} {hostile}", [f"clay {hostile}", "lamps"])
    screen.wait_for_function(
        "document.querySelectorAll('#trajectory .scatterlayer .js-line').length == 2"
    )
    assert hostile in screen.inner_text("#answer")
    assert screen.title() == "tracelm explorer"
    assert screen.query_selector("#answer b, #answer img") is None


def test_a_bad_item_is_told_on_the_page(page):
    screen = page.page
    ask(screen, PROMPT, ["clay lamps", "clay lamps"])
    screen.wait_for_selector("#answer [role=alert]")
    assert "same tokens" in screen.inner_text("#answer")
    ask(screen, PROMPT, CANDIDATES)
    screen.wait_for_function(
        "document.querySelectorAll('#trajectory .scatterlayer .js-line').length == 3"
    )


def test_the_records_of_a_run_open_in_the_second_tab(page):
    screen = page.page
    screen.get_by_role("tab", name="Records").click()
    screen.click("#item input")
    screen.get_by_role("option").nth(2).click()
    screen.wait_for_function(
        "document.querySelectorAll('#record-trajectory .scatterlayer .js-line').length > 1"
    )
    told = screen.inner_text("#record-answer")
    assert "The answer" in told and "(true)" in told or "(false)" in told


def test_every_cell_of_a_run_is_shown_whatever_its_template(runs):
    from tracelm.service.explorer import _Records

    records = _Records(runs)
    assert any("@own6" in name for name in records.cells)
    for name, cell in records.cells.items():
        told, curves, bars = records.view(name, 3)
        record = cell.iloc[3]
        assert record["candidates"][record["index"]] in told.replace("&#x27;", "'")
        assert len(curves.data) == len(record["candidates"]) and len(bars.data) == 2


def test_routes_of_gradio_that_the_page_does_not_need_are_none(served):
    client = served.client
    for path in (
        "/gradio_api/upload",
        "/gradio_api/run/predict",
        "/gradio_api/call/show",
        "/login",
    ):
        assert client.post(path, json={}).status_code == 404
    for path in ("/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x", "/monitoring"):
        assert client.get(path).status_code == 404
    assert client.get("/v1/correct").status_code == 405


@pytest.mark.parametrize("folder", ["static", "assets", "svelte", "docs-files", "gradio_api"])
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


def test_gradios_queue_stands_under_the_same_limits(served):
    client, join = served.client, "/gradio_api/queue/join"
    body = {"data": [], "fn_index": 0, "session_hash": "s"}
    foreign = client.post(join, json=body, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert client.post(join, json=body | {"more": "x" * 20_000}).status_code == 413
    page = client.get("/").text
    assert '"analytics_enabled": true' not in page and "googleapis" not in page


def test_the_page_asks_for_the_token(model, tmp_path):
    from tracelm.service.explorer import mount

    def behind(app):
        mount(app, {"organism": app.state.service.corrector})

    with running(model, behind, token="letmein") as guarded:
        for path in ("/", "/config", "/theme.css", "/gradio_api/info"):
            assert guarded.client.get(path).status_code == 401
        join = guarded.client.post("/gradio_api/queue/join", json={})
        assert join.status_code == 401
        credentials = {"username": "me", "password": "letmein"}
        with chromium(tmp_path, http_credentials=credentials) as watched:
            watched.page.goto(guarded.url)
            watched.page.wait_for_selector("#correct")
            ask(watched.page, PROMPT, CANDIDATES)
            watched.page.wait_for_selector("#trajectory .js-line", timeout=PATIENCE_MS)
    gc.collect()


def test_an_open_page_does_not_hold_the_service(model, tmp_path):
    from tracelm.service.explorer import mount

    def behind(app):
        mount(app, {"organism": app.state.service.corrector})

    with running(model, behind) as open_page:
        stream = httpx.Client(base_url=open_page.url, timeout=30, trust_env=False)
        with stream, stream.stream("GET", "/gradio_api/heartbeat/abc") as beating:
            next(beating.iter_raw())
            open_page.server.should_exit = True
            open_page.wait_for(lambda: open_page.events("stopped"))
    assert json.dumps(open_page.events("failure")) == "[]"
    gc.collect()
