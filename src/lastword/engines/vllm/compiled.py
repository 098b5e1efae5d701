"""vLLM's worker with a model that returns its states from a compiled graph.

Runs in vLLM's environment. An extension's calls come only after compilation.
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
        """Load the model, and hook it before it is compiled."""
        super().load_model(**options)
        self.lastword_watch(compiled=True)
