"""tracelm: corrects hallucinations in candidate answers at inference time, by TRACE.

Names are imported when they are first used, so that `import tracelm` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelm.errors import TraceError
    from tracelm.evaluation.store import load_records
    from tracelm.generation.ask import Sampling, ask
    from tracelm.rule.decision import Decision, Gate
    from tracelm.text.items import Item
    from tracelm.text.tokens import Chat
    from tracelm.theta import Theta
    from tracelm.tracer import Tracer

__version__ = "0.1.0"
__all__ = [
    "Chat",
    "Decision",
    "Gate",
    "Item",
    "Sampling",
    "Theta",
    "TraceError",
    "Tracer",
    "ask",
    "load_records",
]

_HOMES = {
    "Chat": "tracelm.text.tokens",
    "Decision": "tracelm.rule.decision",
    "Gate": "tracelm.rule.decision",
    "Item": "tracelm.text.items",
    "Sampling": "tracelm.generation.ask",
    "Theta": "tracelm.theta",
    "TraceError": "tracelm.errors",
    "Tracer": "tracelm.tracer",
    "ask": "tracelm.generation.ask",
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
