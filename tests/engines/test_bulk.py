"""Many texts on Ray Data: the answers equal those of one process, and a killed run resumes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest

pytest.importorskip("ray")
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from ray.data.exceptions import ExecutionTimeoutError
from topics import QUESTION, probe_of

from lastword import Decider, Predicate, Tracer
from lastword.decide.answer import row_of
from lastword.decide.questions_file import write_questions
from lastword.engines import bulk
from lastword.engines.ray import Cluster
from lastword.errors import InputError, RecordError

pytestmark = pytest.mark.slow
QUESTIONS = {"topic": QUESTION, "angry": Predicate("The writer is angry.")}
MODEL = "lastword/demo-organism"
BLOCKS, BLOCK, BAD = 3, 64, 7
WORDS = "the red fox runs home late pay bill now invoice parcel lake of Oru lamps".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A table with an invalid text, and questions, one of them with a probe."""
    folder = tmp_path_factory.mktemp("bulk")
    count = BLOCKS * BLOCK
    texts = [f"{WORDS[i % 14]} {WORDS[i * 5 % 13]} {i % 40}" for i in range(count)]
    texts[BAD] = "a\0b"
    table = pa.table({"Ticket-ID": [f"t{i}" for i in range(count)], "text": texts})
    pq.write_table(table, folder / "texts.parquet")
    probe_of(Tracer.demo()).write(folder / "topic.probe.safetensors")
    write_questions(folder / "questions.yaml", QUESTIONS, {"topic": "topic.probe.safetensors"})
    return folder


def test_a_row_without_a_text_gets_an_error_and_no_answer(monkeypatch):
    monkeypatch.setattr(bulk, "hide_gpus", lambda: None)
    actor = bulk.Actor(bulk.Bulk(Decider.demo, {"topic": QUESTION}, None, ""), "text", "id")
    rows = actor(pa.table({"id": [1, 2, 3], "text": ["a red fox", None, " "]})).to_pylist()
    assert [row["error"] for row in rows] == [None, "there is no text", "there is no text"]
    assert [row["topic"] is None for row in rows] == [False, True, True]


# The command with smaller files.
PROGRAM = f"""
from lastword.cli import main
from lastword.engines import bulk
bulk.BLOCK = bulk.TOGETHER = {BLOCK}
main()
"""


def start(folder: Path, output: Path) -> "subprocess.Popen[str]":
    options = f"--engine ray --engine-options workers=2 --model {MODEL}".split()
    files = ("--questions", folder / "questions.yaml", "--input", folder / "texts.parquet")
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "decide", *options, *files, "--out", output],
        # Ray runs its workers at nice 15, where they wait for every other test.
        env=os.environ | {"RAY_worker_niceness": "0"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_killed_run_resumes_and_answers_as_one_process_does(folder, tmp_path):
    output, checkpoint = tmp_path / "out", tmp_path / "out.checkpoint"
    first = start(folder, output)
    latest = time.monotonic() + 600
    while not _checkpoints(checkpoint):
        assert first.poll() is None and time.monotonic() < latest
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    early = {file: file.stat().st_mtime_ns for file in output.glob("*.parquet")}
    done = {row for file in _checkpoints(checkpoint) for row in _ids(file)}
    assert 0 < len(done) < BLOCKS * BLOCK

    again = start(folder, output)
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 1, errors
    assert f"has {BLOCKS * BLOCK:,} texts" in errors
    assert "1 text could not be read; `error` says why" in errors
    answers = pd.read_parquet(output).set_index("Ticket-ID")
    texts = pd.read_parquet(folder / "texts.parquet").set_index("Ticket-ID")["text"]
    assert answers.index.is_unique and set(answers.index) == set(texts.index)
    unchanged = [
        file for file, at in early.items() if file.exists() and file.stat().st_mtime_ns == at
    ]
    assert done <= {row for file in unchanged for row in _ids(file)}

    assert list(answers.index[answers["error"].notna()]) == [f"t{BAD}"]
    assert "NUL" in answers["error"][f"t{BAD}"] and pd.isna(answers["topic"][f"t{BAD}"])
    tracer = Decider.demo(probes=[folder / "topic.probe.safetensors"])
    some = [f"t{i}" for i in range(0, len(texts), 29)]
    for name, expected in zip(some, tracer.decide_many(texts[some], QUESTIONS), strict=True):
        for column, value in row_of(expected).items():
            near = pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
            assert answers[column][name] == near, (name, column)
        assert not answers["topic.deferred"][name]


def test_an_output_of_other_questions_is_refused(folder, tmp_path):
    (tmp_path / "out.checkpoint" / "other").mkdir(parents=True)
    job = bulk.Bulk(Decider.demo, {"topic": QUESTION}, None, "")
    source, output = str(folder / "texts.parquet"), str(tmp_path / "out")
    with pytest.raises(InputError, match="answers to other questions"):
        bulk.decide_files(job, source, output, Cluster())


def test_an_error_of_ray_is_one_line(monkeypatch, tmp_path):
    data = MagicMock()
    data.schema.return_value.names = ["id", "text"]
    write = data.repartition.return_value.map_batches.return_value.write_parquet
    write.side_effect = ExecutionTimeoutError("no progress for 1800s\nOperators still running")
    monkeypatch.setattr(bulk, "connected", lambda *_: nullcontext())
    monkeypatch.setattr("ray.data.DataContext.get_current", MagicMock)
    monkeypatch.setattr("ray.data.read_parquet", lambda *_, **__: data)
    job = bulk.Bulk(Decider.demo, {"topic": QUESTION}, None, "")
    with pytest.raises(
        RecordError, match="^Ray stopped: no progress for 1800s .*run the same command again"
    ) as stop:
        bulk.decide_files(job, "in", str(tmp_path / "out"), Cluster(gpus_per_worker=0.5))
    assert "\n" not in str(stop.value)
    assert data.repartition.return_value.map_batches.call_args.kwargs["num_gpus"] == 0.5


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints whose rows are written; a pending one comes before its rows."""
    return [file for file in folder.rglob("*.parquet") if ".pending." not in file.name]


def _ids(file: Path) -> list[str]:
    return pq.read_table(file, columns=["Ticket-ID"])["Ticket-ID"].to_pylist()
