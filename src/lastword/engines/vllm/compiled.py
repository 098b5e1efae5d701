"""vLLM's worker with a model that returns its states from a compiled graph.

It runs in vLLM's environment. A separate class is needed because extensions are called only after
compilation, and the hooks must be installed before it.
"""

from typing import Any

from vllm.platforms import current_platform

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker


class CompiledWorker(_Worker):  # type: ignore[misc]
    """A worker with `worker.Extension` mixed in."""

    def load_model(self, **options: Any) -> None:
        """Load the model, and install the hooks before it is compiled."""
        super().load_model(**options)
        self.lastword_watch(compiled=True)
