"""The folder of a trial: the probe and the certificate to serve, and all results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from lastword.decide.questions_file import write_questions
from lastword.decide.templates import TEMPLATES
from lastword.files.cells import csv_line
from lastword.files.strict_json import to_json
from lastword.files.writing import write_text
from lastword.model.encoder import installed
from lastword.probes.probe import SUFFIX
from lastword.text.prompt_template import Template
from lastword.tryout.material import TryJob
from lastword.tryout.page import write_page
from lastword.tryout.prompts import Raced, file_of
from lastword.tryout.second_round import Proven
from lastword.tryout.verdict import FILE, Verdict

CERTIFICATE, QUESTIONS, PROBE = "certificate.toml", "questions.yaml", f"answer{SUFFIX}"
SETTINGS = "lastword.toml"  # options of `decide` and `serve`
ANSWERS, _COLUMNS = "answers.csv", ("id", "text", "truth", "model", "best", "confidence")


def settings(proven: Proven, job: TryJob) -> dict[str, Any]:
    """Return the options of `decide` and `serve`, by name."""
    probe, certificate, settings = proven.probe, proven.certificate, dict[str, Any]()
    if job.tracer is not None and (probe is None or probe.needs_model):
        source = job.tracer.source
        settings["model"] = str(source.get("path", source["model"]))
        settings["dtype"] = job.tracer.profile.precision
        if job.template_name is not None:
            settings["template"] = job.template_name
    if certificate is not None:
        settings["certificate"] = CERTIFICATE
    if job.labels.question is not None:
        settings["questions"] = QUESTIONS
    if probe is None:
        return settings
    if encoders := [str(r.place) for r in job.encoders if not installed(r.name)]:
        settings["encoder"] = encoders
    if job.labels.question is None:
        settings["probe"] = [PROBE]
    # Novelty would defer other answers than those that the errors were counted on.
    automates = certificate is not None and certificate.threshold is not None
    if probe.linear is not None and not automates:
        settings["novelty"] = float(f"{probe.linear.likeness.level():g}")
    return settings


def commands(proven: Proven, job: TryJob, out: Path | None) -> list[str]:
    """Return the commands that use the result, each after a line with its purpose."""
    if out is None:
        return ["Run it again with --out FOLDER to get the files that serve the result."]
    who = "the model" if proven.probe is None else proven.probe.name
    risk = "" if proven.certificate else f" (by {who}; nothing is certified)"
    serve = [f"To serve it{risk}:", f"lastword serve {out}"]
    if job.labels.question is None:
        return serve
    return [f"To answer a text{risk}:", f"lastword decide {out} --text 'A NEW TEXT'", *serve]


def write_results(
    proven: Proven, job: TryJob, verdict: Verdict, prompts: Sequence[Raced], out: Path
) -> None:
    """Write the results into the folder of the records."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (CERTIFICATE, PROBE):
        (out / name).unlink(missing_ok=True)  # from a run with other labels
    if proven.probe is not None:
        proven.probe.write(out / PROBE)
    if proven.certificate is not None:
        write_text(out / CERTIFICATE, proven.certificate.to_toml())
    if (question := job.labels.question) is not None:
        probes = {} if proven.probe is None else {"answer": PROBE}
        write_questions(out / QUESTIONS, {"answer": question}, probes)
    write_text(out / SETTINGS, tomli_w.dumps(settings(proven, job)))
    for prompt in prompts:
        if isinstance(prompt.template, Template) and prompt.name not in TEMPLATES:
            write_text(out / file_of(prompt.name), prompt.template.text)
    texts = {row.id: row.text for row in job.labels.rows}
    write_text(out / FILE, to_json(verdict.to_dict()) + "\n")
    write_page(verdict, texts, out)
    rows = [
        (r.id, texts[r.id], r.truth, r.model or "", r.shown, f"{r.confidence:.4g}")
        for r in verdict.contest.answers
    ]
    write_text(out / ANSWERS, "".join(map(csv_line, [_COLUMNS, *rows])))
