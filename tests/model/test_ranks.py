"""One model over the processes of torchrun: the decisions of one process, printed once."""

import json
import os
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from families import config_of, random_items, save
from forked import Forks

from lastword import load_records
from lastword.errors import ModelError
from lastword.model import ranks

NAMES = ("gemma3_text", "llama", "qwen3_moe")
ITEMS = random_items(3, 8)
# Only a comparison this near its threshold may fall either way (method, section 9).
BAND = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    for name in NAMES:
        save(path / name, name)
    lines = [{"id": i.id, "prompt": i.prompt, "candidates": i.candidates} for i in ITEMS]
    rows = [line | {"truthful": [True] + [False] * (len(line["candidates"]) - 1)} for line in lines]
    (path / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def torchrun(forks: Forks, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line over two processes."""
    start = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
    start += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return forks.run(*start, "-m", "lastword", *arguments)


def twice(forks: Forks, *arguments: object) -> list[tuple[int, str, str]]:
    """What torchrun's two processes are, without the imports: code, stdout and stderr of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "ours"}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                forks.start(
                    *("-m", "lastword", *arguments),
                    env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank},
                )
            )
            for rank in "01"
        ]
        return [(fork.wait(), fork.stdout.read(), fork.stderr.read()) for fork in started]


def evaluation(folder: Path) -> list[object]:
    models = [part for name in NAMES for part in ("--model", folder / name)]
    return ["eval", *models, "--benchmark", f"jsonl:{folder}/bench.jsonl", "--out"]


@pytest.fixture(scope="module")
def shared(folder: Path, forks: Forks) -> subprocess.CompletedProcess[str]:
    """An evaluation of every model by two processes, whose records are in `two`."""
    done = torchrun(forks, *evaluation(folder), folder / "two")
    assert done.returncode == 0, done.stderr
    return done


def near(gates: dict) -> bool:
    """Whether any gate of a decision lies in the rounding band of its threshold."""
    measured = [gate for gate in gates.values() if isinstance(gate["value"], float)]
    return any(abs(gate["value"] - gate["threshold"]) < BAND for gate in measured)


@pytest.mark.slow
def test_two_processes_decide_as_one(folder, shared, run):
    code, _, err = run(*evaluation(folder), folder / "one")
    assert code == 0, err
    one, two = (load_records(folder / n).set_index(["model", "id"]) for n in ("one", "two"))
    assert list(one.index) == list(two.index) == [(n, i.id) for n in NAMES for i in ITEMS]
    for a, b in zip(one.to_dict("records"), two.to_dict("records"), strict=True):
        assert a["trajectory"] == pytest.approx(b["trajectory"], abs=1e-4)
        assert a["t_scores"] == pytest.approx(b["t_scores"], abs=1e-4)
        if not near(a["gates"]):
            assert (a["index"], a["operator"]) == (b["index"], b["operator"])
    assert one["gates"].map(near).groupby("model").sum().max() <= 1


@pytest.mark.slow
def test_an_evaluation_writes_its_records_once(folder, shared, forks):
    assert shared.stdout.count("MC1-base") == 1
    assert len(list((folder / "two").rglob("part-*.parquet"))) == len(NAMES)
    infos = list((folder / "two").rglob("run.json"))
    assert [json.loads(info.read_text())["tensor_parallel"] for info in infos] == [2] * len(NAMES)
    again = twice(forks, *evaluation(folder), folder / "two")
    assert [code for code, *_ in again] == [0, 0], again  # nothing is left to do, and nobody waits
    assert [out.count("MC1-base") for _, out, _ in again] == [1, 0]


@pytest.mark.slow
def test_an_error_is_one_line_of_the_first_process(forks):
    asked = ("correct", "--model", "/nowhere", "--prompt", "x", "--candidate", "y")
    first, second = twice(forks, *asked)
    assert first == (1, "", "lastword: no model at /nowhere: expected a folder with config.json\n")
    assert second == (0, "", "")  # it is dismissed


# --- what is refused before the processes meet ---


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # another launcher's: no rank of ours
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert ranks.count() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert ranks.count() == 4


@pytest.mark.parametrize(
    ("family", "processes", "why"),
    [
        ("gpt_oss", 2, "no tensor-parallel plan"),
        ("llama", 3, "4 attention heads and 2 .* 3 processes"),
        ("llama", 4, "4 attention heads and 2 .* 4 processes"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused(family, processes, why, monkeypatch):
    monkeypatch.setattr(ranks, "count", lambda: processes)
    with pytest.raises(ModelError, match=why):
        ranks.shares("m", config_of(family))


def test_logits_of_a_shared_half_precision_head_are_gathered(monkeypatch, tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        from lastword.model.readout import _Float32Head

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
