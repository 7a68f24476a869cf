"""A closed-loop client on plain sockets, in a process of its own: one request at a time on each connection."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.bodies import SEQUENCE

_MARK = SEQUENCE.encode()
_TIMEOUT = 60.0


@dataclass
class Load:
    """What to send where, and for how long, in seconds; at least `least` requests are made.

    SEQUENCE in the body or in the headers is another number in every request.
    """

    port: int
    body: bytes
    connections: int
    seconds: float
    warm: int = 20
    least: int = 20
    path: str = "/v1/chat/completions"
    headers: str = ""


@dataclass
class Timings:
    """Seconds: to the end and to the first byte of each answer, and between its chunks."""

    total: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    errors: int = 0


class _Connection:
    def __init__(self, load: Load) -> None:
        head = (
            f"POST {load.path} HTTP/1.1\r\nhost: 127.0.0.1:{load.port}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer sk-bench\r\n{load.headers}content-length: {len(load.body)}\r\n\r\n"
        )
        self.request = bytearray(head.encode() + load.body)
        self.marks = [found.start() + 3 for found in re.finditer(_MARK, self.request)]
        self.socket = socket.create_connection(("127.0.0.1", load.port), timeout=_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = b""
        self.started = 0.0
        self.seen = 0.0

    def send(self, number: int) -> None:
        for mark in self.marks:
            self.request[mark : mark + 8] = b"%08d" % (number % 10**8)
        self.answer = b""
        self.seen = 0.0
        self.started = time.perf_counter()
        self.socket.sendall(self.request)

    def receive(self, timings: Timings) -> bool:
        """Read what is there; True when the answer is complete."""
        chunk = self.socket.recv(1 << 18)
        now = time.perf_counter()
        if not chunk:
            raise ConnectionError("the server closed the connection")
        if self.seen:
            timings.gaps.append(now - self.seen)
        else:
            timings.first.append(now - self.started)
        self.seen = now
        self.answer += chunk
        if not _complete(self.answer):
            return False
        timings.total.append(now - self.started)
        timings.errors += not self.answer.startswith(b"HTTP/1.1 200")
        return True


def _complete(answer: bytes) -> bool:
    head, separator, rest = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return rest.endswith(b"0\r\n\r\n")
    length = lower.partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(rest) >= int(length)


def run(load: Load) -> Timings:
    """Send the load; timings are of the requests after the warm-up."""
    # No two runs send the same text: what a server remembers of one must not help it in the next.
    numbers = iter(range(time.time_ns() // 1_000_000 % 10**8, 2 * 10**8))
    connections = [_Connection(load) for _ in range(load.connections)]
    _rounds(connections, Timings(), numbers, seconds=0.0, least=load.warm)
    timings = Timings()
    started = time.perf_counter()
    _rounds(connections, timings, numbers, seconds=load.seconds, least=load.least)
    timings.elapsed = time.perf_counter() - started
    for connection in connections:
        connection.socket.close()
    return timings


def _rounds(
    connections: list[_Connection], timings: Timings, numbers: Iterator[int], *, seconds: float, least: int
) -> None:
    end = time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(next(numbers))
        running = len(connections)
        while running:
            for key, _ in selector.select(_TIMEOUT):
                connection = key.data
                if connection.receive(timings):
                    if time.perf_counter() < end or len(timings.total) < least:
                        connection.send(next(numbers))
                    else:
                        running -= 1
