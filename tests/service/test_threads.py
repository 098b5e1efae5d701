"""Threads of the service: who computes goes behind those who speak with clients."""

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from served import running, tracer

from lastword.service.app import Service
from lastword.service.threads import BODIES, MODEL, go_behind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no places elsewhere")


def place(thread: int) -> int:
    """The niceness of one thread."""
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_a_thread_goes_behind_by_itself():
    places = []

    def run() -> None:
        go_behind(3)
        places.append(place(threading.get_native_id()))

    own = place(threading.get_native_id())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert places == [own + 3] and place(threading.get_native_id()) == own


def test_the_model_and_large_bodies_go_behind_who_speaks_with_clients():
    long = [{"prompt": "w5", "candidates": ["w6", "w7"]}] * 400
    with running(tracer()) as served:
        assert served.client.post("/v1/correct/batch", json={"items": long}).status_code == 200
        own = place(threading.get_native_id())
        places = {t.name: place(t.native_id or 0) - own for t in threading.enumerate()}
    assert places["lastword-tokens"] == 0
    assert places["lastword-model"] == MODEL
    assert places["lastword-long-tokens"] == places["lastword-bodies_0"] == BODIES


def test_who_leaves_while_a_body_is_read_lets_nobody_in_before_its_end():
    async def meet() -> list[str]:
        held, order = threading.Event(), list[str]()
        own = SimpleNamespace(_one=asyncio.Semaphore(1), _bodies=ThreadPoolExecutor(2))
        first = asyncio.ensure_future(Service.beside(own, held.wait))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(Service.beside(own, order.append, "second"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.sleep(0.05)
        order.append("first")
        held.set()
        await second
        own._bodies.shutdown()
        return order

    assert asyncio.run(meet()) == ["first", "second"]
