"""Two replicas and their Redis, which fails in every way: no request fails, none is wrong, and sharing comes back."""

from __future__ import annotations

import io
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import pytest

from proxy.app import App
from proxy.sessions.stores import CircuitBreaker
from proxy.sessions.stores.sealing import Sealer
from proxy.telemetry.log import open_log
from tests.support import redis_servers
from tests.support.clock import Clock
from tests.support.model_server import ModelServer
from tests.support.scenarios import FIRST, WINDOW, Agent, Stage, defaults, until_settled, usable
from tests.support.servers import configured, serve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.redis_servers import Server

# Real servers that freeze, die and come back, and what waits for them: seconds each.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# A pause is never longer, so 5 s after the end of any trouble the store is asked again.
LONGEST_PAUSE = 4.0
_FEW = 3
# A busy machine is slow at times: what nobody has frozen is never given up, and what is must be one day.
UNHURRIED, FROZEN = "30s", "2s"


@dataclass
class Replicas:
    """Two proxies that share a store, and what they log."""

    stage: Stage
    logs: list[io.BytesIO]
    clock: Clock
    started: int = 0
    agents: list[Agent] = field(default_factory=list)

    def new_agent(self) -> Agent:
        """Somebody whose next request is compacted."""
        self.started += 1
        agent = Agent(name=f"agent {self.started}")
        agent.says(f"{FIRST}\nYou are number {self.started}.")
        for _ in range(round(0.9 * usable(WINDOW) / 195)):
            agent.works()
        self.agents.append(agent)
        return agent

    async def share(self, agent: Agent) -> bool:
        """Both are asked the same; whether the second sent what the first did and asked for no summary."""
        await self.stage.send(agent.messages, replica=0)
        calls, sent = self.stage.calls, self.stage.sent[-1].raw
        assert len(self.stage.sent[-1].messages) < len(agent.messages)
        await self.stage.send(agent.messages, replica=1)
        return (self.stage.calls, self.stage.sent[-1].raw) == (calls, sent)

    async def work(self) -> None:
        """The older sessions go on, and new ones begin, each on both replicas."""
        for agent in [*self.agents, self.new_agent()]:
            agent.works()
            for replica in (0, 1):
                await self.stage.send(agent.messages, replica=replica)

    @property
    def changes(self) -> list[list[str]]:
        """The store's changes of state as each replica logged them."""
        lines = [[json.loads(line) for line in log.getvalue().splitlines()] for log in self.logs]
        return [[line["event"] for line in of_one if line["event"].startswith("store")] for of_one in lines]


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenReplicas:
    clock = Clock()
    monkeypatch.setattr("proxy.sessions.stores.breaker._PROBE_WAIT", 10.0)  # a success is shared
    monkeypatch.setattr("proxy.app.CircuitBreaker", lambda store, _: CircuitBreaker(store, clock))

    @asynccontextmanager
    async def over(url: str, patience: str = UNHURRIED) -> AsyncIterator[Replicas]:
        async with AsyncExitStack() as opened:
            model = ModelServer(window=WINDOW)
            upstream = await opened.enter_async_context(serve(model))
            store = {"url": url, "secret": "shared", "timeout": patience}
            config = configured(tmp_path, defaults(tmp_path, upstream) | {"store": store})
            logs = [io.BytesIO(), io.BytesIO()]
            apps = [App(config, open_log("info", time.time, log)) for log in logs]
            addresses = [await opened.enter_async_context(serve(app, lifespan="on")) for app in apps]
            client = await opened.enter_async_context(aiohttp.ClientSession())
            yield Replicas(Stage(model, addresses, client), logs, clock)

    return over


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with redis_servers.standalone(tmp_path / "redis") as server:
        yield server


