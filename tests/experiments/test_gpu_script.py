"""The script of the GPU day, run small on the CPU: its stages, what it keeps, and its table."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

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


def test_a_stage_that_dies_says_why_and_is_tried_again(gpu, tmp_path, monkeypatch, capsys):
    out = tmp_path / "gpu.json"
    gpu.keep(out, "speed", {"failed": "out of memory"})
    monkeypatch.setattr(gpu, "STAGES", {"speed": None})
    asked = []

    def dies(command, *, timeout, **_):
        asked.append((command[2:4], timeout))
        return SimpleNamespace(returncode=1, stderr="Traceback\nRuntimeError: a kernel failed\n")

    def hangs(command, *, timeout, **_):
        raise gpu.subprocess.TimeoutExpired(command, timeout)

    for process, why in ((dies, "RuntimeError: a kernel failed"), (hangs, "it was not done after")):
        monkeypatch.setattr(gpu.subprocess, "run", process)
        run(gpu, monkeypatch, "--out", str(out), "--minutes", "0.5")
        assert f"speed failed: {why}" in capsys.readouterr().out
    ((command, timeout),) = asked
    assert command == ["--only", "speed"] and 20 < timeout <= 30


def test_a_family_that_fails_does_not_end_the_others(gpu, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no kernel image\nand more")

    monkeypatch.setattr("families.build", broken)
    found = gpu.families(gpu.SMALL)
    assert len(found) == 4
    rows = list(gpu.table({"families": found}))[1:]
    assert rows[0] == f"| {next(iter(found))} | refused: RuntimeError: no kernel image | | | |"


def test_vllm_is_asked_for_the_candidates_own_tokens(gpu, monkeypatch):
    from transformers import AutoModelForCausalLM

    class Engine:
        """Answers as vLLM does: a log-probability of each token of the prompt but the first."""

        def __init__(self, model: str, **_: object) -> None:
            self.model = AutoModelForCausalLM.from_pretrained(model)

        @torch.inference_mode()
        def generate(self, prompts, asked, use_tqdm):
            assert (asked.max_tokens, asked.prompt_logprobs) == (1, 1) and not use_tqdm
            return [self.answer(torch.tensor([p["prompt_token_ids"]])) for p in prompts]

        def answer(self, ids):
            log_probs = self.model(ids).logits[0].log_softmax(-1)
            own = [
                {token: SimpleNamespace(logprob=row[token].item())}
                for row, token in zip(log_probs[:-1], ids[0, 1:].tolist(), strict=True)
            ]
            return SimpleNamespace(prompt_logprobs=[None, *own])

    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = Engine, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    found = gpu.vllm(gpu.SMALL)
    assert found["nats_off"] < 1e-4 and found["seconds"] > 0


def test_without_a_gpu_it_says_so(gpu, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "--small" in capsys.readouterr().err
