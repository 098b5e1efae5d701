"""Decisions: typed questions about a text, and their answers with probabilities.

    Choice, Predicate, Score   a question, with its `Option`s
    read_questions             questions by name, from YAML or JSON
    templates                  how a question becomes a prompt

`Tracer.decide` answers them. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastword.decisions.file import read_questions, write_questions
    from lastword.decisions.item import item_of, text_of
    from lastword.decisions.question import Choice, Option, Predicate, Question, Score
    from lastword.decisions.templates import TEMPLATES, template_of

__all__ = [
    "TEMPLATES",
    "Choice",
    "Option",
    "Predicate",
    "Question",
    "Score",
    "item_of",
    "read_questions",
    "template_of",
    "text_of",
    "write_questions",
]
_HOMES = {
    "TEMPLATES": "templates",
    "Choice": "question",
    "Option": "question",
    "Predicate": "question",
    "Question": "question",
    "Score": "question",
    "item_of": "item",
    "read_questions": "file",
    "template_of": "templates",
    "text_of": "item",
    "write_questions": "file",
}


def __getattr__(name: str) -> Any:
    """The name, from the module where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lastword.decisions.{_HOMES[name]}"), name)
