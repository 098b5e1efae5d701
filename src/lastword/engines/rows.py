"""Answers about many texts of which some cannot be read: a bad row is a row with its error."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from lastword.errors import InputError, ItemError, NonFiniteError

if TYPE_CHECKING:
    from lastword.decide.answer import Answers
    from lastword.decide.questionnaire import Questionnaire
    from lastword.decide.tracer import Tracer

TOGETHER = 256  # texts in hand
ERROR = "error"  # the name of its column

Bad = InputError | NonFiniteError  # of one text; any other error is of the model


def each_answer(
    tracer: "Tracer", ready: "Questionnaire", texts: Iterable[Any]
) -> "Iterator[Answers | Bad]":
    """Return answers about texts in their order, or the error of a text that cannot be read.

    Raises:
        InputError: The questions or their probes do not fit the model.
    """
    list(tracer.decide_many((), ready))  # what is wrong for every text is wrong for none
    rest = iter(texts)
    while piece := list(islice(rest, TOGETHER)):
        yield from _halved(tracer, ready, piece)


def _halved(
    tracer: "Tracer", ready: "Questionnaire", texts: Sequence[Any]
) -> "list[Answers | Bad]":
    """Return the answers in order; halve what fails until one text is left."""
    try:
        return [*tracer.decide_many(texts, ready)]
    except (InputError, NonFiniteError) as error:
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return _halved(tracer, ready, texts[:half]) + _halved(tracer, ready, texts[half:])


def reason(error: Bad) -> str:
    """Return what is wrong with a text, without its place among those in hand."""
    return error.reason if isinstance(error, ItemError) else str(error)
