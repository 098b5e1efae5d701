"""Second round of a trial: a fixed policy, and the rows that test it (section 20).

second = SecondRound.start(tracer, labels, probe, template)
rows = second.ask()                      # 40 texts by id, in random order
second.tell({id: "refund", other: None})  # None: skipped
proof = second.verdict()
proof.certificate                        # None if the gain is not proven
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lastword.decide.answer import Answer, Probed
from lastword.decide.answerers import Reading
from lastword.decide.decider import Decider
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.strict_json import from_json, to_json
from lastword.files.wording import counted
from lastword.model.encoder import Encoder
from lastword.probes.probe import Probe
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Finding, Trial
from lastword.trust.drift import LIKENESS, rounded
from lastword.trust.evidence import Evidence
from lastword.trust.groups import SEED
from lastword.trust.policy import Promise, family
from lastword.trust.second_round import ROWS, DrawnRows, chance_of_proof, deal
from lastword.trust.terms import Terms
from lastword.tryout.labels import Labels

_SCHEMA, _QUESTION, _TOGETHER, _REFERENCE = 1, "answer", 64, 1000


@dataclass(frozen=True)
class DifferingRow:
    """A text to which policy and model give different answers.

    Attributes:
        id: The row's id in the table.
        policy: The policy's answer.
        model: The model's answer.
    """

    id: str
    text: str
    policy: str
    model: str


@dataclass(frozen=True)
class Proof:
    """Verdict of a second round.

    Attributes:
        drawn: The counts of the rows.
        certificate: The certificate; None if the gain is not proven.
        words: The verdict in words.
        advice: What the user can do next; empty if nothing is left to do.
    """

    drawn: DrawnRows
    certificate: Certificate | None
    words: str
    advice: str = ""


@dataclass
class SecondRound:
    """A fixed policy, and the rows that test it.

    Attributes:
        probe: The policy: a probe with its threshold.
        pool: Number of texts without a label, one per group.
        rows: Texts on which policy and model differ, in random order.
        reference: Conformal p-values of texts in the pool, for the monitor of drift.
        benchmarks: Fingerprint of the table by its name.
        asked: Number of rows that were offered for labelling.
        labels: Labels by row; None for a skipped row.
        look: Number of the current look, from 1; 0 before the first.
    """

    probe: Probe
    promise: Promise
    alpha: float
    delta: float
    pool: int
    rows: tuple[DifferingRow, ...]
    reference: tuple[float, ...] = ()
    benchmarks: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    labels: dict[str, str | None] = field(default_factory=dict)
    look: int = 0

    @classmethod
    def start(
        cls,
        tracer: Tracer,
        labels: Labels,
        probe: Probe,
        template: str | None,
        terms: Terms,
        readers: Sequence[Encoder] = (),
    ) -> "SecondRound":
        """Answer every text without a label by policy and by model, and shuffle those that differ.

        `readers` are the sentence encoders that the probe may need.

        Raises:
            InputError: The probe has no threshold, or is for another model or template.
        """
        if probe.threshold is None:
            raise InputError("a second round needs a probe with a threshold: run `try` again")
        decider = Decider(tracer, probes=[probe], encoders=readers, template=template)
        read = [*_answered(decider, probe, labels.pool)]
        # The order is fixed before any label exists, so that the first rows are a random sample.
        differing = [row for row, _ in read if row is not None]
        order = deal(range(len(differing)), SEED)
        likeness = np.random.default_rng(SEED).permutation([like for _, like in read])
        return cls(
            probe,
            terms.promise,
            terms.alpha,
            terms.delta,
            len(read),
            tuple(differing[i] for i in order),
            tuple(map(rounded, likeness[:_REFERENCE].tolist())),
            {labels.digest_name: labels.fingerprint},
        )

    @property
    def open_rows(self) -> tuple[DifferingRow, ...]:
        """The rows that were offered and have no label yet."""
        return tuple(row for row in self.rows[: self.asked] if row.id not in self.labels)

    @property
    def chance(self) -> float:
        """Probability that the next look proves a gain, at the leave-one-out rates."""
        figures = (int(self.probe.figures[name]) for name in ("fixed", "broken", "changed"))
        fixed, broken, changed = figures
        rows = min(self.asked + ROWS, len(self.rows))
        return chance_of_proof(fixed, broken, changed, rows, self.delta / 2 ** (self.look + 1))

    def ask(self, k: int = ROWS) -> tuple[DifferingRow, ...]:
        """Return the next `k` rows to label, and begin a look.

        Raises:
            InputError: Rows without a label are left from the last look, or no row is left.
        """
        if self.open_rows:
            raise InputError(f"{counted(len(self.open_rows), 'row')} given out without a label yet")
        if self.asked >= len(self.rows):
            raise InputError("every row on which policy and model differ has been given out")
        self.asked, self.look = min(self.asked + k, len(self.rows)), self.look + 1
        return self.open_rows

    def tell(self, labels: Mapping[str, str | None]) -> None:
        """Add labels of rows that `ask` returned; None skips a row.

        A label that is not an option counts as a wrong answer of policy and model alike.

        Raises:
            InputError: A row was not offered or has a label already.
        """
        open_ids = {row.id for row in self.open_rows}
        for id in labels:
            if id not in open_ids:
                raise InputError(f"row {id} was not drawn for this look, or has its label already")
        self.labels |= labels

    @property
    def before(self) -> "SecondRound":
        """The round before the rows that are open now were offered."""
        return replace(self, asked=len(self.labels), look=self.look - 1)

    def verdict(self) -> Proof:
        """Test the labels of all looks so far, at the level of this look.

        Raises:
            InputError: A row that was offered has no label and was not skipped.
        """
        if self.open_rows or not self.asked:
            raise InputError("tell the labels of all rows that were given out first")
        rows = self.rows[: self.asked]
        truths = [self.labels[row.id] for row in rows]
        skipped = np.array([truth is None for truth in truths])
        pairs = [*zip(rows, truths, strict=True)]
        right = np.array([row.policy == truth for row, truth in pairs])
        # A skipped row counts as broken: otherwise skipping the hard rows would help the policy.
        base = np.array([row.model == truth for row, truth in pairs]) | skipped
        every = np.ones(len(rows), dtype=bool)
        # The pool has one text per group, so all rows are independent.
        evidence = Evidence.of(base, right, np.arange(len(rows)), changed=every)
        drawn = DrawnRows(
            self.pool,
            len(self.rows),
            len(rows),
            evidence.fixed,
            evidence.broken,
            int(skipped.sum()),
            self.look,
        )
        proven = drawn.proves(self.promise, self.alpha, self.delta)
        certificate = self._certificate(drawn, evidence) if proven else None
        return Proof(drawn, certificate, self._words(drawn, proven=proven))

    def _certificate(self, drawn: DrawnRows, evidence: Evidence) -> Certificate:
        probe = self.probe
        terms = Terms(self.alpha, self.delta, methods=(probe.name,), promise=self.promise)
        ((policy, share),) = family("mix", terms.methods, terms.promise).items()
        trial = Trial(policy, share, evidence)
        # `drawn.proves` has tested the trial, at the level of the look.
        counts = evidence.items, evidence.groups, evidence.base_right
        return Certificate.for_probe(
            probe.subject,
            Finding(terms, *counts, (trial,), trial, None),
            probe.certified(1.0),
            probe.template,
            {LIKENESS: self.reference},
            benchmarks=dict(self.benchmarks),
            second=drawn,
        )

    def _words(self, drawn: DrawnRows, *, proven: bool) -> str:
        skipped = f", {drawn.skipped} of them skipped" if drawn.skipped else ""
        counts = (
            f"of {drawn.rows} labelled rows the policy corrected {drawn.fixed} and broke "
            f"{drawn.broken}{skipped}; policy and model differ on {drawn.differ} of {drawn.pool} "
            "texts"
        )
        counts = f"{counts}.{self._new_classes}"
        if not proven:
            level = drawn.level(self.delta)
            return f"Not proven (p = {drawn.p:.2g}, level {level:.2g}): {counts}"
        least = 100 * drawn.gain_bound(drawn.level(self.delta))
        return (
            f"Proven with {100 * (1 - self.delta):g}% confidence: accuracy rises by "
            f"{f'at least {least:.2g} points' if least else 'more than 0 points'}; {counts}"
        )

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
        values = {n: v for n, v in vars(self).items() if n not in ("probe", "rows")}
        rows = [asdict(row) for row in self.rows]
        return to_json({"schema": _SCHEMA, "policy": self.probe.digest, "rows": rows, **values})

    @classmethod
    def from_json(cls, text: str, probe: Probe) -> "SecondRound":
        """Return the second round stored as JSON, with its policy.

        Raises:
            InputError: The text is not a second round, or belongs to another policy.
        """
        try:
            values: dict[str, Any] = from_json(text)
            schema, policy, rows = (values.pop(n) for n in ("schema", "policy", "rows"))
            if schema != _SCHEMA:
                raise InputError(f"its schema is {schema}, expected {_SCHEMA}")
            if policy != probe.digest:
                raise InputError("it was drawn for another policy")
            values["reference"] = tuple(values["reference"])
            return cls(probe=probe, rows=tuple(DifferingRow(**row) for row in rows), **values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"this is not a second round: {error}") from error


def _answered(
    decider: Decider, probe: Probe, pool: Mapping[str, str]
) -> Iterator[tuple[DifferingRow | None, float]]:
    """Yield each readable text as a row, if policy and model differ on it, and its likeness."""
    ready, texts = decider.prepare({_QUESTION: probe.question}), [*pool.items()]
    for first in range(0, len(texts), _TOGETHER):
        some = texts[first : first + _TOGETHER]
        # `whole` makes the decider compute the model's answer even where the probe is certain.
        plans = decider.plan_many([(text, id) for id, text in some], ready, Reading(whole=True))
        pairs = [*zip(some, plans, strict=True)]
        sound = [(row, plan[0]) for row, plan in pairs if isinstance(plan, list)]
        answers = decider.answer([work for _, work in sound])
        for ((id, text), _), answer in zip(sound, answers, strict=True):
            if isinstance(answer, Answer):
                yield _difference(id, text, answer)


def _difference(id: str, text: str, answer: Answer) -> tuple[DifferingRow | None, float]:
    """Return the row if policy and model differ on it, and the likeness of its text."""
    assert isinstance(answer.decision, Probed)
    how = answer.decision
    like = 1.0 if how.likeness is None else how.likeness
    if not how.corrected or how.model is None:
        return None, like
    assert answer.choice is not None
    return DifferingRow(id, text, str(answer.choice), how.model), like
