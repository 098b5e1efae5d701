"""Certificate: the allowed overrides of one model, with the counts that prove them; a TOML file.

When a certificate is read or made, its counts are tested again. It is refused unless they give its
promise, and when it is used with another model, Theta or prompt template.
"""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from lastword.errors import CertificateError, InputError
from lastword.model.weights.identity import model_name, text_digest
from lastword.records.decision import Decision
from lastword.rule.geometry import Scores, margin
from lastword.rule.theta import Theta
from lastword.trust.calibration import Calibration, calibrate
from lastword.trust.claims import Finding, PolicyTrial, best_of, gain_over
from lastword.trust.evidence import GroupEvidence
from lastword.trust.objective import Gains
from lastword.trust.policy import BATCH, Policy, family, is_probe
from lastword.trust.second_round import DrawnRows
from lastword.trust.terms import Terms
from lastword.trust.testing import at_least

SCHEMA = 3
# Entries of `run.json` that identify a model from the hub, by their words in refusals.
_MARKS = {
    "revision": "commit",
    "quantisation": "quantisation",
    "dtype": "dtype",
    "head_dtype": "head dtype",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """The model that a certificate is for.

    Attributes:
        model: The model's name.
        marks: Properties that distinguish it from other models with this name: digests of weights,
            configuration, tokenizer and the base of an adapter, or the hub's commit; data types of
            weights and head, quantisation.
        chat: The chat template and system message around every prompt; empty if there is none.
        theta: Constants and switches.
    """

    model: str
    marks: Mapping[str, str] = field(default_factory=dict)
    chat: str = ""
    theta: Theta = field(default_factory=Theta)

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Subject":
        """Return the subject that a run records, or a tracer describes.

        Args:
            described: `run.json`, or `Tracer.describe()` with its `digests` as `weights`.
        """
        source, chat = described["model"], described.get("chat")
        parts = described.get("weights")
        if isinstance(parts, str):  # records of version 0.2
            parts = {"weights": parts}
        marks = dict(parts or {}) | {word: described.get(n) for n, word in _MARKS.items()}
        return cls(
            model=model_name(source),
            marks={name: str(mark) for name, mark in marks.items() if mark},
            chat="" if chat is None else json.dumps(chat, ensure_ascii=False, sort_keys=True),
            theta=Theta.from_dict(described["theta"]),
        )

    def differences(self, other: "Subject") -> list[tuple[str, str, str]]:
        """Return each property in which another model differs: its name and both values.

        A mark that one of them lacks is `none`. Theta is left out.
        """
        marks = dict.fromkeys([*self.marks, *other.marks])
        pairs = [
            ("model", self.model, other.model),
            *((name, self.marks.get(name), other.marks.get(name)) for name in marks),
            ("chat template", self.chat, other.chat),
        ]
        return [(name, a or "none", b or "none") for name, a, b in pairs if a != b]

    @property
    def digest(self) -> str:
        """A digest of the whole subject."""
        return text_digest(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True)
class Counts(GroupEvidence):
    """`GroupEvidence` of a policy as plain numbers, checked for consistency."""

    def __post_init__(self) -> None:
        """Refuse counts that do not fit together."""
        parts = (self.base_right, self.overrides, self.fixed, self.broken, self.sideways)
        changed = self.fixed + self.broken + self.sideways
        shares = (self.rate, self.fixed_rate, self.right_rate)
        numbers = (self.right_groups, self.discordant)
        if (
            self.items < 1
            or min(parts) < 0
            or changed > self.overrides
            or self.base_right > self.items
            or not 1 <= self.groups <= self.items
            or not all(0 <= count <= self.groups for count in numbers)
            or not all(0 <= share <= 1 for share in shares)
            or not (self.objective_gains is None or self._one_per_group(self.objective_gains))
        ):
            raise InputError("its counts do not fit together")
        # Without this check, a file could claim better rates than its counts give.
        if self.groups == self.items and not self._single():
            raise InputError("its counts do not fit together: items that stand by themselves")

    def _one_per_group(self, gains: Gains) -> bool:
        same = len(gains.values) == len(gains.counts) and sum(gains.counts) == self.groups
        return same and min(gains.counts) > 0

    def _single(self) -> bool:
        """Return True if the rates are those of single items."""
        rates = (
            (self.rate, self.broken, self.items),
            (self.fixed_rate, self.fixed, self.items),
            (self.right_rate, self.broken, self.base_right),
        )
        close = all(math.isclose(r * n, k, abs_tol=1e-6) for r, k, n in rates)
        same = self.right_groups == self.base_right
        return close and same and self.discordant == self.fixed + self.broken

    def evidence(self, costs: float) -> GroupEvidence:
        """Return the evidence of the counts; a broken answer costs `costs` corrected ones."""
        evidence = GroupEvidence(**vars(self))
        if self.groups == self.items:  # `lost` follows from the counts
            lost = costs * self.broken - self.fixed
            evidence = replace(evidence, lost=lost / max(self.discordant, 1))
        return evidence


@dataclass(frozen=True)
class Tried:
    """A policy that was tested, certified or not, with its share of delta."""

    policy: Policy
    share: float
    counts: Counts

    def trial(self, terms: Terms) -> PolicyTrial:
        """Test the policy again."""
        return PolicyTrial.of(
            self.policy, self.counts.evidence(terms.break_costs), self.share, terms
        )


@dataclass(frozen=True)
class CertifiedProbe:
    """The probe that a certificate allows, and the split of the labels that tested it.

    Attributes:
        digest: Digest of its file.
        question: Digest of its question.
        seed: Seed of the split by groups.
        fraction: Share of the groups that the probe was fitted to; the others tested it.
        depth: Depth of the states that it reads; None for a trajectory probe, which reads all.
        pooling: The pooling of these states.
    """

    digest: str
    question: str
    seed: int
    fraction: float
    depth: int | None = None
    pooling: str | None = None


@dataclass(frozen=True)
class Baseline:
    """A classifier without the model.

    Attributes:
        name: `largest class` or `bag of words`.
        counts: Counts of the policy against the baseline, on labels that fitted neither of them;
            `base_right` is the baseline's.
    """

    name: str
    counts: Counts


@dataclass(frozen=True)
class Certificate:
    """A policy with its promise, and the counts that prove it.

    Attributes:
        subject: The model that it is for.
        tried: All policies that were tested, with their counts.
        threshold: Minimum probability of an answer that is given; None to give all answers.
        answered: Number of groups with an answer that is given, if some are deferred.
        wrong: Mean over these groups of the share of wrong answers.
        benchmarks: Fingerprint of the labelled items by benchmark.
        questions: Digests of the labelled questions, if there are any. Other questions are
            answered without the certificate.
        calibration: The temperature of the probabilities; None if it was not fitted.
        reference: Values of each statistic on the labelled items, for `drift`.
        means: Mean probabilities by label set, if the allowed method needs them.
        probe: The allowed probe; None for a correction.
        second: The second round that tested the policy; None without one.
        baselines: The policy against each baseline; None without baselines.
    """

    subject: Subject
    terms: Terms
    policy: Policy
    tried: tuple[Tried, ...]
    threshold: float | None = None
    answered: int = 0
    wrong: float = 0.0
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    calibration: Calibration | None = None
    reference: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    means: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    probe: CertifiedProbe | None = None
    second: DrawnRows | None = None
    baselines: tuple[Baseline, ...] | None = None

    def __post_init__(self) -> None:
        """Test all counts again, and refuse those that do not give the promise."""
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InputError(f"threshold is a probability, not {self.threshold:g}")
        self._check_family()
        if self.policy.operators and self.policy not in [one.policy for one in self.tried]:
            raise InputError("its policy was not tested; certify again")
        if self.policy.operators and not self._keeps_promise():
            counts = self.counts
            words = f"{counts.broken} broken and {counts.fixed} fixed of {counts.items}"
            raise InputError(f"its counts, {words}, do not give its promise; certify again")
        if self.policy.method.startswith(BATCH) and not self.means:
            raise InputError(f"{self.policy.method} needs its means, which are missing")
        if is_probe(self.policy.method) != (self.probe is not None):
            raise InputError(f"it names a probe, but allows {self.policy.method}")
        if self.threshold is not None and not self._keeps_error():
            raise InputError("its counts do not give its threshold; certify again")

    def _keeps_promise(self) -> bool:
        """Return True if the counts give the promise when they are tested again."""
        if not self._fit_objective():
            return False
        if (drawn := self.second) is not None:
            counts, terms = self.counts, self.terms
            tested = counts.items, counts.fixed, counts.broken
            same = tested == (drawn.rows, drawn.fixed, drawn.broken)
            return same and drawn.proves(terms.promise, terms.alpha, terms.delta)
        best = best_of([one.trial(self.terms) for one in self.tried])
        return best is not None and best.policy == self.policy

    def _fit_objective(self) -> bool:
        """Return True if there are gains exactly if there is an objective, all within its range."""
        compared = [one.counts for one in self.tried]
        compared += [one.counts for one in self.baselines or ()]
        gains = [counts.objective_gains for counts in compared]
        if (objective := self.terms.objective) is None:
            return gains == [None] * len(gains)
        most = objective.loss + 1e-9
        return all(one is not None and max(map(abs, one.values)) <= most for one in gains)

    def _check_family(self) -> None:
        """Refuse policies and shares of delta other than those of the methods."""
        terms, shares = self.terms, {one.policy: one.share for one in self.tried}
        # A certificate does not store I(M), which chooses the model's scalar operator.
        families = [family(scalar, terms.methods, terms.promise) for scalar in ("mix", "early")]
        if len(shares) < len(self.tried) or not any(
            shares.keys() == expected.keys()
            and all(math.isclose(shares[policy], expected[policy]) for policy in expected)
            for expected in families
        ):
            raise InputError("it does not hold the policies of its methods; certify again")

    def _keeps_error(self) -> bool:
        """Return True if the counts give the error rate of the given answers."""
        terms, counts = self.terms, self.counts
        if terms.error is None or not (0 < self.answered <= counts.groups and 0 <= self.wrong <= 1):
            return False
        exact = counts.groups == counts.items
        p = at_least(terms.error, self.wrong, self.answered, exact)
        # Each policy that could have been chosen, and the choice of none, has a share (`deferral`).
        return bool(p <= terms.level / (terms.policies + 1))

    @classmethod
    def of(cls, subject: Subject, finding: Finding, **more: Any) -> "Certificate":
        """Return the certificate of a finding, dated now; `more` are further fields."""
        pairs = [(trial, Counts(**vars(trial.evidence))) for trial in finding.trials]
        tried = tuple(Tried(trial.policy, trial.share, counts) for trial, counts in pairs)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(subject, finding.terms, finding.policy, tried, date=now, **more)

    @property
    def _allowed(self) -> Tried:
        """The allowed policy with its counts; any tested policy if none is allowed."""
        return next((one for one in self.tried if one.policy == self.policy), self.tried[0])

    @property
    def counts(self) -> Counts:
        """The counts of the labelled items under the policy."""
        counts = self._allowed.counts
        if self.policy.operators:
            return counts
        return Counts(**vars(counts.evidence(1.0).nothing()))

    @property
    def worth(self) -> dict[str, float]:
        """The net gain per answer, with bounds; empty if nothing is allowed."""
        if (drawn := self.second) is not None:
            return drawn.worth(self.terms.delta)
        if not self.policy.operators:
            return {}
        worth, over = self._allowed.trial(self.terms).worth(self.terms), self.over_baselines
        return worth if over is None else worth | {"over_baselines_at_least": over}

    @property
    def over_baselines(self) -> float | None:
        """The lower bound of the gain over the best baseline; None if none is proven."""
        costs = self.terms.break_costs
        evidence = [one.counts.evidence(costs) for one in self.baselines or ()]
        return gain_over(self._allowed.trial(self.terms), evidence, self.terms)

    def calibrated(self, scores: Sequence[Scores], truths: Sequence[int]) -> "Certificate":
        """Return the certificate with a temperature fitted to labelled items.

        Args:
            scores: Scores of each item under this certificate [candidates].
            truths: Index of each item's true candidate.

        Raises:
            InputError: As `calibration.calibrate`.
        """
        return replace(self, calibration=calibrate(scores, truths))

    def obey(self, decision: Decision) -> Decision:
        """Apply the policy and the threshold to a decision.

        An override that the policy does not allow is replaced by the model's answer. Nothing else
        changes.
        """
        if decision.corrected:
            rule = self.policy.withholds(decision.operator, margin(decision.scores))
            decision = decision if rule is None else decision.withhold(rule)
        unsure = self.threshold is not None and decision.probabilities.max() < self.threshold
        return replace(decision, deferred=bool(unsure))

    def check(self, used: Subject) -> None:
        """Refuse a model, Theta or chat template that differs from the certificate's.

        Raises:
            CertificateError: They differ; the message names both.
        """
        ours = self.subject
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
        left_out = ("schema", "reference", "subject", "means", "tried")
        entries = {name: value for name, value in self.to_dict().items() if name not in left_out}
        return entries | {"subject": self.subject.digest, "counts": defined(asdict(self.counts))}

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
                f"not a certificate of this version: schema = {SCHEMA} is missing; certify again "
                "with `lastword certify`"
            )
        derived = ("schema", "worth", "digest")
        try:
            certificate = from_table(cls, {n: v for n, v in values.items() if n not in derived})
        except InputError as error:
            raise CertificateError(f"not a valid certificate: {error}") from error
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
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CertificateError(f"cannot read a certificate from {path}: {error}") from error
        try:
            return cls.from_dict(values)
        except CertificateError as error:
            raise CertificateError(f"{path}: {error}") from error


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


