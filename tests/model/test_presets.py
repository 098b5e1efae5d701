"""The fifteen models as data, and I(M) in every reading of the paper."""

import planted
import pytest
from planted import LAYOUTS

from lastword.model.presets import find_preset, presets
from lastword.report.published import read_published
from lastword.theta import InvariantTheta, Theta
from lastword.weights.invariant import read_interpretations, read_invariant

LLAMA = LAYOUTS["llama"]


def test_fifteen_models_are_the_published_grids_and_nine_mix():
    assert len(presets()) == 15 == len({p.hub for p in presets()})
    assert [p.branch for p in presets()].count("mix") == 9
    for preset in presets():
        assert preset.branch == ("mix" if preset.invariant > Theta().tau_I else "early")
    (grid,) = {tuple((c.model, c.invariant) for c in cells) for cells in read_published().values()}
    assert grid == tuple((p.model, p.invariant) for p in presets())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("google/gemma-3-4b-pt", "Gemma-3-4B"),
        ("mirror/Gemma-3-4B-IT", "Gemma-3-4B"),
        ("/models/Qwen3-30B-A3B-FP8/", "Qwen3-30B-A3B"),
        ("LLaMA-7B", "LLaMA-7B"),
        ("google/gemma-3-12b-it", None),
        ("/", None),
    ],
)
def test_a_preset_is_found_by_any_of_its_names(name, model):
    assert getattr(find_preset(name), "model", None) == model


def test_eight_readings_each_what_its_switches_give(tmp_path):
    config = LLAMA.config | {"model_type": "gemma2"}
    folder = planted.write(tmp_path, config, LLAMA.tensors())
    readings = read_interpretations(folder, theta=Theta())
    assert readings[0].switches == InvariantTheta()
    assert len({r.switches for r in readings}) == 8 == len({r.factors.value for r in readings})
    for reading in readings:
        theta = Theta(invariant=reading.switches)
        assert reading.factors == read_invariant(folder, theta=theta)
