"""One model over the processes of torchrun: the decisions of one process, printed once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import build, config_of, random_items, tokenizer

from tracelm.errors import ModelError
from tracelm.model import ranks

ITEMS = random_items(3, 8)
# Only a comparison this near its threshold may fall either way (method, section 9).
BAND = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    for name in ("llama", "gemma3_text", "qwen3_moe"):
        build(name).save_pretrained(path / name)
        tokenizer().save_pretrained(path / name)
    lines = [{"id": i.id, "prompt": i.prompt, "candidates": i.candidates} for i in ITEMS]
    (path / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [line | {"truthful": [True] + [False] * (len(line["candidates"]) - 1)} for line in lines]
    (path / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tracelm(*arguments: object, processes: int = 1) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    start += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [*start, "-m", "tracelm", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def correct(folder: Path, name: str, processes: int) -> list[dict]:
    out = folder / f"{name}-{processes}.jsonl"
    command = ["correct", "--model", folder / name, "--input", folder / "items.jsonl"]
    run = tracelm(*command, "--output", out, "--full", processes=processes)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


def near(decision: dict) -> bool:
    """Whether any gate of a decision lies in the rounding band of its threshold."""
    gates = [g for g in decision["gates"].values() if isinstance(g["value"], float)]
    return any(abs(g["value"] - g["threshold"]) < BAND for g in gates)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe"])
def test_two_processes_decide_as_one(folder, name):
    one, two = (correct(folder, name, processes) for processes in (1, 2))
    assert [d["id"] for d in one] == [d["id"] for d in two] == [i.id for i in ITEMS]
    for a, b in zip(one, two, strict=True):
        for rows in zip(a["trajectory"], b["trajectory"], strict=True):
            assert rows[0] == pytest.approx(rows[1], abs=1e-4)
        assert a["t_scores"] == pytest.approx(b["t_scores"], abs=1e-4)
        if not near(a):
            assert (a["index"], a["operator"]) == (b["index"], b["operator"])
    assert sum(map(near, one)) <= 1


@pytest.mark.slow
def test_an_evaluation_writes_its_records_once(folder):
    command = ["eval", "--model", folder / "llama", "--benchmark", f"jsonl:{folder}/bench.jsonl"]
    run = tracelm(*command, "--out", folder / "runs", processes=2)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("MC1-base") == 1
    assert len(list((folder / "runs").rglob("part-*.parquet"))) == 1
    (info,) = (folder / "runs").rglob("run.json")
    assert json.loads(info.read_text())["tensor_parallel"] == 2
    again = tracelm(*command, "--out", folder / "runs", processes=2)
    assert again.returncode == 0, again.stderr  # nothing is left to do, and nobody waits


@pytest.mark.slow
def test_an_error_is_one_line_of_the_first_process(folder):
    run = tracelm(
        "correct", "--model", "/nowhere", "--prompt", "x", "--candidate", "y", processes=2
    )
    own = [line for line in run.stderr.splitlines() if line.startswith("tracelm: ")]
    assert own == ["tracelm: no model at /nowhere: expected a folder with config.json"]
    assert run.returncode == 1 and run.stdout == ""


# --- what is refused before the processes meet ---


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # another launcher's: no rank of ours
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert ranks.count() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert ranks.count() == 4


def test_a_family_without_a_plan_is_refused(monkeypatch):
    monkeypatch.setattr(ranks, "count", lambda: 2)
    with pytest.raises(ModelError, match="no tensor-parallel plan"):
        ranks.shares("m", config_of("gpt_oss"))


@pytest.mark.parametrize("processes", [3, 4])
def test_heads_that_do_not_divide_are_refused(processes, monkeypatch):
    monkeypatch.setattr(ranks, "count", lambda: processes)
    with pytest.raises(ModelError, match=f"4 attention heads and 2 .* {processes} processes"):
        ranks.shares("m", config_of("llama"))


def test_logits_of_a_shared_half_precision_head_are_gathered(monkeypatch, tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        from tracelm.model.readout import _Float32Head

        head = torch.nn.Linear(8, 5, dtype=torch.bfloat16)
        hidden = torch.randn(1, 3, 8, dtype=torch.bfloat16)
        expected = hidden.float() @ head.weight.float().T + head.bias.float()
        mesh = init_device_mesh("cpu", (1,))
        for name in ("weight", "bias"):
            shared = distribute_tensor(getattr(head, name).data, mesh, [Shard(0)])
            setattr(head, name, torch.nn.Parameter(shared))
        with torch.no_grad():
            logits = _Float32Head(head)(hidden)
        assert type(logits) is torch.Tensor and logits.dtype == torch.float32
        assert torch.allclose(logits, expected, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()
