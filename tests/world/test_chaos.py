"""Three replicas, many conversations and a store that is maltreated in every way we know: nothing goes wrong.

The oracle (tests/support/oracle.py) judges every request that reaches the upstream. CONCERTINA_CHAOS says how many
rounds are played on each kind of store, each with conversations and faults of its own: one in the suite, many by
`make chaos`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from redis.asyncio import Redis

from tests.support.conversations import Json
from tests.support.dialects import WRITERS, Entry, Writer
from tests.support.fleet import WINDOW, Canaries, Fleet, Strike, fleet
from tests.support.oracle import Oracle, Session, link
from tests.support.redis_servers import (
    ClusterOfServers,
    Line,
    Sentinels,
    Server,
    cluster,
    line_to,
    sentinels,
    standalone,
)
from tests.support.servers import serve
from tests.support.upstreams import CHAT, JSON, ask

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STEPS = 40
ROUNDS = int(os.environ.get("CONCERTINA_CHAOS", "1"))
TENANTS = tuple(f"tenant{number}" for number in range(10))
# The same in every tenant.
NAMES = ("one", "two", "three")
# Entries of a conversation that its client sends.
MOST = {"one": None, "two": None, "three": 40}
# Milliseconds of silence after which a master is replaced.
DOWN_AFTER = 1_000


class Maltreated(Protocol):
    """A store for three replicas, and what can happen to it."""

    urls: list[str]
    servers: list[Server]

    def faults(self, played: Fleet) -> list[Strike]:
        """Those of one round, in order."""
        ...


async def garbage(servers: list[Server]) -> None:
    """Every value is damaged: made up, cut, or another key's."""
    for server in servers:
        async with Redis(host="127.0.0.1", port=server.port) as client, client.pipeline(transaction=False) as batch:
            keys = [key async for key in client.scan_iter("*", _type="string")]
            for key in keys:
                batch.get(key)
            values = [value or b"" for value in await batch.execute()]
            for number, (key, value) in enumerate(zip(keys, values, strict=True)):
                other = values[(number + 1) % len(values)]
                broken = (b"\x00\xffgarbage", value[: len(value) // 2], other)[number % 3]
                batch.set(key, broken, keepttl=True, xx=True)
            await batch.execute()


async def flush(servers: list[Server]) -> None:
    for server in servers:
        await asyncio.to_thread(server.do, "FLUSHALL")


async def frozen(server: Server) -> None:
    """For longer than an operation may take."""
    with server.frozen():
        await asyncio.sleep(1)


async def full(server: Server) -> None:
    for bytes_left in ("1", "0"):
        await asyncio.to_thread(server.do, "CONFIG", "SET", "maxmemory", bytes_left)
        await asyncio.sleep(0.3)


@dataclass
class Alone:
    """One server, behind a line that can be slow, go silent, or break."""

    server: Server
    lines: list[Line]

    @property
    def urls(self) -> list[str]:
        return [f"redis://{line.url}" for line in self.lines]

    @property
    def servers(self) -> list[Server]:
        return [self.server]

    def faults(self, played: Fleet) -> list[Strike]:
        return [
            lambda: garbage(self.servers),
            lambda: self.killed(),
            lambda: flush(self.servers),
            lambda: frozen(self.server),
            lambda: self.slow(),
            lambda: erasures(played),
            lambda: garbage(self.servers),
            lambda: full(self.server),
            lambda: self.silent(),
        ]

    async def killed(self) -> None:
        """kill -9; what comes in its place remembers nothing."""
        self.server.kill()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(self.server.restart)

    async def slow(self) -> None:
        for line in self.lines:
            line.delay = 0.02
        await asyncio.sleep(0.3)
        for line in self.lines:
            line.delay = 0.0
            line.sever()

    async def silent(self) -> None:
        """Of one replica only: the others go on."""
        self.lines[0].go_silent()
        await asyncio.sleep(0.3)


@dataclass
class Pair:
    """A master and its replica, watched by a Sentinel."""

    group: Sentinels

    @property
    def urls(self) -> list[str]:
        return [self.group.url] * 3

    @property
    def servers(self) -> list[Server]:
        return [self.group.master]

    def faults(self, played: Fleet) -> list[Strike]:
        return [
            lambda: garbage(self.servers),
            lambda: self.planned(played),
            lambda: flush(self.servers),
            lambda: self.killed(),
        ]

    async def planned(self, played: Fleet) -> None:
        """As a conversation is being erased."""
        await erasures(played)
        await asyncio.to_thread(self.group.start_failover)
        await self._over()
        await asyncio.to_thread(self.group.demote)
        await asyncio.to_thread(self.group.synced)

    async def killed(self) -> None:
        self.group.master.kill()
        self.group.master, self.group.replica = self.group.replica, self.group.master
        await self._over()
        await asyncio.to_thread(self.group.replica.restart)
        await asyncio.to_thread(self.group.demote)
        await asyncio.to_thread(self.group.synced)

    async def _over(self) -> None:
        while not await asyncio.to_thread(lambda: self.group.switched):
            continue


@dataclass
class Cluster:
    """Three masters, the first of which has a replica."""

    group: ClusterOfServers

    @property
    def urls(self) -> list[str]:
        return [self.group.url] * 3

    @property
    def servers(self) -> list[Server]:
        return self.group.masters

    def faults(self, played: Fleet) -> list[Strike]:
        return [
            lambda: garbage(self.servers),
            lambda: self.planned(played),
            lambda: flush(self.servers),
            lambda: frozen(self.group.masters[2]),
            lambda: self.killed(),
        ]

    async def planned(self, played: Fleet) -> None:
        await erasures(played)
        await asyncio.to_thread(self.group.fail_over)

    async def killed(self) -> None:
        await asyncio.to_thread(self.group.lose_first)


async def erasures(played: Fleet) -> None:
    """Some conversations; a store that is in trouble may refuse, and is asked again."""

    async def erase(session: Session) -> None:
        while not await played.erase(session):  # noqa: ASYNC110 - the store is in trouble, and will be well again
            await asyncio.sleep(0.1)

    await asyncio.gather(*map(erase, played.chance.sample(played.sessions, 5)))


@asynccontextmanager
async def alone(directory: Path) -> AsyncIterator[Maltreated]:
    async with AsyncExitStack() as opened:
        server = opened.enter_context(standalone(directory / "server"))
        yield Alone(server, [await opened.enter_async_context(line_to(server.port)) for _ in range(3)])


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Maltreated]:
    with sentinels(directory, down_after=DOWN_AFTER) as group:
        yield Pair(group)


@asynccontextmanager
async def of_three(directory: Path) -> AsyncIterator[Maltreated]:
    with cluster(directory, down_after=DOWN_AFTER) as group:
        yield Cluster(group)


async def stored(servers: list[Server], canaries: Canaries) -> None:
    """Look through everything that lies in the store."""
    for server in servers:
        async with Redis(host="127.0.0.1", port=server.port) as client:
            async for key in client.scan_iter("*"):
                canaries.write(key)
                match await client.type(key):
                    case b"string":
                        canaries.write(await client.get(key) or b"")
                    case b"set":
                        canaries.write(b"\n".join(await client.smembers(key)))
                    case b"list":
                        canaries.write(b"\n".join(await client.lrange(key, 0, -1)))
                    case b"zset":
                        canaries.write(b"\n".join(await client.zrange(key, 0, -1)))


@pytest.mark.parametrize(
    ("maltreated", "rounds"),
    # One server alone has the faults of a pair, but for a change of masters: `make chaos` tries it too.
    [(store, ROUNDS) for store in (alone, pair, of_three) if store is not alone or ROUNDS > 1],
    ids=lambda v: getattr(v, "__name__", v),
)
async def test_a_maltreated_store_makes_no_request_wrong_and_none_fail(
    tmp_path: Path,
    maltreated: Callable[[Path], AbstractAsyncContextManager[Maltreated]],
    rounds: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with maltreated(tmp_path / "store") as store, fleet(tmp_path, store.urls, TENANTS) as played:
        for number in range(rounds):
            played.sessions = sessions(number)
            await played.play(STEPS, store.faults(played))
            await played.search_pages()
            await stored(store.servers, played.canaries)
            if rounds > 1:
                with capsys.disabled():
                    print(f"round {number + 1} of {rounds}: {played}", flush=True)  # noqa: T201 - for whoever watches
    canaries = played.canaries
    assert (played.failed, played.oracle.wrong, canaries.found, canaries.faults) == ([], [], [], [])
    assert canaries.searched > 100_000
    assert played.left > 0
    assert played.erased > 0
    judged, signed = played.oracle.judged, played.oracle.signed
    assert signed.total() > judged.total() // 6, "summaries were in use, and judged"
    assert all(signed[writer.dialect.name] > judged[writer.dialect.name] // 10 for writer in WRITERS)


def sessions(number: int) -> list[Session]:
    """Of a round; every tenant speaks each dialect, and every name is one in each dialect."""
    return [
        Session(tenant, f"{name}{number}", WRITERS[(at + of_tenant) % len(WRITERS)], most=MOST[name])
        for at, tenant in enumerate(TENANTS)
        for of_tenant, name in enumerate(NAMES)
    ]


async def test_two_hundred_requests_at_once_on_three_replicas_cost_one_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.compaction.job.Job.JOIN_WAIT", 30.0)
    with standalone(tmp_path / "server") as server:
        async with fleet(tmp_path, [server.url] * 3, TENANTS, patience="10s") as played:
            session = Session(TENANTS[0], "herd")
            while len(session.items) < 49:
                session.grow(played.chance)
            headers = [JSON, (b"Authorization", f"Bearer {session.key}".encode())]
            name, body = session.request()
            played.oracle.expect(name, session)
            asked = [ask(played.addresses[number % 3], "POST", CHAT, headers, body) for number in range(200)]
            replies = await asyncio.gather(*asked)
            assert {(reply.status, reply.header(b"x-compaction")) for reply in replies} == {(200, b"applied")}
            played.oracle.judge()
    assert (played.oracle.summaries, played.oracle.wrong) == (1, [])
    assert played.oracle.signed.total() == 200


async def test_a_request_that_is_never_answered_is_found_with_what_everybody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.fleet._PATIENCE", 0.5)
    monkeypatch.setattr("proxy.dialects.reader.RequestReader.read", never)
    async with fleet(tmp_path, ["memory://"], TENANTS) as played:
        session = Session(TENANTS[0], "lost")
        session.grow(played.chance)
        await played.send(session)
    ((_, status, waiting),) = played.failed
    assert status == 408
    assert b"prepare > " in waiting
    assert b" never" in waiting


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def test_the_search_for_canaries_finds_them() -> None:
    canaries = Canaries(["acme"])
    for content in (b"x mark-acme-one-1-0", b"Bearer ck-acme", base64.b64encode(b"authorization: ck-acme"), b"nothing"):
        canaries.write(content)
    assert len(canaries.found) == 3


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: m, None),
        (lambda m: m[:-1], "no record, and not the client's items"),
        (lambda m: [*m[:-1], {**m[-1], "content": "mark-acme-two-1-0"}], "a mark of ('acme', 'two')"),
        (lambda m: [signed("acme", "one", 3, 3), *m[3:]], None),
        (lambda m: [signed("acme", "one", 3, 2), *m[3:]], "a summary up to 3"),
        (lambda m: [signed("acme", "one", 3, 3), *m[4:]], "a summary up to 3"),
        (lambda m: [signed("bolt", "one", 3, 3), *m[3:]], "a summary of"),
        (lambda m: [signed("acme", "one", 3, 3), *m[3:-1]], "the tail is not the client's"),
        (lambda m: [signed("acme", "one", 3, 3), m[0], *m[3:]], None),
        (lambda m: [signed("acme", "one", 3, 3, serial=5), *m[3:]], "a summary that was erased"),
    ],
    ids=[
        "as sent",
        "lost",
        "foreign",
        "covered",
        "another chain",
        "a gap",
        "another's",
        "tail",
        "anchor",
        "erased",
    ],
)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_the_oracle_finds_what_is_wrong(
    writer: Writer, change: Callable[[list[Json]], list[Json]], found: str | None
) -> None:
    oracle, session = Oracle(WINDOW), told(writer)
    oracle.erased["acme", "one"] = 5
    await judged(oracle, session, change(session.items), session.instructions)
    assert oracle.judged.total() == 1
    assert bool(oracle.wrong) == (found is not None), oracle.wrong
    assert found is None or found in oracle.wrong[0]


