"""Certificate: a guarantee about answers, with the counts that prove it; a TOML file.

It is for the answers of a model, of a probe, or of any system whose predictions are in a table.
When a certificate is read or made, its counts are tested again. It is refused unless they give its
promise, and when it is used with another model, Theta or prompt template.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from lastword.errors import CertificateError, InputError
from lastword.files.fields import first_fault
from lastword.model.weights.identity import text_digest
from lastword.records.decision import Decision
from lastword.rule.geometry import margin
from lastword.trust.automation import Automation, Errors
from lastword.trust.calibration import Calibration
from lastword.trust.claims import Trial, best_of
from lastword.trust.evidence import Evidence
from lastword.trust.policy import BATCH, Policy, family, is_probe
from lastword.trust.second_round import DrawnRows
from lastword.trust.subject import CertifiedProbe, Predictions, Subject
from lastword.trust.terms import Terms

SCHEMA = 4


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Certificate:
    """Guarantees about answers, and the counts that prove them.

    Attributes:
        subject: The model, or the system behind a table of predictions.
        policy: The overrides that are allowed.
        trials: All policies that were tested against the model, or predictions against a rival.
        automation: The test of the errors among the given answers; None to give all answers.
        errors: Errors of all predictions of a table; None for a model.
        benchmarks: Fingerprint of the labelled items by benchmark.
        date: Time of issue.
        questions: Digests of the labelled questions, if there are any. Other questions are
            answered without the certificate.
        calibration: The temperature of the probabilities; None if it was not fitted.
        reference: Values of each statistic on the labelled items, for `drift`.
        means: Mean probabilities by label set, if the allowed method needs them.
        probe: The allowed probe; None for a correction.
        second: The second round that tested the policy; None without one.

    Raises:
        InputError: The counts contradict each other, or do not give the promise.
    """

    subject: Subject | Predictions
    terms: Terms
    policy: Policy
    trials: tuple[Trial, ...] = ()
    automation: Automation | None = None
    errors: Errors | None = None
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = field(default_factory=_now)
    calibration: Calibration | None = None
    reference: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    means: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    probe: CertifiedProbe | None = None
    second: DrawnRows | None = None

    def __post_init__(self) -> None:
        """Test all counts again, and refuse those that do not give the promise."""
        evidence = [trial.evidence for trial in self.trials]
        for part in (*evidence, self.errors, self.automation):
            if part is not None:
                part.check()
        predictions = isinstance(self.subject, Predictions)
        faults = self._faults_of_predictions() if predictions else self._faults_of_model()
        if (fault := next(faults, None)) is not None:
            raise InputError(f"{fault}; certify again")

    def _faults_of_predictions(self) -> Iterator[str]:
        if self.errors is None or self.policy.operators or self.probe or self.second:
            yield "it is for predictions, but not about them"
        if self.automation is not None and self.automation.error != self.terms.error:
            yield "its counts do not give its threshold"
        if sum(trial.share for trial in self.trials) > 1 - self._share_of_errors + 1e-9:
            yield "its shares of delta do not add up to delta"

    def _faults_of_model(self) -> Iterator[str]:
        policy = self.policy
        if not self._only_automates:
            if not self._holds_family():
                yield "it does not hold the policies of its methods"
            if policy.operators and policy not in [trial.policy for trial in self.trials]:
                yield "its policy was not tested"
            if policy.operators and not self._keeps_promise():
                words = "{broken} broken and {fixed} fixed of {items}".format(**vars(self.counts))
                yield f"its counts, {words}, do not give its promise"
        if policy.method.startswith(BATCH) and not self.means:
            yield f"{policy.method} needs its means, which are missing"
        if is_probe(policy.method) != (self.probe is not None):
            yield f"it names a probe, but allows {policy.method}"
        if self.automation is not None:
            yield from self._faults_of_threshold(self.automation)

    def _faults_of_threshold(self, automation: Automation) -> Iterator[str]:
        # A probe is fixed before the labels that test it are seen. Corrections are chosen by the
        # same labels: each policy has a share, and so has the choice of none.
        probes = sum(map(is_probe, self.terms.methods))
        least = probes if is_probe(self.policy.method) else self.terms.policies + 1
        if not all(0 <= rung.threshold <= 1 for rung in automation.rungs):
            yield "a threshold is a probability, from 0 to 1"
        promised = automation.error == self.terms.error and automation.answerers >= least
        if not promised or self.threshold is None:
            yield "its counts do not give its threshold"

    @property
    def _share_of_errors(self) -> float:
        """The part of delta for the accuracy of predictions; the trial has the rest."""
        # The errors of the given answers are the only promise if there is one.
        return 0.0 if self.automation is not None else 1.0 / (1 + len(self.trials))

    @property
    def _only_automates(self) -> bool:
        """True for a probe that is not compared with a model, but errs seldom where it answers."""
        alone = not self.trials and self.terms.methods == (self.policy.method,)
        return alone and is_probe(self.policy.method) and self.automation is not None

    def _holds_family(self) -> bool:
        terms, shares = self.terms, {trial.policy: trial.share for trial in self.trials}
        # A certificate does not store I(M), which chooses the model's scalar operator.
        families = [family(scalar, terms.methods, terms.promise) for scalar in ("mix", "early")]
        return len(shares) == len(self.trials) and shares in families

    def _keeps_promise(self) -> bool:
        terms, counts = self.terms, self.counts
        if (drawn := self.second) is None:
            best = best_of(self.trials, terms)
            return best is not None and best.policy == self.policy
        tested = counts.items, counts.fixed, counts.broken
        same = tested == (drawn.rows, drawn.fixed, drawn.broken)
        return same and drawn.proves(terms.promise, terms.alpha, terms.delta)

    @cached_property
    def threshold(self) -> float | None:
        """The minimum confidence of an answer that is given; None to give all answers."""
        rung = None if self.automation is None else self.automation.rung(self.terms.delta)
        return None if rung is None else rung.threshold

    @property
    def _allowed(self) -> Trial:
        """The trial of the allowed policy; any if none is allowed."""
        return next((one for one in self.trials if one.policy == self.policy), self.trials[0])

    @property
    def counts(self) -> Evidence:
        """The counts of the labelled items under the policy, if it was compared."""
        evidence, changes = self._allowed.evidence, ("fixed", "broken", "overrides", "discordant")
        zeros = dict.fromkeys((*changes, "rate", "fixed_rate", "lost"), 0)
        return evidence if self.policy.operators else replace(evidence, **zeros)

    @cached_property
    def worth(self) -> dict[str, float]:
        """The guarantees: bounds of gain and accuracy; empty if there are none."""
        terms = self.terms
        if (drawn := self.second) is not None:
            return drawn.worth(terms.delta)
        if isinstance(self.subject, Predictions):
            return self._worth_of_predictions()
        if not self.policy.operators or not self.trials:
            return {}
        return self._allowed.worth(terms)

    def _worth_of_predictions(self) -> dict[str, float]:
        assert self.errors is not None
        if not (share := self._share_of_errors):
            return {}
        bounds = {"accuracy_at_least": 1 - self.errors.at_most(self.terms.delta * share)}
        for trial in self.trials:
            if trial.gain > 0 and trial.passes(self.terms):
                bounds["net_at_least"] = max(0.0, trial.worth(self.terms)["net_at_least"])
        return bounds

    def obey(self, decision: Decision) -> Decision:
        """Defer a decision below the threshold, and restore the model's answer if it must."""
        if decision.corrected:
            rule = self.policy.withholds(decision.operator, margin(decision.scores))
            decision = decision if rule is None else decision.withhold(rule)
        unsure = self.threshold is not None and decision.probabilities.max() < self.threshold
        return replace(decision, deferred=bool(unsure))

    @property
    def error_rate(self) -> float | None:
        """The largest share of wrong answers among those given; None if none is guaranteed."""
        if self.threshold is not None and self.automation is not None:
            return self.automation.error
        least = self.worth.get("accuracy_at_least")
        return None if least is None else 1 - least

    def check(self, used: Subject) -> None:
        """Refuse a model, Theta or chat template that differs from the certificate's.

        Raises:
            CertificateError: They differ; the message names both.
        """
        ours = self.subject
        if isinstance(ours, Predictions):
            raise CertificateError(
                f"the certificate is for the predictions of a table, {ours.name}, and does not "
                "identify a model; certify the records of this model"
            )
        for name, mine, other in ours.differences(used):
            what = name if name in ("model", "chat template") else f"{name} of {ours.model}"
            raise _refusal(what, mine, other)
        if differences := ours.theta.differences(used.theta):
            name, value = next(iter(differences.items()))
            other = used.theta.differences(ours.theta)[name]
            raise CertificateError(
                f"the certificate is for a Theta with {name} = {value}, not {other}; "
                "load the model with that one (--load theta=FILE), or certify again"
            )

    def check_template(self, template: str) -> None:
        """Refuse a prompt template that differs from the labelled items'.

        Raises:
            CertificateError: They differ; the message names both.
        """
        if template not in self.templates:
            raise _refusal("prompt template", " or ".join(self.templates) or "none", template)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for TOML, without undefined ones."""
        values: dict[str, Any] = defined({"schema": SCHEMA, **asdict(self), "worth": self.worth})
        return values | {"digest": text_digest(_text(values))}

    def describe(self) -> dict[str, Any]:
        """Return the entries that runs and services show; long ones are left out or shortened."""
        left_out = ("schema", "reference", "means", "trials")
        entries = {name: value for name, value in self.to_dict().items() if name not in left_out}
        shown: dict[str, Any] = {"subject": self.subject.digest, "threshold": self.threshold}
        if self.trials:
            shown["counts"] = asdict(self.counts)
        return dict(defined(entries | shown))

    def to_toml(self) -> str:
        """Return the file's text."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Certificate":
        """Return the certificate of the values of `to_dict`.

        Raises:
            CertificateError: Something is missing, unknown or out of range.
        """
        if values.get("schema") != SCHEMA:
            raise CertificateError(
                f"not a certificate of this version (schema {values.get('schema')!r:.20}, "
                f"expected {SCHEMA}): certify again with `lastword certify`"
            )
        derived = ("schema", "worth", "digest")
        text = json.dumps({n: v for n, v in values.items() if n not in derived})
        try:
            certificate = _reader().validate_json(text, strict=True, extra="forbid")
        except (ValidationError, InputError) as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else error
            raise CertificateError(f"not a valid certificate: {fault}") from error
        if _text(certificate.to_dict()) != _text(values):
            raise CertificateError("it was edited by hand: its digest differs; certify again")
        return certificate

    @classmethod
    def read(cls, path: str | Path) -> "Certificate":
        """Read the certificate in a file.

        Raises:
            CertificateError: The file is missing, not TOML, or not a valid certificate.
        """
        try:
            return cls.from_dict(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except CertificateError as error:
            raise CertificateError(f"{path}: {error}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise CertificateError(f"cannot read a certificate from {path}: {error}") from error


@cache
def _reader() -> TypeAdapter[Certificate]:
    return TypeAdapter(Certificate)


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def defined(value: Any) -> Any:
    """Return a table without its undefined entries, because TOML has no null."""
    if isinstance(value, list | tuple):
        return type(value)(map(defined, value))
    if not isinstance(value, dict):
        return value
    return {str(name): defined(inner) for name, inner in value.items() if inner is not None}


def _refusal(what: str, mine: str, other: str) -> CertificateError:
    return CertificateError(
        f"the certificate is for the {what} {mine!r}, and this is {other!r}; certify from its own "
        "records"
    )
