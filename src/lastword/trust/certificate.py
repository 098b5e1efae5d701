"""Certificate: what was certified, for which model, from which items; a TOML file.

It decides which overrides are allowed and nothing else: Theta is part of what it names, and a
model that it was not made for is refused.
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
# What a run records of a model that is no file, by the word that a refusal has for it.
_MARKS = {
    "revision": "commit",
    "quantisation": "quantisation",
    "dtype": "dtype",
    "head_dtype": "head dtype",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """Subject of a certificate, which it is held against when it is used.

    Attributes:
        model: The model's name.
        marks: What tells it from others of its name, as far as it has it: digests of its weights,
            configuration, tokenizer and of an adapter's base, or the hub's commit; dtype of weights
            and head, quantisation.
        chat: The chat template and system message around every prompt; empty where there is none.
        theta: Constants and switches.
    """

    model: str
    marks: Mapping[str, str] = field(default_factory=dict)
    chat: str = ""
    theta: Theta = field(default_factory=Theta)

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Subject":
        """Read the subject from what a run records of its model, or a tracer describes.

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

    @property
    def digest(self) -> str:
        """One digest over all of it."""
        return text_digest(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True)
class Counts(GroupEvidence):
    """`GroupEvidence` of a policy on the labelled items, as plain numbers that fit together."""

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
            or not (self.objective_gains is None or self._all_gains(self.objective_gains))
        ):
            raise InputError("its counts do not fit together")
        if self.groups == self.items and not self._single():
            raise InputError("its counts do not fit together: items that stand by themselves")

    def _all_gains(self, gains: Gains) -> bool:
        """Return True if there is a gain per group."""
        same = len(gains.values) == len(gains.counts) and sum(gains.counts) == self.groups
        return same and min(gains.counts) > 0

    def _single(self) -> bool:
        """Return True if the rates are those of as many single items."""
        rates = (
            (self.rate, self.broken, self.items),
            (self.fixed_rate, self.fixed, self.items),
            (self.right_rate, self.broken, self.base_right),
        )
        close = all(math.isclose(r * n, k, abs_tol=1e-6) for r, k, n in rates)
        same = self.right_groups == self.base_right
        return close and same and self.discordant == self.fixed + self.broken

    def evidence(self, costs: float) -> GroupEvidence:
        """Return the evidence that they are, a break costing so many repairs."""
        evidence = GroupEvidence(**vars(self))
        if self.groups == self.items:  # `lost` follows from the counts
            lost = costs * self.broken - self.fixed
            evidence = replace(evidence, lost=lost / max(self.discordant, 1))
        return evidence


@dataclass(frozen=True)
class Tried:
    """A policy that was tested, certified or not."""

    policy: Policy
    share: float
    counts: Counts

    def trial(self, terms: Terms) -> PolicyTrial:
        """Test it again."""
        return PolicyTrial.of(
            self.policy, self.counts.evidence(terms.break_costs), self.share, terms
        )


@dataclass(frozen=True)
class CertifiedProbe:
    """The probe that a certificate is for, and the labels that judged it.

    Attributes:
        digest: Of its file.
        question: Digest of the question that it answers.
        seed: Of the split by groups: one part makes the probe, the other judges it.
        fraction: The share of the groups that makes it.
        depth: Whose states it reads; None of a trajectory probe, which reads every depth.
        pooling: How those of a text become one.
    """

    digest: str
    question: str
    seed: int
    fraction: float
    depth: int | None = None
    pooling: str | None = None


@dataclass(frozen=True)
class Baseline:
    """A classifier without the model, and the policy against it.

    Attributes:
        name: `largest class` or `bag of words`.
        counts: On labels that made neither of the two; `base_right` is the baseline's.
    """

    name: str
    counts: Counts


