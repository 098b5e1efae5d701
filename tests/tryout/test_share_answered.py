"""The share that is answered: promises by halves and a second round, with and without a model."""

import json
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest
from small_encoders import write_encoder
from topics import hidden, run_try, table, write_csv
from typer.testing import CliRunner

from lastword import Decider, Tracer, try_labels
from lastword.cli import app
from lastword.errors import InputError
from lastword.files.rows import read_objects
from lastword.model.encoder import Encoder
from lastword.probes import Probe
from lastword.trust.certificate import Certificate
from lastword.trust.terms import Terms
from lastword.tryout import material
from lastword.tryout.contest import best_of
from lastword.tryout.label_job import LabelJob
from lastword.tryout.table_options import TableOptions

pytestmark = pytest.mark.usefixtures("few_strengths")


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


def results(out: Path) -> tuple[Certificate, Probe]:
    """Return the certificate and the probe of a folder."""
    probe = Probe.read(out / "answer.probe.safetensors")
    return Certificate.read(out / "certificate.toml"), probe


def noisy(count: int) -> list[dict[str, str]]:
    """Return texts with topics, of which one in ten has the wrong label."""
    other, rows = {"animal": "money", "money": "animal"}, table(count)
    return [r | ({"label": other[r["label"]]} if i % 10 == 0 else {}) for i, r in enumerate(rows)]


def test_a_reader_competes_alone_and_combined_and_can_be_served(tmp_path: Path) -> None:
    reader = write_encoder(tmp_path / "letters")
    path, text, label = write_table(Encoder(reader, "cpu"), tmp_path / "t.csv")
    options = ["--budget", "0", "--encoder", reader, "--json", "--out", tmp_path / "out"]
    figures = json.loads(run_try(path, *options).stdout)
    names = [line["name"] for line in figures["contest"]["lines"]]
    assert any(name.startswith("probe@letters:") for name in names)
    assert any("+letters:" in name and not name.endswith("+model") for name in names)
    assert len(set(names)) == len(names)
    certificate, probe = results(tmp_path / "out")
    assert probe.name in names and figures["contest"]["best"] == probe.name
    assert probe.encoder is not None and probe.encoder.model == "letters"
    assert "+" not in probe.name  # the model's states cost more and add nothing
    assert certificate.probe.digest == probe.digest
    assert f"lastword serve {tmp_path / 'out'}" in figures["advice"]["commands"]
    command = ["decide", str(tmp_path / "out"), "--json"]
    answer = CliRunner().invoke(app, [*command, "--text", text])
    assert answer.exit_code == 0, answer.output
    output = json.loads(answer.stdout)["answer"]
    assert (output["choice"], output["method"]) == (label, probe.name)


def test_half_of_the_labels_proves_the_errors_and_decide_defers(tmp_path: Path) -> None:
    path, out = write_csv(tmp_path / "topics.csv", noisy(160)), tmp_path / "out"
    done = run_try(path, "--error", "0.25", "--budget", "0", "--out", out)
    certificate, probe = results(out)
    automation = certificate.automation
    assert automation is not None and (automation.error, automation.look) == (0.25, 0)
    rung, figures = automation.rung(0.05), json.loads((out / "verdict.json").read_text())
    assert rung is not None and probe.labels + figures["answered"]["tested"] >= 160 * rung.share
    answered = figures["answered"]
    assert (answered["threshold"], answered["share"]) == (rung.threshold, rung.share)
    assert [one["error"] for one in answered["estimates"]] == [0.05, 0.1, 0.2, 0.25]
    assert probe.threshold is None  # its confidence is its own
    first, *_ = done.stdout.splitlines()
    assert first.startswith("Answers ") and "at most 25% wrong (95% confidence)" in first
    answers = Decider.demo(probes=[probe], certificate=certificate).decide_many(
        [row["text"] for row in table(40)], {"q": probe.question}
    )
    for answer in (one["q"] for one in answers):
        assert answer.deferred == (answer.probabilities.max() < rung.threshold)
    loose = json.loads(run_try(path, "--error", "0.01", "--json", "--budget", "0").stdout)
    assert loose["answered"]["share"] is None and loose["answered"]["error"] == 0.01


