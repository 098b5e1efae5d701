"""The script of the GPU day, run small on the CPU: its stages, what it keeps, and its table."""

import json
import sys

import pytest
import torch


@pytest.fixture(scope="module")
def gpu(script):
    return script("gpu")


def run(gpu, monkeypatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--small", *options])
    gpu.main()


def test_a_small_run_measures_everything_and_goes_on_where_it_stopped(
    gpu, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(gpu, "device", lambda: torch.device("cpu"))
    out = tmp_path / "gpu.json"
    stages = [name for name in gpu.STAGES if name != "machine"]
    run(gpu, monkeypatch, "--out", str(out), *(x for name in stages for x in ("--only", name)))
    found = json.loads(out.read_text())
    assert list(found) == stages
    assert found["speed"]["same_decisions"]
    assert max(found["speed"]["agreement"].values()) <= found["speed"]["tolerance"]
    assert found["options"]["same_decisions"]
    assert found["probe"]["off"] < 1e-5 and min(found["probe"]["seconds"].values()) > 0
    assert found["bulk"]["texts_a_second"] > 0 and 0 < found["bulk"]["trunk"] < 1
    assert set(found["memory"]) == {"64", "128"}
    assert found["profile"]["longest"] and found["profile"]["waits"] == {}
    for name, one in found["families"].items():
        off = 1e-4 if "float32" in name else 0.5
        assert one["check"]["road"] == "packed" and one["nats_from_cpu"] <= off, name
    monkeypatch.setattr(gpu, "STAGES", {"machine": gpu.machine, **dict.fromkeys(stages)})
    run(gpu, monkeypatch, "--out", str(out))
    told = capsys.readouterr().out
    assert told.startswith("machine\n"), "the one stage that was lacking"
    assert torch.__version__ in told and "| staged |" in told and "| 128 |" in told
    assert "77 options:" in told and "| half the depth |" in told and "tokens a second" in told
    assert sum(line.startswith("| llama, float32 | packed") for line in told.splitlines()) == 1
