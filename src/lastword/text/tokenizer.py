"""Text -> token ids: the required methods of a tokenizer, and the reading of texts with one."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from lastword.errors import InputError, ItemError, ModelError, UntrainedError
from lastword.files.wording import shorten

Ids = tuple[int, ...]
Overflow = Literal["error", "truncate"]
SHORTEN = (
    "shorten it or allow truncation: overflow=truncate (in a command --load overflow=truncate)"
)

# Maximum texts and characters per call of the tokenizer, because the output of a fast tokenizer
# takes hundreds of bytes per token.
_CALL, _CALL_CHARACTERS = 512, 2**17
_CHARACTERS = 16  # more than the mean per token of nearly every text
_LOCK = threading.Lock()  # the options of a call may change the tokenizer's state


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

    def __hash__(self) -> int:
        """Return a hash by identity."""

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        """Write a conversation as text."""


class Text(NamedTuple):
    """A text to tokenise.

    Attributes:
        pieces: Its pieces, each with True if control tokens in it are encoded as text.
        special: True to put the tokenizer's special tokens in front, unless it begins with them.
    """

    pieces: tuple[tuple[str, bool], ...]
    special: bool = False

    @classmethod
    def of(cls, *pieces: tuple[str, bool], special: bool = False) -> "Text":
        """Return the text of pieces, without empty ones; neighbours of one kind become one."""
        groups = groupby((piece for piece in pieces if piece[0]), key=itemgetter(1))
        whole = [("".join(text for text, _ in group), literal) for literal, group in groups]
        return cls(tuple(whole), special)


class Reader:
    """The ids of texts, tokenised together, and the tokenizer's special tokens."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[Text]) -> None:
        texts = list(texts)
        pieces = list(dict.fromkeys(piece for text in texts for piece in text.pieces))
        self._ids: dict[tuple[str, bool], Ids] = {}
        for options in ({}, {"split_special_tokens": True}):
            chosen = [piece for piece in pieces if piece[1] is bool(options)]
            ids = tokenise(tokenizer, [text for text, _ in chosen], **options)
            self._ids |= zip(chosen, ids, strict=True)
        special = any(text.special for text in texts)
        self._leading = _leading_special(tokenizer, self._ids) if special else ()
        self._special = {*tokenizer.all_special_ids, *self._leading}
        self._start = tokenizer.bos_token_id
        if self._start is None:
            self._start = tokenizer.eos_token_id

    def ids(self, text: Text) -> Ids:
        """Return the ids of a text."""
        ids = tuple(chain.from_iterable(self._ids[piece] for piece in text.pieces))
        begun = not text.special or ids[: len(self._leading)] == self._leading
        return ids if begun else self._leading + ids

    @property
    def start(self) -> int:
        """The token of an empty prompt: BOS, else EOS."""
        if self._start is None:
            raise ItemError(
                "the prompt has no token and the tokenizer no BOS or EOS; give a prompt"
            )
        return self._start

    def without(self, ids: Ids, excess: int) -> Ids:
        """Return ids without the first `excess` of them after the leading special tokens."""
        special = self.count_special(ids)
        return ids[:special] + ids[special + excess :]

    def count_special(self, ids: Ids) -> int:
        """Return the number of special tokens at the beginning of the ids."""
        return next((i for i, token in enumerate(ids) if token not in self._special), len(ids))


def tokenise(
    tokenizer: Tokenizer, texts: list[str], special: bool = False, **options: bool
) -> list[Ids]:
    """Return the ids of each text, tokenised in calls of limited size."""
    if not texts:
        return []
    sequences: list[Ids] = []
    same: dict[int, int] = {}  # one int object per id: a token then takes 8 bytes, not 36
    for call in _calls(texts):
        # verbose=False: no warning of long texts, which callers of this function handle.
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


def _leading_special(tokenizer: Tokenizer, ids_of: Mapping[tuple[str, bool], Ids]) -> Ids:
    """Return the tokens that the tokenizer puts before a text; those after it (EOS) are dropped."""
    texts = [text for (text, _), ids in ids_of.items() if ids][:1]
    if not texts:
        return ()
    (plain,), (full,) = tokenise(tokenizer, texts), tokenise(tokenizer, texts, special=True)
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    raise InputError(
        "the tokenizer changes a text's tokens when it adds special ones; this is not supported"
    )


def count_tokens(text: str, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, without special ones."""
    return len(tokenise(tokenizer, [text])[0])


def require_short(texts: Iterable[str], tokenizer: Tokenizer, limit: int | None) -> None:
    """Refuse a text far beyond a limit of tokens, without tokenising all of it."""
    for text in texts:
        if limit is not None and len(text) > (length := _CHARACTERS * limit):
            # The cut may split a token, which adds a few.
            if count_tokens(text[:length], tokenizer) > limit + _CHARACTERS:
                raise ItemError(
                    f"a text has more tokens than the model's context of {limit}; {SHORTEN}"
                )


def has_control(texts: Iterable[str], tokenizer: Tokenizer) -> bool:
    """Return True if any text contains a control token of the tokenizer."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    control = {token.content for token in added if token.special}
    return any(token in text for text in texts for token in control)


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
