"""`python -m benchmarks.viewers [REQUESTS]`: do those who look slow down those who work, and what do names cost?

First, requests come at a steady pace, in turns with nobody looking and with 20 live viewers, a stuck one among them,
and a scrape every second; printed is how long requests took from when they were due. Then REQUESTS (100,000) of 10,000
models, labels and paths: printed are resident memory and the lines of /metrics at every fifth of the way.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks import bodies, servers

_TOKEN = "viewers"
_AUTHORIZATION = {"authorization": f"Bearer {_TOKEN}"}
_RATE = 150
_ROUNDS, _SECONDS, _WARM = 4, 8.0, 1.0
_VIEWERS = 20
_NAMES, _WORKERS, _STEPS = 10_000, 16, 5
_PERCENTILES = (50, 99)
# For a second /metrics tells the same.
_KEPT_SECONDS = 1.1


@contextmanager
def _proxy(target: servers.Server) -> Iterator[servers.Server]:
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"server: {{port: {port}, admin_token: {_TOKEN}}}\nstore: {{url: 'sqlite:///{folder}/bench.db'}}\n"
            f"upstreams: {{main: {{base_url: 'http://127.0.0.1:{target.port}/v1'}}}}\n"
            "models: [{match: '*', context_window: 128000}]\nlogging: {level: error}\n"
        )
        with servers.process([sys.executable, "-m", "proxy", "serve", str(config)], port) as pid:
            yield servers.Server("concertina", port, pid)


def paced(port: int) -> list[float]:
    """Seconds from when each request was due to the end of its answer."""
    return asyncio.run(_asked(port))


async def _asked(port: int) -> list[float]:
    url, taken = f"http://127.0.0.1:{port}/v1/chat/completions", list[float]()
    whole = bodies.body(bodies.SIZES["1 kB"], stream=False)
    begun = time.time_ns() % 10**8

    async def ask(session: aiohttp.ClientSession, number: int, due: float) -> None:
        body = whole.replace(bodies.SEQUENCE.encode(), b"SEQ%08d" % ((begun + number) % 10**8))
        async with session.post(url, data=body, headers={"content-type": "application/json"}) as answer:
            await answer.read()
            assert answer.status == 200
        if number >= _WARM * _RATE:
            taken.append(time.perf_counter() - due)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        started = time.perf_counter()
        for number in range(int(_RATE * (_SECONDS + _WARM))):
            due = started + number / _RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(ask(session, number, due))
    return taken


def _looked_at(port: int, seconds: float) -> tuple[int, int]:
    """Have viewers and a scrape look for so many seconds; bytes that one viewer was sent, and scrapes."""
    return asyncio.run(_looking(port, seconds))


async def _looking(port: int, seconds: float) -> tuple[int, int]:
    request = (
        f"GET /admin/api/live HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {_AUTHORIZATION['authorization']}\r\n\r\n"
    )
    streams = [await asyncio.open_connection("127.0.0.1", port, limit=1 << 16) for _ in range(_VIEWERS)]
    for _, writer in streams:
        writer.write(request.encode())
    read = [asyncio.create_task(_read(reader)) for reader, _ in streams[1:]]  # the first one never does
    url, scrapes, ends = f"http://127.0.0.1:{port}/metrics", 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        await asyncio.to_thread(_get, url)
        scrapes += 1
        await asyncio.sleep(1.0)
    for _, writer in streams:
        writer.transport.abort()
    return max(await asyncio.gather(*read)), scrapes


async def _read(reader: asyncio.StreamReader) -> int:
    total = 0
    try:
        while chunk := await reader.read(1 << 16):
            total += len(chunk)
    except ConnectionError:
        pass
    return total


def _get(url: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=_AUTHORIZATION), timeout=30) as answer:
        content: bytes = answer.read()
        return content


def _compared(port: int) -> None:
    found: dict[str, list[list[float]]] = {"nobody looks": [], f"{_VIEWERS} viewers, a scrape a second": []}
    alone, watched = found.values()
    with ProcessPoolExecutor(2) as workers:
        for number in range(_ROUNDS):
            alone.append(workers.submit(paced, port).result())
            looking = workers.submit(_looked_at, port, _SECONDS + _WARM)
            watched.append(workers.submit(paced, port).result())
            sent, scrapes = looking.result()
            print(f"round {number + 1}: a viewer was sent {sent / 1e6:.1f} MB, {scrapes} scrapes", flush=True)
    medians = {}
    for name, rounds in found.items():
        cuts = [statistics.quantiles(each, n=100) for each in rounds]
        medians[name] = [1_000 * statistics.median(cut[at - 1] for cut in cuts) for at in _PERCENTILES]
        told = "  ".join(f"p{at} {ms:6.2f} ms" for at, ms in zip(_PERCENTILES, medians[name], strict=True))
        print(f"{name:<36}{told}   ({sum(map(len, rounds)):,} requests, {_RATE} a second)")
    before, after = (each[-1] for each in medians.values())
    print(f"p99 {100 * (after / before - 1):+.1f} %")


async def _named(server: servers.Server, requests: int) -> None:
    """Every request has another model, label and path, of so many each."""
    failed = 0

    async def work(session: aiohttp.ClientSession, numbers: list[int]) -> None:
        nonlocal failed
        while numbers:
            number = numbers.pop()
            name = number % _NAMES
            body = {"model": f"model-{name}", "messages": [{"role": "user", "content": f"This is number {number}."}]}
            headers = {"content-type": "application/json", "x-session-id": f"label-{name}"}
            path = "chat/completions" if number % 2 else f"some/path-{name}"
            url = f"http://127.0.0.1:{server.port}/v1/{path}"
            async with session.post(url, data=json.dumps(body), headers=headers) as answer:
                await answer.read()
                failed += answer.status != 200

    async with aiohttp.ClientSession() as session:
        for step in range(_STEPS + 1):
            await asyncio.sleep(_KEPT_SECONDS)
            lines = _get(f"http://127.0.0.1:{server.port}/metrics").count(b"\n")
            held = server.held_mb()
            told = f"{held:7.1f} MB  {lines:>5} lines of /metrics  {failed} failed"
            print(f"{step * requests // _STEPS:>8} requests  {told}", flush=True)
            if step < _STEPS:
                numbers = list(range(step * requests // _STEPS, (step + 1) * requests // _STEPS))
                await asyncio.gather(*(work(session, numbers) for _ in range(_WORKERS)))


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with servers.upstream("benchmarks.plain_upstream") as behind:
        with _proxy(behind) as served:
            _compared(served.port)
        with _proxy(behind) as served:
            asyncio.run(_named(served, wanted))
