"""Panics of the tokenizers library, which come as no `Exception`."""

from collections.abc import Iterator
from contextlib import contextmanager

from lastword.errors import ModelError


@contextmanager
def as_errors(what: str) -> Iterator[None]:
    """Make a `ModelError` of a panic: a checkpoint's own rules brought it about.

    Args:
        what: What could not be done, for the error.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        why = str(error).partition("\n")[0]
        raise ModelError(f"{what}: {why}; take another copy of the model") from None
