"""A story of the demo: one correction, one break, and a certificate that allows the first."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import softmax

from lastword.decide.batch import Read
from lastword.decide.tracer import Tracer
from lastword.lab.benchmarks import demo
from lastword.lab.benchmarks.everyday import EVERYDAY
from lastword.records.cells import mean
from lastword.records.decision import Decision
from lastword.records.metrics import fixed_and_broken, mc1
from lastword.records.record import Record
from lastword.rule.geometry import margin
from lastword.text.items import Item
from lastword.trust.claims import Finding, certify
from lastword.trust.groups import marks, numbers
from lastword.trust.labelled import Labelled
from lastword.trust.policy import scalar_operator
from lastword.trust.summary import summary
from lastword.trust.terms import Terms

PUBLISHED = "smollm2-135m"
# The smallest whole percent at which 450 questions to the organism certify any override.
TERMS = Terms(alpha=0.035)


@dataclass(frozen=True)
class DemoPart:
    """A model and its questions in the demo.

    Attributes:
        note: A sentence about the model, and about the limits of conclusions from it.
    """

    model: str
    name: str
    title: str
    note: str
    benchmark: str
    items: Callable[[], Sequence[Item]]


ORGANISM = DemoPart(
    "lastword/demo-organism",
    "Organism",
    "A demo model, trained to have the fault that the method corrects",
    "This demo model was trained to lose, in its last layers, facts that earlier layers hold. "
    "TRACE corrects this fault. The result says nothing about other models: on real ones, "
    "correction gains on some questions and loses on others.",
    "the invented world",
    demo.items,
)
REAL = DemoPart(
    f"lastword/{PUBLISHED}",
    PUBLISHED,
    "A real language model on questions about the real world",
    "SmolLM2-135M-Instruct in 4 bits is an ordinary small language model. It answers `everyday`: "
    "plain facts, popular errors, and pairs of questions over the same candidates. Correction "
    "helps some models on some questions. `lastword certify` tests it on your labelled questions "
    "(docs/trust.md).",
    EVERYDAY.name,
    lambda: EVERYDAY.load().items(EVERYDAY.template()),
)

Watch = Callable[[Iterable[Decision], str, int], Iterable[Decision]]

FIRST_DEEP = 3  # decisions by depths 1 and 2 are chance: docs/demo.md, "Why it loses here"

CORRECTED = "first correction from depth 3 on"
BROKEN = "first break from depth 3 on"

RULES: dict[str, Callable[[Record], bool]] = {
    CORRECTED: lambda record: gain(record) > 0 and _deep(record),
    BROKEN: lambda record: gain(record) < 0 and _deep(record),
}


CERTIFIED = f"{CORRECTED}, of those that the certificate allows"
WITHHELD = f"{BROKEN}, of those that the certificate does not allow"


def _deep(record: Record) -> bool:
    """Return True if no depth below `FIRST_DEEP` decided; those have read too little."""
    answer = record.decision
    layer = 0 if answer.operator == "early" else answer.decisive_layer
    return layer is None or layer >= FIRST_DEEP


def gain(record: Record) -> float:
    """Return the change of a labelled item's MC1 through correction."""
    assert record.gain is not None
    return record.gain


def answer(tracer: Tracer, items: Sequence[Item], watch: Watch, read: Read = "all") -> list[Record]:
    """Return the records of labelled items, answered by one model, in their order."""
    decisions = tracer.correct_many(items, read, blind="none")
    watched = watch(decisions, str(tracer.source["model"]), len(items))
    return [judge(item, decision) for item, decision in zip(items, watched, strict=True)]


def judge(item: Item, decision: Decision) -> Record:
    """Return the record of a labelled item, with the MC1 of its decision."""
    truth = item.truthful
    assert truth is not None
    return Record(
        id=item.id,
        prompt=item.prompt,
        question=item.question,
        candidates=item.candidates,
        truthful=truth,
        shared=item.group,
        answer=replace(decision, truthful=truth),
        mc1_base=mc1(decision.base_scores, truth),
        mc1=mc1(decision.scores, truth),
    )


@dataclass(frozen=True)
class AnswerCounts:
    """The accuracy of some answers, with the numbers of corrected and broken ones."""

    name: str
    right: float
    fixed: int
    broken: int


