"""A model in memory, and the embedded ones. This module imports nothing for checkpoints."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lastword.model import embedded
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.text.tokens import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A model in memory with its origin.

    Attributes:
        source: Name, revision, dtype, device, quantisation and the like, as plain JSON values.
        origin: Options of the checkpoint with exactly these weights; None if there is none.
    """

    model: PreTrainedModel
    tokenizer: Tokenizer
    source: dict[str, Any]
    origin: LoadOptions | None = None


def load_embedded(options: LoadOptions) -> Loaded:
    """Load an embedded model."""
    assert options.embedded is not None
    source = options.names(options.name) | {"asked": load_digest(options)}
    return Loaded(*embedded.load(options.embedded), source)
