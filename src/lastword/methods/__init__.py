"""Other methods on the same states: baselines, scorers and corrections, by name.

    from lastword.methods import METHODS, resolve
    METHODS["dola"].summary
    resolve(["trace", "dola", "dola@mean", "early-exit@0.5", "pmi@0.5"], facts)

A name takes options after `@`: a number if the method has one (a fraction of depth, a weight), and
an aggregation (`sum`, `mean`, `bytes`) other than the default. A method of your own is a `Method`:
pass it as `correction=` to a `Decider` or to `correct_many`, or among `methods=`.
"""

# Each file registers its methods, in the order in which they are listed and compared.
from lastword.methods.trace import trace  # isort: skip
from lastword.methods.baselines import base_mean  # isort: skip # noqa: F401
from lastword.methods.dola import dola  # isort: skip # noqa: F401
from lastword.methods.sled import sled  # isort: skip # noqa: F401
from lastword.methods.pmi import pmi  # isort: skip # noqa: F401
from lastword.methods.contextual import contextual  # isort: skip # noqa: F401
from lastword.methods.batch_calibrated import certified

from lastword.methods.gated import trace_gated  # isort: skip # noqa: F401
from lastword.methods.contract import Aggregation, Evidence, Facts, Method, Needs
from lastword.methods.names import METHODS, MethodEntry, correction_of, entry, method, resolve

COMPARED = tuple(row.compared for row in METHODS.values() if row.compared)

__all__ = [
    "COMPARED",
    "METHODS",
    "Aggregation",
    "Evidence",
    "Facts",
    "Method",
    "MethodEntry",
    "Needs",
    "certified",
    "correction_of",
    "entry",
    "method",
    "resolve",
    "trace",
]
