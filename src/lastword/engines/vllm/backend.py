"""A model that vLLM runs in a separate process, as a source of states.

It is asked as a model in this process is, so that everything that decides is what it is for every
model; what it is asked for is done by the side process. States stay there, those of one group.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int

from lastword.decide.decider import Decider
from lastword.decide.options import DecideOptions
from lastword.decide.tracer import Tracer
from lastword.engines.vllm.checking import check
from lastword.engines.vllm.checkpoint import VllmCheckpoint, find
from lastword.engines.vllm.process import Process, SideLostError
from lastword.engines.vllm.settings import HOOKS_VERSION, VllmSettings
from lastword.errors import ElsewhereError, ModelError
from lastword.model import loading
from lastword.model.asked import asked
from lastword.model.backend import MOST_BATCH_TOKENS, Local, Pooled, Profile, default_batch_tokens
from lastword.model.families import context_length, text_config
from lastword.model.options import LoadOptions
from lastword.model.reading import Reading, States
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer
from lastword.text.branch import Branch
from lastword.text.forest import Forest, build

T = TypeVar("T")

MOST_LOSSES = 3  # side processes that one group of items may end

_log = logging.getLogger("lastword")


def open_decider(options: DecideOptions, settings: VllmSettings) -> Decider:
    """Make a decider whose forward passes and readouts are vLLM's.

    `tracer.backend.close()` ends vLLM's process. Methods that need more than S and T (DoLa, SLED,
    DeLTa) are refused by name.

    Raises:
        InputError: An option that says how transformers runs a model.
        ModelError: vLLM, its version or the model does not fit.
        UnsupportedModelError: What the worker reads is not what vLLM says.
    """
    engine, checkpoint = settings.describe(), find(options)
    backend = Vllm(checkpoint, options, settings, engine)
    tracer = Tracer.over(backend, checkpoint.tokenizer, options, checkpoint.invariant)
    return Decider.over(tracer, options)


class Vllm:
    """The model in the side process.

    Args:
        engine: What a run records of it.

    Raises:
        ModelError: vLLM cannot load the model, or its version is not as the hooks know it.
        UnsupportedModelError: What the worker reads is not what vLLM says.
    """

    vocabularies = False  # they stay in the worker

    def __init__(
        self,
        checkpoint: VllmCheckpoint,
        options: LoadOptions,
        settings: VllmSettings,
        engine: dict[str, Any],
    ) -> None:
        self._checkpoint, self._settings = checkpoint, settings
        self._arguments = checkpoint.arguments(options, settings)
        self._turn = threading.RLock()
        self.theta = options.theta or Theta()
        self._start()
        self.theta.window(self.depth)  # a model that is too shallow is refused here
        kind = f"{self.facts['class']} ({self.profile.model_type})"
        self.checked = check(self, kind, _reference(checkpoint, options, self.facts))
        self.batch_tokens = _batch_tokens(self.profile, checkpoint.config)
        self.source = {
            **options.names(options.label),
            **{"revision": checkpoint.revision, "quantisation": self.facts["quantisation"]},
            **checkpoint.source,
            **{"dtype": self.facts["dtype"], "device": self.facts["device"]},
            **{"asked": asked(options), "engine": engine},
        }

    @property
    def depth(self) -> int:
        """L."""
        return int(self.facts["depth"])

    @property
    def profile(self) -> Profile:
        """The model's profile, as the side says."""
        return Profile(
            model_type=text_config(self._checkpoint.config).model_type,
            depth=self.depth,
            width=int(text_config(self._checkpoint.config).hidden_size),
            vocabulary=int(self.facts["vocabulary"]),
            context=context_length(self._checkpoint.config),
            dtype=getattr(torch, self.facts["dtype"]),
            device=torch.device(self.facts["device"]),
            attention="vllm",
        )

    def states(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 0
    ) -> States:
        """Compute the states of all branches at `depths`; the side keeps them in place of the last.

        Returns:
            The rows and what they predict, without the states.
        """
        forest = build(branches)
        rows = len(forest.reads.rows)
        self.process.call("compute", requests(forest), rows, sorted({*depths}))
        return States({}, forest.reads)

    def pooled(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 0
    ) -> Pooled:
        """Compute the mean state of each branch at `depths`; the means alone leave the worker."""
        reads = self.states(branches, depths).reads
        means: Pooled = self.process.call("pool", reads.row, np.bincount(reads.branch), [*depths])
        return means

    def read(
        self,
        states: States,
        targets: Int[np.ndarray, " targets"],
        depths: Sequence[int],
        scorers: Sequence[TokenScorer] = (),
    ) -> Reading:
        """Read states with the head, as `Readout.read` does; the only scorer in the side is T."""
        if not depths:
            return Reading({}, [], np.full(len(targets), -1))
        row, token = states.reads.row[targets], states.reads.token[targets]
        theta = self.theta.to_dict() if scorers else None
        *numbers, faults = self.process.call("read", row, token, [*depths], theta)
        scores = numbers[len(depths) :]
        return Reading(dict(zip(depths, numbers, strict=False)), scores, faults.astype(int))

    def own_scores(self, branches: Sequence[Branch]) -> Float[np.ndarray, " targets"]:
        """Return vLLM's log-probabilities of the tokens that the branches read."""
        answer = self.process.call("log_probs", [[*b.tokens] for b in branches])
        pairs = zip(answer, branches, strict=True)
        return np.concatenate([np.array(row[b.boundary - 1 :]) for row, b in pairs])

    def transact(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, one group at a time; replace a side that ends.

        Raises:
            SideLostError: The group ended one side after the other.
        """
        with self._turn:
            for _ in range(MOST_LOSSES - 1):
                try:
                    return compute()
                except SideLostError as error:
                    _log.warning("%s\nstarting another", error)
                    self._start()
            return compute()

    def local(self, purpose: str) -> Local:
        """Refuse to give the model in this process: it is in the side.

        Raises:
            ElsewhereError: Always, in the name of what the model is needed for.
        """
        raise ElsewhereError(
            f"{purpose} needs the model itself, which vLLM has in a separate process: leave "
            "--engine vllm out"
        )

    def close(self) -> None:
        """End what was started for the model, and remove what was written for it."""
        self.process.close()
        if self._checkpoint.folder is not None:
            self._checkpoint.folder.cleanup()

    def _start(self) -> None:
        folder = self._checkpoint.folder
        self.process = Process(self._settings.python, [] if folder is None else [folder.name])
        try:
            self.facts = self.process.call("load", self._arguments)
        except ModelError as error:
            self.process.close()
            version = self._settings.version()
            fits = version.startswith(HOOKS_VERSION)
            note = "" if fits else f" (lastword was tried with {HOOKS_VERSION})"
            message = f"vLLM {version} cannot load {self._checkpoint.name}{note}: {error}"
            raise ModelError(message) from error


def requests(forest: Forest) -> list[dict[str, Any]]:
    """Return one request per leaf of the forest, in the forest's order.

    Every node is on the path to some leaf, so the requests cover all nodes. Each request lists the
    positions to read; of the requests that share a position, any may compute it.
    """
    row_of = np.full(len(forest), -1)
    row_of[forest.reads.rows] = np.arange(len(forest.reads.rows))
    leaves = []
    for leaf in np.flatnonzero(forest.ends == np.arange(len(forest)) + 1):
        path = np.append(forest.ancestors(int(leaf)), leaf)
        positions = np.flatnonzero(row_of[path] >= 0)
        rows = row_of[path[positions]].tolist()
        ids = forest.tokens[path].tolist()
        leaves.append({"ids": ids, "positions": positions.tolist(), "rows": rows})
    return leaves


def _reference(checkpoint: VllmCheckpoint, options: LoadOptions, facts: dict[str, Any]) -> Any:
    """Load the same checkpoint in this process, for the check; None where it is large."""
    if not checkpoint.small:
        return None
    return loading.load(replace(options, device="cpu", dtype=facts["dtype"])).model


def _batch_tokens(profile: Profile, config: Any) -> int:
    if profile.device.type == "cuda":
        return MOST_BATCH_TOKENS  # that device is vLLM's: torch may see none here
    return default_batch_tokens(text_config(config), profile.dtype, torch.device("cpu"))
