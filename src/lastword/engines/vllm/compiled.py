"""vLLM's own worker, whose model is told of its states before its graph is compiled.

Runs in vLLM's environment. An extension is asked only when the graph is there already.
"""

from typing import Any

from vllm.platforms import current_platform

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Worker
else:
    from vllm.v1.worker.gpu_worker import Worker as _Worker


class Worker(_Worker):  # type: ignore[misc]
    """A worker with `worker.Extension` mixed in."""

    def load_model(self, **options: Any) -> None:
        """Load the model, and hook it before it is compiled."""
        super().load_model(**options)
        self.lastword_watch(compiled=True)
