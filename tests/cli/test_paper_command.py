"""`lastword paper`: its grid, and its page after a run that was killed twice."""

import json
from pathlib import Path

import pytest
from served import wait_until

from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.lab.paper import read_grid
from lastword.lab.report.published import checkpoints, read_published

MODELS = ["lastword/demo-organism", "lastword/demo-control"]


def grid_file(folder: Path, text: str) -> Path:
    path = folder / "grid.csv"
    path.write_text(text)
    return path


def test_the_default_grid_has_the_fifteen_models_of_the_paper():
    grid = read_grid(None)
    assert [m.alias for m in grid] == [row.model for row in read_published()["truthfulqa"]]
    assert [m.alias for m in grid] == list(checkpoints())
    assert {m.quantize for m in grid if m.alias == "Gemma-3-27B"} == {"nf4"}


def test_a_row_has_options_of_its_model(tmp_path):
    text = "model,alias,revision,dtype,quantize\n"
    text += "/data/llama,llama-7b,,float32,int8\norg/other,,main,,\n"
    first, second = read_grid(grid_file(tmp_path, text))
    assert first == DecideOptions("/data/llama", alias="LLaMA-7B", dtype="float32", quantize="int8")
    assert second == DecideOptions("org/other", alias="other", revision="main")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nx\n", "row 1: model is empty"),
        ("model,name\nx,y\n", "row 1 .*name"),
        ("model,dtype\nx,float8\n", "row 1: unknown dtype 'float8'"),
        ("model,quantize\nx,int3\n", "row 1: quantize .*int3"),
        ("model\na/x\nb/x\n", "two rows for x"),
        ("model\n", "has no rows"),
    ],
)
def test_an_invalid_grid_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_grid(grid_file(tmp_path, text))


@pytest.mark.slow
def test_a_grid_resumes_after_two_kills_and_continues_after_a_failed_cell(forks, tmp_path):
    rows = [f"{model}," for model in MODELS] + [f"{tmp_path}/gone,LLaMA-7B"]
    rows[1] += "LLaMA-13B"  # so that the run has a model of the paper
    grid = grid_file(tmp_path, "model,alias\n" + "\n".join(rows) + "\n")
    out = tmp_path / "out"
    # This item does not fit the context of the embedded models.
    long = tmp_path / "long.jsonl"
    line = {"prompt": "word " * 400, "candidates": ["a", "b"], "truthful": 0}
    long.write_text(json.dumps(line) + "\n")
    arguments = ["-m", "lastword", "paper", "--models", grid, "--out", out, "--limit", 8]
    for benchmark in ("demo", f"jsonl:{long}", "halueval-sum"):
        arguments += ["--benchmark", benchmark]
    for cell in ("demo-organism", "LLaMA-13B"):
        with forks.start(*arguments) as command:
            wait_until((out / "runs" / cell / "demo").exists, 120)
            command.kill()
    before = sorted((out / "runs").rglob("part-*.parquet"))
    times = [path.stat().st_mtime_ns for path in before]
    process = forks.run(*arguments)
    assert process.returncode == 1
    assert before and [path.stat().st_mtime_ns for path in before] == times  # not computed again
    messages = [line for line in process.stderr.splitlines() if line.startswith("lastword: ")]
    assert any("every model on halueval-sum: cannot load" in line for line in messages)
    assert any("LLaMA-7B on demo: no model at" in line for line in messages)
    assert any(
        "demo-organism on jsonl:long: every item failed, the first: " in line for line in messages
    )
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "I(M) against" in page and "Table 1 of the paper" in page
    assert "LLaMA-13B" in (out / "tables" / "against-paper.csv").read_text()
