"""Methods, corrections and benchmarks of installed packages, by their entry points."""

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from lastword.errors import InputError


def plugins(group: str, noun: str, builtin: Collection[str]) -> dict[str, tuple[Any, str]]:
    """Return the entries of a group with the names of their packages, by name.

    Raises:
        InputError: A name is in use or not valid, or an entry cannot be loaded.
    """
    return _entries(group, noun, frozenset(builtin))


@cache  # its arguments need a hash, which the callers' dictionaries do not have
def _entries(group: str, noun: str, builtin: frozenset[str]) -> dict[str, tuple[Any, str]]:
    entries: dict[str, tuple[Any, str]] = {}
    for point in entry_points(group=group):
        origin = point.dist.name if point.dist is not None else point.value
        if point.name in builtin | entries.keys() or set("@:") & set(point.name):
            raise InputError(f"{origin} adds a {noun} named {point.name}, but this name is taken")
        try:
            entries[point.name] = point.load(), origin
        except Exception as error:  # importing a user's module may raise any error
            raise InputError(f"the {noun} {point.name} of {origin} fails: {error}") from error
    return entries
