"""`python -m benchmarks.relay [--rounds N] [--beside CHECKOUT]`: what relaying costs against nginx, the
proxy as an application of uvicorn, and any peer that is installed, interleaved.

An upstream that costs nothing, one worker each, every request with a new last message. CPU is user and system time of
the process a request; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import bodies, client, peers, servers

_SECONDS = 1.5


@dataclass(frozen=True)
class _Kind:
    """What is sent, and over how many connections at once."""

    name: str
    body: bytes
    connections: int
    headers: str = ""


@dataclass(frozen=True)
class _Figures:
    """Of one server under one load: CPU and the median in microseconds."""

    cpu: float
    rate: float
    p50: float
    errors: int


_KINDS = (
    *(
        _Kind(f"{size} x {connections}", bodies.body(bodies.SIZES[size], stream=False), connections)
        for size, connections in (("1 kB", 16), ("40 kB", 4), ("400 kB", 1), ("1 kB", 1), ("40 kB", 1))
    ),
    _Kind(
        "1 kB x 16, a new x-request-id",
        bodies.body(bodies.SIZES["1 kB"], stream=False),
        16,
        f"x-request-id: {bodies.SEQUENCE}\r\n",
    ),
    _Kind("64 chunks x 8", bodies.body(bodies.SIZES["1 kB"], stream=True), 8),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in the same run")
    parser.add_argument("--only", default="", help="kinds whose names begin so")
    options = parser.parse_args()
    Console(width=140).print(table(options.rounds, options.beside, options.only))


def table(rounds: int, beside: Path | None = None, only: str = "") -> Table:
    """What is measured, to be printed."""
    return _table(*_measured(rounds, beside, only))


def _measured(rounds: int, beside: Path | None, only: str) -> tuple[list[str], dict[tuple[str, str], list[_Figures]]]:
    """The servers' names, and their figures by kind and name."""
    figures: dict[tuple[str, str], list[_Figures]] = defaultdict(list)
    with ExitStack() as stack:
        direct = stack.enter_context(servers.upstream("benchmarks.plain_upstream"))
        proxies = [stack.enter_context(servers.proxy(direct)), stack.enter_context(servers.asgi(direct))]
        if beside is not None:
            proxies.append(stack.enter_context(servers.proxy(direct, checkout=beside)))
        others = [direct, stack.enter_context(servers.nginx(direct)), *stack.enter_context(peers.installed(direct))]
        measured = [server for server in (*others, *proxies) if server is not None]
        # The client is a process of its own, so that it takes no time from what it measures.
        workers = stack.enter_context(ProcessPoolExecutor(1))
        for _ in range(rounds):
            for kind in (kind for kind in _KINDS if kind.name.startswith(only)):
                for server in measured:
                    figures[kind.name, server.name].append(_round(workers, server, kind))
    return [server.name for server in measured], figures


def _round(workers: ProcessPoolExecutor, server: servers.Server, kind: _Kind) -> _Figures:
    load = client.Load(server.port, kind.body, kind.connections, _SECONDS, headers=server.headers + kind.headers)
    before = server.cpu_seconds()
    timings = workers.submit(client.run, load).result()
    done = len(timings.total)
    cpu = (server.cpu_seconds() - before) / (done + load.warm)
    return _Figures(1e6 * cpu, done / timings.elapsed, 1e6 * statistics.median(timings.total), timings.errors)


def _table(names: list[str], figures: dict[tuple[str, str], list[_Figures]]) -> Table:
    table = Table("load", "server", "requests/s", "p50 us", "added us", "CPU us", "x nginx", "errors")
    for kind in _KINDS:
        medians = {name: _median(figures[kind.name, name]) for name in names if (kind.name, name) in figures}
        for name, found in medians.items():
            nginx = medians.get("nginx")
            ratio = f"{found.cpu / nginx.cpu:.2f}" if nginx and found.cpu else ""
            table.add_row(
                kind.name,
                name,
                f"{found.rate:,.0f}",
                f"{found.p50:.0f}",
                f"{found.p50 - medians['direct'].p50:.0f}",
                f"{found.cpu:.0f}" if found.cpu else "",
                ratio,
                str(found.errors),
                end_section=name == names[-1],
            )
    return table


def _median(rounds: list[_Figures]) -> _Figures:
    def of(values: list[float]) -> float:
        return statistics.median(values)

    return _Figures(
        of([found.cpu for found in rounds]),
        of([found.rate for found in rounds]),
        of([found.p50 for found in rounds]),
        sum(found.errors for found in rounds),
    )


if __name__ == "__main__":
    main()
