"""From a table of labelled examples to a verdict, on the embedded organism."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from topics import run_try, write_csv
from typer.testing import CliRunner

from lastword import Choice, Decider, Tracer
from lastword.cli import app
from lastword.decide.questions_file import read_questions
from lastword.decide.templates import TEMPLATES
from lastword.errors import CertificateError, InputError
from lastword.files.rows import read_objects
from lastword.lab.benchmarks import find
from lastword.probes import Probe
from lastword.text.prompt_template import template_name
from lastword.trust.automation import Estimate
from lastword.trust.certificate import Certificate
from lastword.trust.terms import Terms
from lastword.tryout.labels import read_labels
from lastword.tryout.material import TryJob, class_weights
from lastword.tryout.run import prepare, try_labels
from lastword.tryout.verdict import (
    Guarantee,
    ShareAnswered,
    Standing,
    Standings,
    Verdict,
)
from lastword.tryout.words import advise, lines

pytestmark = pytest.mark.usefixtures("few_strengths")


def table(count: int) -> list[dict[str, Any]]:
    """Return questions of the organism with options per row, the truth and an unused column."""
    rows: list[dict[str, Any]] = []
    for example in find("demo").load().examples:
        if len(example.candidates) > 2 and len(rows) < count:
            row = {"question": example.fields["question"], "source": "made up"}
            truth = example.candidates[example.truthful.index(True)]
            rows.append(row | {"options": json.dumps(list(example.candidates)), "answer": truth})
    return rows


def test_rows_beyond_the_models_context_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    def rows(*unreadable: int) -> list[dict[str, str]]:
        lengths = [5000 if n in unreadable else 1 for n in range(12)]
        return [{"text": f"{'word ' * c}{n}", "label": "ab"[n % 2]} for n, c in enumerate(lengths)]

    with caplog.at_level("WARNING"):
        verdict = try_labels(rows(3), Tracer.demo(), budget=0.0)
    note = "left out 1 row that the model cannot read; the first: "
    assert any(line.startswith(note) for line in verdict.notes) and note in caplog.text
    with pytest.raises(InputError, match="no example can be read; the first one: "):
        try_labels(rows(*range(12)), Tracer.demo())


def test_figures_of_a_verdict_agree_with_decisions_item_by_item(tmp_path: Path) -> None:
    rows, out = table(40), tmp_path / "out"
    path = write_csv(tmp_path / "facts.csv", rows)
    verdict = try_labels(path, Tracer.demo(), out=out, promise="breaks", budget=0.0)
    names = ["chance", "without the text", "the model", "trace"]
    assert [line.name for line in verdict.contest.lines[:4]] == names
    choices = [json.loads(row["options"]) for row in rows]
    chance = np.mean([1 / len(options) for options in choices])
    assert verdict.contest.line("chance").right == pytest.approx(chance)
    # By hand: the model's choice and pmi's, item by item.
    engine, correcting = Tracer.demo(), Decider.demo(correction="pmi@0.5")
    by_model, by_pmi = [], []
    for row, options in zip(rows, choices, strict=True):
        prompt, blind = f"Text: {row['question']}\nAnswer:", "Answer:"
        by_model.append(engine.correct(prompt, options).base_answer == row["answer"])
        corrected = correcting.correct(prompt, options, blind_prompt=blind).answer
        by_pmi.append(corrected == row["answer"])
    assert verdict.contest.line("the model").right == pytest.approx(np.mean(by_model))
    pmi = verdict.contest.line("pmi@0.5")
    assert pmi.low < pmi.right < pmi.high and pmi.right == pytest.approx(np.mean(by_pmi))
    assert pmi.fixed == sum(b and not a for a, b in zip(by_model, by_pmi, strict=True))
    assert pmi.broken == sum(a and not b for a, b in zip(by_model, by_pmi, strict=True))
    # Too few labels to certify: the verdict says how many would be enough.
    more = verdict.certificate.terms.least - 40
    assert more > 0 and f"{more} more than you have" in " ".join(verdict.advice.guarantee)
    assert not (out / "questions.yaml").exists()  # options differ by row
    doubled = try_labels([*rows, *rows], Tracer.demo(), budget=0.0).contest.line("pmi@0.5")
    assert (doubled.fixed, doubled.p) == (2 * pmi.fixed, pmi.p)  # copies count once in tests


def test_a_longer_table_gets_new_records_and_an_equal_one_reuses_them(tmp_path: Path) -> None:
    rows, path, out = table(20), tmp_path / "facts.csv", tmp_path / "out"
    for count in (16, 20):
        write_csv(path, rows[:count])
        run_try(path, "--out", out, "--budget", "0")
    runs = sorted(tmp_path.glob("out/*/*/run.json"), key=lambda path: path.stat().st_mtime)
    assert [json.loads(run.read_text())["items"] for run in runs] == [16, 20]
    written_at = runs[1].stat().st_mtime_ns
    again = try_labels(path, Tracer.demo(), out=out, budget=0.0)
    assert again.items == 20 and runs[1].stat().st_mtime_ns == written_at


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"objective": "cost=c"}, "--objective is accuracy or balanced, not 'cost=c'"),
        ({"template": "decide/other"}, "decide/other"),
        ({"tracer": None}, "a trial needs a language model .* or an encoder"),
        ({"choices": "options", "objective": "balanced"}, "needs the same options for every row"),
        ({"choices": "options", "tracer": None}, "options that differ by row need"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(named, why) -> None:
    rows = [{"text": f"t {i}", "label": "ab"[i % 2], "options": f"a|b|{i}"} for i in range(12)]
    if "choices" not in named:
        rows = [{"text": row["text"], "label": row["label"]} for row in rows]
    with pytest.raises(InputError, match=why):
        try_labels(rows, **{"tracer": Tracer.demo()} | named)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [[40, 2], [3, 2, 2, 2, 2, 2, *[1] * 27]])
def test_a_table_of_rare_classes_has_a_verdict(counts: list[int]) -> None:
    labels = [f"c{c:02d}" for c, count in enumerate(counts) for _ in range(count)]
    rows = [{"text": f"note {i} on {label}", "label": label} for i, label in enumerate(labels)]
    verdict = try_labels(rows, Tracer.demo(), budget=0.0)
    assert "bag of words" in {line.name for line in verdict.contest.lines}


def test_enough_labels_give_a_certificate_and_the_command_to_serve_it(tmp_path: Path) -> None:
    path, out = write_csv(tmp_path / "facts.csv", table(200)), tmp_path / "out"
    options = ["--out", out, "--promise", "breaks", "--alpha", "0.1", "--budget", "0"]
    words = (done := run_try(path, *options)).stdout
    settings = tomllib.loads((out / "lastword.toml").read_text())
    assert settings["model"] == "lastword/demo-organism" and settings["dtype"] == "float32"
    assert settings["certificate"] == "certificate.toml"
    assert "guessed: text is column question, label is column answer" in done.stderr
    certificate = Certificate.read(out / "certificate.toml")
    certified = Decider.demo(certificate=certificate)
    html = unescape((out / "index.html").read_text())
    assert f"lastword serve {out}" in html and "The certificate allows" in html
    stored = json.loads((out / "verdict.json").read_text())
    contest, advice = stored["contest"], stored["advice"]
    assert len(words.splitlines()) <= 25
    assert words.startswith(advice["headline"]) and contest["best"] in advice["headline"]
    assert words.endswith(f"{out / 'index.html'}\n")
    # Only overrides that the certificate allows change answers.
    changes = [row for row in contest["answers"] if row["shown"] != row["model"]]
    assert sum(c["shown"] == c["truth"] for c in changes) == certificate.counts.fixed
    assert sum(c["model"] == c["truth"] for c in changes) == certificate.counts.broken
    written = [(row["id"], row["best"]) for row in read_objects(out / "answers.csv")]
    assert written == [(row["id"], row["shown"]) for row in contest["answers"]]
    assert contest["best"] == stored["certificate"]["method"]
    assert len(changes) == certificate.counts.overrides
    text, question = "Which goods?", {"goods": Choice("", ["clay lamps", "pale cedar boats"])}
    assert "goods" in certified.decide(text, question)
    with pytest.raises(CertificateError, match=r"'decide/plain 1 \(.*'decide/listed 1 \("):
        certified.decide(text, question, template="decide/listed")
    # A certificate for another of our templates selects that template.
    other = replace(certificate, templates=(template_name(TEMPLATES["decide/listed"].to_dict()),))
    by_other = Decider.demo(certificate=other).prepare(question)
    assert by_other.template is TEMPLATES["decide/listed"]
    assert stored["certificate"]["line"]["fixed"] == certificate.counts.fixed
    assert stored["items"] == certificate.counts.items
    # Methods that never see the question certify less here.
    assert stored["certificate"]["rivals"] == [] and "Warning" not in words


def test_classes_are_listed_with_the_recall_of_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = ["sunny", "rainy", "windy"]
    rows = [{"text": f"note {i}", "label": kinds[rng.integers(3)]} for i in range(45)]
    out = tmp_path / "out"
    verdict = try_labels(rows, Tracer.demo(), out=out, instructions="Which weather?")
    contest = verdict.contest
    assert {one.label for one in contest.classes} == {*kinds}
    assert sum(one.items for one in contest.classes) == 45
    right = sum(one.items * one.model for one in contest.classes)
    assert right == pytest.approx(45 * contest.model.right)
    largest = max(sum(row["label"] == kind for row in rows) for kind in kinds)
    assert contest.line("largest class").right == pytest.approx(largest / 45)
    assert not (out / "certificate.toml").exists()
    question = read_questions(out / "questions.yaml")["answer"]
    assert [option.text for option in question.options] == sorted(kinds)
    assert question.instructions == "Which weather?"


def double(best: str, shares: dict[str, float], **parts: dict[str, Any]) -> Verdict:
    """Return a verdict on 100 rows, with these accuracies; certified if it has a method."""
    all_shares = {"chance": 0.1, "the model": 0.5, "largest class": 0.3} | shares
    lines = tuple(
        Standing(n, share, share - 0.1, share + 0.1, 9, 1, 0.02) for n, share in all_shares.items()
    )
    terms = Terms(0.1, methods=(best,), promise="gain")
    certificate = Guarantee(terms, **parts.get("certificate", {}))
    if certificate.method:
        certificate = replace(certificate, line=replace(lines[-1], name="certified"))
    estimates = (Estimate(0.05, 0.4, 0.3, 0.5, 0.9), Estimate(0.1, 0.6, 0.5, 0.7, 0.8))
    contest = Standings(lines, best, constant="a", **parts.get("contest", {}))
    answered = ShareAnswered(estimates, **parts.get("answered", {}))
    return Verdict("m", 100, contest, certificate, answered)


def test_the_words_of_verdicts(golden: Callable[[str, str], None]) -> None:
    probe, tested = {"probe@3": 0.8}, Standing("", 0.64, 0.5, 0.7, 30)
    prompts = (
        Standing("decide/listed", 0.5, 0.4, 0.6, 3, 4, 1.0, items=77),
        Standing("4 examples", 0.75, 0.7, 0.8, 15, 3, 0.01, items=77),
    )
    cheaper = {"cheaper": "probe@minilm:6", "shown": ("probe@minilm:6", "probe@3")}
    proven = {"error": 0.1, "share": 0.55, "threshold": 0.8, "tested": 50}
    certified = {"net_at_least": 0.05, "tested": replace(tested, broken=4, items=50)}
    certified |= {"method": "pmi@1", "policy": "overrides by pmi@1", "rivals": ("anti-blind",)}
    verdicts = [
        double("pmi@1", {"pmi@1": 0.6}, certificate=certified),
        double("pmi@1", {"pmi@1": 0.5}),
        double("probe@3", {"probe@minilm:6": 0.79} | probe, contest=cheaper, answered=proven),
        double("probe@3", {"bag of words": 0.7, "probe@3": 0.6}),
        double("probe@3", probe, answered={"error": 0.1}),
        double("probe@3", probe, answered={"needed": 90}, contest={"prompts": prompts}),
    ]
    text = []
    for verdict in verdicts:
        advice = advise(verdict)
        assert len(advice.headline.split()) <= 12
        text += [*lines(replace(verdict, advice=advice), verbose=True), ""]
    golden("try-words", "\n".join(text) + "\n")


def test_options_that_differ_by_row_get_a_trajectory_probe() -> None:
    rows = table(120)
    terms = Terms(methods=("trace",))
    trial = prepare(TryJob(Tracer.demo(), read_labels(rows), terms, budget=0.0))
    contest, standings = trial.contest, trial.conclude().contest
    assert contest is not None
    probe = contest.probe
    assert standings.probe == probe.name == "probe@trajectory"
    unread = standings.line("fitted without the text")
    assert unread.right < standings.line(probe.name).right
    ours = Decider.demo(probes=[probe])
    answer = ours.decide(rows[0]["question"], {"q": Choice("", json.loads(rows[0]["options"]))})
    assert answer["q"].method == probe.name


ANIMALS, MONEY = "fox cat dog bird horse".split(), "bill bank cost price debt".split()


def topics(count: int) -> list[dict[str, Any]]:
    """Return texts of five words about animals and money in turn."""
    rng, rows = np.random.default_rng(0), list[dict[str, Any]]()
    for i, (label, words) in enumerate([("animal", ANIMALS), ("money", MONEY)] * (count // 2)):
        text = ["the", rng.choice(words), *rng.choice(["a", "now", "is"], 3)]
        rows.append({"text": " ".join(text), "label": label, "group": str(i)})
    return rows


def test_a_probe_is_tested_on_other_labels_and_saved_with_its_certificate(
    tmp_path: Path,
) -> None:
    rows = topics(300)
    path, out = write_csv(tmp_path / "topics.csv", rows), tmp_path / "out"
    figures = json.loads(run_try(path, "--out", out, "--json", "--budget", "0").stdout)
    assert figures == json.loads((out / "verdict.json").read_text())
    contest, promised = figures["contest"], figures["certificate"]
    shares = {line["name"]: line["right"] for line in contest["lines"]}
    probe = Probe.read(out / "answer.probe.safetensors")
    assert probe.name == contest["probe"] == contest["best"] and probe.seed is not None
    assert 130 < probe.labels < 170
    assert shares[probe.name] > 0.9 and shares["bag of words"] > 0.9
    assert shares["largest class"] == 0.5
    assert len(figures["by_depth"]) == Tracer.demo().profile.depth + 1
    # Changed rows are the probe's, cross-validated.
    line = next(line for line in contest["lines"] if line["name"] == probe.name)
    changes = [row for row in contest["answers"] if row["shown"] != row["model"]]
    assert sum(c["shown"] == c["truth"] for c in changes) == line["fixed"]
    assert sum(c["model"] == c["truth"] for c in changes) == line["broken"]
    # The bag of words is as accurate, so it is advised; the certificate is the probe's.
    assert figures["advice"]["headline"].startswith("Use a bag of words")
    certificate = Certificate.read(out / "certificate.toml")
    assert certificate.probe.digest == probe.digest and certificate.policy.method == probe.name
    tested = promised["tested"]
    assert certificate.counts.items == len(rows) - probe.labels == tested["items"]
    assert tested["fixed"] == certificate.counts.fixed
    assert all(0.8 < one["corrected"] for one in contest["classes"])
    with pytest.raises(CertificateError, match="give its file too"):
        Decider.demo(certificate=certificate)
    answer = CliRunner().invoke(app, ["decide", str(out), "--json", "--text", "the dog a now is"])
    assert answer.exit_code == 0, answer.output
    output = json.loads(answer.stdout)["answer"]
    assert (output["choice"], output["method"]) == ("animal", probe.name)


def test_without_a_certificate_a_probe_on_all_labels_is_saved_and_marked(
    tmp_path: Path,
) -> None:
    path, out = write_csv(tmp_path / "topics.csv", topics(22)), tmp_path / "out"
    done = run_try(path, "--budget", "0", "--out", out)
    probe = Probe.read(out / "answer.probe.safetensors")
    assert probe.labels == 22 and not (out / "certificate.toml").exists()
    assert f"(by {probe.name}; nothing is certified):\nlastword serve {out}" in done.stdout
    stored = json.loads((out / "verdict.json").read_text())
    assert stored["contest"]["best"] == probe.name and "not proven" in done.stdout
    assert CliRunner().invoke(app, ["decide", str(out), "--text", "the dog"]).exit_code == 0


def rare(path: Path, count: int, informative: float) -> Path:
    """Write texts, 15% about animals and the rest about money; some words are misleading."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        rare = rng.random() < 0.15
        words = ANIMALS if rare == (rng.random() < informative) else MONEY
        text = ["the", rng.choice(words), *rng.choice(["a", "now", "is"], 3), str(i)]
        rows.append({"text": " ".join(text), "label": "animal" if rare else "money"})
    return write_csv(path, rows)


