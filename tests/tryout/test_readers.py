"""Sentence encoders in a trial: alone and combined with the model's probe."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_encoders import write_encoder
from topics import run_try
from typer.testing import CliRunner

from lastword import Tracer
from lastword.cli import app
from lastword.files.rows import read_objects
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.trust.certificate import Certificate
from lastword.trust.terms import Terms
from lastword.tryout.label_job import LabelJob
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")

MODEL = ["--model", "lastword/demo-organism"]


def write_table(reader: Encoder, path: Path, count: int = 160) -> tuple[Path, str, str]:
    """Write texts labelled by a direction of the encoder's states; return one with its label."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"abcdefgh"], 3)) for _ in range(200)]
    texts = [" ".join(rng.choice(words, 4)) for _ in range(count)]
    states = reader.pooled(reader.encode(texts), [2])[:, 0, 0]
    labels = np.where(states > np.median(states), "high", "low")
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]))
    furthest = int(states.argmax())
    return path, texts[furthest], labels[furthest]


def test_a_reader_competes_alone_and_combined_and_can_be_served(tmp_path: Path) -> None:
    reader = write_encoder(tmp_path / "letters")
    table, text, label = write_table(Encoder(reader, "cpu"), tmp_path / "t.csv")
    options = ["--budget", "0", "--encoder", reader, "--json", "--out", tmp_path / "out"]
    figures = json.loads(run_try(table, *options).stdout)
    names = [line["name"] for line in figures["contest"]["lines"]]
    assert any(name.startswith("probe@letters:") for name in names)
    assert any("+letters:" in name and not name.endswith("+model") for name in names)
    assert len(set(names)) == len(names)
    probe = Probe.read(tmp_path / "out" / "answer.probe.safetensors")
    assert probe.name in names and figures["contest"]["best"] == probe.name
    assert probe.encoder is not None and probe.encoder.model == "letters"
    assert "+" not in probe.name  # the model's states cost more and add nothing
    certificate = Certificate.read(tmp_path / "out" / "certificate.toml")
    assert certificate.probe.digest == probe.digest
    assert f"lastword serve {tmp_path / 'out'}" in figures["advice"]["commands"]
    command = ["decide", str(tmp_path / "out"), "--json"]
    answer = CliRunner().invoke(app, [*command, "--text", text])
    assert answer.exit_code == 0, answer.output
    output = json.loads(answer.stdout)["answer"]
    assert (output["choice"], output["method"]) == (label, probe.name)


def test_a_reader_competes_in_both_rounds_of_labelling(tmp_path: Path) -> None:
    """The encoder is a folder, which has no name to look up."""
    reader = Encoder(write_encoder(tmp_path / "letters"), "cpu")
    path, *_ = write_table(reader, tmp_path / "t.csv", 170)
    truths = {row["text"]: row["label"] for row in read_objects(path)}
    path.write_text("\n".join(["text", *truths]))
    named, out = TableOptions(choices="high,low"), tmp_path / "out"
    terms = Terms(promise="gain")
    job = LabelJob(str(path), named, out, Tracer.demo, terms, load_readers=lambda: [reader])

    def label() -> None:
        while not job.progress.ended:
            if job.progress.more:
                job.choose(more=False)
            elif (row := job.labelling.next()) is not None:
                job.labelling.give(row, truths[job.labelling.texts[row]])
            time.sleep(0.01)

    (hand := threading.Thread(target=label, daemon=True)).start()
    job.run()
    hand.join(60)
    job.close()
    assert job.progress.ended and (out / "second-round.json").exists()
    probe = Probe.read(out / "answer.probe.safetensors")
    assert probe.encoder is not None and probe.encoder.model == "letters"
    assert "+" not in probe.name  # the model's states cost more and add nothing
    served = [line for line in job.progress.commands if line.startswith("lastword serve")]
    assert served == [f"lastword serve {out}"]
    assert str(tmp_path / "letters") in (out / "lastword.toml").read_text()
