"""Where a processor is faster in bfloat16, a trial runs in it if no labelled row changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import build
from topics import hidden, probe_of, table, write_csv

from lastword import Decider, Tracer
from lastword.decide.options import DecideOptions
from lastword.files.rows import read_objects
from lastword.model import precision
from lastword.model.backbone import Backbone
from lastword.probes import Probe
from lastword.trust.terms import Terms
from lastword.tryout.labels import read_labels
from lastword.tryout.precision import with_faster_dtype
from lastword.tryout.run import ready, template_for

pytestmark = pytest.mark.usefixtures("few_strengths")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The organism as a checkpoint, which may be loaded in any data type."""
    path, tracer = tmp_path_factory.mktemp("organism"), Tracer.demo()
    tracer.backbone.model.save_pretrained(path)
    words: Any = tracer.tokenizer
    words.save_pretrained(path)
    return path


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is faster in bfloat16."""
    monkeypatch.setattr("lastword.tryout.precision.faster_in_bfloat16", lambda backbone: True)


def test_a_trial_in_bfloat16_is_continued_and_served_in_it(folder, fast, run, tmp_path):
    rows, out = table(150), tmp_path / "out"
    truths = {row["text"]: row["label"] for row in rows}
    path = write_csv(tmp_path / "topics.csv", hidden(rows, 30))
    command = ["try", path, "--model", folder, "--out", out]
    code, _, notes = run(*command, "--budget", "0s")
    assert code == 0
    assert "runs in bfloat16: it is faster here, and gives every labelled row" in notes
    policy = Probe.read(out / "next.probe.safetensors")
    assert policy.subject.marks["dtype"] == "bfloat16"
    drawn = read_objects(out / "next.csv")
    write_csv(out / "next.csv", [row | {"label": truths[row["text"]]} for row in drawn])
    code, verdict, _ = run(*command, "--next", out / "next.csv")
    assert code == 0 and verdict.startswith("Proven")
    # Neither the certificate nor a probe alone needs --dtype.
    served = ["--questions", out / "questions.yaml", "--probe", out / "answer.probe.safetensors"]
    for certificate in ([], ["--certificate", out / "certificate.toml"]):
        text = ["--text", rows[40]["text"], "--model", folder]
        code, answer, _ = run("decide", *text, *served, *certificate)
        assert code == 0 and "animal" in answer


def another(options: DecideOptions) -> Decider:
    """Load a model that answers differently in place of the one in bfloat16."""
    assert options.dtype == "bfloat16"
    tracer = Tracer.demo()
    model = build("llama", vocab_size=tracer.backbone.model.config.vocab_size)
    return Decider(Tracer(model, tracer.tokenizer, invariant=1.0))


def test_an_answer_that_differs_keeps_float32_and_names_its_row(folder, fast, monkeypatch):
    labels, options = read_labels(table(40)), DecideOptions(folder)
    decider = Decider.from_pretrained(options)
    monkeypatch.setattr(Decider, "from_pretrained", another)
    same, noted = with_faster_dtype(decider, options, labels, None, None)
    other = another(replace(options, dtype="bfloat16"))
    items = labels.items(template_for(decider.tracer, None))
    answers = zip(*(d.correct_many(items, blind="none") for d in (decider, other)), strict=True)
    differing = [a.id for a, b in answers if a.base_index != b.base_index]
    assert same is decider
    assert f"faster here, but answers row {differing[0]} differently" in noted.notes[-1]
    assert "--dtype bfloat16 uses it" in noted.notes[-1]


def test_a_named_data_type_and_that_of_earlier_records_are_kept(
    folder, fast, monkeypatch, tmp_path
):
    labels, options = read_labels(table(40)), DecideOptions(folder)
    decider = Decider.from_pretrained(options)
    monkeypatch.setattr(Decider, "from_pretrained", another)
    named = replace(options, dtype="float32")
    assert with_faster_dtype(decider, named, labels, None, None) == (decider, labels)
    ready(decider.tracer, labels, Terms(), budget=0.0).run(tmp_path)
    assert with_faster_dtype(decider, options, labels, None, tmp_path) == (decider, labels)


def test_records_in_bfloat16_are_continued_in_it_on_any_processor(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("lastword.tryout.precision.faster_in_bfloat16", lambda backbone: False)
    labels, options = read_labels(table(12)), DecideOptions(folder)
    half = Decider.from_pretrained(replace(options, dtype="bfloat16"))
    ready(half.tracer, labels, Terms(), budget=0.0).run(tmp_path)
    decider, same = with_faster_dtype(
        Decider.from_pretrained(options), options, labels, None, tmp_path
    )
    assert decider.subject == half.subject and same is labels


@pytest.mark.parametrize(("made_in", "used"), [("bfloat16", "bfloat16"), ("float16", "auto")])
def test_options_take_a_probes_data_type_unless_it_is_float16(made_in, used):
    probe = probe_of(Tracer.demo())
    marks = {**probe.subject.marks, "dtype": made_in}
    probe = replace(probe, subject=replace(probe.subject, marks=marks))
    assert DecideOptions("some/model", probes=[probe]).dtype == used
    assert DecideOptions("some/model", probes=[probe], dtype="float32").dtype == "float32"
    assert DecideOptions("lastword/demo-organism", probes=[probe]).dtype == "auto"


def test_a_large_float32_model_runs_in_bfloat16_only_if_its_products_are_faster(monkeypatch):
    seconds = {torch.float32: 1.0, torch.bfloat16: 0.25}
    monkeypatch.setattr(precision, "least_seconds", lambda product, rows: seconds[rows.dtype])
    backbone = Backbone(build("llama"))
    assert not precision.faster_in_bfloat16(backbone)  # too small
    monkeypatch.setattr(precision, "_LEAST", 0)
    assert precision.faster_in_bfloat16(backbone)
    assert not precision.faster_in_bfloat16(Backbone(build("llama", dtype=torch.bfloat16)))
    seconds[torch.bfloat16] = 0.35
    assert not precision.faster_in_bfloat16(backbone)