def test_probes_are_ranked_by_mean_recall(tmp_path: Path) -> None:
    path, out = rare(tmp_path / "rare.csv", 120, 0.82), tmp_path / "out"
    recalls = {}
    for objective in ("accuracy", "balanced"):
        done = run_try(path, "--budget", "0", "--out", out, "--objective", objective)
        figures = json.loads((out / "verdict.json").read_text())
        contest = figures["contest"]
        assert contest["objective"] == objective
        recalls[objective] = {one["label"]: one["corrected"] for one in contest["classes"]}
    assert recalls["balanced"]["animal"] > recalls["accuracy"]["animal"]
    lines = {line["name"]: line for line in contest["lines"]}
    # Contestants are ranked by the mean of the recalls.
    best = lines[contest["best"]]
    assert best["worth"] == pytest.approx(np.mean([*recalls["balanced"].values()]))
    assert lines["largest class"]["worth"] == pytest.approx(0.5)
    assert "mean recall" in done.stdout.splitlines()[0]


def test_a_certificate_beside_mean_recall_is_about_accuracy(tmp_path: Path) -> None:
    path, out = rare(tmp_path / "rare.csv", 160, 0.98), tmp_path / "out"
    run_try(path, "--budget", "0", "--out", out, "--objective", "balanced")
    figures = json.loads((out / "verdict.json").read_text())
    certificate, promised = Certificate.read(out / "certificate.toml"), figures["certificate"]
    assert certificate.policy.method == figures["contest"]["probe"]
    assert not (out / "labels.csv").exists()
    assert promised["net_at_least"] == certificate.worth["net_at_least"] > 0


def test_the_weights_of_classes_make_the_mean_recall() -> None:
    labels, right = np.array([*"aaab"]), np.array([1, 1, 0, 1])
    weights = class_weights(labels.tolist(), "abc")
    mean = float(np.mean([weights[label] * one for label, one in zip(labels, right, strict=True)]))
    assert mean == pytest.approx((2 / 3 + 1) / 2) and weights["c"] == weights["b"]
