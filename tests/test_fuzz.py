"""Randomly damaged files are read, or refused with a TraceError in one line, without a traceback.

Each kind of file starts as a valid one, in which bytes or values are replaced. `make nightly` runs
it for ten minutes. Hypothesis stores failures in `tests/corpus` and tries them first the next time:
commit them with the fix. CI stores the folder from night to night.
"""

import io
import json
import struct
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gguf_files
import numpy as np
import pandas as pd
import pytest
from families import build, tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from populations import above, certificate
from safetensors.numpy import load

from lastword.decide.questions_file import read_questions
from lastword.errors import TraceError
from lastword.files.rows import read_rows
from lastword.model import loading
from lastword.model.gguf import read_header
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import text_digest
from lastword.model.weights.invariant import read_invariant
from lastword.probes.probe import Probe, file_digest
from lastword.probes.state import fit_state
from lastword.rule.theta import Theta
from lastword.text.chat import require_settled
from lastword.text.question import Choice
from lastword.text.reading import read_items
from lastword.trust.certificate import Certificate
from lastword.trust.policy import Policy
from lastword.trust.predictions import read_plain
from lastword.trust.subject import Subject
from lastword.trust.terms import Terms
from lastword.tryout.labels import read_labels

pytestmark = pytest.mark.filterwarnings("ignore")

CORPUS = DirectoryBasedExampleDatabase(Path(__file__).with_name("corpus"))
ROWS = [
    {"id": n, "text": f"my parcel {n} is late, größe {n * 1.5}", "label": "ab"[n % 2], "n": n % 3}
    for n in range(12)
]
QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team?", "choices": ["orders", "returns"]},
    "angry": {"type": "predicate", "instructions": "It is angry."},
}

