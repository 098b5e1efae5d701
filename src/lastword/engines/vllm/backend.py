"""A model that vLLM runs in a separate process, as a source of states.

It has the interface of a model in this process, so that all decisions use the same code. The side
process does the work, and stores the states of one group.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import PreTrainedModel

from lastword.decide.decider import Decider
from lastword.decide.options import DecideOptions
from lastword.decide.tracer import Tracer
from lastword.engines.vllm.checking import check
from lastword.engines.vllm.checkpoint import VllmCheckpoint, find
from lastword.engines.vllm.process import Process, SideLostError
from lastword.engines.vllm.settings import HOOKS_VERSION, VllmSettings
from lastword.errors import ElsewhereError, ModelError
from lastword.model import loading
from lastword.model.backend import MOST_BATCH_TOKENS, Local, Pooled, Profile, default_batch_tokens
from lastword.model.digest import load_digest
from lastword.model.options import LoadOptions
from lastword.model.parts import context_length, text_config
from lastword.model.reading import Reading, States
from lastword.rule.theta import Theta
from lastword.rule.tile import TokenScorer
from lastword.text.branch import Branch
from lastword.text.forest import Forest, build

T = TypeVar("T")

MOST_LOSSES = 3  # number of side processes lost with one group after which the run stops

_log = logging.getLogger("lastword")


def open_decider(options: DecideOptions, settings: VllmSettings) -> Decider:
    """Return a decider whose forward passes and readouts run in vLLM.

    `tracer.backend.close()` ends vLLM's process. Methods that need more than S and T (DoLa, SLED,
    DeLTa) are refused.

    Raises:
        InputError: An option applies only to transformers.
        ModelError: vLLM, its version or the model is not supported.
        UnsupportedModelError: The worker's log-probabilities differ from vLLM's.
    """
    engine, checkpoint = settings.describe(), find(options)
    backend = Vllm(checkpoint, options, settings, engine)
    tracer = Tracer.over(backend, checkpoint.tokenizer, options, checkpoint.invariant)
    return Decider.over(tracer, options)


class Vllm:
    """The model in the side process.

    Args:
        engine: The description of the engine in `run.json`.

    Raises:
        ModelError: vLLM cannot load the model, or the hooks do not support its version.
        UnsupportedModelError: The worker's log-probabilities differ from vLLM's.
    """

    vocabularies = False  # logits stay in the worker

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
        self.theta.window(self.depth)  # raises for a model that is too shallow
        kind = f"{self.facts['class']} ({self.profile.model_type})"
        self.checked = check(self, kind, _reference(checkpoint, options, self.facts))
        self.batch_tokens = _batch_tokens(self.profile, checkpoint.config)
        self.source = {
            **options.names(options.label),
            **{"revision": checkpoint.revision, "quantisation": self.facts["quantisation"]},
            **checkpoint.source,
            **{"dtype": self.facts["dtype"], "device": self.facts["device"]},
            **{"asked": load_digest(options), "engine": engine},
        }

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return int(self.facts["depth"])

    @property
    def profile(self) -> Profile:
        """The model's profile, from the side."""
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
        """Compute the states of all branches at `depths`; they replace those stored in the side.

        Returns:
            The rows and their predicted tokens, without the states.
        """
        forest = build(branches)
        rows = len(forest.reads.rows)
        self.process.call("compute", requests(forest), rows, sorted({*depths}))
        return States({}, forest.reads)

    def pooled(
        self, branches: Sequence[Branch], depths: Sequence[int], padded_tokens: int = 0
    ) -> Pooled:
        """Return the mean state of each branch at `depths`; only the means leave the worker."""
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
        """Apply the head to states; see `Readout.read`. The only scorer in the side is T."""
        if not depths:
            return Reading({}, [], np.full(len(targets), -1))
        row, token = states.reads.row[targets], states.reads.token[targets]
        theta = self.theta.to_dict() if scorers else None
        *numbers, faults = self.process.call("read", row, token, [*depths], theta)
        scores = numbers[len(depths) :]
        return Reading(dict(zip(depths, numbers, strict=False)), scores, faults.astype(int))

    def vllm_scores(self, branches: Sequence[Branch]) -> Float[np.ndarray, " targets"]:
        """Return vLLM's log-probabilities of the tokens that the branches predict, in nats."""
        answer = self.process.call("log_probs", [[*b.tokens] for b in branches])
        pairs = zip(answer, branches, strict=True)
        return np.concatenate([np.array(row[b.boundary - 1 :]) for row, b in pairs])

    def transact(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute`; one group runs at a time, and a lost side is replaced.

        Raises:
            SideLostError: Several sides were lost with this group.
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
        """Refuse to return the model, which is in another process.

        Raises:
            ElsewhereError: Always; the message begins with `purpose`.
        """
        raise ElsewhereError(
            f"{purpose} needs the model itself, which vLLM has in a separate process: leave "
            "--engine vllm out"
        )

    def close(self) -> None:
        """End the side process, and remove the files that were written for it."""
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

    Every node is on the path to a leaf, so the requests cover all nodes. Each request lists the
    positions to read. If several requests share a position, any of them may compute it.
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


def _reference(
    checkpoint: VllmCheckpoint, options: LoadOptions, facts: dict[str, Any]
) -> PreTrainedModel | None:
    """Load the same checkpoint in this process, for the check; None if it is large."""
    if not checkpoint.small:
        return None
    return loading.load(replace(options, device="cpu", dtype=facts["dtype"])).model


def _batch_tokens(profile: Profile, config: Any) -> int:
    if profile.device.type == "cuda":
        return MOST_BATCH_TOKENS  # only vLLM may see the device, so its memory is unknown here
    return default_batch_tokens(text_config(config), profile.dtype, torch.device("cpu"))
