"""The labelling page: its routes, and labelling by keyboard up to the verdict."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import PHONE, assert_accessible
from served import PATIENCE_SECONDS, wait_until
from topics import ANIMALS, MONEY

from lastword import Tracer
from lastword.files.rows import read_objects
from lastword.probes import Probe
from lastword.service.labelling import LabelService, create_label_app
from lastword.service.server import Server
from lastword.trust.certificate import Certificate
from lastword.trust.terms import Terms
from lastword.tryout.label_job import LabelJob
from lastword.tryout.labelling import FILE
from lastword.tryout.table_options import TableOptions

HOSTILE = "<img src=x onerror=document.title=1><b>the red fox runs home</b></script>"
RIGHT_TO_LEFT = "שלום, the red fox runs home"
LONG = "the red fox runs home " * 60


def texts(count: int) -> list[str]:
    result = [HOSTILE, RIGHT_TO_LEFT, LONG]
    for i in range(count - len(result)):
        parts = (ANIMALS, MONEY)[i % 2]
        result.append(f"{parts[i % 4]} and {parts[(i // 4) % 4]} in {1000 + 7 * i}")
    return result


def truth(text: str) -> str:
    return "animal" if any(part in text for part in ANIMALS) else "money"


def write(folder: Path, count: int) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count)))
    return path


def full(file: int) -> None:
    raise OSError(28, "no space left on device")


@contextmanager
def labelling(
    folder: Path, named: TableOptions, load: Any = Tracer.demo, count: int = 170
) -> Iterator[httpx.Client]:
    """Serve the page from this process, and yield a client of its routes."""
    address = list[str]()
    source = str(write(folder, count))
    job = LabelJob(source, named, folder / "out", load, Terms(promise="gain"))
    service = LabelService(job, 0, address.append)
    server = Server(create_label_app(service), service)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()))
    thread.start()
    try:
        wait_until(lambda: address)
        with httpx.Client(base_url=address[0], timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        service.close()


def test_the_routes_give_a_text_and_refuse_invalid_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def waits() -> Tracer:
        go_on.wait(PATIENCE_SECONDS)
        return Tracer.demo()

    named = TableOptions(choices="animal,money", instructions="Topic?")
    with labelling(tmp_path, named, waits) as client:
        one = client.get("state").json()
        assert one["shown"]["text"] in texts(170) and one["instructions"] == "Topic?"
        assert [option["name"] for option in one["options"]] == ["animal", "money"]
        assert (one["round"], one["done"], one["rows"]) == (1, 0, 60)
        body = {"row": one["shown"]["row"], "label": "animal"}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            refused = client.post("label", json=body)
        assert refused.status_code == 503 and "Make room" in refused.json()["error"]["message"]
        after = client.post("label", json=body).json()
        assert after["done"] == 1 and after["shown"]["row"] != body["row"]
        again = client.post("label", json=body)
        assert again.status_code == 409 and again.json()["error"]["code"] == "repeated_feedback"
        for undone in (True, False):
            answer = client.post("undo", json={}).json()
            assert (answer["shown"], answer["undone"]) == (one["shown"], undone)
        for invalid, status in (
            (body | {"label": "mony"}, 422),
            (body | {"row": "no such row"}, 409),
            (body | {"more": 1}, 422),
            ({"row": 1}, 422),
        ):
            assert client.post("label", json=invalid).status_code == status
        assert client.get("state").json()["done"] == 0 and client.get("result").status_code == 404
        policy = client.get("").headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy
        root = str(client.base_url).split("/", 3)
        bare = httpx.Client(base_url="/".join(root[:3]), trust_env=False)
        for path in ("/", "/state", "/wrong/state"):
            assert bare.get(path).status_code == 404
        evil = {"origin": "http://evil.example"}
        assert client.post("undo", json={}, headers=evil).status_code == 403
        assert client.get("state", headers={"host": "evil.example"}).status_code == 403
        bare.close()
        go_on.set()


@pytest.mark.slow
def test_more_than_nine_options_can_be_searched_and_texts_are_not_html(tmp_path, chromium):
    options = ",".join(f"option {i}" for i in range(12))
    named = TableOptions(choices=options)
    with labelling(tmp_path, named, count=3) as client, chromium.empty() as watched:
        page, seen = watched.page, set()
        page.goto(str(client.base_url))
        page.wait_for_selector("html[data-ready]")
        for row in range(3):
            seen.add(text := page.text_content("#text").strip())
            if text == LONG.strip():
                assert page.is_visible("#fold") and "folded" in page.get_attribute("#text", "class")
                page.keyboard.press("f")
                assert "folded" not in page.get_attribute("#text", "class")
            if row == 0:
                assert page.locator("#options button").count() == 12
                page.keyboard.press("/")
                page.keyboard.type("option 11")
                assert page.locator("#options button").count() == 1
                assert_accessible(page)
                page.keyboard.press("Enter")
                reach(page, "[value='1']")
                assert page.input_value("#search") == ""
                page.keyboard.press("Escape")
            elif row == 1:
                page.keyboard.press("s")
                reach(page, "[value='2']")
        assert seen == {HOSTILE, RIGHT_TO_LEFT, LONG.strip()}
        assert page.title() == "lastword label" and page.locator("#text b").count() == 0
        assert page.get_attribute("#text", "dir") == "auto"
    assert watched.complaints == []


@pytest.mark.slow
def test_labelling_by_keyboard_reaches_the_verdict_after_two_kills(forks, chromium, tmp_path):
    command = ["-m", "lastword", "label", write(tmp_path, 240), "--choices", "animal,money"]
    command += ["--model", "lastword/demo-organism", "--out", tmp_path / "out", "--no-browser"]
    with chromium.empty(viewport=PHONE) as watched:
        page = watched.page
        page.set_default_timeout(240_000)
        for last in ((1, 25), (2, 7), None):
            with forks.start(*command) as process:
                page.goto(process.stdout.readline().split()[-1])
                page.wait_for_selector("html[data-ready]")
                label_until(page, last)
                if last is not None:
                    process.kill()
                    continue
                assert "Proven with 95% confidence" in page.text_content("#words")
                assert page.evaluate("document.activeElement.id") == "words"
                assert_accessible(page)
                page.click("#result a")
                page.wait_for_selector("h1")
                assert "Proven with 95% confidence" in page.text_content("main")
    labels = read_objects(tmp_path / "out" / FILE)
    assert (len(labels), sum(not row["label"] for row in labels)) == (100, 1)
    certificate = Certificate.read(tmp_path / "out" / "certificate.toml")
    probe = Probe.read(tmp_path / "out" / "answer.probe.safetensors")
    assert certificate.second is not None and certificate.second.rows == 40
    assert certificate.probe is not None and certificate.probe.digest == probe.digest
    assert probe.labels == 60 - 1  # one text was skipped


def reach(page: Any, value: str) -> None:
    """Wait until the bar shows another number; the page's policy forbids scripts of the test."""
    page.wait_for_selector(f"#bar{value}", state="attached")


def label_until(page: Any, last: tuple[int, int] | None) -> None:
    """Label by keyboard until a round has a number of labels, or until the verdict."""
    undone = last != (1, 25)
    while True:
        page.wait_for_selector("#labelling:not([hidden]), #verdict:not([hidden])")
        if page.is_visible("#verdict"):
            assert last is None
            return
        progress = page.text_content("#progress")
        number = 1 if "train the probe" in progress else 2
        done = int(progress.split()[0])
        if last == (number, done):
            return
        if (number, done) == (1, 3) and not undone:
            page.keyboard.press("Backspace")
            reach(page, "[value='2']")
            undone = True
            continue
        key = "12"["animal money".split().index(truth(page.text_content("#text")))]
        page.keyboard.press("s" if (number, done) == (1, 10) else key)
        reach(page, f":not([value='{done}'])")
