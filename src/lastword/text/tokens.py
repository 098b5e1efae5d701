"""Prompts -> token ids. This module handles the differences between tokenizers (method, section 2).

Prompt and candidate are joined as text, tokenised, and split after the prompt's tokens. If a token
spans the end of the prompt, the split is before it. A passage is a prompt for a probe: it has no
candidates, and its states are pooled (docs/statistics.md).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeVar

from lastword.errors import InputError, ItemError, UntrainedError, reason
from lastword.files.cells import text_fault
from lastword.rule.theta import Theta
from lastword.text.chat import Chat, chat_prompt, templated
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.tokenizer import (
    Ids,
    Overflow,
    Reader,
    Tokenizer,
    common_length,
    without_control_tokens,
)

S = TypeVar("S")
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
    """Return the token ids of each item, or its error, in order; each text is tokenised once.

    `theta.tokens.join` determines if texts or ids are joined. `context` limits the tokens that are
    fed, which the last one is not. `truncate` drops the left end of a prompt that does not fit.
    `first` is the index of the first item, which is the name of an item without an id.

    Raises:
        InputError: The chat template is missing or refuses the prompt.
    """
    encoder = _Encoder(tokenizer, chat, context, overflow, vocabulary)
    texts = [_attempt(encoder.texts, item, theta.tokens.join) for item in items]
    names = [item.id or str(place) for place, item in enumerate(items, start=first)]
    alone = first == 0 and len(items) == 1 and items[0].id is None  # then an error needs no name
    return encoder.read(encoder.item, items, texts, [None] if alone else names)


def encode_passages(
    prompts: Sequence[str],
    inputs: Sequence[str] | None,
    tokenizer: Tokenizer,
    *,
    context: int | None,
    overflow: Overflow = "error",
    chat: Chat | None = None,
    vocabulary: int | None = None,
    names: Sequence[str | None] = (),
) -> list[Passage | ItemError]:
    """Return the passage of each prompt, or its error, in order (docs/statistics.md).

    With `inputs`, a prompt is read up to the end of its input, and the mean is over the input's
    tokens, so that text after it, such as the question, has no effect. Without, the whole prompt is
    read, and only its last token counts. Control tokens in a prompt are encoded as text.
    """
    encoder = _Encoder(tokenizer, chat, context, overflow, vocabulary)
    subjects = [None] * len(prompts) if inputs is None else inputs
    pairs = zip(prompts, subjects, strict=True)
    texts = [_attempt(encoder.passage_texts, prompt, subject) for prompt, subject in pairs]
    places = [name or str(n) for n, name in enumerate(names or [None] * len(prompts))]
    return encoder.read(encoder.passage, prompts, texts, places)


def _attempt(compute: Callable[..., T], *values: object, name: str | None = None) -> T | ItemError:
    """Return what a function returns, or its error, with the name of the item."""
    try:
        return compute(*values)
    except ItemError as error:
        return type(error)(error.reason, name)


@dataclass(frozen=True)
class _Texts:
    """The texts to tokenise for one prompt with its candidates, or for a passage.

    `rest` has the whole texts, or the continuations to join to the prompt's ids; of a passage, the
    text before its input, if that is pooled. `special` puts the tokenizer's tokens in front.
    """

    prompt: str
    rest: tuple[str, ...]
    special: bool
    join: Literal["text", "ids"] = "text"


@dataclass(frozen=True)
class _Encoder:
    """The texts of items and passages, and their ids; the fields are arguments of `encode`."""

    tokenizer: Tokenizer
    chat: Chat | None
    context: int | None
    overflow: Overflow
    vocabulary: int | None

    @cached_property
    def split(self) -> Callable[[str], str]:
        return without_control_tokens(self.tokenizer)

    def texts(self, item: Item, join: Literal["text", "ids"]) -> list[_Texts]:
        split = self.split if item.literal else str
        candidates = [split(candidate) for candidate in item.candidates]

        def joined(head: str, glue: str, special: bool) -> _Texts:
            before = head if join == "text" else ""
            return _Texts(head, tuple(before + glue + c for c in candidates), special, join)

        if item.messages is not None:
            try:
                return [joined(templated(item.messages, self.tokenizer, self.chat), "", False)]
            except InputError as error:
                raise ItemError(reason(error)) from error
        blind = [] if item.blind_prompt is None else [item.blind_prompt]
        prompts = [split(prompt) for prompt in (item.prompt, *blind, *item.content_free)]
        if self.chat is not None:
            written = (chat_prompt(prompt, self.tokenizer, self.chat) for prompt in prompts)
            return [joined(prompt, "", False) for prompt in written]
        # Trailing whitespace of a prompt moves to the continuation.
        heads = [(prompt, prompt.rstrip()) for prompt in prompts]
        return [joined(head, prompt[len(head) :] or item.separator, True) for prompt, head in heads]

    def passage_texts(self, prompt: str, subject: str | None) -> list[_Texts]:
        """Return the text to read and, if the input is pooled, the text before the input."""
        if (fault := text_fault(prompt)) is not None:
            raise ItemError(f"the text {fault}")
        prompt, special = self.split(prompt), self.chat is None
        whole = prompt.rstrip()
        if self.chat is not None:
            whole = chat_prompt(prompt, self.tokenizer, self.chat)
        if subject is None:
            return [_Texts(whole, (), special)]
        prompt, subject = prompt.strip(), self.split(subject).strip()
        begin = whole.rfind(prompt)
        start = whole.find(subject, begin, begin + len(prompt))
        if start < 0:
            raise ItemError("the template changes the input, which a probe reads as it stands")
        return [_Texts(whole[: start + len(subject)], (whole[:start],), special)]

    def read(
        self,
        encode: Callable[[S, list[_Texts], Reader], T],
        sources: Sequence[S],
        texts: Sequence[list[_Texts] | ItemError],
        names: Sequence[str | None],
    ) -> list[T | ItemError]:
        """Tokenise all texts together, and return what `encode` makes of those of each source."""
        good = [t for each in texts if not isinstance(each, ItemError) for t in each]
        distinct = chain.from_iterable((t.prompt, *t.rest) for t in good)
        reader = Reader(self.tokenizer, distinct)

        def encoded(source: S, each: list[_Texts] | ItemError) -> T:
            if isinstance(each, ItemError):
                raise each
            return encode(source, each, reader)

        rows = zip(sources, texts, names, strict=True)
        return [_attempt(encoded, source, each, name=name) for source, each, name in rows]

    def item(self, item: Item, texts: list[_Texts], reader: Reader) -> EncodedItem:
        main, *rest = (self._fit(_split(each, reader), reader) for each in texts)
        self._check_ids(s for prompt in (main, *rest) for s in prompt.sequences)
        blind = None if item.blind_prompt is None else rest.pop(0)
        return EncodedItem(item, main, blind, tuple(rest))

    def passage(self, _: str, texts: list[_Texts], reader: Reader) -> Passage:
        (each,) = texts
        ids, *before = (reader.ids(text, each.special) for text in (each.prompt, *each.rest))
        ids = ids or (reader.start,)
        self._check_ids([ids])
        start = min(common_length(before[0], ids), len(ids) - 1) if before else len(ids) - 1
        excess = self._excess("the text", len(ids))
        if not excess:
            return Passage(ids, start)
        return Passage(reader.without(ids, excess), max(start - excess, reader.count_special(ids)))

    def _fit(self, encoded: Encoded, reader: Reader) -> Encoded:
        lengths = [len(branch.fed) for branch in encoded.branches]
        longest = lengths.index(max(lengths))
        name, shared = f"candidate {longest} with its prompt", encoded.prompt_tokens
        if not (excess := self._excess(name, lengths[longest])):
            return encoded
        if excess > shared - max(reader.count_special(encoded.branches[0].tokens[:shared]), 1):
            raise ItemError(
                f"candidate {longest} does not fit the model's context of {self.context} tokens "
                "even without its prompt; shorten it"
            )
        branches = tuple(
            Branch(reader.without(b.tokens, excess), b.boundary - excess) for b in encoded.branches
        )
        return replace(encoded, branches=branches, truncated=excess)

    def _excess(self, name: str, length: int) -> int:
        """Return the number of tokens beyond the context, which are an error unless truncated."""
        if self.context is None or length <= self.context:
            return 0
        if self.overflow == "error":
            raise ItemError(
                f"{name} needs {length} tokens and the model's context is {self.context}; shorten "
                "it or allow truncation: overflow=truncate (in a command --load overflow=truncate)"
            )
        return length - self.context

    def _check_ids(self, sequences: Iterable[Ids]) -> None:
        largest = max((max(ids, default=0) for ids in sequences), default=0)
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise UntrainedError(
                f"the tokenizer gives the token {largest}, and the model has {self.vocabulary} "
                "tokens: the tokenizer is another model's, or the text has an added token that was "
                "never trained"
            )


def _split(texts: _Texts, reader: Reader) -> Encoded:
    """Return the branches of one prompt, each with at least one token before the candidate."""
    prompt = reader.ids(texts.prompt, texts.special)
    if texts.join == "ids":
        sequences = [prompt + reader.ids(text) for text in texts.rest]
    else:
        sequences = [reader.ids(text, texts.special) for text in texts.rest]
    first: dict[Ids, int] = {}
    for i, sequence in enumerate(sequences):
        if sequence == prompt or not sequence:
            raise ItemError(f"candidate {i} has no token; give it text that the tokenizer keeps")
        if first.setdefault(sequence, i) != i:
            raise ItemError(
                f"candidates {first[sequence]} and {i} have the same tokens; drop one of them"
            )
    # A candidate has a token even if its whole sequence is a prefix of the prompt's.
    boundaries = [min(common_length(prompt, s), len(s) - 1) for s in sequences]
    start = (reader.start,) if min(boundaries) == 0 else ()
    pairs = zip(sequences, boundaries, strict=True)
    branches = tuple(Branch(start + s, len(start) + n) for s, n in pairs)
    return Encoded(branches, boundary_moved=min(boundaries) < len(prompt))
