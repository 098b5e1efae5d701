"""Relevance: whether each of some documents answers a query, a predicate about each."""

from collections.abc import Sequence

from lastword.benchmarks.template import Template
from lastword.decisions.question import Predicate
from lastword.decisions.questionnaire import Questionnaire
from lastword.errors import InputError

# The query stands first, so that all documents share its computation.
TEMPLATE = Template(
    "decide/relevance",
    "1",
    "{% if input %}Query: {{ input }}\n{% endif %}Passage: {{ instructions }}\n"
    "Does this passage answer the query?\nYes or no?\nAnswer:",
)


def relevance(documents: Sequence[str]) -> Questionnaire:
    """Whether each document answers the query that is the input, by the document's place.

    Args:
        documents: Texts; the probability of each is that of yes, whatever the others are.

    Raises:
        InputError: None, or a blank one.
    """
    if not documents:
        raise InputError("expected at least one document")
    for place, document in enumerate(documents):
        if not document.strip():
            raise InputError(f"document {place} is blank; give it text or leave it out")
    return Questionnaire({str(i): Predicate(own) for i, own in enumerate(documents)}, TEMPLATE)
