"""Threads of one process that go behind others, where the system lets each have its own place."""

import os
import sys
import threading
from contextlib import suppress

# Of who computes, behind who speaks with clients and needs a thousandth of a second at a time.
MODEL, BODIES = 5, 10


def go_behind(steps: int) -> None:
    """Lower the priority of this thread, as `nice` does for a process; on Linux alone.

    Args:
        steps: By how much; what it starts from now on has the same.
    """
    if sys.platform != "linux":
        return
    own = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + steps)
