"""`python -m benchmarks.slow_clients`: what 1,500 slow clients do to one that behaves.

1,000 connections send their head and 500 their body a byte a second, against short deadlines. Printed: how many were
closed within a second of their deadline, the ordinary client's failures and latency alone and meanwhile, and memory.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import servers

_HEADS = 1_000
_BODIES = 500
_DEADLINE = 5.0
_GRACE = 1.0
_PAUSE = 1.0
# To let the last be closed, and to see those that never are.
_PATIENCE = 3 * _DEADLINE
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_BODY = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}).encode()


@dataclass
class Ordinary:
    """One client that asks again as soon as it is answered, each time on a connection of its own."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    async def ask(self, port: int) -> None:
        started = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY)
            async with asyncio.timeout(10):
                self.failures += not (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        except (OSError, TimeoutError):
            self.failures += 1
        self.seconds.append(time.perf_counter() - started)

    def __str__(self) -> str:
        cuts = [1_000 * cut for cut in statistics.quantiles(self.seconds, n=100)]
        return (
            f"{len(self.seconds):>6} requests  {self.failures} failed  p50 {cuts[49]:5.1f} ms  p99 {cuts[98]:5.1f} ms"
            f"  max {1_000 * max(self.seconds):5.1f} ms"
        )


@asynccontextmanager
async def _asking(port: int) -> AsyncIterator[Ordinary]:
    """An ordinary client, asking until the block ends."""
    client = Ordinary()
    is_over = False

    async def go_on() -> None:
        while not is_over:
            await client.ask(port)

    task = asyncio.create_task(go_on())
    try:
        yield client
    finally:
        is_over = True
        await task


async def _drip(port: int, head: bytes) -> float:
    """Send the head, and then a byte a second; returns the seconds until the other side closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    closed = asyncio.create_task(_read_all(reader))
    writer.write(head)
    while not closed.done() and time.perf_counter() < started + _PATIENCE:
        await asyncio.wait([closed], timeout=_PAUSE)
        if not closed.done():
            writer.write(b"x")
    closed.cancel()
    writer.transport.abort()
    return time.perf_counter() - started


async def _read_all(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionError:
        return


def _closed(kind: str, seconds: list[float]) -> str:
    in_time = sum(lasted <= _DEADLINE + _GRACE for lasted in seconds)
    return (
        f"{kind}  {in_time:>5} of {len(seconds)} closed within {_DEADLINE + _GRACE:g} s"
        f"  (the first after {min(seconds):.2f} s, the last after {max(seconds):.2f} s)"
    )


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def _attack(port: int, pid: int) -> None:
    async with _asking(port) as alone:
        await asyncio.sleep(_DEADLINE)
    before = _resident_mb(pid)
    async with _asking(port) as meanwhile:
        body = _HEAD + b"Content-Length: 1000000\r\n\r\n"
        drips = [asyncio.create_task(_drip(port, head)) for head in [_HEAD] * _HEADS + [body] * _BODIES]
        await asyncio.sleep(_DEADLINE - 1)
        during = _resident_mb(pid)
        lasted = await asyncio.gather(*drips)
    print(_closed("slow heads ", lasted[:_HEADS]))
    print(_closed("slow bodies", lasted[_HEADS:]))
    print(f"ordinary client alone      {alone}")
    print(f"ordinary client meanwhile  {meanwhile}")
    print(f"memory  {before:.1f} MB before, {during:.1f} MB with all connected, {_resident_mb(pid):.1f} MB after")


@asynccontextmanager
async def _proxy(target: servers.Server) -> AsyncIterator[tuple[int, int]]:
    """Port and pid of `concertina serve` with short deadlines."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"server: {{port: 0, header_timeout: {_DEADLINE:g}s, body_timeout: {_DEADLINE:g}s}}\n"
            "store: {url: 'memory://'}\nlogging: {level: error}\n"
            f"upstreams: {{main: {{base_url: 'http://127.0.0.1:{target.port}/v1'}}}}\n"
        )
        command = [sys.executable, "-m", "proxy", "serve", str(config)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            yield await _announced(process), process.pid
        finally:
            process.terminate()
            await process.wait()


async def _announced(process: asyncio.subprocess.Process) -> int:
    """The port that the proxy says it listens on."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.search(r"http://[\d.]+:(\d+)", line)
    if found is None:
        raise RuntimeError(f"the proxy does not listen: {line}")
    return int(found[1])


async def _main() -> None:
    with servers.upstream() as behind:
        async with _proxy(behind) as (port, pid):
            await _attack(port, pid)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_main())
