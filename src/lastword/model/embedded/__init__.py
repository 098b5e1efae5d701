"""The embedded models on disk: float16 on disk, float32 at run time.

An organism's folder is one that transformers loads; beside it lies what its control has different
(the last blocks), as `control.safetensors`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lastword.errors import InputError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

Name = Literal["organism", "control", "mix", "mix-control"]

EMBEDDED = "lastword/demo-"  # before a name: what a model is called where hub names are taken
FOLDER = Path(__file__).parent
_CONTROLS = {"control": "organism", "mix-control": "mix"}


def folder(name: str) -> Path:
    """Return the folder of an embedded model's files; a control is in its organism's."""
    return FOLDER / _CONTROLS.get(name, name)


def load(name: str = "organism") -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Load an embedded model in float32, and its tokenizer.

    Raises:
        InputError: No embedded model has this name.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    if name not in get_args(Name):
        raise InputError(f"no embedded model {name!r}; known: {', '.join(get_args(Name))}")
    files = folder(name)
    with torch.random.fork_rng(devices=[]):  # a new model draws weights that are then replaced
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(files))
    state = load_file(files / "model.safetensors")
    if name in _CONTROLS:
        state |= load_file(files / "control.safetensors")
    model.load_state_dict(state)
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(files)
