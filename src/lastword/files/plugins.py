"""Additions of installed packages by entry points: methods, corrections, benchmarks."""

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from lastword.errors import InputError


@cache
def _entries(group: str, noun: str, taken: frozenset[str]) -> dict[str, tuple[Any, str]]:
    """Load every entry of a group; by name, each with its package."""
    entries: dict[str, tuple[Any, str]] = {}
    for point in entry_points(group=group):
        origin = point.dist.name if point.dist is not None else point.value
        if point.name in taken | entries.keys() or set("@:") & set(point.name):
            raise InputError(f"{origin} adds a {noun} under the name {point.name}, which is taken")
        try:
            entries[point.name] = point.load(), origin
        except Exception as error:  # whatever a user's module raises when it is imported
            raise InputError(f"the {noun} {point.name} of {origin} fails: {error}") from error
    return entries


def plugins(group: str, noun: str, taken: Collection[str]) -> dict[str, tuple[Any, str]]:
    """Return the entries that installed packages add to a table, each with its package's name.

    Raises:
        InputError: A package takes a name that is taken, or one that is no name here, or does not
            load.
    """
    return _entries(group, noun, frozenset(taken))
