"""Prompts -> token ids. This module handles the differences between tokenizers (method, section 2).

Prompt and candidate are joined as text, tokenised, and split after the prompt's tokens. If a token
spans the end of the prompt, the split is before it. A passage is a prompt for a probe: it has no
candidates, and its states are pooled (method, section 19).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from lastword.errors import InputError, ItemError, reason
from lastword.files.cells import text_fault
from lastword.rule.theta import Theta
from lastword.text.chat import Chat, chat_prompt, templated
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.tokenizer import (
    SHORTEN,
    Ids,
    Overflow,
    Reader,
    Tokenizer,
    check_ids,
    common_length,
    control_splitter,
    require_short,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Encoded:
    """One prompt with its candidates as token ids.

    Attributes:
        branches: One per candidate. Its boundary is at least 1, so that a position predicts the
            candidate's first token.
        truncated: Prompt tokens dropped at the left to fit the context.
        boundary_moved: True if joining merged tokens across the end of the prompt.
    """

    branches: tuple[Branch, ...]
    truncated: int = 0
    boundary_moved: bool = False

    @property
    def sequences(self) -> tuple[Ids, ...]:
        """The ids of each candidate with its prompt."""
        return tuple(branch.tokens for branch in self.branches)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The index at which each candidate begins."""
        return tuple(branch.boundary for branch in self.branches)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens before the candidates, with special ones."""
        return min(self.boundaries)

    @property
    def candidate_tokens(self) -> tuple[int, ...]:
        """m_i, the number of tokens of each candidate."""
        return tuple(len(branch.tokens) - branch.boundary for branch in self.branches)


@dataclass(frozen=True)
class EncodedItem:
    """An item with its prompts as token ids.

    Attributes:
        prompt: The item's prompt.
        blind: Its blind prompt, if it has one.
        content_free: Its content-free prompts.
    """

    item: Item
    prompt: Encoded
    blind: Encoded | None = None
    content_free: tuple[Encoded, ...] = ()

    @property
    def prompts(self) -> tuple[Encoded, ...]:
        """All prompts, in the order of a batch."""
        return (self.prompt, *([] if self.blind is None else [self.blind]), *self.content_free)

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompt and of all candidates."""
        return self.prompt.prompt_tokens + sum(self.prompt.candidate_tokens)


@dataclass(frozen=True)
class Passage:
    """The tokens of a text for a probe.

    Attributes:
        tokens: The input of the model.
        start: The mean state is over `tokens[start:]`, which has at least one token.
    """

    tokens: Ids
    start: int


def encode(
    items: Sequence[Item],
    tokenizer: Tokenizer,
    *,
    theta: Theta,
    context: int | None,
    overflow: Overflow = "error",
    chat: Chat | None = None,
    first: int = 0,
    vocabulary: int | None = None,
) -> list[EncodedItem | ItemError]:
    """Return the token ids of each item, or its error, in order.

    Each distinct text is tokenised once.

    Args:
        items: The items.
        tokenizer: The model's tokenizer.
        theta: The constants; `tokens.join` determines if texts or ids are joined.
        context: Maximum number of input tokens; None for no limit. The last token is never fed,
            so a sequence may have one more.
        overflow: `error` fails an item that does not fit; `truncate` drops the left end of its
            prompt.
        chat: Apply the tokenizer's chat template.
        first: Index of the first item, which is the name of an item without an id.
        vocabulary: Size of the model's vocabulary; None for no check.

    Raises:
        InputError: The chat template is missing or refuses the prompt.
    """
    limits = _Limits(context, overflow, vocabulary)
    split = control_splitter(tokenizer)
    texts = [_attempt(_texts, i, tokenizer, chat, theta.tokens.join, split, limits) for i in items]
    good = [t for prompts in texts if not isinstance(prompts, ItemError) for t in prompts]
    distinct = chain.from_iterable((t.prompt, *t.rest) for t in good)
    reader = Reader(tokenizer, distinct, any(t.special for t in good))
    alone = first == 0 and len(items) == 1  # then an error needs no name
    results: list[EncodedItem | ItemError] = []
    for n, (item, prompts) in enumerate(zip(items, texts, strict=True), start=first):
        name = None if alone and item.id is None else item.id or str(n)
        results.append(_attempt(_encoded, item, prompts, reader, limits, name=name))
    return results


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
    limits = _Limits(context, overflow, vocabulary)
    split = control_splitter(tokenizer)
    subjects: Sequence[str | None] = [None] * len(prompts) if inputs is None else inputs
    pairs = zip(prompts, subjects, strict=True)
    parts = [_attempt(_passage_texts, *pair, tokenizer, chat, split, limits) for pair in pairs]
    distinct = chain.from_iterable(part for part in parts if not isinstance(part, ItemError))
    special = chat is None
    reader = Reader(tokenizer, distinct, special)
    names = map(str, range(len(parts)))
    return [
        _attempt(_passage, part, reader, special, limits, name=name)
        for part, name in zip(parts, names, strict=True)
    ]


