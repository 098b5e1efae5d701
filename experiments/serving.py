"""A `lastword serve` in a separate process, for measurements from outside."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def serving(model: str, *options: str, before: str = "") -> Iterator[tuple[str, psutil.Process]]:
    """Yield the address and the process of a service, which must exit with 0.

    Args:
        model: The model.
        options: Further options of the command line.
        before: Python code to run first in its process.
    """
    main = f"{before}\nfrom lastword.__main__ import main; main()"
    command = [sys.executable, "-c", main, "serve", "--model", model]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stderr is not None
    events = map(json.loads, process.stderr)
    address = next(event["address"] for event in events if event["event"] == "started")
    log = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield address, psutil.Process(process.pid)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if process.wait(60) != 0:
            sys.exit(f"the service ended with {process.returncode}")
        log.wait()
