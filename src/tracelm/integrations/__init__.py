"""tracelm where people already are: lm-evaluation-harness and transformers' pipelines."""

from typing import TYPE_CHECKING, Any

from tracelm.errors import InputError
from tracelm.model.embedded import EMBEDDED

if TYPE_CHECKING:
    from tracelm.tracer import Tracer


def open_tracer(model: str, **options: Any) -> "Tracer":
    """A tracer by the name that a framework was given: a hub name, a folder or an embedded model.

    Args:
        model: Name or folder; `tracelm/demo-organism` and its like are embedded.
        options: As `Tracer.from_pretrained`.

    Raises:
        TraceError: The model cannot be used.
    """
    from tracelm.tracer import Tracer

    if not model.startswith(EMBEDDED):
        return Tracer.from_pretrained(model, **options)
    if options.pop("device", None) not in (None, "auto", "cpu"):
        raise InputError(f"{model} is embedded and runs on the CPU: leave the device out")
    return Tracer.demo(model.removeprefix(EMBEDDED), **options)