@dataclass(frozen=True)
class Certificate:
    """A policy with what was promised of it and how that is known.

    Attributes:
        subject: The model, with its Theta, that it is for.
        tried: Every policy that was tested, with its counts.
        threshold: Least probability of an answer that is given; None where all are.
        answered: Groups with an answer that is given, where some are deferred.
        wrong: Mean over these of the share of such answers that is wrong.
        benchmarks: Fingerprint of the labelled items by benchmark.
        questions: Digests of the questions that they ask, where these are known: another question
            is answered without the certificate.
        calibration: The temperature of decisions' probabilities; None where it was not fitted.
        reference: Values of each statistic on the labelled items, for `drift`.
        means: Of the method that is allowed, where it learned any from the labelled items
            without their labels: its mean probabilities by label set.
        probe: The probe that is allowed; None of a correction.
        second: The second round that judged it; None if a split or a correction was judged.
        baselines: The policy against each baseline; None if there was none.
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
        """Test again everything that was tested, and refuse what does not give the promise."""
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InputError(f"threshold is a probability, not {self.threshold:g}")
        self._check_family()
        if self.policy.operators and self.policy not in [one.policy for one in self.tried]:
            raise InputError("its policy is none of those that were tested; certify again")
        if self.policy.operators and not self._keeps_promise():
            counts = self.counts
            said = f"{counts.broken} broken and {counts.fixed} fixed of {counts.items}"
            raise InputError(f"its counts, {said}, do not give its promise; certify again")
        if self.policy.method.startswith(BATCH) and not self.means:
            raise InputError(f"{self.policy.method} needs its means, which are missing")
        if is_probe(self.policy.method) != (self.probe is not None):
            raise InputError(f"it names a probe where it allows {self.policy.method}")
        if self.threshold is not None and not self._keeps_error():
            raise InputError("its counts do not give its threshold; certify again")

    def _keeps_promise(self) -> bool:
        """Return True if the counts give the promise when they are tested again."""
        if not self._fit_objective():
            return False
        if (drawn := self.second) is not None:
            counts, terms = self.counts, self.terms
            same = (counts.items, counts.fixed, counts.broken) == (
                drawn.rows,
                drawn.fixed,
                drawn.broken,
            )
            return same and drawn.proves(terms.promise, terms.alpha, terms.delta)
        best = best_of([one.trial(self.terms) for one in self.tried])
        return best is not None and best.policy == self.policy

    def _fit_objective(self) -> bool:
        """Return True if there are gains on the objective, and none of them is out of its range."""
        compared = [one.counts for one in self.tried]
        compared += [one.counts for one in self.baselines or ()]
        gains = [counts.objective_gains for counts in compared]
        if (objective := self.terms.objective) is None:
            return gains == [None] * len(gains)
        most = objective.loss + 1e-9
        return all(one is not None and max(map(abs, one.values)) <= most for one in gains)

    def _check_family(self) -> None:
        """Refuse other policies, or other shares of delta, than the methods have."""
        terms, shares = self.terms, {one.policy: one.share for one in self.tried}
        known = [family(x, terms.methods, terms.promise) for x in ("mix", "early")]
        if len(shares) < len(self.tried) or not any(
            shares.keys() == shares_of.keys()
            and all(math.isclose(shares[policy], shares_of[policy]) for policy in shares_of)
            for shares_of in known
        ):
            raise InputError("it does not hold the policies of its methods; certify again")

    def _keeps_error(self) -> bool:
        """Return True if the counts give the error among the answers given."""
        terms, counts = self.terms, self.counts
        if terms.error is None or not (0 < self.answered <= counts.groups and 0 <= self.wrong <= 1):
            return False
        exact = counts.groups == counts.items
        p = at_least(terms.error, self.wrong, self.answered, exact)
        return bool(p <= terms.level / (terms.policies + 1))

    @classmethod
    def of(cls, subject: Subject, finding: Finding, **more: Any) -> "Certificate":
        """Issue the certificate of a finding, now."""
        pairs = [(trial, Counts(**vars(trial.evidence))) for trial in finding.trials]
        tried = tuple(Tried(trial.policy, trial.share, counts) for trial, counts in pairs)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(subject, finding.terms, finding.policy, tried, date=now, **more)

    @property
    def _allowed(self) -> Tried:
        """The trial of the allowed policy; any trial if no policy is allowed."""
        return next((one for one in self.tried if one.policy == self.policy), self.tried[0])

    @property
    def counts(self) -> Counts:
        """Return the counts of the labelled items under the policy."""
        counts = self._allowed.counts
        if self.policy.operators:
            return counts
        return Counts(**vars(counts.evidence(1.0).nothing()))

    @property
    def worth(self) -> dict[str, float]:
        """Return what the policy is worth an answer, in repairs, as counted and at least."""
        if (drawn := self.second) is not None:
            return drawn.worth(self.terms.delta)
        if not self.policy.operators:
            return {}
        worth, over = self._allowed.trial(self.terms).worth(self.terms), self.over_baselines
        return worth if over is None else worth | {"over_baselines_at_least": over}

    @property
    def over_baselines(self) -> float | None:
        """Return the lower bound of the gain over the best baseline; None if none is proven."""
        costs = self.terms.break_costs
        evidence = [one.counts.evidence(costs) for one in self.baselines or ()]
        return gain_over(self._allowed.trial(self.terms), evidence, self.terms)

    def calibrated(self, scores: Sequence[Scores], truths: Sequence[int]) -> "Certificate":
        """Return the same with a temperature fitted to labelled items.

        Args:
            scores: Of each item, as decided under this certificate [candidates].
            truths: Place of each item's true candidate.

        Raises:
            InputError: As `calibration.calibrate`.
        """
        return replace(self, calibration=calibrate(scores, truths))

    def obey(self, decision: Decision) -> Decision:
        """Apply the policy and the threshold to a decision.

        An override that fails a rule of the policy gives way to the model's answer; nothing
        else is changed.
        """
        if decision.corrected:
            rule = self.policy.withholds(decision.operator, margin(decision.scores))
            decision = decision if rule is None else decision.withhold(rule)
        unsure = self.threshold is not None and decision.probabilities.max() < self.threshold
        return replace(decision, deferred=bool(unsure))

    def check(self, used: Subject) -> None:
        """Refuse another model, Theta or chat template than the certificate was made for.

        Raises:
            CertificateError: They differ; the message names both.
        """
        ours = self.subject
        both = dict.fromkeys([*ours.marks, *used.marks])
        for name, mine, other in (
            ("model", ours.model, used.model),
            *((f"{n} of {ours.model}", ours.marks.get(n), used.marks.get(n)) for n in both),
            ("chat template", ours.chat, used.chat),
        ):
            if mine != other:
                raise _refusal(name, mine, other)
        if ours.theta != used.theta:
            raise CertificateError(
                f"the certificate is for a Theta with {_difference(ours.theta, used.theta)}; "
                "use that one, or certify again from records made with this one"
            )

    def check_template(self, template: str) -> None:
        """Refuse prompts that are made otherwise than those of the labelled items.

        Raises:
            CertificateError: The message names both.
        """
        if template not in self.templates:
            raise _refusal("prompt template", " or ".join(self.templates), template)

    def to_dict(self) -> dict[str, Any]:
        """Plain values without what is undefined, as TOML holds them."""
        values: dict[str, Any] = defined({"schema": SCHEMA, **asdict(self), "worth": self.worth})
        return values | {"digest": text_digest(_text(values))}

    def describe(self) -> dict[str, Any]:
        """Say of it what a run or a service does: not what it is for, nor `drift`'s values."""
        left_out = ("schema", "reference", "subject", "means", "tried")
        entries = {name: value for name, value in self.to_dict().items() if name not in left_out}
        return entries | {"subject": self.subject.digest, "counts": defined(asdict(self.counts))}

    def to_toml(self) -> str:
        """Return the file's text."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Certificate":
        """Return the certificate of a `to_dict`.

        Raises:
            CertificateError: Something is missing, unknown or out of range.
        """
        if values.get("schema") != SCHEMA:
            raise CertificateError(
                f"no certificate of this version: schema = {SCHEMA} is missing; certify again, by "
                "`lastword certify`"
            )
        derived = ("schema", "worth", "digest")
        try:
            built = _built(cls, {n: v for n, v in values.items() if n not in derived})
        except InputError as error:
            raise CertificateError(f"no certificate: {error}") from error
        if _text(built.to_dict()) != _text(values):
            raise CertificateError("it was edited by hand: its digest is another; certify again")
        return built

    @classmethod
    def read(cls, path: str | Path) -> "Certificate":
        """Read the certificate in a file.

        Raises:
            CertificateError: The file is missing, not TOML, or holds none.
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
    """Leave out the entries of a table that are undefined; TOML has no word for them."""
    if isinstance(value, list | tuple):
        return type(value)(map(defined, value))
    if not isinstance(value, dict):
        return value
    return {str(name): defined(inner) for name, inner in value.items() if inner is not None}


