"""Certificate of predictions: guarantees of a plain table, as a TOML file, and their monitor."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from lastword.errors import CertificateError, InputError
from lastword.files.cells import cell_text
from lastword.model.weights.identity import text_digest
from lastword.trust.certificate import Counts, defined, from_table
from lastword.trust.evidence import GroupEvidence, group_means
from lastword.trust.monitor import Monitor
from lastword.trust.testing import at_least, paired_bound, paired_p, upper_bound

SCHEMA, KIND = 1, "predictions"


@dataclass(frozen=True)
class ErrorCounts:
    """Wrong answers among some labelled rows.

    Attributes:
        items: Number of rows.
        groups: Number of their groups.
        rate: Mean over the groups of the share of wrong answers; the tests use this mean.
    """

    items: int
    groups: int
    rate: float

    @classmethod
    def of(cls, wrong: np.ndarray, groups: np.ndarray) -> "ErrorCounts":
        """Count the wrong answers of rows."""
        means = group_means(groups, wrong.astype(float))
        return cls(len(wrong), len(means), float(means.mean()) if len(means) else 0.0)

    @property
    def exact(self) -> bool:
        """True if every row is a group by itself."""
        return self.items == self.groups

    def p(self, error: float) -> float:
        """Return the p-value of the hypothesis that more than `error` of such answers are wrong."""
        return float(at_least(error, self.rate, self.groups, self.exact))

    def at_most(self, level: float) -> float:
        """Return the upper bound of the error rate at a level."""
        return upper_bound(self.rate, self.groups, level, self.exact)


@dataclass(frozen=True)
class ThresholdTest:
    """A minimum confidence of given answers: their share of all rows, and their errors."""

    threshold: float
    coverage: float
    errors: ErrorCounts


@dataclass(frozen=True)
class PlainCertificate:
    """Guarantees about predictions, with the counts that prove them.

    Attributes:
        name: The user's name of the system. No model is identified.
        table: Digest of the labelled table.
        delta: Maximum probability that one of the guarantees does not hold.
        error: Maximum share of wrong answers at or above the threshold.
        level: The part of delta of each statement.
        accuracy: Errors of all labelled rows.
        rival: Counts against the rival; None without one.
        tested: Thresholds that were tested, from the highest to the lowest.
        date: Time of issue.

    Raises:
        CertificateError: Its counts do not fit together.
    """

    name: str
    table: str
    delta: float
    error: float
    level: float
    accuracy: ErrorCounts
    rival: Counts | None = None
    tested: tuple[ThresholdTest, ...] = ()
    date: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other."""
        statements = 1 + (self.rival is not None) + bool(self.tested)
        shares = (self.delta, self.error)
        # The statements share delta (Bonferroni), so that all of them hold together.
        if (
            not all(0 < share < 1 for share in shares)
            or self.level * statements > self.delta + 1e-12
        ):
            raise CertificateError("its shares of delta do not add up to delta; certify again")
        for one in (self.accuracy, *(step.errors for step in self.tested)):
            if not (0 <= one.groups <= one.items and 0 <= one.rate <= 1):
                raise CertificateError("its counts do not fit together; certify again")
        thresholds = [step.threshold for step in self.tested]
        if thresholds != sorted(thresholds, reverse=True):
            raise CertificateError("its thresholds are not in the tests' order; certify again")

    @property
    def accuracy_at_least(self) -> float:
        """Lower bound of the accuracy."""
        return 1 - self.accuracy.at_most(self.level)

    @cached_property
    def gain_at_least(self) -> float | None:
        """Lower bound of the gain over the rival; None if no gain is certified."""
        if self.rival is None:
            return None
        return _certified_gain(self.rival.evidence(1.0), self.level)

    @property
    def threshold(self) -> ThresholdTest | None:
        """The lowest certified confidence; None if none is."""
        # Fixed-sequence testing: the first failure ends it.
        passed = [*takewhile(lambda one: one.errors.p(self.error) <= self.level, self.tested)]
        return passed[-1] if passed else None

    @property
    def promise(self) -> dict[str, Any]:
        """The guarantees, without those that are not given."""
        values = {
            "accuracy_at_least": self.accuracy_at_least,
            "gain_at_least": self.gain_at_least,
            "threshold": None if self.threshold is None else self.threshold.threshold,
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as TOML holds them."""
        values: dict[str, Any] = defined({"schema": SCHEMA, "kind": KIND} | asdict(self))
        values["tested"] = [asdict(step) for step in self.tested]
        values["promise"] = self.promise
        return values | {"digest": _digest(values)}

    def to_toml(self) -> str:
        """Return the file's text."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def read(cls, path: str | Path) -> "PlainCertificate":
        """Read a file, and test its counts again.

        Raises:
            CertificateError: It cannot be read, or its counts do not give its promise.
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CertificateError(f"cannot read the certificate {path}: {reason}") from error
        try:
            return cls.from_dict(values)
        except CertificateError as error:
            raise CertificateError(f"{path}: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PlainCertificate":
        """Return the certificate of the values of `to_dict`; errors are those of `read`."""
        table = dict(values)
        if (table.pop("schema", None), table.pop("kind", None)) != (SCHEMA, KIND):
            raise CertificateError(
                "expected a certificate of predictions, as `lastword certify TABLE --out FILE` "
                "writes it"
            )
        try:
            digest, promise = table.pop("digest"), table.pop("promise")
            if digest != _digest({k: v for k, v in values.items() if k != "digest"}):
                raise CertificateError("it was edited; certify again")
            certificate = from_table(cls, table)
        except (KeyError, TypeError, ValueError, InputError) as error:
            if isinstance(error, CertificateError):
                raise
            raise CertificateError(f"it is not whole: {error}; certify again") from error
        if certificate.promise != promise:
            raise CertificateError("its counts do not give its promise; certify again")
        return certificate

    def monitor(self) -> "PlainMonitor":
        """Return a monitor of a stream of predictions."""
        return PlainMonitor(self)


def _certified_gain(counts: GroupEvidence, level: float) -> float | None:
    """Return the lower bound of a gain that is proven at a level, or None.

    Single rows have the unconditional test (method, section 17), groups the bounded one
    (section 13).
    """
    if not counts.exact:
        won = counts.fixed > counts.broken and counts.gains(1.0) <= level
        return max(0.0, counts.net_bound(1.0, level)) if won else None
    table = int(counts.fixed), int(counts.broken), int(counts.items)
    (p,) = paired_p(np.array([table[0]]), np.array([table[1]]), table[2])
    return max(0.0, paired_bound(*table, level)) if p <= level else None


def _digest(values: Mapping[str, Any]) -> str:
    return text_digest(json.dumps(values, ensure_ascii=False, sort_keys=True))


@dataclass
class PlainMonitor:
    """Decides which predictions are given, and tests if the guarantee still holds (section 13).

    With a threshold it tests the errors of the answers that are given against `error`; without one,
    the errors of all answers against the certified accuracy. The choice of the answers that get
    their truth must not depend on whether they were right.

    Attributes:
        certificate: The guarantee.
        state: Counts and bets on the labelled answers so far.
    """

    certificate: PlainCertificate
    state: Monitor = field(init=False)

    def __post_init__(self) -> None:
        """Start without labelled answers."""
        certificate = self.certificate
        most = 1 - certificate.accuracy_at_least
        # A monitor needs a rate inside (0, 1), and a bound of the accuracy may be 0 or 1.
        rate = most if certificate.threshold is None else certificate.error
        self.state = Monitor(min(max(rate, 1e-6), 1 - 1e-6), certificate.delta)

    def allows(self, prediction: str, confidence: float | None = None) -> bool:
        """Return True if the confidence of a prediction reaches the threshold.

        Raises:
            InputError: The certificate has a threshold, and the confidence is missing or nan.
        """
        if (step := self.certificate.threshold) is None:
            return True
        if confidence is None or confidence != confidence:
            raise InputError(f"the prediction {prediction!r:.40} needs its confidence, a number")
        return confidence >= step.threshold

    def observe(self, prediction: str, confidence: float | None, truth: str) -> bool:
        """Count a labelled answer, and return True if the alarm has gone off.

        Prediction and truth are compared as the cells of a table: 7, 7.0 and "7" are equal.

        Raises:
            InputError: As in `allows`, or the truth is missing.
        """
        answer, right = (cell_text(value).strip() for value in (prediction, truth))
        if not right:
            raise InputError(f"the prediction {answer!r:.40} has no truth: leave it out")
        if self.allows(prediction, confidence):
            self.state = self.state.seen(answer != right)
        return self.state.alarm
