"""The command line: stdout, stderr and exit codes."""

import json
import re
import time
from pathlib import Path

import pytest
from families import build, random_items, save

from lastword import Item, Theta, Tracer
from lastword.cli import progress
from lastword.cli.output import printable

PROMPT, ANSWERS = "w4 w9 w5", ("w7 w8", "w10", "w11 w12 w13")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def tracer(model) -> Tracer:
    return Tracer.from_pretrained(model)


@pytest.fixture
def one_line(run):
    """Run a command that must fail: one line on stderr, exit code 1, nothing on stdout."""

    def call(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (1, "")
        assert err.startswith("lastword: ") and err.count("\n") == 1
        return err

    return call


def single(model: str, *more: str, prompt: str = PROMPT, candidates=ANSWERS) -> list[str]:
    options = [part for c in candidates for part in ("--candidate", c)]
    return ["correct", "--model", model, "--prompt", prompt, *options, *more]


def many(model: str, path: Path | str, *more: str) -> list[str]:
    return ["correct", "--model", model, "--input", str(path), *more]


def write(path: Path, *values) -> Path:
    path.write_text("".join(f"{v if isinstance(v, str) else json.dumps(v)}\n" for v in values))
    return path


@pytest.mark.parametrize(
    ("flags", "options"),
    [(["--json"], {}), (["--full"], {"read": "all"})],
)
def test_json_is_the_decision_of_the_library(run, model, tracer, flags, options):
    code, out, err = run(*single(model, *flags))
    assert (code, err) == (0, "")
    expected = tracer.correct(PROMPT, ANSWERS, **options).to_dict(full="--full" in flags)
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_a_folder_without_a_tokenizer_is_refused(one_line, tmp_path):
    build("llama").save_pretrained(tmp_path)
    assert "has no files of a tokenizer: expected tokenizer.json" in one_line(
        *single(str(tmp_path))
    )


def items(count: int) -> list[dict]:
    return [
        {"id": f"q{i.id}", "prompt": i.prompt, "candidates": list(i.candidates)}
        for i in random_items(0, count)
    ]


def test_a_file_of_items_keeps_order_and_ids(run, model, tracer, tmp_path):
    values = items(9)
    path, output = write(tmp_path / "items.jsonl", *values), tmp_path / "decisions.jsonl"
    code, out, err = run(*many(model, path, "--out", str(output), "--full"))
    assert (code, out) == (0, "")
    decisions = [json.loads(line) for line in output.read_text().splitlines()]
    corrected = sum(d["corrected"] for d in decisions)
    message = f"lastword: wrote {output}: 9 answered, {corrected} of them corrected"
    assert err.splitlines()[0] == message
    assert [d["id"] for d in decisions] == [v["id"] for v in values]
    expected = tracer.correct_many([Item.from_dict(v) for v in values], read="all")
    for decision, other in zip(decisions, expected, strict=True):
        assert decision == json.loads(json.dumps(other.to_dict(full=True)))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


BAD = [
    {"id": "twice", "prompt": "w4", "candidates": ["w5", "w5"]},
    {"prompt": "w4 " * 5000, "candidates": ["w5", "w6"]},
]


def test_items_that_the_tokenizer_refuses_are_all_named_and_nothing_is_written(
    one_line, model, tmp_path
):
    path = write(tmp_path / "items.jsonl", BAD[0], items(1)[0], BAD[1])
    output = write(tmp_path / "decisions.jsonl", "as it was")
    error = one_line(*many(model, path, "--out", str(output)))
    assert "2 invalid rows" in error and "item twice" in error and "item line 3" in error
    assert output.read_text() == "as it was\n"


def test_skip_invalid_writes_errors_and_continues(run, model, tmp_path):
    path = write(tmp_path / "items.jsonl", "{", items(1)[0], *BAD)
    code, out, err = run(*many(model, path, "--skip-invalid"))
    assert code == 0 and err.startswith("lastword: skipped 3 of 4: item line 1: not JSON: ")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == ["line 1", "q0", "twice", "line 4"]
    assert ["error" in line for line in lines] == [True, False, True, True]
    assert "same tokens" in lines[2]["error"] and "needs" in lines[3]["error"]


@pytest.mark.parametrize("name", ["", "lastword/demo-organism"])
def test_invariant_of_a_folder_and_of_an_embedded_model(run, model, tracer, name):
    value = json.loads(run("invariant", name or model, "--json")[1])
    opened = Tracer.demo(name.removeprefix("lastword/demo-")) if name else tracer
    assert value["invariant"] == pytest.approx(opened.invariant, rel=1e-12)
    assert value["branch"] == ("mix" if value["invariant"] > Theta().tau_I else "early")


def test_bench_prints_the_speed_of_programs_that_agree(run, tmp_path):
    pytest.importorskip("lm_eval")
    out = tmp_path / "bench.json"
    model = ("--model", "lastword/demo-organism")
    args = ("bench", *model, "--limit", 4, "--rounds", 1, "--out", out)
    code, table, err = run(*args, "--against", "lm-eval hf", "--against", "plain trace")
    assert (code, err) == (0, "")
    report = json.loads(out.read_text())
    assert report["dtype"] == "float32" and report["items"] >= 4 and report["same_decisions"]
    assert 0 < report["agreement"]["lm-eval hf"] < 1e-4
    assert "decisions agree" in table and "/ lm-eval hf" in table and "–" not in table
    for name in ("lm-eval hf", "plain trace", "ours, staged"):
        (row,) = (line for line in table.splitlines() if line.strip().startswith(f"{name} "))
        assert f"{report['seconds'][name]:.3f}" in row
        assert f"{report['seconds'][name] / report['seconds']['lm-eval hf']:.3f}" in row


def test_progress_is_shown_on_a_terminal_after_a_second_and_changes_nothing(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress.tracked("abc", "counting letters", 3)) == ["a", "b", "c"]
    with progress.waiting("thinking"):
        pass
    assert "thinking" not in (err := capsys.readouterr().err) and "letters" not in err
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0)
    assert list(progress.tracked(iter("abc"), "counting letters", 3)) == ["a", "b", "c"]
    with progress.waiting("thinking"):
        time.sleep(0.2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting letters" in err and "3/3" in err and re.search(r"thinking .*0:00:00", err)


def test_control_characters_are_escaped():
    assert printable("a\x1b[31mb\u202ec\n") == "a\\x1b[31mb\\u202ec\\n"
    assert printable("naïve 東京 [bold]") == "naïve 東京 [bold]"


def test_a_full_disk_is_one_line(run, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("typer.echo", refuse)
    code, _, err = run("invariant", "lastword/demo-organism")
    assert (code, err) == (1, "lastword: No space left on device: make room, and run it again\n")
