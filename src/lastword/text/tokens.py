"""Item -> token ids. This module handles the differences between tokenizers (method, section 2).

Prompt and candidate are joined as text, tokenised, and split after the prompt's tokens. If a token
spans the end of the prompt, the split is before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lastword.errors import InputError, ItemError
from lastword.rule.theta import Theta
from lastword.text.chat import Chat, chat_prompt, templated
from lastword.text.forest import Branch
from lastword.text.items import Item
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
    limit = context if overflow == "error" else None
    texts = [_texts(item, tokenizer, chat, theta.tokens.join, limit) for item in items]
    parts = [t for prompts in texts if not isinstance(prompts, ItemError) for t in prompts]
    reader = Reader(tokenizer, (s for t in parts for s in t.all), any(t.special for t in parts))
    results: list[EncodedItem | ItemError] = []
    for place, (item, prompts) in enumerate(zip(items, texts, strict=True)):
        alone = first == 0 and len(items) == 1  # then an error needs no name
        name = str(first + place) if item.id is None and not alone else item.id
        try:
            encoded = _encode_item(item, prompts, reader, context, overflow)
            check_ids((b.tokens for p in encoded.prompts for b in p.branches), vocabulary)
            results.append(encoded)
        except ItemError as error:
            results.append(type(error)(str(error), name))
    return results


@dataclass(frozen=True)
class _Texts:
    """The texts to tokenise for one prompt with its candidates.

    Attributes:
        rest: The whole texts, or the continuations to join to the prompt's ids.
        special: True to put the tokenizer's special tokens in front.
    """

    prompt: Text
    rest: tuple[Text, ...]
    join: Literal["text", "ids"]
    special: bool

    @property
    def all(self) -> tuple[Text, ...]:
        return (self.prompt, *self.rest)


def _texts(
    item: Item,
    tokenizer: Tokenizer,
    chat: Chat | None,
    join: Literal["text", "ids"],
    limit: int | None,
) -> list[_Texts] | ItemError:
    texts = (item.prompt, item.blind_prompt or "", *item.content_free, *item.candidates)
    if any(exceeds(text, tokenizer, limit) for text in texts):
        return ItemError(
            "the prompt or a candidate has more tokens than the model's context of "
            f"{limit}; {SHORTEN}"
        )
    if item.messages is not None:
        try:
            heads = [templated(item.messages, tokenizer, chat)]
        except InputError as error:
            return ItemError(str(error))
    else:
        blind = [] if item.blind_prompt is None else [item.blind_prompt]
        prompts = [item.prompt, *blind, *item.content_free]
        try:
            if item.literal and has_control((*prompts, *item.candidates), tokenizer):
                return [_literal(prompt, item, tokenizer, chat, join) for prompt in prompts]
            if chat is None:
                return [_plain(prompt, item, join) for prompt in prompts]
            heads = [chat_prompt(prompt, tokenizer, chat) for prompt in prompts]
        except ItemError as error:
            return error
    return [_joined(head, "", item.candidates, join, special=False) for head in heads]


def _literal(
    prompt: str, item: Item, tokenizer: Tokenizer, chat: Chat | None, join: Literal["text", "ids"]
) -> _Texts:
    """Return the texts of a prompt in which the user's control tokens are encoded as text."""
    if chat is None:
        return _cut(_plain(prompt, item, join), (0, 0, 0))
    head, text = chat_prompt(prompt, tokenizer, chat), prompt.strip()
    start = head.rfind(text)
    texts = _joined(head, "", item.candidates, join, special=False)
    return _cut(texts, (start, start + len(text), len(head)))


def _cut(texts: _Texts, cuts: tuple[int, int, int]) -> _Texts:
    after = cuts if texts.join == "text" else (0, 0, 0)
    rest = tuple(Text(text, after) for text, _ in texts.rest)
    return replace(texts, prompt=Text(texts.prompt.text, cuts), rest=rest)


def _plain(prompt: str, item: Item, join: Literal["text", "ids"]) -> _Texts:
    head = prompt.rstrip()  # trailing whitespace moves to the continuation
    glue = prompt[len(head) :] or item.separator
    return _joined(head, glue, item.candidates, join, special=True)


def _joined(
    head: str, glue: str, candidates: Sequence[str], join: Literal["text", "ids"], *, special: bool
) -> _Texts:
    before = head if join == "text" else ""
    rest = tuple(Text(before + glue + c) for c in candidates)
    return _Texts(Text(head), rest, join, special)


def _encode_item(
    item: Item,
    prompts: list[_Texts] | ItemError,
    reader: Reader,
    context: int | None,
    overflow: Overflow,
) -> EncodedItem:
    if isinstance(prompts, ItemError):
        raise prompts
    main, *rest = (_fit(_split(texts, reader), reader, context, overflow) for texts in prompts)
    blind = None if item.blind_prompt is None else rest.pop(0)
    return EncodedItem(item, main, blind, tuple(rest))


def _split(texts: _Texts, reader: Reader) -> Encoded:
    """Return the branches of one prompt, each with at least one token before the candidate."""
    whole = reader.whole if texts.special else reader.continuation
    prompt = whole(texts.prompt)
    if texts.join == "ids":
        sequences = tuple(prompt + reader.continuation(text) for text in texts.rest)
    else:
        sequences = tuple(whole(text) for text in texts.rest)
    _check_candidates(prompt, sequences)
    common = [common_length(prompt, sequence) for sequence in sequences]
    # A candidate has a token even if its whole sequence is a prefix of the prompt's.
    boundaries = [min(n, len(s) - 1) for n, s in zip(common, sequences, strict=True)]
    moved = any(n < len(prompt) for n in boundaries)
    start = (reader.start,) if min(boundaries) == 0 else ()
    pairs = zip(sequences, boundaries, strict=True)
    return Encoded(tuple(Branch(start + s, len(start) + n) for s, n in pairs), boundary_moved=moved)


def _check_candidates(prompt: Ids, sequences: tuple[Ids, ...]) -> None:
    first: dict[Ids, int] = {}
    for i, sequence in enumerate(sequences):
        if sequence == prompt or not sequence:
            raise ItemError(f"candidate {i} has no token; give it text that the tokenizer keeps")
        if sequence in first:
            raise ItemError(
                f"candidates {first[sequence]} and {i} have the same tokens; drop one of them"
            )
        first[sequence] = i


def _fit(encoded: Encoded, reader: Reader, context: int | None, overflow: Overflow) -> Encoded:
    """Return the prompt if it fits the context, or without its left end."""
    lengths = [len(branch.fed) for branch in encoded.branches]
    length = max(lengths)
    longest = lengths.index(length)
    if context is None or length <= context:
        return encoded
    shared = encoded.prompt_tokens
    special = reader.count_special(encoded.branches[0].tokens[:shared])
    drop = length - context
    if overflow == "error":
        raise ItemError(
            f"candidate {longest} needs {length} tokens with its prompt and the model's context is "
            f"{context}; {SHORTEN}"
        )
    if drop > shared - max(special, 1):
        raise ItemError(
            f"candidate {longest} does not fit the model's context of {context} tokens even "
            "without its prompt; shorten it"
        )
    branches = tuple(
        Branch(b.tokens[:special] + b.tokens[special + drop :], b.boundary - drop)
        for b in encoded.branches
    )
    return replace(encoded, branches=branches, truncated=drop)
