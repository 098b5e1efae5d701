"""`lastword paper`: its grid, its forecast, and its page after a run that was killed twice."""

import json
from pathlib import Path

import formats
import pytest
import torch
from families import build, save
from served import wait_until

from lastword.decide.options import DecideOptions
from lastword.errors import InputError
from lastword.lab.paper import read_grid
from lastword.lab.report.published import checkpoints, read_published
from lastword.model import forecast as forecasts
from lastword.model import memory, quantisation
from lastword.model.forecast import forecast
from lastword.model.options import LoadOptions

MODELS = ["lastword/demo-organism", "lastword/demo-control"]


def grid_file(folder: Path, text: str) -> Path:
    path = folder / "grid.csv"
    path.write_text(text)
    return path


def test_the_default_grid_has_the_fifteen_models_of_the_paper():
    grid = read_grid(None)
    assert [m.alias for m in grid] == [row.model for row in read_published()["truthfulqa"]]
    assert [m.alias for m in grid] == list(checkpoints())
    (one,) = read_grid(None, ["google/gemma-3-27b-it"])
    assert (one.alias, one.quantize) == ("Gemma-3-27B", "nf4")


def test_a_row_has_the_name_of_its_model_in_the_paper(tmp_path):
    text = "paper,model,revision,dtype,quantisation\n"
    text += "LLaMA-7B,/data/llama,,float32,int8\n,org/other,main,,fp8\n"
    first, second = read_grid(grid_file(tmp_path, text))
    options = {"alias": "LLaMA-7B", "dtype": "float32", "quantize": "int8"}
    assert first == DecideOptions("/data/llama", **options)
    assert second == DecideOptions("org/other", alias="other", revision="main")


@pytest.mark.parametrize(
    ("text", "only", "message"),
    [
        ("name\nx\n", (), "has the columns name; expected model"),
        ("dtype\nauto\n", (), "has the columns dtype; expected model"),
        ("model,dtype\nx,float8\n", (), "line 2: dtype is 'float8'; expected auto"),
        ("model,quantisation\nx,int3\n", (), "line 2: quantisation is 'int3'; expected int8"),
        ("model,dtype\nx,\n,auto\n", (), "line 3: model is empty"),
        ("paper,model\nGPT-5,x\n", (), "the paper has no model 'GPT-5'"),
        ("model\na/x\nb/x\n", (), "two rows for x"),
        ("model\na/x\n", ("y",), "no model 'y'; it has x"),
        ("model\n", (), "has no rows"),
    ],
)
def test_an_invalid_grid_is_refused(text, only, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_grid(grid_file(tmp_path, text), only)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_forecast_counts_parameters_bytes_and_operations(family, tmp_path):
    save(tmp_path / "model", family)
    model = build(family)
    config = model.config
    share = 1.0
    if family == "qwen3_moe":
        share = config.num_experts_per_tok / config.num_experts
    expected = sum(
        p.numel() * (share if ".experts." in name else 1)
        for name, p in model.named_parameters()
        if "embed_tokens" not in name and "lm_head" not in name
    )
    result = forecast(LoadOptions(str(tmp_path / "model"), device="cpu"))
    assert result.blocks == pytest.approx(expected) and result.missing == ()
    assert result.disk == sum(p.numel() * p.element_size() for p in model.parameters())
    head = config.vocab_size * config.hidden_size
    reads = 2.0 * head * (config.num_hidden_layers + 1)
    assert result.operations(7, 3) == pytest.approx(7 * 2 * expected + 3 * reads)
    assert forecast(LoadOptions(str(tmp_path / "nothing"))).missing[0].startswith("no model at")


@pytest.mark.parametrize(("capability", "has_kernels"), [((8, 0), False), ((9, 0), True)])
def test_the_memory_for_fp8_depends_on_the_gpu(capability, has_kernels, tmp_path, monkeypatch):
    # A double for the GPU and for the package `kernels`.
    pytest.importorskip("accelerate")
    save(tmp_path / "model", "llama", hidden_size=128, intermediate_size=256, head_dim=32)
    formats.write_fp8(tmp_path / "model", tmp_path / "stored", tmp_path / "twin")
    cuda = torch.device("cuda")
    monkeypatch.setattr(forecasts, "device_of", lambda _: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(memory, "available", lambda _: None)
    monkeypatch.setattr(memory, "default_batch_tokens", lambda *_: 64)
    monkeypatch.setattr(
        quantisation, "find_spec", lambda name: name != "kernels" or has_kernels or None
    )
    options = LoadOptions(str(tmp_path / "stored"), dtype="bfloat16")
    on_gpu = forecast(options)
    monkeypatch.setattr(forecasts, "device_of", lambda _: torch.device("cpu"))
    dense = forecast(options)
    assert on_gpu.missing == () and on_gpu.need is not None and dense.need is not None
    if has_kernels:  # one byte per weight, and the scales
        assert on_gpu.need.weights < 0.8 * dense.need.weights
    else:  # transformers converts it to bfloat16
        assert on_gpu.need.weights == dense.need.weights


@pytest.mark.slow
def test_a_grid_resumes_after_two_kills_and_continues_after_a_failed_cell(forks, tmp_path):
    rows = [f"{model}," for model in MODELS] + [f"{tmp_path}/gone,LLaMA-7B"]
    rows[1] += "LLaMA-13B"  # so that the run has a model of the paper
    grid = grid_file(tmp_path, "model,paper\n" + "\n".join(rows) + "\n")
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
    invariants = json.loads((out / "invariants.json").read_text())
    assert list(invariants) == ["demo-organism", "LLaMA-13B"]
    page = (out / "index.html").read_text(encoding="utf-8")
    for title in ("I(M) against", *(f"Table {n} of the paper" for n in (1, 3, 4))):
        assert title in page
    table = (out / "tables" / "per-model-against-paper.csv").read_text()
    assert "LLaMA-13B,LLaMA-13B," in table and ",29.6," in table
