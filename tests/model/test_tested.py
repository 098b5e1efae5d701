"""Every row of `lastword models` is loaded, run and compared."""

from pathlib import Path
from typing import get_args

import formats
import numpy as np
import pytest
import torch
from families import FAMILIES as TINY
from families import build, random_items, save, tokenizer, type_of
from tiers import by_night
from wide import wide

from lastword import Tracer
from lastword.errors import ModelError
from lastword.model.families import FAMILIES
from lastword.model.loading import load
from lastword.model.options import LoadOptions, Quantize
from lastword.model.parts import locate, text_config

INVARIANT = 1.5  # any value
ITEMS = random_items(1, 3)

every_row = pytest.mark.parametrize("row", FAMILIES, ids=lambda f: f.model_type)


def test_every_tested_family_has_a_row():
    wrappers = {"gemma3", "mistral3"}
    assert {*map(type_of, TINY)} - wrappers == {f.model_type for f in FAMILIES}
    assert len({f.model_type for f in FAMILIES}) == len(FAMILIES)


# The effect of each rule on the logits z of norm and head, independently of the package.
RULES = {
    "soft-capped logits": lambda z, c: (
        c.final_logit_softcapping * torch.tanh(z / c.final_logit_softcapping)
    ),
    "logits x logit_scale": lambda z, c: z * c.logit_scale,
    "logits / logits_scaling": lambda z, c: z / c.logits_scaling,
}


@every_row
@torch.no_grad()
def test_road_head_and_readout_rule_agree_with_the_row(row):
    model = build("opt-projected" if row.model_type == "opt" else row.model_type)
    tracer = Tracer(model, tokenizer(), invariant=INVARIANT)
    assert type(tracer.backbone.model).__name__ == row.head and tracer.backbone.road == row.road
    trunk, head = locate(model).trunk, model.get_output_embeddings()
    ids = torch.tensor([[1, 9, 14, 30, 7]])
    z = head(trunk(input_ids=ids)[0])  # after the trunk's last steps: norm, projection
    assert ("bias" in row.rule) == (getattr(head, "bias", None) is not None)
    assert ("project_out" in row.rule) == (getattr(trunk, "project_out", None) is not None)
    expected = RULES.get(row.rule, lambda z, c: z)(z, text_config(model.config))
    assert model(input_ids=ids).logits == pytest.approx(expected, abs=1e-5)
    assert row.rule not in RULES or (z - expected).abs().max() > 0.1


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("rows")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            save(path, name, **wide(name))
        return path

    return folder


def trajectories(folder: Path, **options) -> np.ndarray:
    loaded = load(LoadOptions(str(folder), dtype="float32", **options))
    # The double's tokenizer: transformers reads the file of some families differently.
    tracer = Tracer(loaded.model, tokenizer(), invariant=INVARIANT)
    return np.concatenate([d.trajectory.ravel() for d in tracer.correct_many(ITEMS, read="all")])


STORED = [
    (f.model_type, form) for f in FAMILIES for form in f.tried if form not in get_args(Quantize)
]
LOADED = [(f.model_type, form) for f in FAMILIES for form in f.tried if form in get_args(Quantize)]
EXPERTS, NORMED = "qwen3_moe", "gemma3_text"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"), by_night(STORED, [(EXPERTS, "fp8"), ("gpt_oss", "mxfp4")])
)
def test_a_stored_quantisation_scores_like_dense_weights(name, form, saved, tmp_path):
    pytest.importorskip("accelerate")
    stored, twin = tmp_path / "stored", tmp_path / "twin"
    formats.write(form, saved(name), stored, twin)
    dense = trajectories(twin)
    assert trajectories(stored) == pytest.approx(dense, abs=1e-5)
    assert np.abs(dense - trajectories(saved(name))).max() > 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("name", "form"), by_night(LOADED, [(EXPERTS, "int8"), (NORMED, "nf4")]))
def test_quantising_while_loading_changes_scores_only_by_rounding(name, form, saved):
    pytest.importorskip("bitsandbytes")
    plain = trajectories(saved(name))
    apart = np.abs(trajectories(saved(name), quantize=form) - plain)
    assert 1e-3 < apart.max() < {"int8": 0.15, "nf4": 0.6}[form] * np.median(np.abs(plain))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_family_without_quantisable_layers_is_refused(saved):
    pytest.importorskip("bitsandbytes")
    with pytest.raises(ModelError, match="no linear layers that bitsandbytes quantises"):
        trajectories(saved("falcon"), quantize="int8")
