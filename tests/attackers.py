"""Attacks on a service from another process: `attackers.py ATTACK PORT HANDS`, until killed.

A, B and C have no token; the others send requests that a caller may send. Clients of E disconnect
at once. F and G repeat a prompt of nearly a megabyte over one connection each, and S sends a body
byte by byte.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count

HEAD = b"POST /v1/correct HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
MANY = HEAD + b"".join(b"x%d: a\r\n" % i for i in range(9000)) + b"\r\n"
CHUNKS = b"1;extension=of-no-use\r\nx\r\n" * 500
_ITEM = {"prompt": "w5 " * 60, "candidates": ["w8 w9", "w10", "w11 w12 w13"]}
_BATCH = json.dumps({"items": [_ITEM] * 250}).encode()
_BURSTS = {"B": 1, "E": 25}  # number of connections per thread, one after the other
_TO_BATCH = HEAD.replace(b"correct", b"correct/batch") + b"authorization: Bearer ask\r\n"


def chunks(raw: socket.socket) -> None:
    """A: send small chunks with extensions, also after the refusal."""
    raw.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    while True:
        raw.sendall(CHUNKS)


def empty(raw: socket.socket) -> None:
    """B: announce a body on a route without one, and do not send it."""
    raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 1048576\r\n\r\n")
    while raw.recv(4096):
        pass


def headers(raw: socket.socket) -> None:
    """C: send 9,000 header lines."""
    raw.sendall(MANY)
    while raw.recv(4096):
        pass


def left(raw: socket.socket) -> None:
    """E: send a large batch, and do not wait for the answer."""
    raw.sendall(_TO_BATCH + b"content-length: %d\r\n\r\n" % len(_BATCH) + _BATCH)


def long(prompt: str) -> Callable[[socket.socket], None]:
    """Return an attack that repeats a long prompt, and waits for each answer."""
    body = json.dumps({"prompt": prompt, "candidates": ["w8 w9", "w10"]}).encode()
    head = HEAD + b"authorization: Bearer ask\r\ncontent-length: %d\r\n\r\n" % len(body)

    def repeat(raw: socket.socket) -> None:
        while True:
            raw.sendall(head + body)
            if not raw.recv(65536):
                return

    return repeat


def slowly(raw: socket.socket) -> None:
    """S: send a body byte by byte."""
    raw.sendall(HEAD + b"authorization: Bearer ask\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(1000):
        raw.sendall(b" ")
        time.sleep(0.05)


_LONG = 2**20 - 200
ATTACKS: dict[str, Callable[[socket.socket], None]] = {
    **{"A": chunks, "B": empty, "C": headers, "E": left},
    **{"F": long("w5 " * (_LONG // 3)), "G": long("w" * _LONG), "S": slowly},
}


def send(name: str, port: int, hands: int) -> None:
    """Repeat an attack over a number of connections at a time; B and E end after a burst."""

    def loop() -> None:
        for _ in range(_BURSTS[name]) if name in _BURSTS else count():
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port))) as raw:
                ATTACKS[name](raw)

    threads = [threading.Thread(target=loop) for _ in range(hands)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
