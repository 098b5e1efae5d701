"""A tracer whose model is in vLLM: it decides here, and has its numbers computed in the side."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from lastword.engines.vllm.checking import check
from lastword.engines.vllm.process import Process, SideLostError
from lastword.engines.vllm.remote import RemoteBackbone, RemoteReadout
from lastword.engines.vllm.settings import TRIED, Settings
from lastword.engines.vllm.source import find
from lastword.errors import InputError, ModelError
from lastword.methods.contract import Method
from lastword.model import loading
from lastword.model.asked import asked
from lastword.model.memory import MOST_BATCH_TOKENS, default_batch_tokens
from lastword.model.options import LoadOptions
from lastword.rule.decision import Decision
from lastword.rule.geometry import Scores
from lastword.rule.scorer import Scorer
from lastword.text.items import Blind
from lastword.text.tokens import Encoded
from lastword.theta import Theta
from lastword.tracer import Read, Tracer
from lastword.trust.certificate import Certificate, Subject
from lastword.weights.invariant import Factors

T = TypeVar("T")

MOST_LOSSES = 3  # side processes that one group of items may end

_log = logging.getLogger("lastword")


class VllmTracer(Tracer):
    """A tracer whose forwards and readouts are vLLM's.

    Methods that need more than S and T (DoLa, SLED, DeLTa) are refused by name, and so is what
    needs the model itself (asking, generating).

    Args:
        options: Which model, and how it is read.
        settings: Which vLLM.

    Raises:
        InputError: An option that says how transformers runs a model.
        ModelError: vLLM, its version or the model does not fit.
        UnsupportedModelError: What the worker reads is not what vLLM says.
    """

    def __init__(self, options: LoadOptions, settings: Settings) -> None:
        self.theta, self.overflow, self.chat = (
            options.theta or Theta(),
            options.overflow,
            options.chat,
        )
        self.head_dtype, self._settings = options.head_dtype, settings
        engine, self._found = settings.describe(), find(options)
        self.tokenizer = self._found.tokenizer
        self._asked = self._found.arguments(options, settings)
        facts = self._start()
        self._check(options, facts)
        given = self._found.invariant
        self.factors = given if isinstance(given, Factors) else None
        self.invariant = given.value if isinstance(given, Factors) else given
        self.scorer = Scorer(self.theta, self.backbone.depth, self.readout.vocabulary)
        self.batch_tokens = options.batch_tokens or _batch_tokens(self.backbone)
        known = {name: facts[name] for name in ("dtype", "device", "quantisation")}
        commit = self._found.revision
        self.source = {
            **{"model": options.name, "revision": commit, "asked": asked(options)},
            **known,
            "engine": engine,
        }
        assert options.certificate is None or isinstance(options.certificate, Certificate)
        self.certificate = options.certificate
        if self.certificate is not None:
            self.certificate.check(Subject.of(self.describe()))

    def decide(
        self,
        encoded: Sequence[Encoded],
        read: Read = "decide",
        methods: Mapping[str, Method] | None = None,
        blind: Blind = "base",
    ) -> list[Decision]:
        """As `Tracer.decide`; a side process that ends meanwhile is replaced."""
        _refuse_scorers(methods or {})
        decide = super().decide
        return self._patiently(lambda: decide(encoded, read, methods, blind))

    def compare(
        self, encoded: Sequence[Encoded], methods: Mapping[str, Method]
    ) -> list[dict[str, Scores | None]]:
        """As `Tracer.compare`; a side process that ends meanwhile is replaced."""
        _refuse_scorers(methods)
        compare = super().compare
        return self._patiently(lambda: compare(encoded, methods))

    def close(self) -> None:
        """End the side process."""
        self._process.close()

    def _start(self) -> dict[str, Any]:
        """A side process with the model, and what stands for it here; what the side says of it.

        Raises:
            ModelError: vLLM cannot load the model, or its version is not as the hooks know it.
        """
        written = self._found.folder
        self._process = Process(self._settings.python, [] if written is None else [written.name])
        try:
            facts, _ = self._process.call("load", asked=self._asked)
        except ModelError as error:
            self._process.close()
            version = self._settings.version()
            tried = "" if version.startswith(TRIED) else f" (lastword was tried with {TRIED})"
            told = f"vLLM {version} cannot load {self._found.name}{tried}: {error}"
            raise ModelError(told) from error
        self.backbone = RemoteBackbone(self._process, facts, self._found.config)
        self.readout = RemoteReadout(self._process, facts, self.theta)
        return facts

    def _check(self, options: LoadOptions, facts: dict[str, Any]) -> None:
        assert isinstance(self.backbone, RemoteBackbone)
        self.theta.window(self.backbone.depth)  # a model that is too shallow is refused here
        reference = None
        if self._found.small:
            same = replace(options, device="cpu", dtype=facts["dtype"])
            reference = loading.load(same).model
        kind = f"{facts['class']} ({self.backbone.config.model_type})"
        checked = check(self.backbone, self.readout, kind, reference)
        self.checked = checked  # type: ignore[assignment] # that of another check: for the record

    def _patiently(self, compute: Callable[[], T]) -> T:
        """What a group gives, one group at a time: the side keeps the states of one.

        Raises:
            SideLostError: The group ended one side after the other.
        """
        with self.backbone.lock:
            for _ in range(MOST_LOSSES - 1):
                try:
                    return compute()
                except SideLostError as error:
                    _log.warning("%s\nstarting another", error)
                    self._start()
            return compute()


def _batch_tokens(backbone: Any) -> int:
    if backbone.device.type == "cuda":
        return MOST_BATCH_TOKENS  # that device is vLLM's: torch may see none here
    return default_batch_tokens(backbone.config, backbone.dtype, torch.device("cpu"))


def _refuse_scorers(methods: Mapping[str, Method]) -> None:
    """Refuse peers that look at whole vocabularies, which stay in the worker."""
    for name, method in methods.items():
        if method.needs.scorer is not None:
            raise InputError(
                f"method {name} reads whole vocabularies, which stay in vLLM's worker: ask without "
                "--engine vllm, or for methods of S alone, such as early-exit and decisive-only"
            )
