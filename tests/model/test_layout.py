"""Weights laid out for oneDNN: the same numbers in every model, and when it is taken."""

import copy
import pickle
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from families import build, random_items, tokenizer
from tiers import by_night
from torch import nn
from transformers import PreTrainedModel

from lastword import Tracer
from lastword.errors import InputError, UnsupportedModelError
from lastword.model import check
from lastword.model.check import Trial, settle_layout
from lastword.model.families import locate
from lastword.model.layout import LaidOut, can_lay_out, is_plain, lay_out, plain_layers

# One for each way in which blocks hold their layers.
SHAPES = (
    "llama mixtral gpt_oss gemma3 deepseek_v3 gpt_neox opt falcon lfm2 llama4_text mamba".split()
)
TO_ROUNDING = 2e-6  # of numbers about 1: a sum of a hundred terms in another order

pytestmark = pytest.mark.skipif(
    not can_lay_out(torch.zeros(1, 1)), reason="torch has no oneDNN here"
)


def kinds(model: PreTrainedModel) -> set[type]:
    """Of the linear layers in a model's blocks."""
    blocks = locate(model).blocks
    return {type(m) for m in blocks.modules() if isinstance(m, nn.Linear)}


# --- one layer ---


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_multiplies_as_well(copied):
    laid, rows = LaidOut(nn.Linear(100, 130)), torch.randn(7, 100)
    with torch.inference_mode():
        assert torch.equal(copied(laid)(rows), laid(rows))


class Subclass(nn.Linear):
    """A layer that may do more than a product."""


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (nn.Linear(4, 4), True),
        (nn.Linear(4, 4, dtype=torch.bfloat16), False),
        (nn.Linear(4, 4, device="meta"), False),
        (Subclass(4, 4), False),
        (nn.LayerNorm(4), False),
    ],
)
def test_only_a_plain_product_is_laid_out(layer, plain):
    assert is_plain(layer) == plain


def test_a_layer_with_a_hook_or_a_forward_of_its_own_is_left_alone():
    holder = nn.Sequential(nn.Linear(4, 4))
    handle = holder[0].register_forward_hook(lambda *_: None)
    assert not list(plain_layers(holder))
    handle.remove()
    assert len(list(plain_layers(holder))) == 1
    holder[0].forward = lambda rows: rows
    assert not list(plain_layers(holder))


def test_a_weight_that_is_shared_is_left_alone():
    layer, tied, own = (nn.Linear(4, 4) for _ in range(3))
    tied.weight = layer.weight
    holder = nn.ModuleDict({"a": layer, "b": nn.ModuleDict({"tied": tied, "own": own})})
    lay_out(holder)
    assert [name for name, m in holder.named_modules() if type(m) is LaidOut] == ["b.own"]
    twice = nn.ModuleDict({"a": layer, "b": nn.ModuleDict({"again": layer})})
    lay_out(twice)
    assert not [m for m in twice.modules() if type(m) is LaidOut]


def test_a_weight_is_freed_before_the_next_is_laid_out(monkeypatch):
    holder = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(5)))
    weights = [weakref.ref(parameter) for parameter in holder.parameters()][::2]
    own, alive = LaidOut.__init__, []

    def counted(self: LaidOut, layer: nn.Linear) -> None:
        alive.append(sum(ref() is not None for ref in weights))
        own(self, layer)

    monkeypatch.setattr(LaidOut, "__init__", counted)
    lay_out(holder)
    assert alive == [5, 4, 3, 2, 1]


# --- whole models ---


@pytest.mark.parametrize("name", by_night(SHAPES, ["llama", "gpt_oss", "deepseek_v3", "mamba"]))
def test_a_model_decides_as_before(name):
    model, items = build(name), random_items(3, 3)
    expected = list(Tracer(model, tokenizer(), invariant=2.0).correct_many(items, read="all"))
    state = copy.deepcopy(model.state_dict())
    blocks = locate(model).blocks
    some = len(list(plain_layers(blocks)))
    lay_out(blocks)
    assert sum(type(m) is LaidOut for m in blocks.modules()) == some
    assert not list(plain_layers(blocks))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    found = Tracer(model, tokenizer(), invariant=2.0).correct_many(items, read="all")
    near = 1e-3 if name == "mamba" else 1e-4  # a state space adds up its noise over the text
    for a, b in zip(found, expected, strict=True):
        assert a.index == b.index and a.operator == b.operator
        assert a.trajectory == pytest.approx(b.trajectory, abs=near)
        assert a.t_scores == pytest.approx(b.t_scores, abs=near)