@contextmanager
def down(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    with server.frozen():
        yield


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    server.do("REPLICAOF", "127.0.0.1", 1)
    yield
    server.do("REPLICAOF", "NO", "ONE")


@contextmanager
def full(server: Server) -> Iterator[None]:
    server.do("CONFIG", "SET", "maxmemory", 1)
    yield
    server.do("CONFIG", "SET", "maxmemory", 0)


@contextmanager
def forbidden(server: Server) -> Iterator[None]:
    server.do("ACL", "SETUSER", "default", "-eval", "-set")
    yield
    server.do("ACL", "SETUSER", "default", "+@all")


@contextmanager
def locked(server: Server) -> Iterator[None]:
    server.do("CONFIG", "SET", "requirepass", "secret")
    with server.client(password="secret") as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
        yield
        admin.config_set("requirepass", "")


Fault = Callable[["Server"], "AbstractContextManager[None]"]
Damage = Callable[["Server"], None]
OpenReplicas = Callable[..., AbstractAsyncContextManager[Replicas]]


@pytest.mark.parametrize(("fault", "patience"), [(down, UNHURRIED), (frozen, FROZEN), (locked, UNHURRIED)])
async def test_while_the_store_is_away_every_request_is_answered_rightly(
    replicas: OpenReplicas, server: Server, fault: Fault, patience: str
) -> None:
    async with replicas(server.url, patience) as pair:
        assert await pair.share(pair.new_agent())
        with fault(server):
            for _ in range(3):
                await pair.work()
                pair.clock.now += 1
            assert pair.changes == [["store_down"]] * 2
        pair.clock.now += LONGEST_PAUSE
        assert await pair.share(pair.new_agent())
        assert pair.changes == [["store_down", "store_up"]] * 2


@pytest.mark.parametrize("fault", [read_only, full, forbidden])
async def test_a_store_that_takes_nothing_is_still_read_and_its_log_stays_short(
    replicas: OpenReplicas, server: Server, fault: Fault
) -> None:
    async with replicas(server.url) as pair:
        agent = pair.new_agent()
        await pair.stage.send(agent.messages, replica=0)
        calls, sent = pair.stage.calls, pair.stage.sent[-1].raw
        with fault(server):
            await pair.stage.send(agent.messages, replica=1)
            assert (pair.stage.calls, pair.stage.sent[-1].raw) == (calls, sent)
            for _ in range(6):
                await pair.work()
                pair.clock.now += 1
            # A server that changes its role may close a connection or two: that is one more outage, and over at once.
            assert all(changes[0] == "store_down" and len(changes) <= _FEW for changes in pair.changes), pair.changes
        pair.clock.now += LONGEST_PAUSE
        await pair.work()  # a replica that only reads cannot know that writing works
        assert await pair.share(pair.new_agent())
        assert all(changes[-1] == "store_up" and len(changes) <= _FEW + 2 for changes in pair.changes), pair.changes


def flush(server: Server) -> None:
    server.do("FLUSHALL")


def entries(server: Server) -> Iterator[tuple[str, bytes]]:
    keys = server.do("KEYS", "*")
    assert isinstance(keys, list)
    assert keys
    for key in keys:
        if server.do("TYPE", key) == "string":
            with server.client(decode=False) as client:
                yield key, client.get(key)


def garble(server: Server) -> None:
    for number, (key, value) in enumerate(entries(server)):
        damaged = (b"", b"\x00" * 400, b"{}", value[: len(value) // 2], value[:2] + bytes(b ^ 1 for b in value[2:]))
        server.do("SET", key, damaged[number % len(damaged)], "KEEPTTL")


def swap(server: Server) -> None:
    """Each value under another key, as a reply that reaches the wrong caller."""
    pairs = list(entries(server))
    for (key, _), (_, value) in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        server.do("SET", key, value, "KEEPTTL")


def retype(server: Server) -> None:
    for key, _ in entries(server):
        server.do("DEL", key)
        server.do("LPUSH", key, "not ours")


def renew_format(server: Server) -> None:
    """As a later release would seal."""
    for key, value in entries(server):
        server.do("SET", key, bytes([value[0] + 1]) + value[1:], "KEEPTTL")


def renew_records(server: Server) -> None:
    """As a later release would write: sealed as now, other fields, another version."""
    sealer = Sealer(None)
    for key, value in entries(server):
        plain = json.loads(sealer.open(key, value) or b"{}")
        later = {**plain, "version": 99, "added": "later"} if isinstance(plain, dict) else [plain]
        server.do("SET", key, sealer.seal(key, json.dumps(later).encode()), "KEEPTTL")


@pytest.mark.parametrize("damage", [flush, garble, swap, retype, renew_format, renew_records])
async def test_what_cannot_be_trusted_is_made_again(replicas: OpenReplicas, server: Server, damage: Damage) -> None:
    async with replicas(server.url) as pair:
        agents = [pair.new_agent() for _ in range(3)]
        for agent in agents:
            await pair.stage.send(agent.messages, replica=0)
        calls = pair.stage.calls
        damage(server)
        for agent in agents:
            await pair.stage.send(agent.messages, replica=1)
            assert "You are number" in pair.stage.sent[-1].texts
            assert agent.name in pair.stage.sent[-1].texts
        assert pair.stage.calls > calls  # nothing of what lay there was used
        await pair.work()
        assert await pair.share(pair.new_agent())
        assert pair.changes == [[], []]


async def test_a_slow_store_costs_one_timeout_a_pause_and_all_is_shared_again_when_it_is_not(
    replicas: OpenReplicas, server: Server
) -> None:
    async with redis_servers.line_to(server.port) as line, replicas(f"redis://{line.url}/0", FROZEN) as pair:
        assert await pair.share(pair.new_agent())
        line.open.clear()
        for _ in range(3):
            await pair.work()
            pair.clock.now += 1
        assert pair.changes == [["store_down"]] * 2
        line.open.set()
        pair.clock.now += LONGEST_PAUSE
        assert await pair.share(pair.new_agent())
        assert pair.changes == [["store_down", "store_up"]] * 2


async def test_a_partition_costs_one_pause_however_many_connections_it_killed(
    replicas: OpenReplicas, server: Server
) -> None:
    async with redis_servers.line_to(server.port) as line, replicas(f"redis://{line.url}/0", FROZEN) as pair:
        assert await pair.share(pair.new_agent())
        line.go_silent()
        while pair.changes != [["store_down"]] * 2:  # what waits in vain may wait behind the answer
            await pair.work()
        await until_settled()  # what still waits on a silent connection would count as a second failure
        pair.clock.now += 1
        assert await pair.share(pair.new_agent())
        assert pair.changes == [["store_down", "store_up"]] * 2


async def test_a_planned_failover_of_a_sentinels_master_fails_no_request(
    replicas: OpenReplicas, sentinels: redis_servers.Sentinels
) -> None:
    async with replicas(sentinels.url) as pair:
        assert await pair.share(pair.new_agent())
        sentinels.start_failover()
        while not sentinels.switched:
            await pair.work()
        sentinels.demote()
        for _ in range(2):  # the first may find the old master read-only
            pair.clock.now += LONGEST_PAUSE
            await pair.work()
        assert await pair.share(pair.new_agent())


async def test_a_sentinels_master_that_is_killed_fails_no_request(replicas: OpenReplicas, tmp_path: Path) -> None:
    with redis_servers.sentinels(tmp_path / "sentinels", down_after=300) as sentinels:
        async with replicas(sentinels.url) as pair:
            assert await pair.share(pair.new_agent())
            sentinels.master.kill()
            sentinels.master, sentinels.replica = sentinels.replica, sentinels.master
            while not sentinels.switched:
                await pair.work()
                pair.clock.now += 1
            pair.clock.now += LONGEST_PAUSE
            assert await pair.share(pair.new_agent())
            assert [changes[0] for changes in pair.changes] == ["store_down"] * 2


async def test_a_planned_failover_in_a_cluster_fails_no_request(
    replicas: OpenReplicas, cluster: redis_servers.ClusterOfServers
) -> None:
    async with replicas(cluster.url) as pair:
        assert await pair.share(pair.new_agent())
        cluster.fail_over()
        await pair.work()
        pair.clock.now += LONGEST_PAUSE
        await pair.work()
        assert await pair.share(pair.new_agent())


async def test_the_documented_user_is_enough_for_all_the_proxy_does(replicas: OpenReplicas, acl_url: str) -> None:
    async with replicas(acl_url) as pair:
        assert await pair.share(pair.new_agent())
        for _ in range(3):
            await pair.work()
        assert pair.changes == [[], []]
