"""Text -> token ids: the required methods of a tokenizer, and the reading of texts with one."""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_SLICE = 2**12  # characters per call, when a longer text is checked against the context
_LOCK = threading.Lock()  # the options of a call may change the tokenizer's state
_WORD = "a\n"  # a text that no tokenizer merges with the text after it


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


class Reader:
    """The ids of texts, tokenised together, and the tokenizer's special tokens."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[Text], add_special: bool) -> None:
        distinct = list(dict.fromkeys(texts))
        whole = [text for text in distinct if text.cuts is None]
        ids = tokenise(tokenizer, [text.text for text in whole])
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


def _leading_special(tokenizer: Tokenizer, ids_of: Mapping[Text, Ids]) -> Ids:
    """Return the tokens that the tokenizer puts before a text; those after it (EOS) are dropped."""
    probe = next((text for text, ids in ids_of.items() if ids), None)
    if probe is None:
        return ()
    full = tokenise(tokenizer, [probe.text], special=True)[0]
    plain = ids_of[probe] if probe.cuts is None else tokenise(tokenizer, [probe.text])[0]
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start]
    raise InputError(
        "the tokenizer changes a text's tokens when it adds special ones; this is not supported"
    )


def _tokenise_pieces(tokenizer: Tokenizer, text: Text) -> Ids:
    """Return the ids of a text in which the user's control tokens are encoded as text."""
    if not getattr(tokenizer, "is_fast", False):
        result: Ids = ()
        for piece, literal in text.pieces:
            options = {"split_special_tokens": True} if literal else {}
            result += tokenise(tokenizer, [piece], **options)[0] if piece else ()
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
        head, expected, result = tokenise(tokenizer, texts, split_special_tokens=True)
        if expected == head + ids and result[: len(head)] == head:
            return result[len(head) :]
    raise ItemError(
        "the text has a control token of the model in it, and the tokenizer cannot read it as "
        "text: take the token out"
    )


def count_tokens(text: str, tokenizer: Tokenizer) -> int:
    """Return the number of tokens of a text, without special ones."""
    return token_counts([text], tokenizer)[0]


def token_counts(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the number of tokens of each text, without special ones."""
    return [len(ids) for ids in tokenise(tokenizer, list(texts))]


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
