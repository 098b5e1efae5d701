"""Second round of a trial: a fixed probe, and the rows that test it (docs/statistics.md).

Without `error` they are rows on which the probe and the model differ, and prove a gain. With it
they are rows that would be answered, and prove the share of wrong answers among them.

second = SecondRound.start(decider, probe, labels, terms)
rows = second.ask()                      # 40 texts by id, in random order
second.labels |= {id: "refund", other: None}  # None: skipped
proof = second.verdict()
proof.certificate                        # None if nothing is proven
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from lastword.decide.answer import Answer
from lastword.decide.decider import Decider
from lastword.errors import InputError
from lastword.files.strict_json import from_json, to_json
from lastword.files.wording import counted, two_digits
from lastword.probes.probe import Probe
from lastword.trust.automation import Automation, Rung, labels_to_prove, plan, rungs, until_failure
from lastword.trust.certificate import Certificate
from lastword.trust.certification import Outcome
from lastword.trust.claims import Trial
from lastword.trust.drift import LIKENESS, rounded
from lastword.trust.evidence import Evidence
from lastword.trust.groups import SEED
from lastword.trust.policy import family
from lastword.trust.second_round import ROWS, DrawnRows, deal
from lastword.trust.terms import Terms
from lastword.trust.words import answered
from lastword.tryout.labels import Labels

_QUESTION, _TOGETHER, _REFERENCE = "answer", 64, 1000
_MOST_TEXTS = 500  # maximum number of texts that are answered to draw from
_MOST_ROWS = 120  # maximum number of rows per look


@dataclass(frozen=True)
class PoolRow:
    """A text without a label, with the answers of the probe, and of a model that differs."""

    id: str
    text: str
    policy: str
    model: str | None
    confidence: float = 1.0


@dataclass(frozen=True, eq=False)
class Proven:
    """The proof that labels give, and the probe and the certificate that are served.

    Attributes:
        outcome: The test of a gain over the model on the first labels.
        kind: The kind of the probe that a promise is about; None if it is about a correction.
        drawn: The counts of a second round that tested a gain.
        words: The verdict of a second round in words.
    """

    probe: Probe | None = None
    certificate: Certificate | None = None
    outcome: Outcome | None = None
    automation: Automation | None = None
    kind: str | None = None
    drawn: DrawnRows | None = None
    words: str = ""


@dataclass
class SecondRound:
    """A fixed probe, and the rows that test it.

    Attributes:
        pool: Confidence of the answers to all texts without a label, one per group.
        rows: The texts to draw from, in random order.
        thresholds: The rungs of the ladder, for an error.
        look_rows: Number of rows per look.
        reference: Conformal p-values of texts in the pool, for the monitor of drift.
        asked: Number of rows that were offered for labelling.
        labels: Labels by row; None for a skipped row.
        look: Number of the current look, from 1; 0 before the first.
    """

    probe: Probe
    terms: Terms
    pool: tuple[float, ...]
    rows: tuple[PoolRow, ...]
    thresholds: tuple[float, ...] = ()
    look_rows: int = ROWS
    reference: tuple[float, ...] = ()
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    labels: dict[str, str | None] = field(default_factory=dict)
    look: int = 0

    @classmethod
    def start(
        cls,
        decider: Decider,
        probe: Probe,
        labels: Labels,
        terms: Terms,
        steps: Sequence[Rung] = (),
    ) -> "SecondRound":
        """Answer texts without a label, and shuffle those that may be drawn.

        `steps` is share against error of the probe, by cross-fitting, for a promise with an error.
        """
        texts = [*labels.pool.items()]
        some = np.sort(deal(range(len(texts)), SEED)[:_MOST_TEXTS])
        pool_texts = dict(texts[i] for i in some)
        read = [*_answered(decider, probe, pool_texts, whole=terms.error is None)]
        rows = [row for row, _ in read]
        pool = np.array([row.confidence for row in rows])
        thresholds, look_rows = _ladder(pool, terms, steps)
        if terms.error is None:
            rows = [row for row in rows if row.model is not None]
        elif thresholds:
            rows = [row for row in rows if row.confidence >= thresholds[-1]]
        # The order is fixed before any label exists, so that the first rows are a random sample.
        order = deal(range(len(rows)), SEED)
        likeness = np.random.default_rng(SEED).permutation([like for _, like in read])
        return cls(
            probe,
            replace(terms, methods=(probe.name,)),
            tuple(pool.tolist()),
            tuple(rows[i] for i in order),
            thresholds,
            look_rows,
            tuple(map(rounded, likeness[:_REFERENCE].tolist())),
            {labels.digest_name: labels.fingerprint},
        )

    @property
    def open_rows(self) -> tuple[PoolRow, ...]:
        """The rows that were offered and have no label yet."""
        return tuple(row for row in self.rows[: self.asked] if row.id not in self.labels)

    def ask(self) -> tuple[PoolRow, ...]:
        """Return the next rows to label, and begin a look."""
        self.asked, self.look = min(self.asked + self.look_rows, len(self.rows)), self.look + 1
        return self.open_rows

    @property
    def before(self) -> "SecondRound":
        """The round before the rows that are open now were offered."""
        return replace(self, asked=len(self.labels), look=self.look - 1)

    def verdict(self) -> Proven:
        """Test the labels of all looks so far, at the level of this look.

        A label that is not an option counts as a wrong answer of probe and model alike. A skipped
        row counts as broken or wrong: otherwise skipping the hard rows would help the probe.
        """
        rows = self.rows[: self.asked]
        truths = [self.labels[row.id] for row in rows]
        skipped = np.array([truth is None for truth in truths])
        right = np.array([row.policy == truth for row, truth in zip(rows, truths, strict=True)])
        base = np.array([row.model == truth for row, truth in zip(rows, truths, strict=True)])
        count = int(skipped.sum())
        told = f", {count} of them skipped" if count else ""
        if self.terms.error is not None:
            return self._automated(rows, ~right, self.terms.error, told)
        return self._gained(base | skipped, right, count, told)

    def _automated(
        self, rows: Sequence[PoolRow], wrong: np.ndarray, error: float, told: str
    ) -> Proven:
        terms, confidence = self.terms, np.array([row.confidence for row in rows])
        places = np.arange(len(rows))  # the pool has one text per group
        steps = rungs(confidence, wrong, places, self.thresholds, np.array(self.pool))
        tested = until_failure(steps, error, terms.delta / 2**self.look)
        automation = Automation(error, tested, look=self.look)
        certificate = None
        if automation.rung(terms.delta) is not None:
            certificate = certified(self.probe, terms, self._more, automation=automation)
        words = (
            f"{answered(automation, terms.delta)} Of {counted(len(rows), 'labelled row')} "
            f"{int(wrong.sum())} were answered wrong{told}.{self._new_classes}"
        )
        return Proven(self.probe, certificate, automation=automation, words=words)

    def _gained(self, base: np.ndarray, right: np.ndarray, skipped: int, told: str) -> Proven:
        every, count, terms = np.ones(len(base), dtype=bool), len(base), self.terms
        # The pool has one text per group, so all rows are independent.
        evidence = Evidence.of(base, right, np.arange(count), changed=every)
        sizes = len(self.pool), len(self.rows), count, evidence.fixed, evidence.broken
        drawn = DrawnRows(*sizes, skipped, self.look)
        counts = (
            f"of {drawn.rows} labelled rows the probe fixed {drawn.fixed} and broke "
            f"{drawn.broken}{told}; probe and model differ on {drawn.differ} of {drawn.pool} "
            f"texts.{self._new_classes}"
        )
        level = drawn.level(terms.delta)
        if not drawn.proves(terms.promise, terms.alpha, terms.delta):
            words = f"Not proven (p = {drawn.p:.2g}, level {level:.2g}): {counts}"
            return Proven(self.probe, drawn=drawn, words=words)
        points = drawn.gain_bound(level)
        least = f"at least {two_digits(points)} points" if points else "more than 0 points"
        sure = f"Proven with {100 * (1 - terms.delta):g}% confidence"
        certificate = certified(self.probe, terms, self._more, evidence, second=drawn)
        words = f"{sure}: accuracy rises by {least}; {counts}"
        return Proven(self.probe, certificate, drawn=drawn, words=words)

    @property
    def _more(self) -> dict[str, Any]:
        return {"reference": {LIKENESS: self.reference}, "benchmarks": dict(self.benchmarks)}

    @property
    def _new_classes(self) -> str:
        """A sentence about labels that are not options, with a space in front; "" without any."""
        options = {option.text for option in self.probe.question.options}
        new = Counter(label for label in self.labels.values() if label not in {None, *options})
        if not new:
            return ""
        names = ", ".join(f"`{label}` ({counted(count, 'row')})" for label, count in new.items())
        return (
            f" Labels that are not options count as wrong answers: {names}. To add such a class, "
            "add it to --choices, or label some of its rows in the table, and start again with "
            "another --out."
        )

    def to_json(self) -> str:
        """Return the state as JSON, without the probe, which is stored separately."""
        values = {**vars(self), "probe": self.probe.digest, "terms": asdict(self.terms)}
        return to_json(values | {"rows": [asdict(row) for row in self.rows]})

    @classmethod
    def from_json(cls, text: str, probe: Probe) -> "SecondRound":
        """Return the second round stored as JSON, with its probe.

        Raises:
            InputError: The text is not a second round, or belongs to another probe.
        """
        try:
            values: dict[str, Any] = from_json(text)
            if values["probe"] != probe.digest:
                raise InputError("it was drawn for another policy")
            terms = values["terms"] | {"methods": tuple(values["terms"]["methods"])}
            rows = tuple(PoolRow(**row) for row in values["rows"])
            values |= {name: tuple(values[name]) for name in ("reference", "pool", "thresholds")}
            return cls(**values | {"probe": probe, "terms": Terms(**terms), "rows": rows})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"this is not a second round: {error}") from error


def _ladder(pool: np.ndarray, terms: Terms, steps: Sequence[Rung]) -> tuple[tuple[float, ...], int]:
    """Return the thresholds to test, and the number of rows per look; () without an error."""
    if terms.error is None or not len(pool):
        return (), ROWS
    level = terms.delta / 2
    rows = min(max(labels_to_prove(steps, terms.error, level) or ROWS, ROWS), _MOST_ROWS)
    return plan(steps, pool, rows=rows, error=terms.error, level=level).thresholds, rows


def certified(
    probe: Probe,
    terms: Terms,
    more: Mapping[str, Any],
    evidence: Evidence | None = None,
    **proof: Any,
) -> Certificate:
    """Return the certificate of a probe alone, dated now.

    `evidence` is that of a gain; `proof` is the test of the errors, or the second round.
    """
    terms = replace(terms, methods=(probe.name,))
    ((policy, share),) = family("mix", terms.methods, terms.promise).items()
    mark = probe.certified(1.0)
    return Certificate(
        probe.subject,
        terms,
        policy,
        () if evidence is None else (Trial(policy, share, evidence),),
        templates=(probe.template,),
        questions=(mark.question,),
        versions={"lastword": version("lastword")},
        **{"probe": mark, **more, **proof},
    )


def _answered(
    decider: Decider, probe: Probe, pool: Mapping[str, str], *, whole: bool
) -> Iterator[tuple[PoolRow, float]]:
    """Yield each readable text with its answers, and its likeness to the labelled ones.

    With `whole` the model's answer is computed even where the probe is certain.
    """
    ready, texts = decider.prepare({_QUESTION: probe.question}), [*pool.items()]
    for first in range(0, len(texts), _TOGETHER):
        some = texts[first : first + _TOGETHER]
        plans = decider.plan_many(
            [(text, id) for id, text in some], ready, "all" if whole else "decide"
        )
        pairs = [*zip(some, plans, strict=True)]
        sound = [(row, plan[0]) for row, plan in pairs if isinstance(plan, list)]
        answers = decider.answer([work for _, work in sound])
        for ((id, text), _), answer in zip(sound, answers, strict=True):
            if isinstance(answer, Answer):
                decided = answer.decision if answer.by is not None and answer.corrected else None
                model = None if decided is None else decided.base_answer
                confidence, like = float(answer.probabilities.max()), answer.likeness
                row = PoolRow(id, text, str(answer.choice), model, confidence)
                yield row, 1.0 if like is None else like
