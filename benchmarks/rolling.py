"""`python -m benchmarks.rolling [REQUESTS]`: is a request lost while two replicas are restarted, one after the other?

nginx and haproxy stand before them as docs/front-ends.md shows them. Sixteen clients ask without a pause, half of them
on connections that they keep; one request in eight is a stream, three in four belong to a session. A replica gets
SIGTERM, is started again once it has ended, and has to be asked again before it is the other one's turn.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import servers
from tests.support.fronts import PROGRAMS
from tests.support.rolling import replicas, restart_in_turn

_DELAYS = ("0s", "5s")


async def _row(name: str, delay: str, upstream: str, requests: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as made:
        folder, began = Path(made), time.monotonic()
        async with replicas(folder, upstream, delay) as behind:
            clients = await restart_in_turn(name, folder, behind, requests)
            ended = [line["seconds"] for replica in behind for line in replica.log if line["event"] == "stopped"]
    ends = ", ".join(f"{seconds:.1f}" for seconds in ended)
    failed = ", ".join(f"{number} x {outcome}" for outcome, number in clients.failed.items()) or "0"
    seconds = time.monotonic() - began
    return (name, delay, f"{clients.outcomes.total():,}", failed, f"{clients.longest:.2f}", ends, f"{seconds:.0f}")


async def _measure(upstream: str, requests: int) -> Table:
    table = Table(title="two replicas restarted in turn under load")
    for column in ("front end", "drain_delay", "requests", "failed", "longest, s", "replicas ended in, s", "s in all"):
        table.add_column(column, justify="left" if column == "front end" else "right")
    for name, delay in product(PROGRAMS, _DELAYS):
        table.add_row(*await _row(name, delay, upstream, requests))
    return table


def main(requests: int) -> None:
    with servers.upstream() as behind:
        Console(width=120).print(asyncio.run(_measure(f"http://127.0.0.1:{behind.port}", requests)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
