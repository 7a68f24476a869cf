"""`python -m benchmarks [--quick] [--json FILE]`: direct, nginx and the proxy, one worker each, in one run."""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import bodies, client, decisions, relay, servers, sessions, telling

_RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Row:
    """One server under one load; milliseconds, and CPU milliseconds a request."""

    server: str
    body: str
    stream: bool
    connections: int
    requests_per_second: float
    p50: float
    p99: float
    first_byte: float
    gap: float
    cpu: float
    errors: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, for a first look")
    parser.add_argument("--json", type=Path, help="where to write the figures; benchmarks/results/ by default")
    options = parser.parse_args()
    console = Console()
    rows, memory = _network(0.4 if options.quick else 2.0, console)
    own = decisions.measure() | telling.measure()
    _show(rows, memory, own, console)
    console.print(relay.table(1 if options.quick else 4))
    long = sessions.measure()
    console.print(sessions.table(long))
    file = options.json or _RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"rows": [asdict(row) for row in rows], "peak_mb": memory, "own_ms": own, "sessions": dict(long)}
    file.write_text(json.dumps(content, indent=1))
    console.print(f"written to {file}")


def _network(seconds: float, console: Console) -> tuple[list[Row], dict[str, float]]:
    rows = []
    with ExitStack() as stack:
        direct = stack.enter_context(servers.upstream())
        nginx = stack.enter_context(servers.nginx(direct))
        proxy = stack.enter_context(servers.proxy(direct))
        if nginx is None:
            console.print("nginx is not installed: its rows are missing, and with them the ratios to it")
        measured = [server for server in (direct, nginx, proxy) if server is not None]
        # The client is a process of its own, so that it takes no time from what it measures.
        workers = stack.enter_context(ProcessPoolExecutor(1))
        loads = [
            (name, stream, n) for name in bodies.SIZES for stream in (False, True) for n in _connections(name, stream)
        ]
        with Progress(console=console, transient=True) as progress:
            for name, stream, connections in progress.track(loads, description="measuring"):
                content = bodies.body(bodies.SIZES[name], stream=stream)
                for server in measured:
                    load = client.Load(server.port, content, connections, seconds)
                    before = server.cpu_seconds()
                    timings = workers.submit(client.run, load).result()
                    spent = server.cpu_seconds() - before
                    rows.append(_row(server.name, name, stream, load, timings, spent))
        memory = {server.name: server.peak_mb() for server in measured if server.pid is not None}
    return rows, memory


def _connections(name: str, stream: bool) -> tuple[int, ...]:
    return (1, 16) if name == "1 kB" and not stream else (1,)


def _row(server: str, body: str, stream: bool, load: client.Load, timings: client.Timings, cpu: float) -> Row:
    done = len(timings.total)
    return Row(
        server=server,
        body=body,
        stream=stream,
        connections=load.connections,
        requests_per_second=done / timings.elapsed,
        p50=1000 * statistics.median(timings.total),
        p99=1000 * sorted(timings.total)[int(0.99 * (done - 1))],
        first_byte=1000 * statistics.median(timings.first),
        gap=1000 * statistics.median(timings.gaps) if timings.gaps else 0.0,
        cpu=1000 * cpu / (done + load.warm),
        errors=timings.errors,
    )


def _show(rows: list[Row], memory: dict[str, float], own: dict[str, float], console: Console) -> None:
    table = Table(title="milliseconds; added: over direct in the same run", header_style="bold")
    for column in (
        "body",
        "stream",
        "connections",
        "server",
        "requests/s",
        "p50",
        "added",
        "p99",
        "1st byte",
        "CPU/request",
    ):
        table.add_column(column, justify="left" if column in ("body", "stream", "server") else "right")
    for row in rows:
        direct = next(r for r in rows if r.server == "direct" and _load(r) == _load(row))
        added = "" if row is direct else f"{row.p50 - direct.p50:.2f}"
        figures = (
            f"{row.requests_per_second:,.0f}",
            f"{row.p50:.2f}",
            added,
            f"{row.p99:.2f}",
            f"{row.first_byte:.2f}",
        )
        load = (row.body, "yes" if row.stream else "", str(row.connections))
        table.add_row(
            *load, row.server, *figures, f"{row.cpu:.3f}" if row.cpu else "", end_section=row.server == "concertina"
        )
    console.print(table)
    for name, milliseconds in own.items():
        console.print(f"{milliseconds:8.3f} ms  {name}")
    console.print("peak memory: " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in memory.items()))
    if errors := sum(row.errors for row in rows):
        console.print(f"[red]{errors} answers were no 200[/red]")


def _load(row: Row) -> tuple[str, bool, int]:
    return row.body, row.stream, row.connections


if __name__ == "__main__":
    main()
