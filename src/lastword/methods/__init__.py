"""Other methods on the same states (baselines, scorers and corrections) and their table.

    from lastword.methods import METHODS, resolve
    METHODS["dola"].summary
    resolve(["trace", "dola", "dola@mean", "early-exit@0.5", "pmi@0.5"], facts)

A name takes options after `@`: a number if the method has one (a fraction of depth, a weight), and
an aggregation (`sum`, `mean`, `bytes`) other than the default. A user's method is an object like
`Method`. Methods that do not need whole vocabularies can be used as corrections.
"""

from lastword.methods.contract import Aggregation, Evidence, Facts, Method, Needs
from lastword.methods.table import (
    COMPARED,
    METHODS,
    MethodEntry,
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
    "certified",
    "check_of",
    "correction_of",
    "entry",
    "resolve",
]
