"""The demo models, which are stored in float16 and run in float32.

transformers can load each folder. `control.safetensors` has the last blocks of the model's control.
The wheel has `organism` only; a checkout has the others.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lastword.errors import InputError, ModelError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

Name = Literal["organism", "control", "mix", "mix-control"]

EMBEDDED = "lastword/demo-"  # prefix of the models' names
FOLDER = Path(__file__).parent
_CONTROLS = {"control": "organism", "mix-control": "mix"}


def folder(name: str) -> Path:
    """Return the folder of an embedded model; a control has its organism's."""
    return FOLDER / _CONTROLS.get(name, name)


def load(name: str = "organism") -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Load an embedded model in float32, and its tokenizer."""
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if name not in get_args(Name):
        raise InputError(f"no embedded model {name!r}; known: {', '.join(get_args(Name))}")
    weights = [folder(name) / "model.safetensors"]
    weights += [folder(name) / "control.safetensors"] if name in _CONTROLS else []
    if not all(file.is_file() for file in weights):
        raise ModelError(
            f"{EMBEDDED}{name} comes with lastword's repository, not with its wheel: clone the "
            "repository and install it with `pip install --editable .`"
        )
    with torch.random.fork_rng(devices=[]):  # a new model draws random weights, replaced below
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder(name)))
    state = {tensor: value for file in weights for tensor, value in load_file(file).items()}
    model.load_state_dict(state)
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder(name))
