"""A model in memory, and those that the package carries: nothing of checkpoints is imported."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lastword.model import embedded
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.text.tokens import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A model in memory, and what a run records of where it came from.

    Attributes:
        source: Name, revision, dtype, device, quantisation and the like, as plain JSON values.
        origin: What names the checkpoint that stores these very weights; None where none does.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    source: dict[str, Any]
    origin: LoadOptions | None = None


def carried(options: LoadOptions) -> Loaded:
    """Load an embedded model."""
    assert options.embedded is not None
    source = options.names(options.name) | {"asked": load_digest(options)}
    return Loaded(*embedded.load(options.embedded), source)
