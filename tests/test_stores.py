"""One contract over every store, and what each store promises beside it."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from proxy.stores import MAX_VALUE_BYTES, Store, StoreError, ValueTooLargeError, open_store
from proxy.stores.memory import MemoryStore
from proxy.stores.redis import RedisStore
from proxy.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

TTL = 600.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    """Time as a value the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "valkey"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    match request.param:
        case "memory":
            opened: Store = MemoryStore(clock=clock)
        case "sqlite":
            opened = SqliteStore(tmp_path / "store.db", clock=clock)
        case _:
            opened = RedisStore(request.getfixturevalue("valkey_url"), timeout=5)
    yield opened
    await opened.close()


@pytest.fixture(params=["memory", "sqlite"])
async def clocked(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    memory = request.param == "memory"
    opened: Store = MemoryStore(clock=clock) if memory else SqliteStore(tmp_path / "store.db", clock=clock)
    yield opened
    await opened.close()


def new_key(name: object = "") -> str:
    return f"cp:{{{secrets.token_hex(8)}}}:{name}"


class TestEveryStore:
    async def test_has_none_for_a_key_nobody_stored(self, store: Store) -> None:
        assert await store.get_many([new_key()]) == [None]

    async def test_answers_no_keys_with_no_values(self, store: Store) -> None:
        assert await store.get_many([]) == []
        await store.touch([], TTL)

    async def test_gives_back_the_bytes_it_was_given(self, store: Store) -> None:
        for value in (b"", b"\x00\xff\r\n$-1\r\n", bytes(range(256)), b"v" * MAX_VALUE_BYTES):
            key = new_key()
            assert await store.put_new(key, value, TTL) is None
            assert await store.get_many([key]) == [value]

    async def test_lets_the_first_value_win_and_tells_the_second_which_it_was(self, store: Store) -> None:
        key = new_key()
        assert await store.put_new(key, b"first", TTL) is None
        assert await store.put_new(key, b"second", TTL) == b"first"
        assert await store.put_new(key, b"first", TTL) == b"first"
        assert await store.get_many([key]) == [b"first"]

    async def test_puts_over_what_is_there_where_it_is_told_to(self, store: Store) -> None:
        key = new_key()
        for value in (b"first", b"second", b""):
            await store.put(key, value, TTL)
            assert await store.get_many([key]) == [value]
        with pytest.raises(ValueTooLargeError):
            await store.put(key, b"v" * (MAX_VALUE_BYTES + 1), TTL)

    async def test_has_one_winner_among_fifty_at_once(self, store: Store) -> None:
        key = new_key()
        values = [b"value %d" % number for number in range(50)]
        winners = await asyncio.gather(*(store.put_new(key, value, TTL) for value in values))
        assert winners.count(None) == 1
        assert set(winners) == {None, values[winners.index(None)]}

    async def test_answers_five_hundred_and_more_keys_in_their_order(self, store: Store) -> None:
        keys = [new_key(number) for number in range(1200)]
        for key in keys[::2]:
            await store.put_new(key, key.encode(), TTL)
        expected = [None if number % 2 else key.encode() for number, key in enumerate(keys)]
        assert await store.get_many(keys) == expected
        assert await store.get_many([keys[2], keys[1], keys[0], keys[2]]) == [
            expected[number] for number in (2, 1, 0, 2)
        ]

    async def test_refuses_a_value_over_the_cap_and_says_it_is_no_outage(self, store: Store) -> None:
        key = new_key()
        with pytest.raises(ValueTooLargeError) as refusal:
            await store.put_new(key, b"v" * (MAX_VALUE_BYTES + 1), TTL)
        assert not refusal.value.outage
        assert await store.get_many([key]) == [None]

    async def test_gives_a_lock_to_one_owner_and_takes_it_back_from_that_owner_only(self, store: Store) -> None:
        key = new_key()
        assert await store.acquire(key, "mine", TTL)
        assert not await store.acquire(key, "mine", TTL)
        assert not await store.acquire(key, "theirs", TTL)
        await store.release(key, "theirs")
        assert not await store.acquire(key, "theirs", TTL)
        await store.release(key, "mine")
        await store.release(key, "mine")
        assert await store.acquire(key, "theirs", TTL)

    async def test_touches_what_is_there_and_ignores_what_is_not(self, store: Store) -> None:
        key, missing = new_key(), new_key()
        await store.put_new(key, b"v", TTL)
        await store.touch([missing, key], TTL)
        assert await store.get_many([missing, key]) == [None, b"v"]

    async def test_may_be_closed_twice(self, store: Store) -> None:
        await store.close()
        await store.close()


class TestStoresWithAClock:
    async def test_forget_an_entry_when_its_time_is_over(self, clocked: Store, clock: Clock) -> None:
        key = new_key()
        await clocked.put_new(key, b"old", TTL)
        clock.now += TTL - 1
        assert await clocked.get_many([key]) == [b"old"]
        clock.now += 1
        assert await clocked.get_many([key]) == [None]
        assert await clocked.put_new(key, b"new", TTL) is None
        assert await clocked.get_many([key]) == [b"new"]

    async def test_give_what_is_put_again_its_time_anew(self, clocked: Store, clock: Clock) -> None:
        key = new_key()
        await clocked.put(key, b"old", TTL)
        clock.now += TTL - 1
        await clocked.put(key, b"new", TTL)
        clock.now += TTL - 1
        assert await clocked.get_many([key]) == [b"new"]

    async def test_keep_what_is_touched(self, clocked: Store, clock: Clock) -> None:
        touched, left = new_key(), new_key()
        for key in (touched, left):
            await clocked.put_new(key, b"v", TTL)
        clock.now += TTL - 1
        await clocked.touch([touched], TTL)
        clock.now += TTL - 1
        assert await clocked.get_many([touched, left]) == [b"v", None]
        clock.now += 1
        await clocked.touch([touched], TTL)
        assert await clocked.get_many([touched]) == [None]

    async def test_free_a_lock_whose_owner_died(self, clocked: Store, clock: Clock) -> None:
        key = new_key()
        assert await clocked.acquire(key, "dead", 30)
        clock.now += 30
        assert await clocked.acquire(key, "next", 30)
        await clocked.release(key, "dead")
        assert not await clocked.acquire(key, "third", 30)


class TestMemory:
    async def test_drops_the_least_recently_used_beyond_its_entries(self, clock: Clock) -> None:
        store = MemoryStore(clock=clock, max_entries=2)
        await store.put_new("a", b"1", TTL)
        await store.put_new("b", b"2", TTL)
        await store.get_many(["a"])
        await store.put_new("c", b"3", TTL)
        assert await store.get_many(["a", "b", "c"]) == [b"1", None, b"3"]

    async def test_drops_the_least_recently_used_beyond_its_bytes(self, clock: Clock) -> None:
        store = MemoryStore(clock=clock, max_bytes=1000)
        keys = [f"{number:04}" for number in range(1000)]
        for key in keys:
            await store.put_new(key, b"v" * 96, TTL)
        assert await store.get_many(keys) == [None] * 990 + [b"v" * 96] * 10


_RIVAL = """
import asyncio, sys
from pathlib import Path
from proxy.stores.sqlite import SqliteStore

async def main() -> None:
    store = SqliteStore(Path(sys.argv[1]), timeout=60)
    for number in range(50):
        mine = f"{sys.argv[2]} {number}".encode()
        print((await store.put_new(str(number), mine, 600) or mine).decode())
    await store.close()

asyncio.run(main())
"""


class TestSqlite:
    async def test_survives_a_restart(self, tmp_path: Path) -> None:
        for expected in (None, b"v"):
            store = SqliteStore(tmp_path / "deep" / "er" / "store.db")
            assert await store.put_new("key", b"v", TTL) == expected
            await store.close()

    async def test_shares_a_file_between_two_stores(self, tmp_path: Path) -> None:
        one, two = (SqliteStore(tmp_path / "store.db", timeout=5) for _ in range(2))
        winners = await asyncio.gather(*(s.put_new("key", b"v", TTL) for s in (one, two) * 25))
        assert winners.count(None) == 1
        assert await one.get_many(["key"]) == await two.get_many(["key"]) == [b"v"]
        await one.close()
        await two.close()

    def test_has_one_winner_per_key_among_processes_that_start_at_once(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", _RIVAL, str(tmp_path / "store.db")]
        root = Path(__file__).parent.parent
        rivals = [
            subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, cwd=root, text=True)
            for number in range(4)
        ]
        outcomes = [rival.communicate()[0].splitlines() for rival in rivals]
        assert [rival.returncode for rival in rivals] == [0] * 4
        assert len(outcomes[0]) == 50
        assert outcomes.count(outcomes[0]) == 4

    async def test_keeps_its_files_to_their_owner(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "store.db")
        await store.put_new("key", b"v", TTL)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}  # noqa: ASYNC240
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
        await store.close()

    async def test_purges_what_has_expired_once_a_minute_and_not_all_at_once(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        store = SqliteStore(tmp_path / "store.db", clock=clock)
        for number in range(600):
            await store.put_new(str(number), b"v", 10)
        for rows in (600 - 500 + 2, 2 + 1, 2 + 2):
            clock.now += 60
            await store.put_new(f"at {clock.now}", b"v", TTL)
            await store.put_new("again in this minute", b"v", TTL)
            assert await store._run(store._connection.execute("SELECT count(*) FROM entries").fetchone) == (rows,)
        await store.close()


class TestRedis:
    async def test_gives_entries_and_locks_their_time_to_live(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=5)
        entry, lock = new_key(), new_key()
        async with Redis.from_url(valkey_url) as redis:
            await store.put_new(entry, b"v", 100.5)
            await store.acquire(lock, "token", 30)
            assert 90_000 < await redis.pttl(entry) <= 100_500
            assert 20_000 < await redis.pttl(lock) <= 30_000
            assert await store.put_new(entry, b"w", 5000) == b"v"
            assert await redis.pttl(entry) <= 100_500
            await store.touch([new_key(), entry], TTL)
            assert 590_000 < await redis.pttl(entry) <= 600_000
        await store.close()

    async def test_waits_for_a_connection_instead_of_failing(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=10)
        answers = await asyncio.gather(*(store.get_many([new_key()]) for _ in range(300)))
        assert answers == [[None]] * 300
        await store.close()

    async def test_lets_no_option_in_the_url_decide_its_timeouts_and_retries(self, valkey_url: str) -> None:
        options = "socket_timeout=30&socket_connect_timeout=30&retry_on_timeout=true&max_connections=9&protocol=3"
        separator = "&" if "?" in valkey_url else "?"
        store = RedisStore(f"{valkey_url}{separator}{options}&timeout=30&health_check_interval=7", timeout=0.2)
        await store.get_many([new_key()])
        pool = store._client.connection_pool
        connection = await pool.get_connection()
        assert connection.is_connected
        assert (connection.socket_timeout, connection.socket_connect_timeout, pool.timeout) == (0.2, 0.2, 0.2)
        assert (connection.retry.get_retries(), connection.retry_on_timeout, connection.retry_on_error) == (
            0,
            False,
            [],
        )
        assert (connection.protocol, connection.health_check_interval, pool.max_connections) == (2, 0, 32)
        await pool.release(connection)
        await store.close()


class TestOpenStore:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///var/my%20store.db", Path("var/my store.db")),
            ("SQLite:///store.db", Path("store.db")),
            ("sqlite:////{tmp}/store.db", Path("/{tmp}/store.db")),
        ],
    )
    async def test_opens_relative_and_absolute_files(
        self, url: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        tmp = str(tmp_path).lstrip("/")
        store = open_store(url.replace("{tmp}", tmp))
        assert Path(str(path).replace("{tmp}", tmp)).exists()  # noqa: ASYNC240
        await store.close()

    @pytest.mark.parametrize(
        ("url", "kind"),
        [("memory://", MemoryStore), ("redis://127.0.0.1:1/0", RedisStore), ("rediss://127.0.0.1:1/0", RedisStore)],
    )
    async def test_opens_the_store_the_scheme_names_without_connecting(self, url: str, kind: type) -> None:
        store = open_store(url)
        assert type(store) is kind
        await store.close()

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "postgres://user:hunter2@host/db",
            "sqlite://",
            "sqlite:///",
            "sqlite://store.db",
            "redis://:hunter2@host:port/0",
            "redis://:hunter2@host/0?db=zero",
            "redis://:hunter2@host/0?sockettimeout=3",
        ],
    )
    def test_refuses_what_it_does_not_know_and_repeats_no_password(self, url: str) -> None:
        with pytest.raises(StoreError, match=r"store\.url") as refusal:
            open_store(url)
        assert "hunter2" not in str(refusal.value)

    @pytest.mark.parametrize("content", [b"not a database at all\n" * 500, b"SQLite format 3\0" + b"\xff" * 4096])
    def test_names_the_file_that_is_no_database(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "store.db"
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"store\.url.*store\.db.*move that file away"):
            open_store(f"sqlite:///{path}")

    def test_refuses_a_file_written_by_a_newer_version(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "store.db")
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(StoreError, match="newer version"):
            open_store(f"sqlite:///{tmp_path / 'store.db'}")

    def test_names_the_directory_it_cannot_write_to(self) -> None:
        with pytest.raises(StoreError, match=os.devnull):
            open_store(f"sqlite:///{os.devnull}/store.db")
