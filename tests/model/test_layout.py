"""Weights laid out for oneDNN: which layers, when, and with the same numbers."""

import copy
import weakref

import numpy as np
import pytest
import torch
from families import build, random_items, tokenizer
from tiers import by_night
from torch import nn
from transformers import PreTrainedModel

from lastword import Tracer
from lastword.model import layout
from lastword.model.layout import LaidOut, lay_out_if_faster
from lastword.model.parts import locate

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here"
)


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (nn.Linear(4, 4), True),
        (nn.Linear(4, 4, dtype=torch.bfloat16), False),
        (nn.Linear(4, 4, device="meta"), False),
        (nn.modules.linear.NonDynamicallyQuantizableLinear(4, 4), False),  # a subclass
        (nn.LayerNorm(4), False),
    ],
    ids=str,
)
def test_only_plain_float32_products_are_recognised(layer, plain):
    assert layout.is_plain(layer) == plain
    layer.register_forward_hook(lambda *_: None)
    assert not layout.is_plain(layer)


@pytest.fixture
def faster(monkeypatch) -> None:
    """A processor on which oneDNN is faster, also for small models."""
    monkeypatch.setattr(layout, "_LEAST", 1)
    monkeypatch.setattr(
        layout, "_least_seconds", lambda one, rows: 0.7 if isinstance(one, LaidOut) else 1.0
    )


def linear_layers(model: PreTrainedModel) -> set[type]:
    return {type(m) for m in locate(model).blocks.modules() if isinstance(m, nn.Linear)}


# Families whose blocks hold their layers in different ways.
FAMILIES = "llama mixtral gpt_oss gemma3 deepseek_v3 gpt_neox opt lfm2 llama4_text mamba".split()


@pytest.mark.parametrize("name", by_night(FAMILIES, ["llama", "gpt_oss", "deepseek_v3", "mamba"]))
def test_a_laid_out_model_decides_as_before(name, faster):
    model, items = build(name), random_items(3, 3)
    before = [*Tracer(model, tokenizer(), invariant=2.0).correct_many(items, read="all")]
    weights = copy.deepcopy(model.state_dict())
    assert lay_out_if_faster(locate(model).blocks) and LaidOut in linear_layers(model)
    assert not lay_out_if_faster(locate(model).blocks)  # no plain layer is left
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    after = Tracer(model, tokenizer(), invariant=2.0).correct_many(items, read="all")
    near = 1e-3 if name == "mamba" else 1e-4  # a state space adds up its noise over the text
    for a, b in zip(after, before, strict=True):
        assert a.index == b.index and a.operator == b.operator
        assert a.trajectory == pytest.approx(b.trajectory, abs=near)
        assert a.t_scores == pytest.approx(b.t_scores, abs=near)