@dataclass(frozen=True)
class Story:
    """The effect of correction on a model's answers, with and without a certificate.

    Attributes:
        chance: Expected accuracy of random answers.
        base: Accuracy of the model without correction.
        corrected: Results with every correction applied.
        certified: Results with only the corrections that the certificate allows.
        lines: The certificate in words.
        examples: One repair and one break, by the name of the rule that chose them.
    """

    part: DemoPart
    items: int
    chance: float
    base: float
    corrected: AnswerCounts
    certified: AnswerCounts
    finding: Finding
    lines: list[str]
    examples: Mapping[str, Record]

    @property
    def headline(self) -> str:
        """Both effects in one sentence."""
        corrected, certified = self.corrected, self.certified
        end = f"under its certificate it corrected {certified.fixed} and broke {certified.broken}"
        if self.finding.chosen is None:
            end = "its certificate keeps it off"
        return f"TRACE corrected {corrected.fixed} answers and broke {corrected.broken}; {end}"

    @property
    def bars(self) -> list[AnswerCounts]:
        """The accuracies to compare, starting with chance."""
        uncorrected = [
            AnswerCounts("by chance", self.chance, 0, 0),
            AnswerCounts("the model", self.base, 0, 0),
        ]
        return [*uncorrected, self.corrected, self.certified]

    def figures(self) -> dict[str, Any]:
        """Return the story's numbers as a JSON object."""
        return {
            "model": self.part.model,
            "items": self.items,
            "chance": self.chance,
            "base": self.base,
            "corrected": asdict(self.corrected),
            "certified": asdict(self.certified),
            "certificate": self.lines,
            "examples": {rule: record.id for rule, record in self.examples.items()},
        }


def story(part: DemoPart, tracer: Tracer, records: Sequence[Record], terms: Terms) -> Story:
    """Return the story of a model's answers: accuracy, certificate and two examples."""
    finding = _certified(tracer, records, terms)
    stands = [withheld_by(finding, record) is None for record in records]
    before = np.array([record.mc1_base for record in records], dtype=float)
    gains = np.array([gain(record) for record in records])
    return Story(
        part,
        items=len(records),
        chance=mean([float(np.mean(record.truthful or ())) for record in records]),
        base=mean(before),
        corrected=_effect("corrected", before, gains),
        certified=_effect("under the certificate", before, np.where(stands, gains, 0.0)),
        finding=finding,
        lines=summary(finding, part.model, [part.benchmark], failed=0),
        examples=_examples(records, stands),
    )


def withheld_by(finding: Finding, record: Record) -> str | None:
    """Return the certificate's rule that withholds an answer; None if the answer is allowed."""
    answer = record.decision
    if answer.index == answer.base_index:
        return None
    return finding.policy.withholds(answer.operator, margin(answer.scores))


def _certified(tracer: Tracer, records: Sequence[Record], terms: Terms) -> Finding:
    answers = [record.decision for record in records]
    labelled = Labelled(
        mc1_base=np.array([record.mc1_base for record in records]),
        mc1=np.array([record.mc1 for record in records]),
        overrides=np.array([a.index != a.base_index for a in answers]),
        operators=np.array([a.operator for a in answers]),
        margins=np.array([margin(a.scores) for a in answers]),
        base_confidence=np.array([softmax(a.base_scores).max() for a in answers]),
        confidence=np.array([softmax(a.scores).max() for a in answers]),
        groups=numbers([list(marks(r.id, r.prompt, r.candidates, r.shared)) for r in records]),
    )
    return certify(labelled, scalar_operator(tracer.invariant, tracer.theta.tau_I), terms)


def _effect(name: str, before: np.ndarray, gains: np.ndarray) -> AnswerCounts:
    return AnswerCounts(name, mean(before + gains), *fixed_and_broken(gains))


def _examples(records: Sequence[Record], stands: Sequence[bool]) -> Mapping[str, Record]:
    """Return the first allowed repair and the first withheld break, or the first of each."""
    firsts: dict[str, Record] = {}
    for rule, stricter, stand in ((CORRECTED, CERTIFIED, True), (BROKEN, WITHHELD, False)):
        pairs = [(r, s) for r, s in zip(records, stands, strict=True) if RULES[rule](r)]
        strict = [(stricter, r) for r, s in pairs if s is stand]
        firsts.update((strict or [(rule, r) for r, _ in pairs])[:1])
    return firsts
