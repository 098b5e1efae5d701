"""What is read without logits: the kernel, the road, and when a GPU takes the kernel."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import DEPTH, build, random_items, tokenizer
from torch import nn

from lastword import Theta, Tracer
from lastword.errors import NonFiniteError, UnsupportedModelError
from lastword.model import check, reading, readout
from lastword.model.readout import _Float32Head

TESTS = Path(__file__).parents[1]
THETA = Theta.from_dict({"tau_I": 1.0})  # T is asked for where the depths leave it open
triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed here"
)


# --- the kernel ---


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """What the kernel gives under Triton's interpreter."""
    variables = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, TESTS / "interpreted.py"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@triton
@pytest.mark.slow
def test_the_kernel_has_the_sums_of_float64(interpreted):
    assert len(interpreted["farthest"]) == 6
    assert max(interpreted["farthest"].values()) < 3e-5


@triton
@pytest.mark.slow
def test_a_row_has_the_same_sum_whatever_is_beside_it(interpreted):
    assert interpreted["alone"]


@triton
@pytest.mark.slow
def test_a_logit_that_is_not_finite_shows_in_its_row_alone(interpreted):
    assert interpreted["finite"] == {k: [True, False, True] for k in ("nan", "inf", "-inf")}


@triton
@pytest.mark.slow
def test_a_model_whose_check_takes_the_kernel_decides_as_before(interpreted):
    corrected = interpreted["corrected"]
    assert corrected["taken"] and corrected["same"]
    assert corrected["difference"] < 1e-5 and 0 < corrected["nats"] < 1e-5


COMPILE = """
import json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from lastword.model import fused

names = "hidden weight largest total least rows vocabulary width".split()
found = {}
for capability in (80, 90):
    for dtype, size in (("bf16", 2), ("fp32", 4)):
        kinds = [f"*{dtype}"] * 2 + ["*fp32"] * 3 + ["i32"] * 3
        blocks = dict(SHARE=fused.SHARE, ROWS=fused.ROWS, TOKENS=fused.TOKENS)
        blocks["WIDTH"] = fused.WIDTH_BYTES // size
        signature = dict(zip(names, kinds)) | dict.fromkeys(blocks, "constexpr")
        aligned = {(i,): [["tt.divisibility", 16]] for i in (0, 1, 7)}
        source = ASTSource(fused.add_up, signature, blocks, aligned)
        made = compile(source, GPUTarget("cuda", capability, 32), fused.LAUNCH)
        found[f"{capability} {dtype}"] = made.metadata.shared, made.asm["ptx"]
products = {name: [shared, "mma" in ptx] for name, (shared, ptx) in found.items()}
print(json.dumps(products))
"""
# Bytes of shared memory that a program may have on the smallest cards of Ampere and after.
SHARED = 99 * 1024


@triton
@pytest.mark.slow
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 4
    for name, (shared, tensor_cores) in found.items():
        assert shared <= SHARED and tensor_cores == name.endswith("bf16")


# --- the road, on the CPU by pieces of the vocabulary ---


def tracer_of(name: str, **options: Any) -> Tracer:
    return Tracer(build(name), tokenizer(), theta=THETA, invariant=2.0, **options)


def usual_of(name: str, **options: Any) -> Tracer:
    """One that makes logits at every depth."""
    tracer = tracer_of(name, **options)
    tracer.readout._alone = None
    return tracer


