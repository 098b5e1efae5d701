"""tracelm: corrects hallucinations in candidate answers at inference time, by TRACE.

Names are imported when they are first used, so that `import tracelm` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelm.decision import Decision, Gate
    from tracelm.errors import TraceError
    from tracelm.evaluation.store import load_records
    from tracelm.items import Item
    from tracelm.theta import Theta
    from tracelm.tokens import Chat
    from tracelm.tracer import Tracer

__version__ = "0.1.0"
__all__ = ["Chat", "Decision", "Gate", "Item", "Theta", "TraceError", "Tracer", "load_records"]

_HOMES = {
    "Chat": "tracelm.tokens",
    "Decision": "tracelm.decision",
    "Gate": "tracelm.decision",
    "Item": "tracelm.items",
    "Theta": "tracelm.theta",
    "TraceError": "tracelm.errors",
    "Tracer": "tracelm.tracer",
    "load_records": "tracelm.evaluation.store",
}


def __getattr__(name: str) -> Any:
    """The public name, from the module where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tracelm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return [*globals(), *__all__]
