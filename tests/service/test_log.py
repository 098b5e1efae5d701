"""Answers do not wait for the log, which may be closed, full or blocked."""

import errno
import io
import threading

from served import BODY, PATIENCE_SECONDS, running


class Reader(io.StringIO):
    """The reader of a log. It fails with `fault`, and waits while `free` is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: OSError | None = None
        self.free = threading.Event()
        self.free.set()

    def write(self, text: str, /) -> int:
        assert self.free.wait(PATIENCE_SECONDS)
        if self.fault is not None:
            raise self.fault
        return super().write(text)


def test_a_log_without_a_reader_costs_no_answer_and_is_reported(model):
    reader = Reader()
    with running(model, stream=reader) as served:
        for number in (errno.EPIPE, errno.ENOSPC):
            reader.fault = OSError(number, "")
            assert served.client.post("/v1/correct", json=BODY).status_code == 200
        served.wait_for(lambda: served.metric("lastword_log_lines_dropped") >= 4)
        reader.fault = None
        assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert len(served.events("decision")) == 1


def test_a_blocked_log_costs_no_answer(model):
    reader = Reader()
    with running(model, stream=reader) as served:
        reader.free.clear()
        for _ in range(3):
            assert served.client.post("/v1/correct", json=BODY).status_code == 200
        assert served.metric("lastword_log_lines_dropped") == 0  # the lines wait
        for _ in range(2**13):
            served.service.log.event("line")
        assert served.metric("lastword_log_lines_dropped") > 0
        reader.free.set()
        assert len(served.events("decision")) == 3
