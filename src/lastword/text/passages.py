"""Passages: a text for a probe, with the tokens that are pooled (method, section 19)."""

from collections.abc import Sequence
from dataclasses import dataclass

from lastword.errors import ItemError
from lastword.files.cells import text_fault
from lastword.text.chat import Chat, chat_prompt
from lastword.text.tokenizer import (
    SHORTEN,
    Ids,
    Overflow,
    Reader,
    Text,
    Tokenizer,
    check_ids,
    common_length,
    exceeds,
    has_control,
)


@dataclass(frozen=True)
class Passage:
    """The tokens of a text for a probe.

    Attributes:
        tokens: The input of the model.
        start: The mean state is over `tokens[start:]`, which has at least one token.
    """

    tokens: Ids
    start: int


def encode_passages(
    prompts: Sequence[str],
    inputs: Sequence[str] | None,
    tokenizer: Tokenizer,
    *,
    context: int | None,
    overflow: Overflow = "error",
    chat: Chat | None = None,
    vocabulary: int | None = None,
) -> list[Passage | ItemError]:
    """Return the passage of each prompt, or its error, in order (method, section 19).

    With `inputs`, a prompt is read up to the end of its input, and the mean is over the input's
    tokens, so that text after it, such as the question, has no effect. Without, the whole prompt is
    read, and only its last token counts. Control tokens in a prompt are encoded as text.

    Raises:
        InputError: The chat template is missing or refuses the prompt.
    """
    subjects: Sequence[str | None] = [None] * len(prompts) if inputs is None else inputs
    pairs = zip(prompts, subjects, strict=True)
    limit = context if overflow == "error" else None
    parts = [_passage_texts(prompt, subject, tokenizer, chat, limit) for prompt, subject in pairs]
    texts = (text for part in parts if not isinstance(part, ItemError) for text in part)
    reader = Reader(tokenizer, texts, chat is None)
    results: list[Passage | ItemError] = []
    for place, part in enumerate(parts):
        try:
            passage = _passage(part, reader, context, overflow, chat is None)
            check_ids([passage.tokens], vocabulary)
            results.append(passage)
        except ItemError as error:
            results.append(ItemError(str(error), str(place)))
    return results


def _passage_texts(
    prompt: str, subject: str | None, tokenizer: Tokenizer, chat: Chat | None, limit: int | None
) -> tuple[Text, ...] | ItemError:
    """Return the text to read and, if the input is pooled, the text before the input."""
    if (fault := text_fault(prompt)) is not None:
        return ItemError(f"the text {fault}")
    if exceeds(prompt, tokenizer, limit):
        return ItemError(f"the text has more tokens than the model's context of {limit}; {SHORTEN}")
    try:
        head = prompt.rstrip() if chat is None else chat_prompt(prompt, tokenizer, chat)
    except ItemError as error:
        return error
    start = 0 if chat is None else head.rfind(prompt.strip())
    within = 0 if subject is None else prompt.strip().find(subject.strip())
    if within < 0:
        return ItemError("the template changes the input, which a probe reads as it stands")
    ends = [len(head)]
    if subject is not None:
        ends = [start + within + len(subject.strip()), start + within]
    if not has_control([prompt], tokenizer):
        return tuple(Text(head[:end]) for end in ends)
    stop = start + len(prompt.strip())
    return tuple(Text(head[:e], (min(start, e), min(stop, e), e)) for e in ends)


def _passage(
    texts: tuple[Text, ...] | ItemError,
    reader: Reader,
    context: int | None,
    overflow: Overflow,
    special: bool,
) -> Passage:
    if isinstance(texts, ItemError):
        raise texts
    ids, *before = (reader.whole(t) if special else reader.continuation(t) for t in texts)
    ids = ids or (reader.start,)
    start = min(common_length(before[0], ids), len(ids) - 1) if before else len(ids) - 1
    if context is None or len(ids) <= context:
        return Passage(ids, start)
    if overflow == "error":
        raise ItemError(
            f"the text needs {len(ids)} tokens and the model's context is {context}; {SHORTEN}"
        )
    first = reader.count_special(ids)
    drop = len(ids) - context
    return Passage(ids[:first] + ids[first + drop :], max(start - drop, first))
