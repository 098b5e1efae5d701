"""A readout of one's own, such as a tuned lens, in the place of the model's head."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lastword.errors import InputError
from lastword.model.backbone import Backbone
from lastword.model.check import random_texts
from lastword.model.readout import Readout
from lastword.rule.tile import Logits

# Logits [rows, vocab] of the states of a layer.
Lens = Callable[[Float[Tensor, "rows width"], int], Float[Tensor, "rows vocab"]]
_MOST = 1e-2  # difference of log-probabilities at the last layer, in nats


class OwnReadout(Readout):
    """The function of states and layer that gives the logits, checked at the last layer."""

    def __init__(self, head: Readout, lens: Lens, backbone: Backbone) -> None:
        vars(self).update(vars(head))
        self._direct, self._lens = None, lens  # a lens needs all logits
        states = backbone.states(random_texts(head.vocabulary)[:1], [backbone.depth])
        hidden = states.hidden[backbone.depth].to(head.device)
        model, own = head.logits(hidden), self.logits(hidden, layer=backbone.depth)
        if own.shape != model.shape:
            raise InputError(f"the readout gives logits {[*own.shape]}, expected {[*model.shape]}")
        difference = float((own.log_softmax(-1) - model.log_softmax(-1)).abs().max())
        if not difference <= _MOST:
            raise InputError(
                "at the last layer the readout has to give the model's own logits, and a "
                f"log-probability differs by {difference:.2g}: apply the model's head there"
            )

    @torch.inference_mode()
    def logits(
        self, hidden: Float[Tensor, "rows width"], *, norm: bool = True, layer: int | None = None
    ) -> Logits:
        """Return the logits of states at a layer; without the norm, those of the model's head."""
        if not norm or layer is None:
            return super().logits(hidden, norm=norm)
        return self._lens(hidden, layer).float()
