"""Certificate of a plain table: what was proven of predictions, as a TOML file, and its monitor."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lastword.errors import CertificateError, InputError
from lastword.model.weights.identity import text_digest
from lastword.trust.certificate import Counts
from lastword.trust.evidence import GroupEvidence
from lastword.trust.monitor import Monitor
from lastword.trust.plain import ErrorCounts, PlainFinding, ThresholdTest, certified_gain, lowest

SCHEMA, KIND = 1, "predictions"


@dataclass(frozen=True)
class PlainCertificate:
    """A guarantee about predictions, with the counts that give it.

    Attributes:
        name: The user's name of the system. No model is identified.
        table: Digest of the labelled table.
        delta: Maximum probability that one of the guarantees does not hold.
        error: Maximum share of wrong answers from the threshold on.
        level: The part of delta of each statement.
        accuracy: ErrorCounts of all labelled rows.
        rival: Counts against the rival; None without one.
        tested: Thresholds that were tested, from the highest on.
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
        """Refuse numbers that no table gives."""
        statements = 1 + (self.rival is not None) + bool(self.tested)
        shares = (self.delta, self.error)
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

    @classmethod
    def of(cls, finding: PlainFinding) -> "PlainCertificate":
        """Issue the certificate of a finding, now."""
        return cls(
            name=finding.table.name,
            table=finding.table.digest,
            delta=finding.delta,
            error=finding.error,
            level=finding.level,
            accuracy=finding.accuracy,
            rival=None if finding.rival is None else Counts(**vars(finding.rival)),
            tested=finding.tested,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def accuracy_at_least(self) -> float:
        """Lower bound of the accuracy."""
        return 1 - self.accuracy.at_most(self.level)

    @property
    def gain_at_least(self) -> float | None:
        """Lower bound of the gain over the rival; None if no gain is certified."""
        if self.rival is None:
            return None
        return certified_gain(GroupEvidence(**vars(self.rival.evidence(1.0))), self.level)

    @property
    def threshold(self) -> float | None:
        """The lowest confidence of an answer that is given; None if none is certified."""
        step = lowest(self.tested, self.error, self.level)
        return None if step is None else step.threshold

    @property
    def promise(self) -> dict[str, Any]:
        """The guarantees, without those that are not given."""
        values = {
            "accuracy_at_least": self.accuracy_at_least,
            "gain_at_least": self.gain_at_least,
            "threshold": self.threshold,
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as TOML holds them."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values = {"schema": SCHEMA, "kind": KIND} | values
        values["tested"] = [asdict(step) for step in self.tested]
        values["promise"] = self.promise
        return values | {"digest": _digest(values)}

    def to_toml(self) -> str:
        """Return the file's text."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def read(cls, path: str | Path) -> "PlainCertificate":
        """Read a file, and test again what it promises.

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
        """Return the certificate of what `to_dict` gave; errors are those of `read`."""
        given = dict(values)
        if (given.pop("schema", None), given.pop("kind", None)) != (SCHEMA, KIND):
            raise CertificateError(
                "expected a certificate of predictions, as `lastword certify TABLE --out FILE` "
                "writes it"
            )
        try:
            digest, promise = given.pop("digest"), given.pop("promise")
            if digest != _digest({k: v for k, v in values.items() if k != "digest"}):
                raise CertificateError("it was edited; certify again")
            given["accuracy"] = ErrorCounts(**given["accuracy"])
            given["tested"] = tuple(
                ThresholdTest(**step | {"errors": ErrorCounts(**step["errors"])})
                for step in given["tested"]
            )
            if given.get("rival") is not None:
                given["rival"] = Counts(**given["rival"])
            made = cls(**given)
        except (KeyError, TypeError, ValueError, InputError) as error:
            if isinstance(error, CertificateError):
                raise
            raise CertificateError(f"it is not whole: {error}; certify again") from error
        if made.promise != promise:
            raise CertificateError("its counts do not give its promise; certify again")
        return made

    def monitor(self) -> "PlainMonitor":
        """Return a monitor of a stream of predictions."""
        return PlainMonitor(self)


def _digest(values: Mapping[str, Any]) -> str:
    return text_digest(json.dumps(values, ensure_ascii=False, sort_keys=True))


@dataclass
class PlainMonitor:
    """Says which predictions are given, and whether the guarantee still holds (method, section 13).

    With a threshold it watches the errors of the answers from it on, against `error`; without one
    the errors of all answers, against the certified accuracy. Which answers get their truth must
    not depend on whether they were right.

    Attributes:
        certificate: The guarantee.
        state: The labelled answers so far.
    """

    certificate: PlainCertificate
    state: Monitor = field(init=False)

    def __post_init__(self) -> None:
        """Start to watch."""
        certificate = self.certificate
        most = 1 - certificate.accuracy_at_least
        rate = most if certificate.threshold is None else certificate.error
        self.state = Monitor(min(max(rate, 1e-6), 1 - 1e-6), certificate.delta)

    def allows(self, prediction: str, confidence: float | None = None) -> bool:
        """Return True if a prediction is given: its confidence reaches the threshold.

        Raises:
            InputError: The certificate has a threshold, and the confidence is missing or nan.
        """
        if (least := self.certificate.threshold) is None:
            return True
        if confidence is None or confidence != confidence:
            raise InputError(f"the prediction {prediction!r:.40} needs its confidence, a number")
        return confidence >= least

    def observe(self, prediction: str, confidence: float | None, truth: str) -> bool:
        """Count a labelled answer, and return True if the alarm has gone off."""
        if self.allows(prediction, confidence):
            self.state = self.state.seen(prediction != truth)
        return self.state.alarm
