"""Texts about animals and money, a probe that separates them, and trials on tables."""

import csv
import json
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from populations import above, certificate
from safetensors.numpy import load
from typer.testing import CliRunner, Result

from lastword import Tracer
from lastword.cli import app
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.decide.templates import template_of
from lastword.probes.probe import Probe, file_digest
from lastword.probes.state import Pooling, fit_state
from lastword.text.prompt_template import template_name
from lastword.text.question import Choice, question_digest
from lastword.trust.certificate import Certificate
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms

TEMPLATE = template_of("decide/plain")
NAME = template_name(TEMPLATE.to_dict())
QUESTION = Choice("What is it about?", ["animal", "money"])
ANIMALS = ["the red fox runs home", "a cat sleeps here", "dogs bark loudly", "birds sing in trees"]
MONEY = ["pay the bill today", "the invoice is late", "send money to the bank", "costs rise a lot"]
TEXTS, LABELS = [*ANIMALS, *MONEY], ["animal"] * 4 + ["money"] * 4


def probe_of(
    tracer: Tracer, pooling: Pooling = "mean", question: Choice = QUESTION, **more: Any
) -> Probe:
    """Return a probe fitted to all texts."""
    states = read_states(tracer, TEXTS, question, TEMPLATE, (pooling,))
    fit = fit_state(states, LABELS, poolings=(pooling,)).probe
    return Probe(question, NAME, subject_of(tracer), fit, len(LABELS), **more)


def certificate_of(probe: Probe, least: float | None = None, **more: Any) -> Certificate:
    """Return a certificate of a probe: of a gain, or of few errors above a confidence."""
    policy, facts = Policy((probe.name,), 0.0, probe.name), {"templates": (NAME,)} | more
    facts |= {"probe": probe.certified(0.5), "questions": (question_digest(probe.question),)}
    terms = Terms(error=None if least is None else 0.1, methods=(probe.name,), promise="gain")
    automation = None if least is None else above(least, 1)
    return certificate(probe.subject, policy, terms, 20, 2, 50, automation=automation, **facts)


def with_facts(raw: bytes, schema: str | None = "3", **changes: Any) -> bytes:
    """Return a probe's file with changed facts, such as `fit.kind`, and with its new digest.

    The digest may be changed too.
    """
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    metadata, digest = header["__metadata__"], changes.pop("digest", "new")
    facts = json.loads(metadata["lastword"])
    for path, value in changes.items():
        *parents, name = path.split(".")
        reduce(dict.__getitem__, parents, facts)[name] = value
    metadata |= {"lastword": json.dumps(facts), "schema": schema, "digest": digest}
    if digest == "new":
        metadata["digest"] = file_digest(metadata["lastword"], load(raw))
    kept = {name: value for name, value in metadata.items() if value is not None}
    text = json.dumps(header | {"__metadata__": kept}).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def table(count: int) -> list[dict[str, str]]:
    """Return texts with alternating topics, without near copies."""
    rows = []
    for i in range(count):
        label = ("animal", "money")[i % 2]
        parts = (ANIMALS, MONEY)[i % 2]
        text = f"{parts[i % 4]} and {parts[(i // 4) % 4]} in {1000 + 7 * i}"
        rows.append({"text": text, "label": label, "note": f"=n{i}"})
    return rows


def hidden(rows: list[dict[str, str]], labelled: int) -> list[dict[str, str]]:
    """Return rows of which only the first have a label."""
    return [row | {"label": row["label"] * (i < labelled)} for i, row in enumerate(rows)]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as a CSV file, or with tabs as a TSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, [*rows[0]], delimiter="\t" if path.suffix == ".tsv" else ",")
        out.writeheader()
        out.writerows(rows)
    return path


def run_try(table: Path, *options: str | Path) -> Result:
    """Run `lastword try` on the organism and require success."""
    command = ["try", str(table), "--model", "lastword/demo-organism", *map(str, options)]
    done = CliRunner().invoke(app, command)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done
