"""Other methods on the same states: baselines, scorers and corrections, by name.

    from lastword.methods import METHODS, resolve
    METHODS["dola"].summary
    resolve(["trace", "dola", "dola@mean", "early-exit@0.5", "pmi@0.5"], facts)

A name takes options after `@`: a number if the method has one (a fraction of depth, a weight), and
an aggregation (`sum`, `mean`, `bytes`) other than the default. A method of your own is a `Method`:
pass it as `correction=` to a `Decider` or to `correct_many`, or among `methods=`.
"""

# isort: off
# Each file registers its methods, in the order in which they are listed and compared.
from lastword.methods import trace, baselines, dola, sled, pmi, contextual  # noqa: F401
from lastword.methods.batch_calibrated import certified
from lastword.methods import gated  # noqa: F401

# isort: on
from lastword.methods.contract import (
    METHODS,
    Facts,
    ItemReadings,
    Method,
    Needs,
    correction_of,
    entry,
    resolve,
)

COMPARED = tuple(row.compared for row in METHODS.values() if row.compared)

__all__ = [
    "COMPARED",
    "METHODS",
    "Facts",
    "ItemReadings",
    "Method",
    "Needs",
    "certified",
    "correction_of",
    "entry",
    "resolve",
]
