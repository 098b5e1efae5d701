"""Decisions: typed questions about a text, and their answers with probabilities.

    Choice, Multi, Predicate, Score   a question, with its `Option`s
    read_questions             questions by name, from YAML or JSON
    prepare                    questions made ready once, for many texts
    Answers                    what `Tracer.decide` gives: answers by the questions' names
    to_frame                   many of them as a pandas DataFrame

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastword.decisions.answer import (
        Answers,
        ChoiceAnswer,
        MultiAnswer,
        PredicateAnswer,
        ScoreAnswer,
        answer_of,
        to_frame,
    )
    from lastword.decisions.file import read_questions, write_questions
    from lastword.decisions.item import item_of, text_of
    from lastword.decisions.question import Choice, Multi, Option, Predicate, Question, Score
    from lastword.decisions.questionnaire import Questionnaire, prepare, singles
    from lastword.decisions.templates import TEMPLATES, template_in_force, template_of

__all__ = [
    "TEMPLATES",
    "Answers",
    "Choice",
    "ChoiceAnswer",
    "Multi",
    "MultiAnswer",
    "Option",
    "Predicate",
    "PredicateAnswer",
    "Question",
    "Questionnaire",
    "Score",
    "ScoreAnswer",
    "answer_of",
    "item_of",
    "prepare",
    "read_questions",
    "singles",
    "template_in_force",
    "template_of",
    "text_of",
    "to_frame",
    "write_questions",
]
_HOMES = {
    "TEMPLATES": "templates",
    "Answers": "answer",
    "Choice": "question",
    "ChoiceAnswer": "answer",
    "Multi": "question",
    "MultiAnswer": "answer",
    "Option": "question",
    "Predicate": "question",
    "PredicateAnswer": "answer",
    "Question": "question",
    "Questionnaire": "questionnaire",
    "Score": "question",
    "ScoreAnswer": "answer",
    "answer_of": "answer",
    "item_of": "item",
    "prepare": "questionnaire",
    "read_questions": "file",
    "singles": "questionnaire",
    "template_in_force": "templates",
    "template_of": "templates",
    "text_of": "item",
    "to_frame": "answer",
    "write_questions": "file",
}


def __getattr__(name: str) -> Any:
    """The name, from the module where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"lastword.decisions.{_HOMES[name]}"), name)
