"""One command over several processes (torchrun): rank 0 runs it, the others follow its calls.

Each rank holds a share of the model, so that every forward and every readout is a joint step. Rank
0 reads, decides and writes as it would alone; before a joint step it tells the others which, and
they take it too and keep its result to themselves.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from lastword.decide.tracer import Tracer
from lastword.errors import TraceError
from lastword.model.backend import Backend, Local, Profile
from lastword.model.options import LoadOptions
from lastword.model.reading import States

T = TypeVar("T")

# A service may wait for its next request longer than any training step takes.
_PATIENCE = timedelta(days=365)


def _joint(name: str) -> Callable[..., Any]:
    """Return a method of `Leading` that all ranks take; of states each reads its own last ones."""

    def step(leading: "Leading", *arguments: Any) -> Any:
        _tell(name, *(own for own in arguments if not isinstance(own, States)))
        return getattr(leading.share, name)(*arguments)

    return step


class Leading:
    """Rank 0's share of a model, whose joint steps the other ranks take with it.

    Args:
        share: The model as this rank has it.
    """

    vocabularies = True
    states, pooled, read = _joint("states"), _joint("pooled"), _joint("read")

    def __init__(self, share: Local) -> None:
        self.share, self._turn = share, threading.RLock()
        self.source, self.checked = share.source, share.checked
        self.batch_tokens = share.batch_tokens

    @property
    def profile(self) -> Profile:
        """Return the model's profile."""
        return self.share.profile

    def transact(self, compute: Callable[[], T]) -> T:
        """Give what `compute` gives, one group at a time: other ranks keep the states of one."""
        with self._turn:
            return compute()

    def local(self, purpose: str) -> Local:
        """Give the model in this process: this rank's share."""
        return self.share

    def close(self) -> None:
        """End nothing: the other ranks wait for the next model, or to be let go."""


def lead(options: LoadOptions) -> Tracer:
    """Load a model on all ranks, and lead them from here.

    Raises:
        TraceError: As `Tracer.open`, on every rank alike.
    """
    _join()
    _tell("load", options)
    tracer = Tracer.open(options)
    tracer.backend = Leading(tracer.backend.local("leading"))
    return tracer


def follow() -> None:
    """Take every joint step of rank 0 until it lets the ranks go.

    An error that rank 0 meets too is rank 0's to tell.
    """
    logging.getLogger("lastword").setLevel(logging.ERROR)
    _join()
    share: Backend | None = None
    states: Any = None
    while (step := _hear())[0] != "leave":
        name, *arguments = step
        with contextlib.suppress(TraceError):
            if name == "load":
                share = states = None  # its memory is free before the next model's is due
                share = Tracer.open(*arguments).backend
            elif share is not None and name == "states":
                states = share.states(*arguments)
            elif share is not None:
                getattr(share, name)(*([states] if name == "read" else []), *arguments)
    distributed.destroy_process_group()


def dismiss() -> None:
    """Let the other ranks go, which wait for a step even where none was taken."""
    _join()
    _tell("leave")
    distributed.destroy_process_group()


def _join() -> None:
    if not distributed.is_initialized():
        # Steps travel over the CPU, whatever the weights' shares are on.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=_PATIENCE)


def _tell(*step: Any) -> None:
    distributed.broadcast_object_list([step], src=0, device=torch.device("cpu"))


def _hear() -> tuple[Any, ...]:
    box: list[Any] = [None]
    distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    step: tuple[Any, ...] = box[0]
    return step