@pytest.mark.parametrize("name", ["llama", "opt-projected", "gpt_oss", "phi"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_reading_is_as_without_it(name, dtype, monkeypatch):
    for module, constant in ((reading, "STACKED_ROWS"), (readout, "PIECE_ROWS")):
        monkeypatch.setattr(module, constant, 7)
    monkeypatch.setattr(readout, "PIECE", 100)
    monkeypatch.setattr(readout, "STRIP_ROWS", 3)
    items, model = random_items(3, 4), build(name, dtype=dtype)
    alone, usual = (Tracer(model, tokenizer(), theta=THETA, invariant=2.0) for _ in range(2))
    usual.readout._alone = None
    assert alone.readout._alone is not None and len(alone.readout._alone._pieces) == 4
    for read in ("base", "decide", "all"):
        pairs = zip(*(t.correct_many(items, read=read) for t in (alone, usual)), strict=True)
        for a, b in pairs:
            assert a.index == b.index
            assert a.trajectory == pytest.approx(b.trajectory, abs=1e-5, nan_ok=True)
            assert (a.t_scores is None) == (b.t_scores is None)
            if b.t_scores is not None:
                assert a.t_scores == pytest.approx(b.t_scores, abs=1e-5)


@pytest.mark.parametrize("far", [5, 500])  # at 500 most tokens are beyond what exp can tell from 0
def test_sums_are_those_of_float64_and_of_a_row_alone(far):
    head = nn.Linear(48, 20_000).requires_grad_(False)
    wide, rows = _Float32Head(head), far * torch.randn(70, 48)
    with torch.inference_mode():
        log_z, least = wide._added_up(rows)
        exact = (rows.double() @ head.weight.double().T) + head.bias.double()
        rounded = far * 2e-6
        assert (log_z - exact.logsumexp(-1)).abs().max() < rounded
        assert (least - exact.amin(-1)).abs().max() < rounded
        log_z, least = wide._added_up(rows[40:41])
        assert (log_z - exact[40].logsumexp(-1)).abs() < rounded


def test_logits_are_made_for_the_scorers_depths_alone(monkeypatch):
    tracer, made = tracer_of("llama"), []
    own = tracer.readout.logits

    def counted(hidden: torch.Tensor, **_: Any) -> torch.Tensor:
        made.append(len(hidden))
        return own(hidden)

    monkeypatch.setattr(tracer.readout, "logits", counted)
    branches, depths = check.random_texts(tracer.readout.vocabulary), range(DEPTH + 1)
    states = tracer.backbone.states(branches, depths)
    every = np.arange(len(states.reads.token))
    for scorers, count in (([], 1), ([tracer.scorer], len(tracer.scorer.depths))):
        made.clear()
        found = tracer.readout.read(states, every, depths, scorers)
        assert len(made) == count <= DEPTH and list(found.log_probs) == list(depths)


def test_the_models_own_answer_is_from_its_logits():
    """To the last bit, so that it agrees with whoever scores by a log-softmax in float32."""
    tracer, usual = tracer_of("llama"), usual_of("llama")
    pairs = zip(*(t.correct_many(random_items(3, 9)) for t in (tracer, usual)), strict=True)
    assert all((a.base_scores == b.base_scores).all() for a, b in pairs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_name_their_depth(value, monkeypatch):
    tracer = tracer_of("llama")
    own, sizes = _Float32Head._by_piece, []

    def odd(head: _Float32Head, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        sizes.append(len(rows))
        for logits in own(head, rows):
            logits[3 * len(rows) // DEPTH + 1, 7] = value  # of the depths before L, in depth 3
            yield logits

    monkeypatch.setattr(_Float32Head, "_by_piece", odd)
    depths = range(DEPTH + 1)
    states = tracer.backbone.states(check.random_texts(tracer.readout.vocabulary), depths)
    with pytest.raises(NonFiniteError, match="depth 3"):
        tracer.readout.read(states, np.arange(len(states.reads.row)), depths)
    assert len(sizes) == 1


def test_where_memory_runs_out_the_stack_is_halved(monkeypatch):
    tracer, items, sizes = tracer_of("llama"), random_items(3, 4), []
    expected = list(tracer.correct_many(items, read="all"))
    own = _Float32Head._added_up

    def small(head: _Float32Head, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(len(rows))
        if len(rows) > 10:
            raise torch.OutOfMemoryError
        return own(head, rows)

    monkeypatch.setattr(_Float32Head, "_added_up", small)
    for a, b in zip(tracer.correct_many(items, read="all"), expected, strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-5)
    assert max(sizes) > 10 and sizes.count(max(sizes)) == 1


@pytest.mark.parametrize("name", ["gemma2", "cohere", "granite"])  # a cap, scales
def test_a_model_that_changes_its_logits_is_read_as_before(name):
    tracer = tracer_of(name)
    assert tracer.readout._alone is None
    with pytest.raises(UnsupportedModelError, match="more than the product"):
        tracer.readout.fused()


def test_logits_that_are_rounded_are_read_as_before():
    assert tracer_of("llama", head_dtype="model").readout._alone is None


# --- when a GPU takes the kernel ---


def test_it_is_taken_where_it_is_as_right_and_faster(monkeypatch):
    monkeypatch.setitem(sys.modules, "lastword.model.fused", SimpleNamespace())  # no Triton here
    tracer = usual_of("llama")
    assert tracer.checked.fused is None  # on the CPU nothing is tried
    real, clock, off = check._timed_read, iter(()), 0.0

    def stopwatch(readout: Any, states: Any) -> tuple[float, Any]:
        shift = off if readout._alone is not None else 0.0
        return next(clock), real(readout, states)[1] + shift

    monkeypatch.setattr(check, "_timed_read", stopwatch)
    for own, fused, off, taken in (
        (2.0, 1.0, 0.0, True),
        (1.0, 0.95, 0.0, False),
        (1.0, 2.0, 0.0, False),
        (2.0, 1.0, 0.01, False),
    ):
        clock = iter((own, fused))
        tried = check.try_fused(tracer.backbone, tracer.readout)
        assert tried.taken == taken and not tried.raised
        assert (tried.own_seconds, tried.seconds) == (own, fused)
        assert tried.difference == pytest.approx(off, abs=1e-5)


def test_without_triton_it_is_read_as_before(monkeypatch):
    monkeypatch.setitem(sys.modules, "lastword.model.fused", None)
    tracer = usual_of("llama")
    tried = check.try_fused(tracer.backbone, tracer.readout)
    assert not tried.taken and "lastword.model.fused" in tried.raised


def test_the_check_tries_it_on_a_gpu_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "lastword.model.fused", SimpleNamespace())
    assert tracer_of("llama").checked.fused is None
    monkeypatch.setattr(check, "KERNEL_DEVICES", ("cpu",))
    taken, own = [], readout.Readout.fused

    def fused(of: readout.Readout) -> readout.Readout:
        taken.append(of)
        return own(of)

    monkeypatch.setattr(readout.Readout, "fused", fused)
    assert tracer_of("llama").checked.fused is None  # nobody asked
    for came in (check.Trial(True), check.Trial(False)):
        monkeypatch.setattr(check, "try_fused", lambda *_, came=came: came)
        tracer = tracer_of("llama", attention="model", fused=True)
        assert tracer.checked.fused == came and len(taken) == 1
        assert tracer.describe()["check"]["fused"]["taken"] == came.taken


@pytest.mark.gpu
def test_on_a_gpu_the_check_says_what_came_of_it():
    model = build("llama", dtype=torch.bfloat16).to("cuda")
    tracer = Tracer(model, tokenizer(), invariant=2.0, fused=True)
    assert tracer.checked.fused is not None and not tracer.checked.fused.raised
    assert tracer.checked.fused.difference < check.SAME_SUM