def test_a_second_round_of_confident_rows_proves_the_errors(tmp_path: Path) -> None:
    rows = table(260)
    truths = {row["text"]: row["label"] for row in rows}
    path, out = write_csv(tmp_path / "topics.csv", hidden(rows, 40)), tmp_path / "out"
    options = "--error", "0.2", "--budget", "0", "--out", out
    assert "label the" in run_try(path, *options).stdout
    drawn = read_objects(out / "labels.csv")
    assert {row["round"] for row in drawn} == {"2"} and 40 <= len(drawn) <= 120
    new = {drawn[0]["text"]: "plant"}  # a class that round one did not have
    write_csv(out / "labels.csv", [r | {"label": (truths | new)[r["text"]]} for r in drawn])
    done = run_try(path, *options)
    certificate, probe = results(out)
    assert done.stdout.startswith("Answers ") and "`plant` (1 row)" in done.stdout
    assert certificate.automation is not None and certificate.automation.look == 1
    assert certificate.automation.rungs[-1].errors.rate > 0
    assert certificate.probe is not None and certificate.probe.digest == probe.digest
    assert probe.labels == 40 and certificate.threshold is not None
    figures = json.loads((out / "verdict.json").read_text())
    assert figures["contest"]["best"] == probe.name == certificate.policy.method
    assert f"lastword decide {out}" in " ".join(figures["advice"]["commands"])
    with pytest.raises(InputError, match="is for another promise"):
        run_try(path, "--error", "0.1", "--budget", "0", "--out", out)


def test_a_trial_needs_no_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = write_encoder(tmp_path / "letters")
    path, text, label = write_table(Encoder(reader, "cpu"), tmp_path / "t.csv")
    out, runner = tmp_path / "out", CliRunner()
    command = ["try", str(path), "--encoder", str(reader), "--error", "0.2", "--out", str(out)]
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    settings = tomllib.loads((out / "lastword.toml").read_text())
    assert "model" not in settings and settings["certificate"] == "certificate.toml"
    monkeypatch.setattr(Tracer, "from_pretrained", lambda *_: pytest.fail("loads a model"))
    answer = runner.invoke(app, ["decide", str(out), "--json", "--text", text])
    assert json.loads(answer.stdout)["answer"]["choice"] == label, answer.output
    figures = json.loads((out / "verdict.json").read_text())
    names = [line["name"] for line in figures["contest"]["lines"]]
    assert names[:3] == ["chance", "largest class", "bag of words"] and len(names) == 4
    assert figures["model"] is None
    monkeypatch.setattr("lastword.model.encoder.installed", lambda name: False)
    refused = runner.invoke(app, ["try", str(path)])
    assert isinstance(refused.exception, InputError) and "--yes downloads" in str(refused.exception)
    with pytest.raises(InputError, match="too few labels for a probe"):
        try_labels(read_objects(path)[:4], encoders=[reader])


@pytest.mark.parametrize(
    ("load", "terms"),
    [(lambda: None, Terms(error=0.3)), (Tracer.demo, Terms(promise="gain"))],
    ids=["without a model", "with one"],
)
def test_an_encoder_competes_in_both_rounds_of_labelling(load, terms, tmp_path: Path) -> None:
    reader = Encoder(write_encoder(tmp_path / "letters"), "cpu")
    path, *_ = write_table(reader, tmp_path / "t.csv", 200)
    truths = {row["text"]: row["label"] for row in read_objects(path)}
    path.write_text("\n".join(["text", *truths]))
    named, out = TableOptions(choices="high,low"), tmp_path / "out"
    job = LabelJob(str(path), named, out, load, terms, load_encoders=lambda: [reader])
    (work := threading.Thread(target=job.run, daemon=True)).start()
    while work.is_alive():
        if (row := job.labelling.next()) is not None:
            job.labelling.give(row, truths[job.labelling.texts[row]])
        work.join(0.01)
    job.close()
    assert job.progress.ended and (out / "second-round.json").exists()
    assert f"lastword serve {out}" in job.progress.commands
    probe = Probe.read(out / "answer.probe.safetensors")
    assert probe.encoder is not None and probe.encoder.model == "letters"
    assert "+" not in probe.name  # the model's states cost more and add nothing
    assert str(tmp_path / "letters") in (out / "lastword.toml").read_text()
    if terms.error is not None:
        certificate = Certificate.read(out / "certificate.toml")
        assert certificate.threshold is not None and not certificate.trials


def test_with_many_options_the_model_answers_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "MANY", 1)
    monkeypatch.setattr(material, "LEAST", 12)
    verdict = try_labels(table(80), Tracer.demo(), budget=1e-9)
    lines = {line.name: line.items for line in verdict.contest.lines}
    assert lines["the model"] == lines["pmi@1"] == 12 and lines["bag of words"] is None
    assert any("answers only 12 rows" in note for note in verdict.notes)
    assert verdict.certificate.tested is not None and verdict.certificate.tested.items == 12
    models = [answer.model for answer in verdict.contest.answers]
    assert len(models) == 80 and models.count(None) == 68
    assert verdict.contest.cost is not None


def test_the_cheapest_of_equally_good_methods_is_taken_if_asked_for() -> None:
    right = np.ones((3, 100))
    right[0, :30], right[1, 50:61], right[2, :10] = 0, 0, 0
    worths, groups = dict(zip(("words", "small", "large"), right, strict=True)), np.arange(100)
    assert best_of(worths, groups, cheap=False) == "large"
    assert best_of(worths, groups, cheap=True) == "small"
    with pytest.raises(InputError, match="--prefer is accurate or cheap"):
        try_labels(table(60), Tracer.demo(), prefer="best")