def test_a_checkpoint_that_is_laid_out_answers_and_samples_as_before():
    stored, laid = (Tracer.demo(layout=layout) for layout in ("stored", "onednn"))
    assert kinds(stored.backbone.model) == {nn.Linear}
    assert kinds(laid.backbone.model) == {LaidOut}
    assert stored.describe()["check"]["layout"] is None
    assert laid.describe()["check"]["layout"]["taken"]
    assert laid.invariant == stored.invariant
    items = [("the capital of the north is", ["a stone", "a river", "old"])] * 2
    for a, b in zip(*(t.correct_many(items, read="all") for t in (stored, laid)), strict=True):
        assert a.index == b.index
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-5)
    ids = torch.tensor([[5, 6, 7]])
    models: list[Any] = [t.backbone.model for t in (stored, laid)]
    written = [m.generate(ids, max_new_tokens=8, do_sample=False) for m in models]
    assert torch.equal(*written)


def test_a_model_of_the_callers_is_left_alone(monkeypatch):
    monkeypatch.setattr(check, "TIMED_WEIGHTS", 0)
    monkeypatch.setattr(check, "LAYOUT_FASTER", 1e9)
    model = build("llama")
    tracer = Tracer(model, tokenizer())
    assert kinds(model) == {nn.Linear} and tracer.checked.layout is None


# --- the choice ---


def settled(monkeypatch: Any, tried: Trial, layout: Any = "auto") -> tuple[Trial | None, set[type]]:
    """What comes of a trial that went so, and the layers that the model has then."""
    monkeypatch.setattr(check, "TIMED_WEIGHTS", 0)
    monkeypatch.setattr(check, "try_layout", lambda layers: tried)
    model = build("llama")
    return settle_layout(model, layout), kinds(model)


def test_it_is_taken_where_it_is_right_and_faster(monkeypatch):
    faster = Trial(False, 1e-6, 0.74, 1.0)
    assert settled(monkeypatch, faster) == (replace(faster, taken=True), {LaidOut})
    for other in (replace(faster, seconds=0.76), replace(faster, difference=1e-3)):
        assert settled(monkeypatch, other) == (other, {nn.Linear})


def test_what_is_asked_for_is_done(monkeypatch):
    slower = Trial(False, 1e-6, 2.0, 1.0)
    assert settled(monkeypatch, slower, "onednn") == (replace(slower, taken=True), {LaidOut})
    assert settled(monkeypatch, replace(slower, seconds=0.1), "stored") == (None, {nn.Linear})
    with pytest.raises(UnsupportedModelError, match=r"0\.001 of the largest number away"):
        settled(monkeypatch, replace(slower, difference=1e-3), "onednn")


def test_the_trial_times_each_shape_and_holds_one_to_the_other(monkeypatch):
    layers = [nn.Linear(300, 400), nn.Linear(400, 300), nn.Linear(400, 300)]
    seconds = iter([[3.0, 1.0], [5.0, 2.0]])
    monkeypatch.setattr(check, "_shortest", lambda *_, **__: next(seconds))
    tried = check.try_layout(layers)
    assert (tried.own_seconds, tried.seconds) == (8.0, 3.0)
    assert 0 < tried.difference < 1e-5


@pytest.mark.parametrize(("factor", "off"), [(1.01, 0.01), (float("nan"), float("nan"))])
def test_products_that_are_others_are_not_taken(factor, off, monkeypatch):
    own = LaidOut.forward
    layers = [nn.Linear(30, 40), nn.Linear(40, 30)]
    monkeypatch.setattr(
        LaidOut,
        "forward",
        lambda self, rows: own(self, rows) * (factor if self.in_features == 40 else 1),
    )
    tried = check.try_layout(layers)
    assert tried.difference == pytest.approx(off, rel=0.01, nan_ok=True)
    found = replace(tried, seconds=0.1, own_seconds=1.0)
    assert settled(monkeypatch, found) == (found, {nn.Linear})


def test_what_onednn_raises_leaves_the_model_as_it_was(monkeypatch):
    def refuse(self: LaidOut, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("could not create a primitive\nat some line")

    monkeypatch.setattr(check, "TIMED_WEIGHTS", 0)
    monkeypatch.setattr(LaidOut, "forward", refuse)
    tried = settle_layout(model := build("llama"), "auto")
    assert tried is not None and not tried.taken and kinds(model) == {nn.Linear}
    assert tried.raised == "RuntimeError: could not create a primitive"
    with pytest.raises(UnsupportedModelError, match="could not create a primitive"):
        settle_layout(model, "onednn")
    assert kinds(model) == {nn.Linear}


def test_a_small_model_is_not_timed(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(check, "try_layout", lambda layers: pytest.fail("it was"))
        assert settle_layout(build("llama"), "auto") is None


@pytest.mark.parametrize("model", [build("llama", dtype=torch.bfloat16), build("gpt2")])
def test_a_model_without_such_layers_says_so(model):
    assert settle_layout(model, "auto") is None
    with pytest.raises(InputError, match="linear layers in float32 on the CPU"):
        settle_layout(model, "onednn")
