"""Decisions: typed questions about a text, and their answers with probabilities.

Choice, Multi, Predicate, Score   a question, with its `Option`s
read_questions             questions by name, from YAML or JSON
prepare                    questions made ready once, for many texts
Answers                    what `Tracer.decide` gives: answers by the questions' names
to_frame                   many of them as a pandas DataFrame
"""

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
