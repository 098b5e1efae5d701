"""Other methods on the same states (baselines, scorers and corrections) and their table.

    from lastword.methods import METHODS, resolve
    METHODS["dola"].summary
    resolve(["trace", "dola", "dola@mean", "early-exit@0.5", "pmi@0.5"], facts)

A name takes options after `@`: a number if the method has one (a fraction of depth, a weight), and
an aggregation (`sum`, `mean`, `bytes`) other than the default. A user's method is an entry point in
the group `lastword.methods`: a callable that takes `Facts` and returns a `Method`. Methods that do
not need whole vocabularies can be used as corrections.

The table is imported at its first use, because TRACE alone does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lastword.methods.contract import Aggregation, Evidence, Facts, Method, Needs

if TYPE_CHECKING:
    from lastword.methods.table import (
        COMPARED,
        METHODS,
        MethodEntry,
        catalogue,
        certified,
        check_of,
        correction_of,
        entry,
        resolve,
    )

__all__ = [
    "COMPARED",
    "METHODS",
    "Aggregation",
    "MethodEntry",
    "Evidence",
    "Facts",
    "Method",
    "Needs",
    "catalogue",
    "certified",
    "check_of",
    "correction_of",
    "entry",
    "resolve",
]


def __getattr__(name: str) -> Any:
    """Return a name of the table, which is imported now."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("lastword.methods.table"), name)
