"""Measures the time of a tracer's stages while a block of code runs."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch

from lastword.decide.tracer import Tracer

Clock = Callable[[], float]  # in seconds: time.perf_counter, or time.process_time on a busy machine


@dataclass
class Meter:
    """Counts and seconds of one run.

    Attributes:
        seconds: Seconds by stage: plan, trunk, readout, scorer.
        tokens: Number of distinct tokens that went through the blocks.
        reads: Number of (row, depth) pairs that went through the head.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    reads: int = 0
    total: float = 0.0

    @property
    def rest(self) -> float:
        """The seconds outside of all stages."""
        return self.total - sum(self.seconds.values())


@contextlib.contextmanager
def metered(tracer: Tracer, clock: Clock = time.perf_counter) -> Iterator[Meter]:
    """Measure the stages of a tracer during the block; the tracer is restored afterwards."""
    meter = Meter()

    def timed(stage: str, call: Callable[..., Any], count: Callable[..., Any]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = call(*args, **kwargs)
            synchronise()
            meter.seconds[stage] = meter.seconds.get(stage, 0) + clock() - start
            count(*args, **kwargs)
            return result

        return run

    def tokens(ids: Any, *_: Any) -> None:
        meter.tokens += ids.size

    def reads(hidden: Any, *_: Any, **__: Any) -> None:
        meter.reads += len(hidden)

    def reads_directly(states: Any, _: Any, depths: Any) -> None:
        meter.reads += len(np.unique(states.reads)) * len(depths)

    backbone, readout, scorer = tracer.backbone, tracer.readout, tracer.scorer
    stages: list[tuple[Any, str, str, Callable[..., Any]]] = [
        (tracer, "plan", "plan", lambda *_: None),
        (backbone, "_capture", "trunk", tokens),
        (readout, "logits", "readout", reads),
        (readout, "_read_direct", "readout", reads_directly),
        (scorer, "log_probs", "scorer", lambda *_: None),
    ]
    # Set on the instances, so that deleting the attribute restores the method of the class.
    for owner, name, stage, count in stages:
        setattr(owner, name, timed(stage, getattr(owner, name), count))
    start = clock()
    try:
        yield meter
    finally:
        synchronise()
        meter.total = clock() - start
        for owner, name, _, _ in stages:
            delattr(owner, name)


def synchronise() -> None:
    """Wait until all GPUs are idle, so that a clock can be read."""
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the peak memory of a call in bytes, above the memory before it, on GPUs or the CPU."""
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count())
        before = sum(torch.cuda.memory_allocated(gpu) for gpu in gpus)
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        run()
        return sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus) - before
    # The system's own peak is that since the start of the process, so the memory is sampled.
    process, end = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def sample() -> None:
        nonlocal peak
        while not end.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run()
    finally:
        end.set()
        sampler.join()
    return int(peak - before)
