"""The verdict of a table beside the demo's stories."""

import html
import json

import pytest


@pytest.mark.slow
def test_a_verdict_opens_the_page_and_ends_the_text(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("The lamp is red.", "red"), ("A blue boat.", "blue")] * 6
    table = [f"{text} {i}\t{label}" for i, (text, label) in enumerate(rows)]
    (tmp_path / "table.tsv").write_text("\n".join(["text\tlabel", *table]))
    ask = ("--model", "lastword/demo-organism", "--budget", "0s", "--out", "tried")
    assert run("try", "table.tsv", *ask)[0] == 0
    code, out, _ = run("demo", "--tried", "tried")
    words = json.loads((tmp_path / "tried" / "verdict.json").read_text())["advice"]["headline"]
    assert code == 0 and words in " ".join(out.partition("demo.html")[2].split())
    first, then = (tmp_path / "demo.html").read_text(encoding="utf-8").split("What TRACE does", 1)
    assert f"<h1>{words}" in html.unescape(first) and "12 labelled texts" in first
    assert "bag of words" in first and "450 questions" in then
    code, _, err = run("demo", "--tried", "nowhere")
    assert code == 1 and "`lastword try --out nowhere` writes it" in err
