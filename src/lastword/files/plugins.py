"""What installed packages add by entry points: methods, corrections, benchmarks."""

from collections.abc import Container
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from lastword.errors import InputError


@cache
def _loaded(group: str, noun: str) -> dict[str, tuple[Any, str]]:
    """Every entry of a group with its package, by name."""
    entries: dict[str, tuple[Any, str]] = {}
    for point in entry_points(group=group):
        origin = point.dist.name if point.dist is not None else point.value
        if point.name in entries or set("@:") & set(point.name):
            raise _taken(noun, point.name, origin)
        try:
            entries[point.name] = point.load(), origin
        except Exception as error:  # whatever a user's module raises when it is imported
            raise InputError(f"the {noun} {point.name} of {origin} fails: {error}") from error
    return entries


def plugins(group: str, noun: str, own: Container[str]) -> dict[str, tuple[Any, str]]:
    """What installed packages add to a table: each with the name of its package.

    Args:
        group: Of the entry points: `lastword.methods`.
        noun: What one of them is.
        own: Names of the table itself.

    Raises:
        InputError: A package takes a name that is taken, or one that is no name here, or does not
            load.
    """
    entries = _loaded(group, noun)
    for name, (_, origin) in entries.items():
        if name in own:
            raise _taken(noun, name, origin)
    return entries


def forget() -> None:
    """Look again for what is installed."""
    _loaded.cache_clear()


def _taken(noun: str, name: str, origin: str) -> InputError:
    return InputError(f"{origin} adds a {noun} under the name {name}, which is taken")
