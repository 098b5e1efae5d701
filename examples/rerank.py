"""Rerank the candidate answers of a retrieval system: correct the model's choice among them.

    python examples/rerank.py                      # the embedded model
    python examples/rerank.py Qwen/Qwen3-0.6B      # any other

A retriever found passages and an extractor took an answer from each; which one is shown to the
user? The language model's own favourite may be the answer that is said most often, not the one
that it knows to be true. All questions go through in one pass over their distinct tokens.
"""

import sys
from dataclasses import dataclass

from lastword import Decision, Item, Tracer


@dataclass(frozen=True)
class Passage:
    """What the retriever found, and the answer that the extractor took from it."""

    source: str
    answer: str


# Stands in for a retriever: question -> passages, the best match first.
FOUND = {
    "Which goods come from Baevwick?": [
        Passage("market-news", "clay lamps"),
        Passage("travel-guide", "pale cedar boats"),
        Passage("forum", "white horn bells"),
        Passage("forum", "Clay lamps"),
    ],
    "Which craft is Belholt known for?": [
        Passage("forum", "silver glass boats"),
        Passage("market-news", "cedar bells"),
        Passage("travel-guide", "grey wool boats"),
    ],
}


def item_of(question: str, passages: list[Passage]) -> Item:
    """The distinct answers to a question as one item."""
    answers = {passage.answer.casefold(): passage.answer for passage in reversed(passages)}
    return Item(f"Question: {question} Answer:", tuple(answers.values()), id=question)


def ranked(decision: Decision) -> list[tuple[str, float]]:
    """Answers with their corrected probabilities, the best first."""
    pairs = zip(decision.candidates, decision.probabilities, strict=True)
    return sorted(((text, float(p)) for text, p in pairs), key=lambda pair: -pair[1])


def main(*names: str) -> None:
    """Rerank everything that was found."""
    tracer = Tracer.from_pretrained(names[0]) if names else Tracer.demo()
    items = [item_of(question, passages) for question, passages in FOUND.items()]
    for decision in tracer.correct_many(items):
        passages = FOUND[str(decision.id)]
        print(decision.id)
        for text, probability in ranked(decision):
            sources = [p.source for p in passages if p.answer.casefold() == text.casefold()]
            print(f"  {probability:.3f}  {text}  ({', '.join(sources)})")
        print(f"  the model's own choice: {decision.base_answer}; decided by: {decision.operator}")


if __name__ == "__main__":
    main(*sys.argv[1:])