# Values
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**9, -(10**9), 2**63, 10**40, 1e300, -1.5, 0.0, float("nan"), float("inf")]),
    st.text(max_size=6),
    st.sampled_from(["\0", "\ud800", "auto", "../x", "x" * 5000, "=1+1", "(a+)+$"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\r", b"\n", b"sep=;\n", b"\xe9"]),
    st.sampled_from([struct.pack("<Q", n) for n in (2**63, 2**32, 10**9)]),
)


def damage(draw: Callable[..., Any], raw: bytes) -> bytes:
    """Return a file in which some places are cut, or replaced by other bytes."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        stop = start + draw(st.sampled_from([0, 1, 2, 8, 40, len(raw)]))
        raw = raw[:start] + draw(PIECES) + raw[stop:]
    return raw


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: its container and its key."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def disturb(draw: Callable[..., Any], value: Any) -> Any:
    """Return a JSON document in which some values are replaced or removed."""
    value = deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        if every := [*places(value)]:
            container, key = draw(st.sampled_from(every[:400]))
            if draw(st.booleans()) and isinstance(container, dict):
                del container[key]
            else:
                container[key] = draw(VALUES)
    return value


def parsed_or_raw(draw: Callable[..., Any], value: Any, raw: bytes) -> bytes:
    """Return a file in which a value is replaced, or some bytes."""
    if draw(st.booleans()):
        return json.dumps(disturb(draw, value)).encode("utf-8", "replace")
    return damage(draw, raw)


class suppress_trace_error(suppress):  # noqa: N801 - like `suppress`
    """Suppress a TraceError; its message must be one line."""

    def __init__(self) -> None:
        super().__init__(TraceError)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, TraceError):
            assert str(error) and "\n" not in str(error)
        return super().__exit__(kind, error, trace)


# Readers


@cache
def model() -> dict[str, bytes]:
    folder = Path(mkdtemp())
    build("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damaged_model(draw: Callable[..., Any], folder: Path, name: str) -> str:
    """Write a model's files, of which one is damaged, and return their folder."""
    for other, raw in model().items():
        if other == name:
            raw = parsed_or_raw(draw, json.loads(raw), raw)
        (folder / other).write_bytes(raw)
    return str(folder)


def read_config(draw: Callable[..., Any], folder: Path) -> None:
    name = damaged_model(draw, folder, "config.json")
    with suppress_trace_error():
        read_invariant(folder, theta=Theta())
    with suppress_trace_error():
        loading.load(LoadOptions(name))


def read_tokens(draw: Callable[..., Any], folder: Path) -> None:
    file = draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    name = damaged_model(draw, folder, file)
    with suppress_trace_error():
        require_settled(loading.load_tokenizer(LoadOptions(name)))


@cache
def gguf() -> bytes:
    path = gguf_files.write(Path(mkdtemp()) / "m.gguf", gguf_files.build("llama"))
    return path.read_bytes()


def read_gguf(draw: Callable[..., Any], folder: Path) -> None:
    raw, head = gguf(), draw(st.sampled_from([400, 4000, 40_000]))
    (path := folder / "m.gguf").write_bytes(damage(draw, raw[:head]) + raw[head:])
    with suppress_trace_error():
        read_header(path)


@cache
def table(ending: str) -> bytes:
    frame, out = pd.DataFrame(ROWS), io.BytesIO()
    if ending == "xlsx":
        frame.to_excel(out, index=False)
    elif ending == "parquet":
        frame.to_parquet(out)
    elif ending == "jsonl":
        frame.to_json(out, orient="records", lines=True)
    else:
        frame.to_csv(out, index=False, sep="\t" if ending == "tsv" else ",")
    return out.getvalue()


def read_table(ending: str) -> Callable[[Callable[..., Any], Path], None]:
    def check(draw: Callable[..., Any], folder: Path) -> None:
        path, raw = folder / f"t.{ending}", table(ending)
        damaged = ending == "jsonl" and parsed_or_raw(draw, ROWS, raw) or damage(draw, raw)
        path.write_bytes(damaged)
        encoding = draw(st.sampled_from([None, None, "utf-8", "cp1252", "gb18030", "none"]))
        with suppress_trace_error():
            read_rows(path, encoding=encoding)
        for read in (read_labels, read_items):
            with suppress_trace_error():
                read(path)

    return check


@cache
def valid_certificate() -> Certificate:
    subject = Subject("org/model", {"weights": "a1b2", "dtype": "float32"})
    policy, terms = Policy(("decisive", "mix"), 1.0), Terms(0.02, 0.05, error=0.1)
    more = {"automation": above(0.35), "reference": {"confidence": (0.25, 1.0)}}
    return certificate(subject, policy, terms, 50, 1, **more)


@cache
def probe() -> Probe:
    rng = np.random.default_rng(0)
    fit = fit_state(rng.standard_normal((12, 3, 2, 4)).astype(np.float32), ["a", "b"] * 6)
    return Probe(Choice("?", ["a", "b"]), "plain", Subject("m"), fit.probe, 12)


def read_certificate(draw: Callable[..., Any], folder: Path) -> None:
    text = valid_certificate().to_toml()
    path = folder / "certificate.toml"
    path.write_bytes(damage(draw, text.encode()))
    with suppress_trace_error():
        Certificate.read(path)
    values = disturb(draw, {k: v for k, v in tomllib.loads(text).items() if k != "digest"})
    with suppress_trace_error():
        Certificate.from_dict(values | {"digest": text_digest(json.dumps(values, sort_keys=True))})


def read_probe(draw: Callable[..., Any], folder: Path) -> None:
    raw = probe().to_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    if draw(st.booleans()):
        facts = json.dumps(disturb(draw, json.loads(header["__metadata__"]["lastword"])))
        digest = file_digest(facts, load(raw))
        header["__metadata__"] |= {"lastword": facts, "digest": digest}
        text = json.dumps(header).encode("utf-8", "replace")
        raw = len(text).to_bytes(8, "little") + text + raw[8 + length :]
    else:
        raw = damage(draw, raw)
    (path := folder / "a.probe.safetensors").write_bytes(raw)
    with suppress_trace_error():
        linear = Probe.read(path).linear
        if linear is not None:
            rows = np.ones((1, len(linear.mean)))
            shares = linear.probabilities(linear.scores(rows), linear.classes)
            assert np.isclose(shares.sum(), 1) and np.isfinite(linear.likeness_p(rows)).all()


def read_question(draw: Callable[..., Any], folder: Path) -> None:
    path = folder / f"q.{draw(st.sampled_from(['json', 'yaml']))}"
    path.write_bytes(parsed_or_raw(draw, QUESTIONS, json.dumps(QUESTIONS).encode()))
    with suppress_trace_error():
        read_questions(path)


def read_predictions(draw: Callable[..., Any], folder: Path) -> None:
    row = {"text": "a", "truth": "1", "prediction": 0, "confidence": 0.5, "rival": "1"}
    rows = disturb(draw, [row | {"text": f"text {n}"} for n in range(6)])
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (path := folder / "answers.jsonl").write_bytes(text.encode("utf-8", "replace"))
    with suppress_trace_error():
        read_plain(path)


# Readers with their numbers of examples on every change and at night.
TARGETS: dict[str, tuple[Callable[[Callable[..., Any], Path], None], int, int]] = {
    **{ending: (read_table(ending), 60, 4000) for ending in ("csv", "tsv", "jsonl", "parquet")},
    "xlsx": (read_table("xlsx"), 30, 1500),
    "config": (read_config, 15, 500),
    "tokenizer": (read_tokens, 20, 1500),
    "gguf": (read_gguf, 60, 4000),
    "certificate": (read_certificate, 60, 4000),
    "probe": (read_probe, 60, 4000),
    "questions": (read_question, 60, 4000),
    "predictions": (read_predictions, 60, 4000),
}
BY_NIGHT = pytest.param(2, marks=pytest.mark.nightly)


@pytest.mark.parametrize("column", [1, BY_NIGHT])
@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_is_read_or_refused_in_one_line(name, column, tmp_path):
    check, same = TARGETS[name][0], settings().derandomize

    @settings(
        max_examples=int(TARGETS[name][column]),
        deadline=None,
        database=None if same else CORPUS,
        suppress_health_check=[*HealthCheck],
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        check(data.draw, tmp_path)

    run()
