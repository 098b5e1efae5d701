"""Plan: questions about one input, with encoded prompts, before any model runs."""

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
    """The work of one question of a plan.

    Attributes:
        name: The question's name.
        probe: The probe that answers; None if the model does.
        item: The prompt with its options; None if the model's scores are not needed.
        scope: How much of `item` is read.
        passage: The tokens whose state in the model the probe reads, or None.
        sentence: The tokens whose state in an encoder the probe reads, or None.
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
        parts: One part per question; a `Multi` has one per option.
        trajectory: True to add the scores at each depth to probes' answers.
    """

    text: str
    questions: Mapping[str, Question]
    parts: tuple[Part, ...]
    trajectory: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens to compute, in prompts with their options and in passages."""
        items = sum(part.item.tokens for part in self.parts if part.item is not None)
        texts = (text for part in self.parts for text in (part.passage, part.sentence))
        return items + sum(len(text.tokens) for text in texts if text is not None)

    def split(self) -> Iterator["Plan"]:
        """Yield plans that can be answered separately: all probes, and every other question.

        Probes stay together because they share one forward pass over the text.
        """
        for probed, group in groupby(self.parts, key=lambda part: part.probe is not None):
            for parts in [tuple(group)] if probed else [(part,) for part in group]:
                yield replace(self, questions={p.name: p.question for p in parts}, parts=parts)