def _refusal(what: str, mine: str | None, other: str | None) -> CertificateError:
    return CertificateError(
        f"the certificate is for the {what} {mine or 'none'!r}, and this is {other or 'none'!r}; "
        "certify from its own records"
    )


def _difference(mine: Theta, other: Theta) -> str:
    """`tau_dim = 1.0015, not 1.01`: the first constant in which two Thetas differ."""
    names = (f.name for f in fields(Theta) if getattr(mine, f.name) != getattr(other, f.name))
    name = next(names)
    return f"{name} = {getattr(mine, name)}, not {getattr(other, name)}"


def _built(kind: type[T], table: Any) -> T:
    """Return a dataclass from a table, checked against its annotations."""
    if not isinstance(table, Mapping):
        raise InputError(f"{table!r:.80} stands where a table is expected")
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
        return _built(kind, value)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_checked(name, inner, get_args(kind)[0]) for inner in value)
    if get_origin(kind) is Mapping and isinstance(value, Mapping):
        return {key: _checked(key, inner, get_args(kind)[1]) for key, inner in value.items()}
    if kind in (float, float | None) and type(value) in (int, float):
        return float(value)
    if kind is Any and type(value) in (int, float):
        return value
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if type(value) in (get_args(kind) if isinstance(kind, UnionType) else (kind,)):
        return value
    raise InputError(f"{name} cannot be {value!r:.80}")
