"""Nearby questions: an asked question that differs from a served one in its wording alone.

A probe and a certificate hold for one question, character by character. A client that leaves out
the final "?" or writes an option in capitals would get the model's answer without knowing it.
"""

import unicodedata
from collections.abc import Mapping

from lastword.files.shorten import shorten
from lastword.text.question import Option, Question

_PIECE = 60  # characters of a text that a warning quotes
_SHARED = 3  # options that two questions must share if only their instructions differ


def normalised(text: str) -> str:
    """Return a text in NFKC and lower case, without extra spaces and punctuation at its end."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.rstrip(" .,:;!?…¿¡。？！")


def nearby(question: Question, served: Mapping[str, Question]) -> str | None:
    """Return how a question differs from the served one that it resembles; None if from all.

    Two questions resemble each other if their instructions are equal after `normalised` and at
    least half of their options are, or if they share all of at least three options.

    Args:
        question: The question that was asked, which is none of those served.
        served: Questions that a probe or a certificate is for, by name.
    """
    for name, other in served.items():
        if type(other) is type(question) and (what := _difference(question, other)):
            return (
                f"this question resembles the served question {name!r}, but {what}. It gets the "
                f"model's answer; name the served question, or ask it word for word"
            )
    return None


def _difference(question: Question, served: Question) -> str | None:
    asked, known = _texts(question.options), _texts(served.options)
    shared = asked.keys() & known.keys()
    same_words = normalised(question.instructions) == normalised(served.instructions)
    if same_words and 2 * len(shared) >= max(len(asked), len(known)):
        if question.instructions != served.instructions:
            return _instead("the instructions are", question.instructions, served.instructions)
        if missing := [known[key] for key in known.keys() - shared]:
            return f"the option {shorten(sorted(missing)[0])!r} is missing"
        if more := [asked[key] for key in asked.keys() - shared]:
            return f"the option {shorten(sorted(more)[0])!r} is not one of its options"
        for key in sorted(shared):
            if asked[key] != known[key]:
                return _instead("an option is", asked[key], known[key])
        return "options have other descriptions"
    if asked.keys() == known.keys() and len(asked) >= _SHARED:
        return _instead("the instructions are", question.instructions, served.instructions)
    return None


def _texts(options: tuple[Option, ...]) -> dict[str, str]:
    return {normalised(option.text): option.text for option in options}


def _instead(what: str, asked: str, served: str) -> str:
    """Name two texts by a piece around the first character in which they differ."""
    pairs = enumerate(zip(asked, served, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(asked), len(served)))
    first = max(0, place - _PIECE // 2)
    one, other = (text[first : first + _PIECE] for text in (asked, served))
    return f"{what} {one!r} instead of {other!r}"
