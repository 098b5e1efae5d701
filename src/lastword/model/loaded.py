"""A model in memory with its I(M), and the embedded models, which need nothing of `loading`."""

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lastword.model import embedded
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import Factors, model_invariant, read_invariant
from lastword.rule.theta import Theta
from lastword.text.tokenizer import Tokenizer


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


def invariant_of(loaded: Loaded, options: LoadOptions) -> Factors | float:
    """Return I(M) from the options, else from the checkpoint's tensors, else from the model.

    Raises:
        InvariantError: It is undefined.
    """
    if options.invariant is not None:
        return options.invariant
    theta = options.theta or Theta()
    if (origin := loaded.origin) is None:
        return model_invariant(loaded.model, theta=theta, readings=True)
    return read_invariant(origin.name, theta=theta, revision=origin.revision, readings=True)
