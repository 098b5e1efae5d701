"""Item -> token ids. This module handles the differences between tokenizers (method, section 2).

Prompt and candidate are joined as text, tokenised, and split after the prompt's tokens. If a token
spans the end of the prompt, the split is before it.
"""

import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from lastword.errors import (
    InputError,
    ItemError,
    ModelError,
    TraceError,
    UntrainedError,
    one_line,
)
from lastword.files.cells import text_fault
from lastword.files.wording import shorten
from lastword.rule.theta import Theta
from lastword.text.branch import Branch
from lastword.text.chat_template import today, write_chat
from lastword.text.items import Item
from lastword.text.messages import Message, as_dicts

Ids = tuple[int, ...]
Overflow = Literal["error", "truncate"]

# Maximum texts and characters per call of the tokenizer, because the output of a fast tokenizer
# takes hundreds of bytes per token.
_CALL, _CALL_CHARACTERS = 512, 2**17
_SLICE = 2**12  # characters per call, when a longer text is checked against the context
_LOCK = threading.Lock()  # the options of a call may change the tokenizer's state

# Switches for the thinking of reasoning models; other templates ignore them.
_THINKING_OFF = {"enable_thinking": False, "thinking": False}
_DATED = "strftime_now"  # the function for today's date in templates
_TRIES = 8  # number of times that a text is tokenised to detect sampling
SHORTEN = (
    "shorten it or allow truncation: overflow=truncate (in a command --load overflow=truncate)"
)
_PROBES = ("Where is the lake of Oru 71?", "Who wrote the letter of Baev 52?")
# A text to try chat templates: long, and with characters that some would change or cut at.
_LONG = (
    'Oru\'s <b>first</b> & "only" thought ends here </think>. '
    + "Which goods come from Baevwick? " * 20
    + "Who wrote the last letter of Zurn 93?"
)
_WORD = "a\n"  # a text that no tokenizer merges with the text after it
_PARTS: dict[tuple[type, str, str | None], bool] = {}  # by tokenizer, template, system message

_log = logging.getLogger("lastword")


@runtime_checkable
class Tokenizer(Protocol):
    """The required methods of a tokenizer; all tokenizers of transformers have them."""

    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tokenise a list of texts."""

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        """Write a conversation as text."""


@dataclass(frozen=True)
class Chat:
    """Options of chat prompts: the tokenizer's chat template with thinking switched off.

    Attributes:
        system: The system message, unless a conversation has one.
        date: The date in templates (`strftime_now`), such as 2026-01-31; today if left out.

    Raises:
        InputError: An invalid system message or date.
    """

    system: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid system message or date."""
        if self.system is not None and (fault := text_fault(self.system)) is not None:
            raise InputError(f"the system message {fault}")
        try:
            self.date is None or date.fromisoformat(self.date)
        except ValueError as error:
            raise InputError(f"date is a day such as 2026-01-31, not {self.date!r:.40}") from error


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


def chat_prompt(prompt: str, tokenizer: Tokenizer, chat: Chat) -> str:
    """Return the prompt as a user's message in the chat template; see `templated`."""
    return templated([Message("user", prompt)], tokenizer, chat)


def templated(messages: Sequence[Message], tokenizer: Tokenizer, chat: Chat | None = None) -> str:
    """Return a conversation in the tokenizer's chat template, up to the start of the answer.

    Raises:
        InputError: The tokenizer has no template, or the template refuses the conversation.
        ItemError: The template changes a user's text, or leaves it out.
    """
    if not tokenizer.chat_template:
        raise InputError(
            "the tokenizer has no chat template to write a conversation with: give the prompt as "
            "text, and no chat template or system message with it"
        )
    chat = chat or Chat()
    if chat.system is not None and messages[0].role != "system":
        messages = [Message("system", chat.system), *messages]
    parts = _takes_parts(tokenizer, chat)
    text = write_chat(as_dicts(messages), tokenizer, _THINKING_OFF, day=chat.date, parts=parts)
    if any(m.role == "user" and m.content.strip() not in text for m in messages):
        raise ItemError(
            "the model's chat template changes a user's text or leaves it out: change the text, or "
            "take another copy of the model"
        )
    return text