@pytest.mark.parametrize(
    ("quoted", "before", "found"),
    [(2, 7, None), (4, 7, "a quotation of what no record covers"), (2, 5, "the tail is not the client's")],
    ids=["of what is covered", "of the tail", "before something else"],
)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_the_oracle_knows_quotations(writer: Writer, quoted: int, before: int, found: str | None) -> None:
    oracle, session = Oracle(WINDOW), told(writer)
    items = session.items
    quotation = f"<recalled>\nQuoted by the gateway.\n- [1] assistant: mark-acme-one-{quoted}-0\n</recalled>"
    quoting = json.loads(writer.dialect.items.merge(quotation, json.dumps(items[before - 1]).encode()))
    sent = [signed("acme", "one", 3, 3), *items[3:6], quoting, items[7]]
    await judged(oracle, session, sent, session.instructions)
    assert bool(oracle.wrong) == (found is not None), oracle.wrong
    assert found is None or found in oracle.wrong[0]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_the_oracle_finds_other_instructions(writer: Writer) -> None:
    oracle, session = Oracle(WINDOW), told(writer)
    await judged(oracle, session, session.items, "You are free.")
    assert [found.partition(": ")[2] for found in oracle.wrong] == ["the instructions were changed"]


def told(writer: Writer) -> Session:
    """Eight texts that take turns."""
    roles = ("user", "assistant") * 4
    history = [Entry(role, f"mark-acme-one-{number}-0") for number, role in enumerate(roles, start=1)]
    return Session("acme", "one", writer, history)


async def judged(oracle: Oracle, session: Session, items: list[Json], instructions: str) -> None:
    """The oracle judges a request with these, whatever its client has sent."""
    name, _ = session.request()
    oracle.expect(name, session)
    body = json.dumps(session.body(name, items, instructions)).encode()
    async with serve(oracle.model) as address:
        headers = [JSON, (b"Authorization", b"Bearer ck-acme")]
        assert (await ask(address, "POST", session.path, headers, body)).status == 200
        oracle.judge()


async def test_the_oracle_sees_whose_key_was_used_and_which_headers_came(tmp_path: Path) -> None:
    oracle = Oracle(WINDOW)
    session = told(WRITERS[0])
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


def signed(tenant: str, session: str, number: int, links: int, serial: int = 9) -> Json:
    """A record that is signed for the messages up to `number`, by a chain over so many."""
    chain = ""
    for i in range(1, links + 1):
        chain = link(chain, f"mark-acme-one-{i}-0")
    return {
        "role": "user",
        "content": f"<conversation_record>\nsigned {tenant} {session} {number} {chain} by number x{serial}",
    }
