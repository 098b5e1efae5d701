"""A story of the demo: one correction, one break, and a certificate that allows the first."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from lastword.decide.batch import Read
from lastword.decide.tracer import Tracer
from lastword.lab.benchmarks import demo
from lastword.lab.benchmarks.everyday import EVERYDAY
from lastword.records.cells import mean
from lastword.records.decision import Decision
from lastword.records.metrics import fixed_and_broken
from lastword.rule.geometry import margin
from lastword.text.items import Item
from lastword.trust.claims import Finding, certify
from lastword.trust.groups import marks, numbers
from lastword.trust.labelled import Labelled
from lastword.trust.policy import scalar_operator
from lastword.trust.terms import Terms
from lastword.trust.words import summary

PUBLISHED = "smollm2-135m"
# The smallest whole percent at which 450 questions to the organism certify any override.
TERMS = Terms(alpha=0.035)
FIRST_DEEP = 3  # decisions by depths 1 and 2 are chance


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


class Accuracy(NamedTuple):
    """The accuracy of some answers, with the numbers of corrected and broken ones."""

    name: str
    right: float
    fixed: int = 0
    broken: int = 0


@dataclass(frozen=True)
class Story:
    """The effect of correction on a model's answers, with and without a certificate.

    Attributes:
        records: The answers, in the benchmark's order.
        examples: One correction and one break, by the rule that chose them.
    """

    part: DemoPart
    records: Sequence[Decision]
    finding: Finding
    examples: Mapping[str, Decision]

    @cached_property
    def accuracies(self) -> list[Accuracy]:
        """Chance, the model, and the corrected answers without and with the certificate."""
        chance = mean([float(np.mean(record.truthful or ())) for record in self.records])
        before = np.array([record.share("mc1", base=True) for record in self.records], dtype=float)
        gains = np.array([gain(record) for record in self.records])
        allowed = np.where([allows(self.finding, record) for record in self.records], gains, 0.0)
        return [
            Accuracy("by chance", chance),
            Accuracy("the model", mean(before)),
            Accuracy("corrected", mean(before + gains), *fixed_and_broken(gains)),
            Accuracy("under the certificate", mean(before + allowed), *fixed_and_broken(allowed)),
        ]

    @property
    def lines(self) -> list[str]:
        """The certificate in words."""
        return summary(self.finding, self.part.model, [self.part.benchmark], failed=0)

    @property
    def headline(self) -> str:
        """Both effects in one sentence."""
        *_, corrected, certified = self.accuracies
        end = f"under its certificate it corrected {certified.fixed} and broke {certified.broken}"
        if self.finding.chosen is None:
            end = "its certificate keeps it off"
        return f"TRACE corrected {corrected.fixed} answers and broke {corrected.broken}; {end}"

    def to_dict(self) -> dict[str, Any]:
        """Return the story's numbers as a JSON object."""
        return {
            "model": self.part.model,
            "items": len(self.records),
            "accuracies": [accuracy._asdict() for accuracy in self.accuracies],
            "certificate": self.lines,
            "examples": {rule: record.id for rule, record in self.examples.items()},
        }


def gain(record: Decision) -> float:
    """Return the change of a labelled item's MC1 through correction."""
    assert record.gain is not None
    return record.gain


def answer(
    tracer: Tracer, items: Sequence[Item], watch: Watch, read: Read = "all"
) -> list[Decision]:
    """Return the records of labelled items, answered by one model, in their order."""
    decisions = tracer.correct_many(items, read, blind="none")
    watched = watch(decisions, str(tracer.source["model"]), len(items))
    return [judge(item, decision) for item, decision in zip(items, watched, strict=True)]


def judge(item: Item, decision: Decision) -> Decision:
    """Return the decision with the text and the labels of its item."""
    return replace(
        decision,
        prompt=item.prompt,
        question=item.question,
        shared=item.group,
        truthful=item.truthful,
    )


def story(part: DemoPart, tracer: Tracer, records: Sequence[Decision], terms: Terms) -> Story:
    """Return the story of a model's answers: accuracy, certificate and two examples."""
    finding = _certified(tracer, records, terms)
    return Story(part, records, finding, _examples(records, finding))


def allows(finding: Finding, record: Decision) -> bool:
    """Return True if the certificate lets an answer stand."""
    rule = finding.policy.withholds(record.operator, margin(record.scores))
    return not record.corrected or rule is None


def _certified(tracer: Tracer, records: Sequence[Decision], terms: Terms) -> Finding:
    labelled = Labelled(
        mc1_base=np.array([record.share("mc1", base=True) for record in records]),
        mc1=np.array([record.share("mc1") for record in records]),
        overrides=np.array([a.index != a.base_index for a in records]),
        operators=np.array([a.operator for a in records]),
        margins=np.array([margin(a.scores) for a in records]),
        base_confidence=np.array([softmax(a.base_scores).max() for a in records]),
        confidence=np.array([softmax(a.scores).max() for a in records]),
        groups=numbers([list(marks(r.id, r.prompt, r.candidates, r.shared)) for r in records]),
    )
    return certify(labelled, scalar_operator(tracer.invariant, tracer.theta.tau_I), terms)


def _examples(records: Sequence[Decision], finding: Finding) -> dict[str, Decision]:
    """Return the first allowed correction and the first withheld break, or the first of each."""
    examples: dict[str, Decision] = {}
    for word, sign, stands in (("correction", 1, True), ("break", -1, False)):
        deep = [record for record in records if sign * gain(record) > 0 and _deep(record)]
        chosen = [record for record in deep if allows(finding, record) is stands]
        verb = "allows" if stands else "does not allow"
        clause = f", of those that the certificate {verb}" if chosen else ""
        if deep:
            rule = f"first {word} from depth {FIRST_DEEP} on{clause}"
            examples[rule] = (chosen or deep)[0]
    return examples


def _deep(record: Decision) -> bool:
    """Return True if no depth below `FIRST_DEEP` decided; those have read too little."""
    layer = 0 if record.operator == "early" else record.decisive_layer
    return layer is None or layer >= FIRST_DEEP
