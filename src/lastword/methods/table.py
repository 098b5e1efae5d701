"""The table of methods by name, including those that users register."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from lastword.errors import CertificateError, InputError
from lastword.methods.baselines import (
    decisive_only,
    early_exit,
    exit_depth,
    length_only,
    model_answer,
    question_blind,
    self_consistent,
)
from lastword.methods.batch_calibrated import BatchCalibrated, Means, Running
from lastword.methods.by_function import by_tokens
from lastword.methods.contextual import contextual
from lastword.methods.contract import AGGREGATIONS, Facts, Method
from lastword.methods.correction import Correction, Scored
from lastword.methods.delta import Extrapolation
from lastword.methods.dola import Contrast, Plausible, premature_depths
from lastword.methods.gated import TraceGated
from lastword.methods.pmi import Pmi
from lastword.methods.sled import Evolution
from lastword.methods.trace import Trace


@dataclass(frozen=True)
class MethodEntry:
    """A row of the table.

    Attributes:
        make: Function that makes the method from facts of the model and, if it has one, a number.
        number: Description of the number after `@`; empty if it takes none.
        needed: True if that number has no default.
        aggregates: True if it accepts `@sum`, `@mean` and `@bytes`.
        correction: Function that makes its correction from its name and facts of the model; None
            for the candidate with the highest score.
    """

    make: Callable[..., Method]
    summary: str
    source: str
    number: str = ""
    needed: bool = False
    aggregates: bool = False
    correction: Callable[..., Correction] | None = None


@dataclass(frozen=True)
class Check:
    """A comparison of a method with released code, on the same states (experiments/releases.py).

    Attributes:
        release: Repository and commit, or package and version; the reason if there is none.
        scores: Number of scores compared.
        difference: Largest difference of a score; nan if there is no release.
    """

    release: str
    scores: int = 0
    difference: float = math.nan

    def __str__(self) -> str:
        """Return the release and the largest difference."""
        if math.isnan(self.difference):
            return self.release
        return f"{self.release}, largest difference {self.difference:.2g}"


def _dola(facts: Facts, *, normed: bool = False) -> Method:
    return by_tokens(Contrast(facts.depth, premature_depths(facts.depth), normed))


def _dola_eq4(facts: Facts, *, released: bool = False) -> Method:
    return by_tokens(Plausible(Contrast(facts.depth, premature_depths(facts.depth)), released))


def _dola_static(facts: Facts, fraction: float | None = None) -> Method:
    fixed = facts.depth // 2 if fraction is None else exit_depth(facts, fraction)
    if fixed == facts.depth:
        raise InputError("dola-static contrasts the last depth with an earlier one; lower FRACTION")
    return by_tokens(Contrast(facts.depth, (fixed,)))


def _sled(facts: Facts, *, raw: bool = False, sparse: bool = False) -> Method:
    premature = premature_depths(facts.depth) if sparse else tuple(range(facts.depth))
    return by_tokens(Evolution(facts.depth, premature, raw))


_DEPTH = "a fraction of depth"
_BASE = "the model's answer"
_OURS = "a part of TRACE"
_BASELINE = "a baseline"
_DOLA = "Chuang et al., ICLR 2024, and its release"
_BATCH = "Zhou et al., ICLR 2024"
_PMI = "Holtzman et al., EMNLP 2021"
_SLED = "Zhang et al., NeurIPS 2024, and its release"

METHODS: Mapping[str, MethodEntry] = {
    "trace": MethodEntry(Trace, "one operator an item, by geometry and I(M)", "TRACE, Algorithm 1"),
    "base-mean": MethodEntry(model_answer, "mean log-probability a token", f"{_BASE}: TRACE's b"),
    "base-sum": MethodEntry(
        partial(model_answer, aggregation="sum"),
        "summed log-probability",
        f"{_BASE}: lm-evaluation-harness, DoLa",
    ),
    "base-bytes": MethodEntry(
        partial(model_answer, aggregation="bytes"),
        "summed log-probability over UTF-8 bytes",
        f"{_BASE}: lm-evaluation-harness",
    ),
    "dola": MethodEntry(
        _dola, "contrast with the most unlike earlier layer, read raw", _DOLA, aggregates=True
    ),
    "dola-normed": MethodEntry(
        partial(_dola, normed=True),
        "the same, early layers through the final norm",
        f"{_DOLA}; the norm is ours",
        aggregates=True,
    ),
    "dola-eq4": MethodEntry(
        _dola_eq4,
        "with plausibility 0.1, then softmax",
        f"{_DOLA}: the equation",
        aggregates=True,
    ),
    "dola-eq4-released": MethodEntry(
        partial(_dola_eq4, released=True),
        "softmax, then plausibility 0.1",
        f"{_DOLA}: lm_score by default",
        aggregates=True,
    ),
    "dola-static": MethodEntry(
        _dola_static,
        "contrast with one fixed layer, floor(L/2)",
        _DOLA,
        number=_DEPTH,
        aggregates=True,
    ),
    "sled": MethodEntry(_sled, "log_softmax of evolved logits", _SLED, aggregates=True),
    "sled-raw": MethodEntry(
        partial(_sled, raw=True), "evolved logits themselves", _SLED, aggregates=True
    ),
    "sled-sparse": MethodEntry(
        partial(_sled, sparse=True),
        "sled over every second depth from floor(L/2)",
        f"{_SLED}; the fewer layers are ours",
        aggregates=True,
    ),
    "delta": MethodEntry(
        lambda facts: by_tokens(Extrapolation(facts)),
        "logits extrapolated beyond the last depth",
        "DeLTa",
        aggregates=True,
    ),
    "decisive-only": MethodEntry(decisive_only, "the decisive layer, ungated", _OURS),
    "early-exit": MethodEntry(
        early_exit, "one earlier depth", _BASELINE, number=_DEPTH, needed=True, aggregates=True
    ),
    "self-consistent-depth": MethodEntry(
        self_consistent, "mean over the interior window", _BASELINE, aggregates=True
    ),
    "pmi": MethodEntry(
        Pmi,
        "the base less LAMBDA times the base without the question",
        _PMI,
        number="LAMBDA",
        needed=True,
        aggregates=True,
    ),
    "dcpmi": MethodEntry(partial(Pmi, aggregation="sum"), "pmi@1 of sums, as released", _PMI),
    "contextual": MethodEntry(
        contextual, "the base over its mean on inputs that say nothing", "Zhao et al., ICML 2021"
    ),
    "contextual-released": MethodEntry(
        partial(contextual, released=True),
        "the same, that mean taken before it is normalised",
        "Zhao et al., ICML 2021, its release",
    ),
    "batch-calibrated": MethodEntry(
        BatchCalibrated,
        "the base's probabilities less their mean over the label set",
        _BATCH,
        correction=Running,
    ),
    "batch-calibrated-log": MethodEntry(
        partial(BatchCalibrated, log=True),
        "the same, divided by that mean",
        f"{_BATCH}; the log form",
        correction=partial(Running, log=True),
    ),
    "trace-gated": MethodEntry(
        TraceGated,
        "TRACE, whose overrides have to come from the question",
        _OURS,
    ),
    "question-blind": MethodEntry(question_blind, "the base without the question", _BASELINE),
    "length-only": MethodEntry(length_only, "the fewest characters", _BASELINE),
}

# Corrections that learn or need other prompts: compared only by request.
_BY_NAME = (
    *("pmi", "dcpmi", "contextual", "contextual-released"),
    *("batch-calibrated", "batch-calibrated-log", "trace-gated"),
)
# The methods that are compared by default; early exit at three quarters.
COMPARED = tuple(
    "early-exit@0.75" if name == "early-exit" else name for name in METHODS if name not in _BY_NAME
)


def check_of(name: str) -> Check:
    """Return the comparison of a method of the table with its release, by its full name."""
    plain = name.partition("@")[0]
    if plain in _checks():
        return _checks()[plain]
    # There is nothing to compare with for parts of TRACE, baselines and the model's answer.
    unpublished = METHODS[plain].source.startswith((_OURS, _BASE, _BASELINE))
    return Check("no publication" if unpublished else "from the paper alone")


@cache
def _checks() -> Mapping[str, Check]:
    with Path(__file__).with_name("releases.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["method"]: Check(row["release"], int(row["scores"]), float(row["difference"]))
            for row in csv.DictReader(file)
        }


def entry(name: str) -> MethodEntry:
    """Return the row of a method by its full name, which may include options.

    Raises:
        InputError: No such method.
    """
    plain = name.partition("@")[0]
    if plain not in METHODS:
        raise InputError(f"no method {plain}; known: {', '.join(METHODS)}")
    return METHODS[plain]


def resolve(names: Sequence[str], facts: Facts) -> dict[str, Method]:
    """Return methods by their full names, in order, each once.

    Raises:
        InputError: No such method, or an option that it does not take.
    """
    return {name: _make(name, facts) for name in dict.fromkeys(names)}


def correction_of(name: str, facts: Facts) -> Correction:
    """Return a method's correction, or one that picks its highest-scoring candidate.

    Raises:
        InputError: No such method, or one that needs whole vocabularies.
    """
    method, correction = _make(name, facts), entry(name).correction
    if correction is not None:
        return correction(name, facts)
    if isinstance(method, Correction):
        return method
    if method.needs.token_scorer is not None:
        raise InputError(
            f"{name} needs the whole vocabulary, so it is not a correction: use `lastword compare`"
        )
    return Scored(name, facts, method)


def certified(name: str, means: Means, requested: Correction, facts: Facts) -> Correction:
    """Return the correction of a certificate.

    Args:
        name: The certificate's method.
        means: The certificate's frozen means by label set; {} if the method has none.
        requested: The correction that decides without a certificate.
        facts: Facts of the model.

    Raises:
        CertificateError: `requested` is another method than the certificate's.
    """
    if requested.name not in ("trace", name):
        raise CertificateError(
            f"the certificate is for overrides by {name}, not for those of {requested.name}: leave "
            "the certificate or the correction out"
        )
    if not means:
        return requested if requested.name == name else correction_of(name, facts)
    method = _make(name, facts)
    if not isinstance(method, BatchCalibrated):
        raise CertificateError(f"the certificate has means, and {name} uses none")
    return Scored(name, facts, replace(method, means=means))


def _make(name: str, facts: Facts) -> Method:
    row = entry(name)
    aggregation: Any = None
    numbers: list[float] = []
    for text in name.split("@")[1:]:
        if row.aggregates and text in AGGREGATIONS and aggregation is None:
            aggregation = text
        elif row.number and not numbers:
            numbers.append(_number(text, name, row))
        else:
            raise InputError(f"method {name} takes no @{text}; {_options(row)}")
    if row.needed and not numbers:
        raise InputError(f"method {name} needs {row.number}: {name}@0.75")
    method = row.make(facts, *numbers)
    if not isinstance(method, Method):
        raise InputError(f"{name} is not a method: it lacks aggregation, needs or scores")
    return method if aggregation is None else replace(method, aggregation=aggregation)  # type: ignore[type-var]


def _options(row: MethodEntry) -> str:
    options = [row.number] if row.number else []
    options += [f"one of {', '.join(AGGREGATIONS)}"] * row.aggregates
    return f"it takes {' and '.join(options) or 'no option'}"


def _number(text: str, name: str, row: MethodEntry) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"method {name}: expected {row.number}, got {text!r}") from error
