"""Where a model in this process would stand: states and readout of a model that vLLM has.

The two are asked as `Backbone` and `Readout` are, so that everything that decides is what it is for
every model; what they are asked for is done by the side process. States stay there.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from lastword.engines.vllm.process import Process
from lastword.errors import InputError, NonFiniteError
from lastword.model.backbone import Backbone
from lastword.model.families import context_length, text_config
from lastword.model.reading import Reading, States
from lastword.model.readout import Readout
from lastword.rule.tile import TokenScorer
from lastword.text.forest import Branch, Forest, build
from lastword.theta import Theta


class Elsewhere:
    """Tells whoever looks for the model itself that it is not here."""

    def __getattr__(self, name: str) -> Any:
        """Only called for what is not there."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise InputError(
            f"this needs the model itself ({name}), which vLLM has in a process of its own: leave "
            "--engine vllm out"
        )


class RemoteBackbone(Elsewhere, Backbone):
    """A model of the side process as a source of states.

    Args:
        process: The side, its model loaded.
        facts: What the side says of the model.
        config: transformers' config of it.
    """

    def __init__(self, process: Process, facts: dict[str, Any], config: Any) -> None:
        self.process, self.depth = process, int(facts["depth"])
        self.config, self.context = text_config(config), context_length(config)
        self.lock = threading.RLock()
        self._facts = facts

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""
        kind: torch.dtype = getattr(torch, self._facts["dtype"])
        return kind

    @property
    def device(self) -> torch.device:
        """Where vLLM computes."""
        return torch.device(self._facts["device"])

    @property
    def attention(self) -> str:
        """Whose attention it is."""
        return "vllm"

    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 0
    ) -> States:
        """Have the states of all branches kept in the side, in the place of those before.

        Args:
            branches: What to read.
            depths: Depths to keep, in 0..L.
            padded_tokens: Of no effect: vLLM makes its own batches.

        Returns:
            The rows and what they predict, without the states.
        """
        forest = build(branches)
        rows = len(forest.reads.rows)
        self.process.call("compute", requests=requests(forest), rows=rows, depths=sorted({*depths}))
        return States({}, forest.reads)


class RemoteReadout(Elsewhere, Readout):
    """The head of the side's model.

    Args:
        process: The side, its model loaded.
        facts: What the side says of the model.
        theta: Constants and switches of T.
    """

    def __init__(self, process: Process, facts: dict[str, Any], theta: Theta) -> None:
        self.process, self.theta = process, theta
        self.vocabulary = int(facts["vocabulary"])

    def read(
        self,
        states: States,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> Reading:
        """As `Readout.read`, of the states that the side keeps; the only scorer there is T.

        Raises:
            NonFiniteError: Logits that are NaN or infinite; names the depth.
        """
        if not depths:
            return Reading({}, [])
        told, raw = self.process.call(
            "read",
            row=states.reads.row[targets].tolist(),
            token=states.reads.token[targets].tolist(),
            depths=[*depths],
            theta=self.theta.to_dict() if scorers else None,
        )
        if told["not_finite"] is not None:
            raise NonFiniteError(told["not_finite"])
        numbers = np.frombuffer(raw, np.float32).reshape(told["shape"])
        return Reading(dict(zip(depths, numbers, strict=False)), [*numbers[len(depths) :]])


def requests(forest: Forest) -> list[dict[str, Any]]:
    """A request a leaf of the forest, in its order: every node lies on the way to one.

    Each says which of its positions are read, whoever of those that share them computes them.
    """
    row_of = np.full(len(forest), -1)
    row_of[forest.reads.rows] = np.arange(len(forest.reads.rows))
    made = []
    for leaf in np.flatnonzero(forest.ends == np.arange(len(forest)) + 1):
        path = np.append(forest.ancestors(int(leaf)), leaf)
        positions = np.flatnonzero(row_of[path] >= 0)
        made.append(
            {
                "ids": forest.tokens[path].tolist(),
                "positions": positions.tolist(),
                "rows": row_of[path[positions]].tolist(),
            }
        )
    return made
