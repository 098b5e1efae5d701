"""Prompts -> token ids. This module handles the differences between tokenizers (method, section 2).

Prompt and candidate are joined as text, tokenised, and split after the prompt's tokens. If a token
spans the end of the prompt, the split is before it. A passage is a prompt for a probe: it has no
candidates, and its states are pooled (method, section 19).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeVar

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
    Text,
    Tokenizer,
    check_ids,
    common_length,
    has_control,
    require_short,
)

T = TypeVar("T")
Joined = tuple[Text, ...]  # texts whose ids are joined


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

    def texts_of(item: Item) -> list[list[Joined]]:
        texts = (item.prompt, item.blind_prompt or "", *item.content_free, *item.candidates)
        require_short(texts, tokenizer, context if overflow == "error" else None)
        heads = _heads(item, tokenizer, chat)
        return [_lines(item, head, glue, theta.tokens.join) for head, glue in heads]

    def encoded(item: Item, prompts: list[list[Joined]] | ItemError) -> EncodedItem:
        if isinstance(prompts, ItemError):
            raise prompts
        main, *rest = (_fit(_split(lines, reader), reader, context, overflow) for lines in prompts)
        check_ids((s for prompt in (main, *rest) for s in prompt.sequences), vocabulary)
        blind = None if item.blind_prompt is None else rest.pop(0)
        return EncodedItem(item, main, blind, tuple(rest))

    texts = [_attempt(texts_of, item) for item in items]
    good = [prompts for prompts in texts if not isinstance(prompts, ItemError)]
    reader = Reader(
        tokenizer, (t for prompts in good for lines in prompts for j in lines for t in j)
    )
    alone = first == 0 and len(items) == 1  # then an error needs no name
    return [
        _attempt(encoded, item, t, name=None if alone and item.id is None else item.id or str(n))
        for n, (item, t) in enumerate(zip(items, texts, strict=True), start=first)
    ]


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

    def texts_of(prompt: str, subject: str | None) -> Joined:
        if (fault := text_fault(prompt)) is not None:
            raise ItemError(f"the text {fault}")
        require_short([prompt], tokenizer, context if overflow == "error" else None)
        head = _rendered(prompt, tokenizer, chat, has_control([prompt], tokenizer))
        if subject is None:
            return (head.text(),)
        start = head.whole.find(subject.strip(), head.start, head.stop)
        if start < 0:
            raise ItemError("the template changes the input, which a probe reads as it stands")
        return head.text(start + len(subject.strip())), head.text(start)

    def passage(texts: Joined | ItemError) -> Passage:
        if isinstance(texts, ItemError):
            raise texts
        ids, *before = map(reader.ids, texts)
        ids = ids or (reader.start,)
        check_ids([ids], vocabulary)
        start = min(common_length(before[0], ids), len(ids) - 1) if before else len(ids) - 1
        excess = 0 if context is None else max(len(ids) - context, 0)
        if excess and overflow == "error":
            raise ItemError(
                f"the text needs {len(ids)} tokens and the model's context is {context}; {SHORTEN}"
            )
        kept = max(start - excess, min(start, reader.count_special(ids)))
        return Passage(reader.without(ids, excess), kept)

    subjects: Sequence[str | None] = [None] * len(prompts) if inputs is None else inputs
    parts = [_attempt(texts_of, *pair) for pair in zip(prompts, subjects, strict=True)]
    reader = Reader(
        tokenizer, (t for part in parts if not isinstance(part, ItemError) for t in part)
    )
    return [_attempt(passage, part, name=str(n)) for n, part in enumerate(parts)]


def _attempt(compute: Callable[..., T], *values: object, name: str | None = None) -> T | ItemError:
    """Return what a function returns, or its error, with the name of the item."""
    try:
        return compute(*values)
    except ItemError as error:
        return type(error)(error.reason, name)


@dataclass(frozen=True)
class _Head:
    """A prompt as the model gets it, with the span of the user's text in it.

    Attributes:
        special: True to put the tokenizer's special tokens in front.
        literal: True to encode control tokens in the user's text as text.
    """

    whole: str
    start: int
    stop: int
    special: bool
    literal: bool

    def text(self, end: int | None = None, then: str = "") -> Text:
        """Return the text up to a place, and a text of the user's after it."""
        whole = self.whole[:end]
        spans = (0, self.start, False), (self.start, self.stop, self.literal)
        pieces = [(whole[start:stop], literal) for start, stop, literal in spans]
        pieces += [(whole[self.stop :], False), (then, self.literal)]
        return Text.of(*pieces, special=self.special)


def _rendered(prompt: str, tokenizer: Tokenizer, chat: Chat | None, literal: bool) -> _Head:
    if chat is None:
        head = prompt.rstrip()
        return _Head(head, 0, len(head), True, literal)
    whole = chat_prompt(prompt, tokenizer, chat)
    start = whole.rfind(prompt.strip())
    return _Head(whole, start, start + len(prompt.strip()), False, literal)


def _heads(item: Item, tokenizer: Tokenizer, chat: Chat | None) -> list[tuple[_Head, str]]:
    """Return each prompt of an item, with the text between it and a candidate."""
    if item.messages is not None:
        try:
            whole = templated(item.messages, tokenizer, chat)
        except InputError as error:
            raise ItemError(reason(error)) from error
        return [(_Head(whole, 0, len(whole), False, False), "")]
    blind = [] if item.blind_prompt is None else [item.blind_prompt]
    prompts = [item.prompt, *blind, *item.content_free]
    literal = item.literal and has_control((*prompts, *item.candidates), tokenizer)
    heads = [_rendered(prompt, tokenizer, chat, literal) for prompt in prompts]
    if chat is not None:
        return [(head, "") for head in heads]
    # Trailing whitespace of the prompt moves to the continuation.
    glues = [prompt[len(head.whole) :] for prompt, head in zip(prompts, heads, strict=True)]
    return [(head, glue or item.separator) for head, glue in zip(heads, glues, strict=True)]


def _lines(item: Item, head: _Head, glue: str, join: Literal["text", "ids"]) -> list[Joined]:
    """Return the prompt, and the prompt with each candidate."""
    prompt, rest = head.text(), [glue + candidate for candidate in item.candidates]
    if join == "text":
        return [(prompt,), *((head.text(then=text),) for text in rest)]
    return [(prompt,), *((prompt, Text.of((text, head.literal))) for text in rest)]


def _split(lines: Sequence[Joined], reader: Reader) -> Encoded:
    """Return the branches of one prompt, each with at least one token before the candidate."""
    prompt, *sequences = [tuple(chain.from_iterable(map(reader.ids, texts))) for texts in lines]
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


def _fit(encoded: Encoded, reader: Reader, context: int | None, overflow: Overflow) -> Encoded:
    """Return the prompt if it fits the context, or without its left end."""
    lengths = [len(branch.fed) for branch in encoded.branches]
    length = max(lengths)
    if context is None or length <= context:
        return encoded
    candidate, drop, shared = lengths.index(length), length - context, encoded.prompt_tokens
    if overflow == "error":
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
