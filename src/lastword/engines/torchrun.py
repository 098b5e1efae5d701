"""One command over several processes (torchrun): rank 0 runs it, the others follow its calls.

Each rank holds a share of the model, so that every forward and every readout is a joint step. Rank
0 reads, decides and writes as it would alone; before a joint step it tells the others which, and
they take it too and keep its result to themselves.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from lastword.errors import TraceError
from lastword.methods.contract import Method
from lastword.model.options import LoadOptions
from lastword.rule.decision import Decision
from lastword.rule.geometry import Scores
from lastword.text.items import Blind
from lastword.text.tokens import Encoded
from lastword.tracer import Read, Tracer

# A service may wait for its next request longer than any training step takes.
_PATIENCE = timedelta(days=365)


class LeadingTracer(Tracer):
    """A tracer on rank 0 whose joint steps the other ranks take with it."""

    def decide(
        self,
        encoded: Sequence[Encoded],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        blind: Blind = "base",
    ) -> list[Decision]:
        """As `Tracer.decide`, on all ranks."""
        _tell("decide", list(encoded), read, methods, blind)
        return super().decide(encoded, read, methods, blind)

    def compare(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        """As `Tracer.compare`, on all ranks."""
        _tell("compare", list(encoded), methods)
        return super().compare(encoded, methods)


def lead(options: LoadOptions) -> Tracer:
    """Load a model on all ranks, and lead them from here.

    Raises:
        TraceError: As `Tracer.open`, on every rank alike.
    """
    _join()
    _tell("load", options)
    return LeadingTracer.open(options)


def follow() -> None:
    """Take every joint step of rank 0 until it lets the ranks go.

    An error that rank 0 meets too is rank 0's to tell.
    """
    logging.getLogger("lastword").setLevel(logging.ERROR)
    _join()
    tracer: Tracer | None = None
    while (step := _hear())[0] != "leave":
        name, *arguments = step
        with contextlib.suppress(TraceError):
            if name == "load":
                tracer = None  # the last model's memory is free before the next one's is needed
                tracer = Tracer.open(*arguments)
            elif tracer is not None:
                getattr(tracer, name)(*arguments)
    distributed.destroy_process_group()


def dismiss() -> None:
    """Let the other ranks go, which wait for a step even where none was taken."""
    _join()
    _tell("leave")
    distributed.destroy_process_group()


def _join() -> None:
    if not distributed.is_initialized():
        # Steps are told over the CPU, whatever the weights' shares are on.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)


def _tell(*step: Any) -> None:
    distributed.broadcast_object_list([step], src=0, device=torch.device("cpu"))


def _hear() -> tuple[Any, ...]:
    heard: list[Any] = [None]
    distributed.broadcast_object_list(heard, src=0, device=torch.device("cpu"))
    step: tuple[Any, ...] = heard[0]
    return step
