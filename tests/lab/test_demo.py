"""The embedded models: the benchmark is the world's, and the weights are of their recipe."""

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from lastword.errors import InputError
from lastword.lab import demo
from lastword.model.embedded import FOLDER

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).resolve().parents[2] / "experiments")
    from organism import RECIPES, train_tokenizer
    from world import benchmark


def test_benchmark_has_every_kind_form_and_split_and_says_so_in_the_id():
    labels = {label for _, label in benchmark()}
    assert len(labels) == 4 * 2 * 2
    for item, label in benchmark():
        assert item.id.startswith(f"{label.form}/{label.kind}/{label.split}/")
        assert sum(item.truthful) == 1
        assert len(item.candidates) == 2 if label.form == "binary" else len(item.candidates) > 2
    assert len({item.id for item in demo.items()}) == len(demo.items())
    for form in ("multi", "binary"):
        counts = Counter((lab.kind, lab.split) for _, lab in benchmark() if lab.form == form)
        for kind in ("clean", "contested", "overwritten", "revised"):
            assert abs(counts[kind, "seen"] - counts[kind, "unseen"]) <= 1, (form, kind)


def test_the_shipped_benchmark_is_the_one_that_the_world_makes():
    assert demo.items() == [item for item, _ in benchmark()]


@pytest.mark.parametrize("name", list(RECIPES))
def test_shipped_weights_are_of_the_recipe_and_the_control_differs_in_the_tuned_blocks(name):
    recipe = RECIPES[name]
    model, tokenizer = demo.load(name)
    control, _ = demo.load({"organism": "control"}.get(name, f"{name}-control"))
    log = json.loads((FOLDER / name / "training.json").read_text())
    assert log["recipe"] == json.loads(json.dumps(asdict(recipe)))
    assert tokenizer.backend_tokenizer.to_str() == train_tokenizer().backend_tokenizer.to_str()
    assert model.dtype == torch.float32 and model.config.hidden_size == recipe.width
    state = control.state_dict()
    differing = {
        int(re.search(r"layers\.(\d+)\.", key)[1])
        for key, value in model.state_dict().items()
        if not torch.equal(value, state[key])
    }
    assert differing == set(range(recipe.blocks - recipe.tuned, recipe.blocks))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="no embedded model 'organ'; known: organism, control"):
        demo.load("organ")
