"""Forecast of a model's needs from its config and header, before it is loaded."""

from dataclasses import dataclass

import torch

from lastword.errors import TraceError
from lastword.model import embedded, gguf, memory
from lastword.model.loading import device_of, in_one_line, parts_of, plan_load
from lastword.model.options import LoadOptions
from lastword.model.weights.checkpoint import SafetensorsCheckpoint


@dataclass(frozen=True)
class Forecast:
    """Needs of a model before it is loaded.

    Attributes:
        need: Bytes of memory; None if the header does not tell.
        disk: Bytes of the files with its weights.
        device: The device that it would run on.
        missing: Reasons why it cannot be loaded, in words.
    """

    need: memory.Footprint | None = None
    disk: int | None = None
    device: torch.device = torch.device("cpu")
    missing: tuple[str, ...] = ()

    @property
    def lacks_memory(self) -> bool:
        """True if it does not fit the free memory of its device."""
        free = memory.available(self.device)
        return self.need is not None and free is not None and self.need.total > free


def forecast(options: LoadOptions) -> Forecast:
    """Return the forecast of a model; errors are in `missing`."""
    if options.embedded is not None:
        options = LoadOptions(embedded.folder(options.embedded), device="cpu")
    try:
        device = device_of(options.device)
        if (file := gguf.find(options)) is not None:
            header = gguf.read_header(file.path)
            return Forecast(memory.Footprint(header.dense_bytes, 0, 0), header.bytes, device)
        base, _ = parts_of(options, None)
        with in_one_line(base):
            plan = plan_load(base)
    except TraceError as error:
        return Forecast(missing=(str(error),))
    disk = None
    if isinstance(plan.checkpoint, SafetensorsCheckpoint):
        disk = sum(info.stop - info.start for _, info in plan.checkpoint.tensors())
    return Forecast(plan.need, disk, device)