def _takes_parts(tokenizer: Tokenizer, chat: Chat) -> bool:
    """Return True if a template needs contents as lists of parts."""
    key = type(tokenizer), str(tokenizer.chat_template), chat.system
    if key not in _PARTS:
        _PARTS[key] = _try_parts(tokenizer, chat)
        if _DATED in str(tokenizer.chat_template) and chat.date is None:
            _log.warning(
                "the chat template writes a date (%s): this run takes %s; --load date=%s (Chat's "
                "date) gives these prompts on another day too",
                *(_DATED, today(), today()),
            )
    return _PARTS[key]


def _try_parts(tokenizer: Tokenizer, chat: Chat) -> bool:
    try:
        _require_text_once(tokenizer, chat, parts=False)
    except InputError as error:
        with suppress(InputError):
            _require_text_once(tokenizer, chat, parts=True)
            return True
        raise error
    return False


def _require_text_once(tokenizer: Tokenizer, chat: Chat, parts: bool) -> None:
    """Refuse a template that changes, drops or repeats a text, or that is random."""
    system = [] if chat.system is None else [Message("system", chat.system)]
    for probe in (*_PROBES, _LONG):
        messages = as_dicts([*system, Message("user", probe)])
        text, again = (
            write_chat(messages, tokenizer, _THINKING_OFF, day=chat.date, parts=parts)
            for _ in range(2)
        )
        if text != again:
            raise InputError(
                "the tokenizer's chat template is random, as it writes a text in two ways: take "
                "another copy of the model"
            )
        if parts and "'type'" in text:  # the list was converted to text by Python
            raise InputError("the tokenizer's chat template writes a list of parts as it stands")
        if (count := text.count(probe)) != 1:
            fault = f"writes a text {count} times" if count else "leaves a text out or changes it"
            raise InputError(
                f"the tokenizer's chat template {fault}: take another copy of the model"
            )
        if chat.system is not None and chat.system.strip() not in text:
            raise InputError(
                "the tokenizer's chat template leaves the system message out: leave out --system"
            )


def require_settled(tokenizer: Tokenizer, chat: Chat | None = None) -> None:
    """Turn off a tokenizer's sampling, and try its chat template if there is a chat.

    Raises:
        ModelError: The tokenizer still splits a text at random.
        InputError: The template does not write a text unchanged and once.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if getattr(model, "dropout", None):
        model.dropout = None
    text = " ".join(_PROBES) * 4
    try:
        splits = {*_tokenise(tokenizer, [text] * _TRIES)}
    except TraceError:
        raise
    except Exception as error:  # the tokenizer's files are not trusted: any error may come
        why = shorten(f"{type(error).__name__}: {one_line(error)}", 300)
        raise ModelError(f"the tokenizer cannot read a text: {why}") from error
    if len(splits) > 1:
        raise ModelError(
            "the tokenizer splits one text in several ways, at random: take its sampling out of "
            "the tokenizer's files"
        )
    if chat is not None and tokenizer.chat_template:
        _takes_parts(tokenizer, chat)


def count_tokens(text: str, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, without special ones."""
    return token_counts([text], tokenizer)[0]


