"""The script of GPU measurements, small and on the CPU: its stages, results and table."""

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


def test_a_small_run_measures_everything_and_resumes(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "device", lambda: torch.device("cpu"))
    out = tmp_path / "gpu.json"
    stages = [name for name in gpu.STAGES if name != "machine"]
    run(gpu, monkeypatch, "--out", str(out), *(x for name in stages for x in ("--only", name)))
    results = json.loads(out.read_text())
    assert list(results) == stages
    assert results["speed"]["same_decisions"]
    assert max(results["speed"]["agreement"].values()) <= results["speed"]["tolerance"]
    assert results["options"]["same_decisions"]
    assert results["probe"]["off"] < 1e-5 and min(results["probe"]["seconds"].values()) > 0
    assert results["bulk"]["texts_a_second"] > 0 and 0 < results["bulk"]["trunk"] < 1
    assert set(results["memory"]) == {"64", "128"}
    assert results["profile"]["longest"] and results["profile"]["waits"] == {}
    for name, family in results["families"].items():
        limit = 1e-4 if "float32" in name else 0.5
        assert family["check"]["road"] == "packed" and family["nats_from_cpu"] <= limit, name
    monkeypatch.setattr(gpu, "STAGES", {"machine": gpu.machine, **dict.fromkeys(stages)})
    run(gpu, monkeypatch, "--out", str(out))
    text = capsys.readouterr().out
    assert text.startswith("machine\n"), "only the missing stage runs"
    assert torch.__version__ in text and "| staged |" in text and "| 128 |" in text
    assert "77 options:" in text and "| half the depth |" in text and "tokens a second" in text
    assert sum(line.startswith("| llama, float32 | packed") for line in text.splitlines()) == 1
