"""`lastword demo`: the effect of TRACE on the demo model, with and without a certificate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.decide.tracer import Tracer
from lastword.lab.benchmarks.ready import demo_items as items
from lastword.records.decision import Decision
from lastword.records.metrics import fixed_and_broken
from lastword.records.view import correction, short
from lastword.rule.geometry import margin
from lastword.text.items import Item
from lastword.trust.claims import Finding, certify
from lastword.trust.groups import marks, numbers
from lastword.trust.labelled import Labelled, MethodAnswers
from lastword.trust.policy import TRACE, scalar_operator
from lastword.trust.terms import Terms
from lastword.trust.words import ALLOWED, summary

__all__ = ["answer", "items", "story", "text_of"]

MODEL = "lastword/demo-organism"
NOTE = (
    "This demo model was trained to lose, in its last layers, facts that earlier layers hold. "
    "TRACE corrects this fault. The result says nothing about other models: on real ones, "
    "correction gains on some questions and loses on others."
)
# The smallest half percent at which 450 questions to the demo model certify any override.
TERMS = Terms(alpha=0.035)
FIRST_DEEP = 3  # decisions by layers 1 and 2 are chance


class Accuracy(NamedTuple):
    """The accuracy of some answers, with the numbers of corrected and broken ones."""

    name: str
    right: float
    fixed: int = 0
    broken: int = 0


class Story(NamedTuple):
    """The figures and the certificate that the demo shows.

    Attributes:
        certificate: The certificate that the answers give, in words.
        accuracies: Of chance, the model, and the answers corrected without and with the
            certificate.
        examples: The first correction that the certificate allows, and the first break that it
            forbids.
    """

    items: int
    finding: Finding
    certificate: list[str]
    accuracies: list[Accuracy]
    examples: list[Decision]

    def to_dict(self) -> dict[str, Any]:
        """Return the story's numbers as a JSON object."""
        return {
            "model": MODEL,
            "items": self.items,
            "accuracies": [accuracy._asdict() for accuracy in self.accuracies],
            "certificate": self.certificate,
            "examples": [record.id for record in self.examples],
        }


def story(tracer: Tracer, records: Sequence[Decision], terms: Terms = TERMS) -> Story:
    """Return the story of the model's labelled answers, with their certificate."""
    marked = [list(marks(r.id, r.prompt, r.candidates, r.shared)) for r in records]
    base = np.array([record.share("mc1", base=True) for record in records])
    answers = MethodAnswers(
        mc1=np.array([record.share("mc1") for record in records]),
        confidence=np.array([record.probabilities.max() for record in records]),
        overrides=np.array([record.corrected for record in records]),
        operators=np.array([record.operator for record in records]),
        margins=np.array([margin(record.scores) for record in records]),
    )
    labelled = Labelled(
        mc1_base=base,
        base_confidence=np.array([record.base_probabilities.max() for record in records]),
        methods={TRACE: answers},
        groups=numbers(marked),
    )
    scalar = scalar_operator(tracer.invariant, tracer.theta.tau_I)
    finding = certify(labelled, scalar, terms)
    stands = labelled.stands(finding.policy)
    gains = answers.mc1 - base
    allowed = np.where(stands, gains, 0.0)
    chance = float(np.mean([np.mean(record.truthful or ()) for record in records]))
    accuracies = [
        Accuracy("by chance", chance),
        Accuracy("the model", base.mean()),
        Accuracy("corrected", (base + gains).mean(), *fixed_and_broken(gains)),
        Accuracy("certified", (base + allowed).mean(), *fixed_and_broken(allowed)),
    ]
    deep = [(r, a) for r, a in zip(records, stands, strict=True) if _deep(r)]
    fixed = [record for record, allowed in deep if record.gain == 1 and allowed]
    broken = [record for record, allowed in deep if record.gain == -1 and not allowed]
    words = summary(finding, MODEL, "the invented world")
    return Story(len(records), finding, words, accuracies, [*fixed[:1], *broken[:1]])


def answer(tracer: Tracer, questions: Sequence[Item]) -> list[Decision]:
    """Return the model's decisions on labelled items, with the items' texts and labels."""
    decisions = tracer.correct_many(questions, blind="none")
    return [
        replace(
            decision,
            prompt=item.prompt,
            question=item.question,
            shared=item.group,
            truthful=item.truthful,
        )
        for item, decision in zip(questions, decisions, strict=True)
    ]


def _deep(record: Decision) -> bool:
    layer = 0 if record.operator == "early" else record.decisive_layer
    return layer is None or layer >= FIRST_DEEP


def text_of(tale: Story) -> Group:
    """Return a story as text of 80 columns: two examples, the certificate, and accuracies."""
    alpha = f"{100 * tale.finding.terms.alpha:g}%"
    rows = [row for record in tale.examples for row in _example(record)]
    rows += [
        ("requested", Text(f"at most {alpha} of all answers broken, and a higher accuracy")),
        ("allowed", Text(tale.certificate[1].removeprefix(ALLOWED).removesuffix("."))),
    ]
    for name, right, fixed, broken in tale.accuracies:
        counts = f"  ({fixed} fixed, {broken} broken)" if fixed or broken else ""
        rows.append((name, Text(f"{100 * right:.1f}% right{counts}")))
    title = f"A small model answers {tale.items} questions: what TRACE changes"
    advice = "Test it on your labelled examples: lastword try FILE (docs/try.md)"
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, words in rows:
        grid.add_row(Text(name, style="bold"), words)
    return Group(Text(title, style="bold"), Padding(grid, (1, 0)), Text(f"{NOTE}\n\n{advice}"))


def _example(record: Decision) -> Iterator[tuple[str, Text]]:
    outcomes = {1: ("fixed", "true", "allowed"), -1: ("broken", "false", "not allowed")}
    outcome, truth, verdict = outcomes[int(record.gain or 0)]
    yield outcome, Text(record.question or record.prompt)
    answers = (short(text, 28) for text in (record.base_answer, record.answer))
    yield "", correction(*answers).append(f", which is {truth}")
    yield "", Text(f"{verdict}: the scores differ by {margin(record.scores):.2f} nats")