def from_table(kind: type[T], table: Any) -> T:
    """Return a dataclass from a table, with every value checked against its annotation.

    Raises:
        InputError: A value is missing, unknown, or of another type.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{table!r:.80} is not a table, as expected")
    hints = get_type_hints(kind)
    declared: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    required = [f.name for f in declared if f.default is MISSING and f.default_factory is MISSING]
    for fault, names in (
        ("missing", [n for n in required if n not in table]),
        ("unknown", [n for n in table if n not in hints]),
    ):
        if names:
            raise InputError(f"{names[0]} is {fault}")
    return kind(**{name: _checked(name, value, hints[name]) for name, value in table.items()})


def _checked(name: str, value: Any, kind: Any) -> Any:
    if isinstance(kind, UnionType):  # a value that is None is left out of the file
        first = get_args(kind)[0]
        kind = first if is_dataclass(first) or get_origin(first) is tuple else kind
    if kind is Theta:
        return Theta.from_dict(value)
    if is_dataclass(kind) and isinstance(kind, type):
        return from_table(kind, value)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_checked(name, inner, get_args(kind)[0]) for inner in value)
    if get_origin(kind) is Mapping and isinstance(value, Mapping):
        return {key: _checked(key, inner, get_args(kind)[1]) for key, inner in value.items()}
    if kind in (float, float | None) and type(value) in (int, float):
        return float(value)
    if kind is Any and type(value) in (int, float):  # `evidence.Each`
        return value
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    # The exact type: in Python, True is an integer.
    if type(value) in (get_args(kind) if isinstance(kind, UnionType) else (kind,)):
        return value
    raise InputError(f"{name} cannot be {value!r:.80}")
