"""Replicas that share a store, conversations that are played on them while faults strike, and what came of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from policies.conversation.prefix_digests import prefix_digests
from proxy.app import App
from proxy.callers.tenants import Tenants
from proxy.sessions.epochs import SETTLED
from proxy.telemetry.log import open_log
from tests.support.conversations import as_read, count
from tests.support.oracle import SUMMARIZER, Oracle, Session
from tests.support.servers import configured, serve
from tests.support.upstreams import JSON, Client, Reply, ask, connected, request

WINDOW = 8_192
ADMIN = "admin-of-the-fleet"
_ADMITTED = [(b"Authorization", f"Bearer {ADMIN}".encode())]
# Everything runs in one process: more at once would only wait for each other, until the store seems to be down.
_AT_ONCE = 8
# Seconds after which a client takes its request for lost, and what everybody waits for is written down.
_PATIENCE = 15.0
_LEAVING = 0.3
_REWRITING = 0.03

Strike = Callable[[], Awaitable[object]]


class Canaries:
    """Finds what must not be written anywhere: marks of messages, signatures of summaries, keys and their plain hashes.

    Itself a binary stream, for logs.
    """

    def __init__(self, tenants: Iterable[str]) -> None:
        secrets = ["mark-", "request-", "signed ", ADMIN, *(f"ck-{tenant}" for tenant in tenants)]
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in secrets[3:]]
        self._pattern = re.compile(b"|".join(re.escape(form) for text in [*secrets, *hashes] for form in _forms(text)))
        self.searched = 0
        self.found: list[bytes] = []
        self.faults: list[bytes] = []
        """Log lines about faults of ours, and what the server says of us."""

    def isatty(self) -> bool:
        return False

    def write(self, content: bytes) -> int:
        self.searched += len(content)
        if match := self._pattern.search(content):
            self.found.append(content[max(0, match.start() - 100) : match.end() + 100])
        if content.startswith(b'{"ts"') and (b'"level":"error"' in content or b'"event":"server"' in content):
            self.faults.append(content)
        return len(content)

    def flush(self) -> None: ...


def _forms(text: str) -> Iterable[bytes]:
    """As it is, in a URL, and in base64 wherever it begins."""
    yield from {text.encode(), quote(text, safe="").encode()}
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + text.encode()).rstrip(b"=")
        whole = encoded[-(-4 * shift // 3) : -1]
        if len(whole) >= 6:
            yield whole


@dataclass
class Fleet:
    """Faults strike one after the other, spread over a round, while requests go on."""

    oracle: Oracle
    addresses: list[str]
    tenants: Tenants
    canaries: Canaries
    chance: random.Random
    sessions: list[Session] = field(default_factory=list)
    answered: int = 0
    left: int = 0
    erased: int = 0
    slowest: float = 0.0
    """Seconds that it took until all replicas reached the store again, at most."""
    failed: list[tuple[str, int, bytes]] = field(default_factory=list)
    _at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    def __str__(self) -> str:
        oracle = self.oracle
        return (
            f"{self.answered} answered, {self.left} left, {self.failed} failed, {self.canaries.faults} faults;"
            f" {_listed(oracle.judged)} judged, {_listed(oracle.signed)} with a summary, {len(oracle.wrong)} wrong;"
            f" {oracle.summaries} summaries, {self.erased} erased;"
            f" {len(self.canaries.found)} canaries in {self.canaries.searched:,} bytes;"
            f" the store was up again after {self.slowest:.1f} s at most"
        )

    async def play(self, steps: int, strikes: Sequence[Strike] = ()) -> None:
        """So many steps of every conversation, and more while faults go on."""
        ends = self.answered + steps * len(self.sessions) * (1 - _LEAVING)
        begins = [self.answered + (ends - self.answered) * (n + 1) / (len(strikes) + 1) for n in range(len(strikes))]
        striking = asyncio.create_task(self._strike(list(zip(begins, strikes, strict=True))))
        try:
            await asyncio.gather(*(self._converse(session, steps, striking) for session in self.sessions))
            await striking
        finally:
            striking.cancel()
        self.oracle.judge()

    async def _strike(self, strikes: list[tuple[float, Strike]]) -> None:
        for begins, strike in strikes:
            while self.answered < begins:  # noqa: ASYNC110 - requests come and go, and none tells
                await asyncio.sleep(0.01)
            await strike()
            await self._recover()

    async def _converse(self, session: Session, steps: int, striking: asyncio.Task[None]) -> None:
        step = 0
        while step < steps or not striking.done():
            step += 1
            if session.history and self.chance.random() < _REWRITING:
                session.change(self.chance)
            else:
                session.grow(self.chance)
                session.slide()
            async with self._at_once:
                await self.send(session)

    async def send(self, session: Session) -> None:
        name, body = session.request()
        self.oracle.expect(name, session)
        address = self.chance.choice(self.addresses)
        headers = [JSON, (b"Authorization", f"Bearer {session.key}".encode()), (b"X-Session-Id", session.name.encode())]
        if self.chance.random() < _LEAVING:
            await leave(
                address, request("POST", session.path, [(b"Host", b"proxy"), *headers], body), self.chance.randrange(4)
            )
            self.left += 1
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                reply = await ask(address, "POST", session.path, headers, body)
        except TimeoutError:
            reply = Reply(408, [], "\n".join(waiting()).encode(), complete=False)
        if reply.status != 200:
            self.failed.append((name, reply.status, reply.body[:20_000]))
        self.answered += 1
        self.oracle.judge()

    async def erase(self, session: Session) -> bool:
        """Whether it was, by any of the replicas; once all reach the store, no summary from before may be seen."""
        before = self.oracle.summaries
        first = session.writer.dialect.items.describe(as_read(session.items[:1])[0], count)
        assert first is not None
        scope = self.tenants.identify(f"Bearer {session.key}".encode()).scope
        path = f"/admin/api/sessions/{prefix_digests(scope, [first])[1].hex()}?tenant={session.tenant}"
        reply = await ask(self.chance.choice(self.addresses), "DELETE", path, _ADMITTED, b"")
        if reply.status != 200:
            return False
        while not (await self._settled() and await self._settled()):
            continue
        self.oracle.erased[session.owner] = before
        self.erased += 1
        return True

    async def _recover(self) -> None:
        """Once a fault is over, until all replicas share what they store again."""
        over = time.monotonic()
        while not await self._all_reach_the_store():  # noqa: ASYNC110 - requests go on, and one of them finds out
            await asyncio.sleep(0.05)
        self.slowest = max(self.slowest, time.monotonic() - over)

    async def _settled(self) -> bool:
        await asyncio.sleep(SETTLED)
        return await self._all_reach_the_store()

    async def _all_reach_the_store(self) -> bool:
        replies = [await ask(address, "GET", "/readyz", [], b"") for address in self.addresses]
        return all(reply.json()["store"] == "up" for reply in replies)

    async def search_pages(self) -> None:
        for address in self.addresses:
            for path in ("/metrics", "/readyz", "/admin/api/models"):
                self.canaries.write((await ask(address, "GET", path, _ADMITTED, b"")).body)


def _listed(counted: Counter[str]) -> str:
    return " + ".join(f"{number} {name}" for name, number in counted.items())


def waiting() -> Iterator[str]:
    """Every task, and the places it waits at, the outermost first."""
    for task in asyncio.all_tasks():
        places = []
        awaited: object = task.get_coro()
        while awaited is not None:
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            if frame is not None:
                places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        yield f"{task.get_name()} cancelling={task.cancelling()}: {' > '.join(places)}"


async def leave(address: str, content: bytes, waits: int) -> None:
    """A client that does not wait for its answer."""
    async with connected(address) as client:
        assert isinstance(client, Client)
        await client.send(content)
        for _ in range(waits):
            await asyncio.sleep(0.002)


@asynccontextmanager
async def fleet(
    directory: Path, stores: Sequence[str], tenants: Sequence[str], *, patience: str = "500ms"
) -> AsyncIterator[Fleet]:
    """A replica for each of these URLs, which lead to one store; logs at debug, values encrypted."""
    oracle, canaries = Oracle(WINDOW, loses=True), Canaries(tenants)
    async with AsyncExitStack() as opened:
        upstream = await opened.enter_async_context(serve(oracle.model))
        addresses = []
        for url in stores:
            keys = {name: {"keys": [f"sha256:{hashlib.sha256(f'ck-{name}'.encode()).hexdigest()}"]} for name in tenants}
            settings = {
                "server": {"admin_token": ADMIN},
                "store": {"url": url, "secret": "shared", "encryption_key": "5a" * 32, "timeout": patience},
                "upstreams": {"main": {"base_url": f"{upstream}/v1"}},
                "models": [
                    {"match": SUMMARIZER, "context_window": 1_000_000},
                    {"match": "*", "context_window": WINDOW, "encoding": "o200k_base"},
                ],
                "policies": {"default": {"summarizer": {"model": SUMMARIZER}}},
                "tenants": keys,
                "logging": {"level": "debug"},
            }
            log = open_log("debug", time.time, canaries)  # type: ignore[arg-type]
            config = configured(directory, settings)
            app = App(config, log)
            addresses.append(await opened.enter_async_context(serve(app, lifespan="on")))
        yield Fleet(oracle, addresses, Tenants(config), canaries, random.Random(1))