def test_laid_out_layers_meet_few_numbers_of_rows(faster, monkeypatch):
    model, counts, product = build("llama"), set(), layout._product

    def counted(rows: torch.Tensor, *weights) -> torch.Tensor:
        counts.add(rows.numel() // rows.shape[-1])
        return product(rows, *weights)

    lay_out_if_faster(locate(model).blocks)
    tracer = Tracer(model, tokenizer(), invariant=2.0)
    monkeypatch.setattr(layout, "_product", counted)
    for items in range(1, 12):
        for _ in tracer.correct_many(random_items(items, 3)):
            pass
    assert len(counts) > 4 and counts == {*map(layout.rounded, counts)}


def test_rows_are_rounded_to_eight_numbers_per_octave():
    rows = range(1, 4097)
    rounded = [*map(layout.rounded, rows)]
    assert all(n <= r < n + max(8, n / 8) for n, r in zip(rows, rounded, strict=True))
    assert [*map(layout.rounded, rounded)] == rounded
    assert len({r for r in rounded if 1024 < r <= 2048}) == 8


@pytest.mark.parametrize("fault", ["slower", "inexact", "small", "bfloat16", "no kernel"])
def test_a_model_is_left_alone_if_it_gains_nothing(fault, faster, monkeypatch):
    def refuse(self: LaidOut, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("could not create a primitive")

    model = build("llama", dtype=torch.bfloat16 if fault == "bfloat16" else torch.float32)
    product = LaidOut.forward
    if fault == "slower":
        monkeypatch.setattr(layout, "_least_seconds", lambda one, rows: 1.0)
    elif fault == "inexact":
        monkeypatch.setattr(LaidOut, "forward", lambda self, x: 1.001 * product(self, x))
    elif fault == "small":
        monkeypatch.setattr(layout, "_LEAST", 2**23)
    elif fault == "no kernel":
        monkeypatch.setattr(LaidOut, "forward", refuse)
    assert not lay_out_if_faster(locate(model).blocks) and linear_layers(model) == {nn.Linear}


def test_layers_that_share_a_weight_are_left_alone(faster):
    layer, tied, alone = (nn.Linear(4, 4) for _ in range(3))
    tied.weight = layer.weight
    holder = nn.ModuleDict({"a": layer, "b": nn.ModuleDict({"tied": tied, "alone": alone})})
    assert lay_out_if_faster(holder)
    assert [name for name, m in holder.named_modules() if type(m) is LaidOut] == ["b.alone"]


def test_the_weight_can_be_read_and_cannot_be_changed():
    plain = nn.Linear(30, 20)
    one = LaidOut(plain)
    assert torch.equal(one.weight, plain.weight)
    with pytest.raises(RuntimeError, match="[Ii]nplace update"):
        one.weight.zero_()


@pytest.fixture
def alive(faster, monkeypatch) -> list[int]:
    """For each layer that is laid out, the number of those whose weight is in memory."""
    weights, alive, pack = list[weakref.ref[torch.Tensor]](), list[int](), LaidOut.__init__

    def remember(layers: list[nn.Linear]) -> bool:
        weights.extend(weakref.ref(layer.weight) for layer in layers)
        return True

    def counting(self: LaidOut, layer: nn.Linear) -> None:
        alive.append(sum(weight() is not None for weight in weights))
        pack(self, layer)

    monkeypatch.setattr(layout, "_is_faster", remember)
    monkeypatch.setattr(LaidOut, "__init__", counting)
    return alive


def test_each_weight_is_freed_before_the_next_is_laid_out(alive):
    lay_out_if_faster(locate(build("llama")).blocks)
    assert alive == [*range(len(alive), 0, -1)] and len(alive) > 1


def test_each_piece_of_a_head_is_freed_before_the_next_is_laid_out(alive):
    layout.in_pieces(torch.randn(20, 8, dtype=torch.bfloat16), 8)
    assert alive == [3, 2, 1]


def test_a_model_in_memory_is_left_alone_and_a_checkpoint_is_laid_out(faster, tmp_path):
    model = build("llama")
    tracer = Tracer(model, tokenizer(), invariant=2.0)
    assert linear_layers(model) == {nn.Linear}
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = Tracer.from_pretrained(tmp_path)
    assert linear_layers(loaded.backbone.model) == {LaidOut}
    loaded.backbone.model.save_pretrained(tmp_path / "again")
    tokenizer().save_pretrained(tmp_path / "again")
    again = Tracer.from_pretrained(tmp_path / "again")
    for a, b in zip(*(t.correct_many(random_items(3, 3)) for t in (loaded, again)), strict=True):
        assert np.array_equal(a.base_scores, b.base_scores)
    assert loaded.digests != {} and tracer.digests != {}


@pytest.mark.parametrize("seconds", [0.7, 1.0])
def test_the_head_is_laid_out_only_if_that_is_faster(seconds, faster, monkeypatch):
    monkeypatch.setattr(
        layout, "_least_seconds", lambda one, rows: seconds if isinstance(one, LaidOut) else 1.0
    )
    weight, rows = torch.randn(20, 8), torch.randn(5, 8)
    pieces = layout.in_pieces(weight, 8)
    assert {type(piece) for piece in pieces} == {LaidOut if seconds < 1 else nn.Linear}
    assert [piece.out_features for piece in pieces] == [8, 8, 4]
    together = torch.cat([piece(rows) for piece in pieces], dim=-1)
    assert torch.allclose(together, rows @ weight.T, atol=1e-5)