class _Limits(NamedTuple):
    """The maximum number of input tokens, what happens beyond it, and the number of tokens."""

    context: int | None
    overflow: Overflow
    vocabulary: int | None

    def require_short(self, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        """Refuse a text far beyond the context, without tokenising all of it."""
        require_short(texts, tokenizer, self.context if self.overflow == "error" else None)


def _attempt(compute: Callable[..., T], *values: object, name: str | None = None) -> T | ItemError:
    """Return what a function returns, or its error, with the name of the item."""
    try:
        return compute(*values)
    except ItemError as error:
        return type(error)(error.reason, name)


@dataclass(frozen=True)
class _Texts:
    """The texts to tokenise for one prompt with its candidates.

    Attributes:
        rest: The whole texts, or the continuations to join to the prompt's ids.
        special: True to put the tokenizer's special tokens in front.
    """

    prompt: str
    rest: tuple[str, ...]
    join: Literal["text", "ids"]
    special: bool


def _texts(
    item: Item,
    tokenizer: Tokenizer,
    chat: Chat | None,
    join: Literal["text", "ids"],
    splitter: Callable[[str], str],
    limits: _Limits,
) -> list[_Texts]:
    """Return the texts of each prompt of an item."""
    blind = [] if item.blind_prompt is None else [item.blind_prompt]
    prompts = [item.prompt, *blind, *item.content_free]
    limits.require_short((*prompts, *item.candidates), tokenizer)
    split = splitter if item.literal else str
    candidates = [split(candidate) for candidate in item.candidates]

    def joined(head: str, glue: str, special: bool) -> _Texts:
        before = head if join == "text" else ""
        return _Texts(head, tuple(before + glue + c for c in candidates), join, special)

    if item.messages is not None:
        try:
            return [joined(templated(item.messages, tokenizer, chat), "", False)]
        except InputError as error:
            raise ItemError(reason(error)) from error
    prompts = [split(prompt) for prompt in prompts]
    if chat is not None:
        return [joined(chat_prompt(prompt, tokenizer, chat), "", False) for prompt in prompts]
    # Trailing whitespace of a prompt moves to the continuation.
    heads = [(prompt, prompt.rstrip()) for prompt in prompts]
    return [joined(head, prompt[len(head) :] or item.separator, True) for prompt, head in heads]


def _encoded(
    item: Item, prompts: list[_Texts] | ItemError, reader: Reader, limits: _Limits
) -> EncodedItem:
    if isinstance(prompts, ItemError):
        raise prompts
    main, *rest = (_fit(_split(texts, reader), reader, limits) for texts in prompts)
    check_ids((s for prompt in (main, *rest) for s in prompt.sequences), limits.vocabulary)
    blind = None if item.blind_prompt is None else rest.pop(0)
    return EncodedItem(item, main, blind, tuple(rest))


def _split(texts: _Texts, reader: Reader) -> Encoded:
    """Return the branches of one prompt, each with at least one token before the candidate."""
    prompt = reader.ids(texts.prompt, texts.special)
    if texts.join == "ids":
        sequences = [prompt + reader.ids(text) for text in texts.rest]
    else:
        sequences = [reader.ids(text, texts.special) for text in texts.rest]
    _check_candidates(prompt, sequences)
    common = [common_length(prompt, sequence) for sequence in sequences]
    # A candidate has a token even if its whole sequence is a prefix of the prompt's.
    boundaries = [min(n, len(s) - 1) for n, s in zip(common, sequences, strict=True)]
    moved = any(n < len(prompt) for n in boundaries)
    start = (reader.start,) if min(boundaries) == 0 else ()
    pairs = zip(sequences, boundaries, strict=True)
    return Encoded(tuple(Branch(start + s, len(start) + n) for s, n in pairs), boundary_moved=moved)


def _check_candidates(prompt: Ids, sequences: Sequence[Ids]) -> None:
    first: dict[Ids, int] = {}
    for i, sequence in enumerate(sequences):
        if sequence == prompt or not sequence:
            raise ItemError(f"candidate {i} has no token; give it text that the tokenizer keeps")
        if sequence in first:
            raise ItemError(
                f"candidates {first[sequence]} and {i} have the same tokens; drop one of them"
            )
        first[sequence] = i


def _fit(encoded: Encoded, reader: Reader, limits: _Limits) -> Encoded:
    """Return the prompt if it fits the context, or without its left end."""
    context = limits.context
    lengths = [len(branch.fed) for branch in encoded.branches]
    length = max(lengths)
    if context is None or length <= context:
        return encoded
    candidate, drop, shared = lengths.index(length), length - context, encoded.prompt_tokens
    if limits.overflow == "error":
        raise ItemError(
            f"candidate {candidate} needs {length} tokens with its prompt and the model's context "
            f"is {context}; {SHORTEN}"
        )
    if drop > shared - max(reader.count_special(encoded.branches[0].tokens[:shared]), 1):
        raise ItemError(
            f"candidate {candidate} does not fit the model's context of {context} tokens even "
            "without its prompt; shorten it"
        )
    branches = [Branch(reader.without(b.tokens, drop), b.boundary - drop) for b in encoded.branches]
    return replace(encoded, branches=tuple(branches), truncated=drop)


def _passage_texts(
    prompt: str,
    subject: str | None,
    tokenizer: Tokenizer,
    chat: Chat | None,
    split: Callable[[str], str],
    limits: _Limits,
) -> tuple[str, ...]:
    """Return the text to read and, if the input is pooled, the text before the input."""
    if (fault := text_fault(prompt)) is not None:
        raise ItemError(f"the text {fault}")
    limits.require_short([prompt], tokenizer)
    prompt = split(prompt)
    whole = prompt.rstrip() if chat is None else chat_prompt(prompt, tokenizer, chat)
    if subject is None:
        return (whole,)
    prompt, subject = prompt.strip(), split(subject).strip()
    begin = whole.rfind(prompt)
    start = whole.find(subject, begin, begin + len(prompt))
    if start < 0:
        raise ItemError("the template changes the input, which a probe reads as it stands")
    return whole[: start + len(subject)], whole[:start]


def _passage(
    texts: tuple[str, ...] | ItemError, reader: Reader, special: bool, limits: _Limits
) -> Passage:
    if isinstance(texts, ItemError):
        raise texts
    ids, *before = (reader.ids(text, special) for text in texts)
    ids = ids or (reader.start,)
    check_ids([ids], limits.vocabulary)
    start = min(common_length(before[0], ids), len(ids) - 1) if before else len(ids) - 1
    if limits.context is None or len(ids) <= limits.context:
        return Passage(ids, start)
    if limits.overflow == "error":
        raise ItemError(
            f"the text needs {len(ids)} tokens and the model's context is {limits.context}; "
            f"{SHORTEN}"
        )
    excess = len(ids) - limits.context
    return Passage(reader.without(ids, excess), max(start - excess, reader.count_special(ids)))
