"""Text -> token ids: the required methods of a tokenizer, and the reading of texts with one."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from os.path import commonprefix
from typing import Any, Literal, Protocol, runtime_checkable

from lastword.errors import InputError, ItemError, ModelError
from lastword.files.wording import shorten

Ids = tuple[int, ...]
Overflow = Literal["error", "truncate"]

# Maximum texts per call of the tokenizer, because the output of a fast tokenizer takes hundreds of
# bytes per token.
_CALL = 64
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


class Reader:
    """The ids of texts, tokenised together, and the tokenizer's special tokens."""

    def __init__(self, tokenizer: Tokenizer, texts: Iterable[str]) -> None:
        distinct = list(dict.fromkeys(texts))
        self._tokenizer = tokenizer
        self._ids = dict(zip(distinct, tokenise(tokenizer, distinct), strict=True))

    def ids(self, text: str, special: bool = False) -> Ids:
        """Return the ids of a text; with special tokens in front, unless it begins with them."""
        ids = self._ids[text]
        if not special or ids[: len(self._leading)] == self._leading:
            return ids
        return self._leading + ids

    @cached_property
    def _leading(self) -> Ids:
        """The tokens that the tokenizer puts before a text; those after it (EOS) are dropped."""
        text = next((text for text, ids in self._ids.items() if ids), None)
        if text is None:
            return ()
        plain, (full,) = self._ids[text], tokenise(self._tokenizer, [text], special=True)
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start]
        raise InputError(
            "the tokenizer changes a text's tokens when it adds special ones; this is not supported"
        )

    @property
    def start(self) -> int:
        """The token of an empty prompt: BOS, else EOS."""
        for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return token
        raise ItemError("the prompt has no token and the tokenizer no BOS or EOS; give a prompt")

    def without(self, ids: Ids, excess: int) -> Ids:
        """Return ids without the first `excess` of them after the leading special tokens."""
        special = self.count_special(ids)
        return ids[:special] + ids[special + excess :]

    def count_special(self, ids: Ids) -> int:
        """Return the number of special tokens at the beginning of the ids."""
        return next((i for i, token in enumerate(ids) if token not in self._special), len(ids))

    @cached_property
    def _special(self) -> set[int]:
        return {*self._tokenizer.all_special_ids, *self._leading}


def tokenise(tokenizer: Tokenizer, texts: list[str], special: bool = False) -> list[Ids]:
    """Return the ids of each text, tokenised in calls of limited size."""
    sequences: list[Ids] = []
    same: dict[int, int] = {}  # one int object per id: a token then takes 8 bytes, not 36
    for begin in range(0, len(texts), _CALL):
        # verbose=False: no warning of long texts, which callers of this function handle.
        with _LOCK, as_errors("the tokenizer cannot read this text"):
            output = tokenizer(
                texts[begin : begin + _CALL],
                add_special_tokens=special,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
        sequences += [tuple(map(same.setdefault, ids, ids)) for ids in output["input_ids"]]
    return sequences


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


def without_control_tokens(tokenizer: Tokenizer) -> Callable[[str], str]:
    """Return a function that splits control tokens in a text, so that they are read as text.

    It puts a space after their first character: `< /s>`.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    control = sorted((t.content for t in added if t.special), key=len, reverse=True)
    if not control:
        return str
    form = re.compile("|".join(map(re.escape, control)))
    return partial(form.sub, lambda match: f"{match[0][0]} {match[0][1:]}")


def common_length(prompt: Ids, sequence: Ids) -> int:
    """Return the length of the longest common prefix."""
    if sequence[: len(prompt)] == prompt:
        return len(prompt)
    return len(commonprefix([prompt, sequence]))
