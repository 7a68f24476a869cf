"""Replicas as processes behind a front end of docs/front-ends.md, restarted one after the other while clients ask."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.fronts import documented, running
from tests.support.processes import COMMAND, config
from tests.support.servers import reserve_port
from tests.support.upstreams import CHAT, JSON, Client, chat, connected, value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

WHOLE = "whole"
_CLIENTS = 16
# A stream is one request in so many.
_STREAMED = 8
# Seconds after which a step of the restart, or a request, has failed.
_PATIENCE = 60.0


class Replica:
    """A process that serves one port, whenever it runs."""

    def __init__(self, folder: Path, upstream: str, drain_delay: str) -> None:
        folder.mkdir()
        self.port = reserve_port()
        self.log: list[dict[str, object]] = []
        """Its lines about its end."""
        self._asked = asyncio.Event()
        self._file = folder / "config.yaml"
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        config(self._file, upstream, server={"port": self.port, "drain_delay": drain_delay})

    async def start(self) -> None:
        """Returns once it listens."""
        env = {name: text for name, text in os.environ.items() if not name.startswith(("CONCERTINA_", "OPENAI_"))}
        self._process = await asyncio.create_subprocess_exec(
            *(COMMAND, "serve", self._file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=self._file.parent,
        )
        self._asked.clear()
        self._reading = asyncio.create_task(self._read_log())
        assert self._process.stdout is not None
        assert await self._process.stdout.readline()

    async def asked(self) -> None:
        """Returns once it has answered a request since it started."""
        async with asyncio.timeout(_PATIENCE):
            await self._asked.wait()

    async def restart(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_PATIENCE):
            await self._reading
            assert await self._process.wait() == 0
        await self.start()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._reading
        await self._process.wait()

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if not line.startswith(b"{"):
                continue
            entry = json.loads(line)
            if entry["event"] == "request":
                self._asked.set()
            elif entry["event"] in ("stopping", "stopped"):
                self.log.append(entry)


@dataclass
class Clients:
    """Ask the front end without a pause, half of them on connections that they keep, and count what comes of it."""

    address: str
    wanted: int
    """Requests that are answered at least."""
    outcomes: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    _enough: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    @property
    def failed(self) -> dict[str, int]:
        return {outcome: number for outcome, number in self.outcomes.items() if outcome != WHOLE}

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Until the block has ended and there were enough requests."""
        asking = [asyncio.create_task(self._ask(number)) for number in range(_CLIENTS)]
        try:
            yield
            async with asyncio.timeout(_PATIENCE):
                await self._enough.wait()
            self._ended = True
            await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()

    async def _ask(self, number: int) -> None:
        while not self._ended:
            try:
                async with connected(self.address) as client:
                    is_open = True
                    while is_open and not self._ended:
                        self._count(await self._outcome(client, number))
                        is_open = number % 2 == 0 and value(client.headers, b"connection") != b"close"
            except (OSError, asyncio.IncompleteReadError) as error:
                self._count(type(error).__name__)

    async def _outcome(self, client: Client, number: int) -> str:
        total = self.outcomes.total()
        is_stream = total % _STREAMED == 0
        headers = [JSON, (b"X-Session-Id", b"%d" % (total % 64))] if number % 4 else [JSON]
        began = time.perf_counter()
        async with asyncio.timeout(_PATIENCE):
            reply = await client.ask("POST", CHAT, headers, chat(f"{number}", stream=is_stream))
        self.longest = max(self.longest, time.perf_counter() - began)
        is_whole = reply.complete and (b"[DONE]" if is_stream else b"choices") in reply.body
        return WHOLE if reply.status == 200 and is_whole else f"{reply.status}"

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if self.outcomes.total() >= self.wanted:
            self._enough.set()


@asynccontextmanager
async def replicas(folder: Path, upstream: str, drain_delay: str) -> AsyncIterator[list[Replica]]:
    """Two that run."""
    async with AsyncExitStack() as opened:
        found = [Replica(folder / f"replica-{number}", upstream, drain_delay) for number in (1, 2)]
        for replica in found:
            await replica.start()
            opened.push_async_callback(replica.kill)
        yield found


async def restart_in_turn(name: str, folder: Path, behind: Sequence[Replica], wanted: int) -> Clients:
    """Each of them restarted, and asked again before the next one is, behind nginx or haproxy."""
    addresses = [f"http://127.0.0.1:{replica.port}" for replica in behind]
    block = documented(name, port := reserve_port(), addresses)
    async with running(name, folder, block, port) as address:
        clients = Clients(address, wanted)
        async with clients.asking():
            for replica in behind:
                await replica.asked()
                await replica.restart()
                await replica.asked()
    return clients
