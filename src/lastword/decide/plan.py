"""Plan: questions about one input, with their prompts as tokens, before any model runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from lastword.decide.batch import Scope
from lastword.probes.probe import Probe
from lastword.text.passages import Passage
from lastword.text.question import Question, Single
from lastword.text.tokens import EncodedItem


@dataclass(frozen=True)
class Part:
    """One question of a plan: what is read for it, and what answers it.

    Attributes:
        name: The question's name.
        probe: The probe that answers; None if the model does.
        item: The prompt with its options, if the model's scores are read.
        scope: How `item` is read.
        passage: The text whose state the probe reads, if it reads one of the model.
        sentence: The text whose state the probe reads, if it reads one of an encoder.
    """

    name: str
    question: Single
    probe: Probe | None = None
    item: EncodedItem | None = None
    scope: Scope | None = None
    passage: Passage | None = None
    sentence: Passage | None = None


@dataclass(frozen=True)
class Plan:
    """The work that answers questions about one input.

    Attributes:
        text: The input as text.
        questions: The questions by name.
        parts: One part per question; one per option of a question to which several may apply.
        trajectory: True if a probe's answer also has what each depth would have said.
    """

    text: str
    questions: Mapping[str, Question]
    parts: tuple[Part, ...]
    trajectory: bool = False

    @property
    def tokens(self) -> int:
        """Return the tokens of work: of every prompt with its options, and of every text."""
        items = sum(part.item.tokens for part in self.parts if part.item is not None)
        texts = (text for part in self.parts for text in (part.passage, part.sentence))
        return items + sum(len(text.tokens) for text in texts if text is not None)

    def split(self) -> Iterator["Plan"]:
        """Yield plans that can be answered apart: probes together, other questions one by one.

        Probes stay together because they share the reading of the text.
        """
        for probed, parts in groupby(self.parts, key=lambda part: part.probe is not None):
            for some in [tuple(parts)] if probed else [(part,) for part in parts]:
                yield replace(self, questions={p.name: p.question for p in some}, parts=some)