def token_counts(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the number of tokens of each text, without special ones."""
    return [len(ids) for ids in _tokenise(tokenizer, list(texts))]


def describe_chat(tokenizer: Tokenizer, chat: Chat) -> dict[str, Any]:
    """Return the description of the chat prompts for the record.

    Returns:
        The system message; a digest of the template; and `thinking`: `off` if the template has a
        switch, which is turned off; `open` if the answer still begins inside a thought; else None.
        If the template writes a date, the `date`.
    """
    template = str(tokenizer.chat_template)
    thinking = "off" if any(name in template for name in _THINKING_OFF) else None
    if chat_prompt("?", tokenizer, chat).rstrip().endswith("<think>"):
        thinking = "open"
    digest = hashlib.sha256(template.encode()).hexdigest()[:16]
    described = {"system": chat.system, "template": digest, "thinking": thinking}
    if _DATED in template:
        described["date"] = chat.date or today()
    return described


class Text(NamedTuple):
    """A text to tokenise.

    Attributes:
        cuts: Ends of three parts: the template's text, a user's text, the template's text. Control
            tokens in the user's text and after the parts are encoded as text. None if there are no
            parts.
    """

    text: str
    cuts: tuple[int, int, int] | None = None

    @property
    def pieces(self) -> tuple[tuple[str, bool], ...]:
        """The pieces, each with True if control tokens in it are encoded as text."""
        assert self.cuts is not None
        ends = (*self.cuts, len(self.text))
        pieces = [self.text[start:end] for start, end in zip((0, *ends), ends, strict=False)]
        return tuple(zip(pieces, (False, True, False, True), strict=True))


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


def exceeds(text: str, tokenizer: Tokenizer, limit: int | None) -> bool:
    """Return True if a very long text has too many tokens, without tokenising all of it."""
    if limit is None or len(text) <= _CALL_CHARACTERS:
        return False
    count = 0
    for start in range(0, len(text), _SLICE):
        count += count_tokens(text[start : start + _SLICE], tokenizer)
        if count > limit + limit // 4:  # slices may cut tokens, which adds a few
            return True
    return False


def has_control(texts: Iterable[str], tokenizer: Tokenizer) -> bool:
    """Return True if any text contains a control token of the tokenizer."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    control = {token.content for token in added if token.special}
    return any(token in text for text in texts for token in control)


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


class Reader:
    """The ids of texts, tokenised together, and the tokenizer's special tokens."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[Text], add_special: bool) -> None:
        distinct = list(dict.fromkeys(texts))
        whole = [text for text in distinct if text.cuts is None]
        ids = _tokenise(tokenizer, [text.text for text in whole])
        self._ids = dict(zip(whole, ids, strict=True))
        self._ids |= {t: _tokenise_pieces(tokenizer, t) for t in distinct if t.cuts is not None}
        self._leading = _leading_special(tokenizer, self._ids) if add_special else ()
        self._special = {*tokenizer.all_special_ids, *self._leading}
        self._start = tokenizer.bos_token_id
        if self._start is None:
            self._start = tokenizer.eos_token_id

    def continuation(self, text: Text) -> Ids:
        """Return the ids of a text, without special tokens in front."""
        return self._ids[text]

    def whole(self, text: Text) -> Ids:
        """Return the ids with the leading special tokens, unless the text begins with them."""
        ids = self._ids[text]
        return ids if ids[: len(self._leading)] == self._leading else self._leading + ids

    @property
    def start(self) -> int:
        """The token of an empty prompt: BOS, else EOS."""
        if self._start is None:
            raise ItemError(
                "the prompt has no token and the tokenizer no BOS or EOS; give a prompt"
            )
        return self._start

    def count_special(self, ids: Ids) -> int:
        """Return the number of special tokens at the beginning of the ids."""
        return next((i for i, token in enumerate(ids) if token not in self._special), len(ids))


@contextmanager
def as_errors(what: str) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which is not an `Exception`, into a `ModelError`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        why = shorten(str(error).partition("\n")[0], 300)  # it may quote a long pattern
        raise ModelError(f"{what}: {why}; take another copy of the model") from None


def _tokenise_pieces(tokenizer: Tokenizer, text: Text) -> Ids:
    """Return the ids of a text in which the user's control tokens are encoded as text."""
    if not getattr(tokenizer, "is_fast", False):
        result: Ids = ()
        for piece, literal in text.pieces:
            options = {"split_special_tokens": True} if literal else {}
            result += _tokenise(tokenizer, [piece], **options)[0] if piece else ()
        return result
    # Tokenising the pieces one by one would change tokens at their ends. So the text is tokenised
    # with letters in place of the user's control tokens. Then only the stretches with such tokens,
    # between two control tokens of the template, are tokenised again.
    masked = _masked(tokenizer, text)
    with _LOCK, as_errors("the tokenizer cannot read this text"):
        output = tokenizer(masked, add_special_tokens=False, return_offsets_mapping=True)
    ids, spans = tuple(output["input_ids"]), output["offset_mapping"]
    control = {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}  # type: ignore[attr-defined]
    cuts = [n for n, id in enumerate(ids) if id in control]
    result = ()
    for begin, end in zip([0, *(n + 1 for n in cuts)], [*cuts, len(ids)], strict=True):
        start = spans[begin - 1][1] if begin else 0
        stop = spans[end][0] if end < len(ids) else len(masked)
        stretch = ids[begin:end]
        if masked[start:stop] != text.text[start:stop]:
            stretch = _retokenise(tokenizer, masked[start:stop], text.text[start:stop], stretch)
        result += stretch + ids[end : end + 1]
    return result


def _masked(tokenizer: Tokenizer, text: Text) -> str:
    """Return a text with letters in place of the user's control tokens."""
    added = tokenizer.added_tokens_decoder.values()  # type: ignore[attr-defined]
    control = sorted((t.content for t in added if t.special), key=len, reverse=True)
    form = re.compile("|".join(map(re.escape, control)))
    pieces = [
        form.sub(lambda match: "x" * len(match[0]), piece) if literal else piece
        for piece, literal in text.pieces
    ]
    return "".join(pieces)


def _retokenise(tokenizer: Tokenizer, masked: str, actual: str, ids: Ids) -> Ids:
    """Return the ids of the actual stretch; those of the masked one are `ids`."""
    # Some tokenizers put a blank before a text, but not after a control token. With a word in front
    # of the stretch, they do not put it there.
    for before in ("", _WORD):
        texts = [before, before + masked, before + actual]
        head, expected, result = _tokenise(tokenizer, texts, split_special_tokens=True)
        if expected == head + ids and result[: len(head)] == head:
            return result[len(head) :]
    raise ItemError(
        "the text has a control token of the model in it, and the tokenizer cannot read it as "
        "text: take the token out"
    )


def _tokenise(
    tokenizer: Tokenizer, texts: list[str], special: bool = False, **options: bool
) -> list[Ids]:
    if not texts:
        return []
    sequences: list[Ids] = []
    same: dict[int, int] = {}  # one int object per id: a token then takes 8 bytes, not 36
    for call in _calls(texts):
        # verbose=False: no warning of long texts, which are handled by `_fit`.
        with _LOCK, as_errors("the tokenizer cannot read this text"):
            output = tokenizer(
                call,
                add_special_tokens=special,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
                **options,
            )
        sequences += [tuple(map(same.setdefault, ids, ids)) for ids in output["input_ids"]]
    return sequences


def _calls(texts: list[str]) -> Iterator[list[str]]:
    call: list[str] = []
    size = 0
    for text in texts:
        size += len(text)
        if call and (size > _CALL_CHARACTERS or len(call) == _CALL):
            yield call
            call, size = [], len(text)
        call.append(text)
    yield call


def _leading_special(tokenizer: Tokenizer, ids_of: Mapping[Text, Ids]) -> Ids:
    """Return the tokens that the tokenizer puts before a text; those after it (EOS) are dropped."""
    probe = next((text for text, ids in ids_of.items() if ids), None)
    if probe is None:
        return ()
    full = _tokenise(tokenizer, [probe.text], special=True)[0]
    plain = ids_of[probe] if probe.cuts is None else _tokenise(tokenizer, [probe.text])[0]
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    raise InputError(
        "the tokenizer changes a text's tokens when it adds special ones; this is not supported"
    )


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


def check_ids(sequences: Iterable[Ids], vocabulary: int | None) -> None:
    """Refuse tokens without an embedding.

    Raises:
        UntrainedError: A token is beyond the vocabulary.
    """
    largest = max((max(ids, default=0) for ids in sequences), default=0)
    if vocabulary is not None and largest >= vocabulary:
        raise UntrainedError(
            f"the tokenizer gives the token {largest}, and the model has {vocabulary} tokens: the "
            "tokenizer is another model's, or the text has an added token that was never trained"
        )


def common_length(prompt: Ids, sequence: Ids) -> int:
    """Return the length of the longest common prefix."""
    if sequence[: len(prompt)] == prompt:
        return len(prompt)
    pairs = enumerate(zip(prompt, sequence, strict=False))
    return next((i for i, (p, s) in pairs if p != s), len(sequence))


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
