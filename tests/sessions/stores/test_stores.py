"""One contract over every store, and what each store promises beside it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.exceptions
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.crc import key_slot

from policies.conversation.prefix_digests import Chain, mark_of
from proxy.sessions.epochs import Epochs, undone_key
from proxy.sessions.stores import open_store
from proxy.sessions.stores.base import (
    MAX_MEMBERS,
    MAX_VALUE_BYTES,
    PAGE,
    Increment,
    Member,
    OpenedStore,
    StoreError,
    ValueTooLargeError,
    names_in,
    pages_of,
    tombstone,
)
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.redis.node import Node
from proxy.sessions.stores.redis.servers import Cluster, OneServer
from proxy.sessions.stores.redis.servers import Sentinels as SentinelServers
from proxy.sessions.stores.redis.store import RedisStore
from proxy.sessions.stores.sqlite import PURGE_ROWS, SqliteStore
from tests.support.clock import Clock
from tests.support.redis_servers import documented_user, one_node_cluster, standalone, tls_front

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from redis.asyncio.connection import AbstractConnection

    from proxy.sessions.stores.redis.node import Words
    from tests.support.redis_servers import Certificates, ClusterOfServers, Sentinels

    Run = Callable[[Iterable[Words]], Awaitable[list[object]]]

pytestmark = pytest.mark.anyio

TTL = 600.0
# Each way to reach a server, and the fixture that has its URL.
REDIS = {
    "valkey": "valkey_url",
    "sentinel": "sentinels",
    "cluster": "cluster",
    "tls": "tls_url",
    "acl": "acl_url",
    "prefix": "valkey_url",
}


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture(params=["memory", "sqlite", *REDIS])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[OpenedStore]:
    match request.param:
        case "memory":
            opened: OpenedStore = MemoryStore(clock=clock)
        case "sqlite":
            opened = SqliteStore(tmp_path / "store.db", clock=clock)
        case kind:
            opened = RedisStore(redis_url(request, kind), timeout=5, prefix="mine:" if kind == "prefix" else "")
    yield opened
    await opened.close()


def redis_url(request: pytest.FixtureRequest, kind: str) -> str:
    served = request.getfixturevalue(REDIS[kind])
    return served if isinstance(served, str) else served.url


@pytest.fixture(params=["memory", "sqlite"])
async def clocked(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[OpenedStore]:
    memory = request.param == "memory"
    opened: OpenedStore = MemoryStore(clock=clock) if memory else SqliteStore(tmp_path / "store.db", clock=clock)
    yield opened
    await opened.close()


def new_key(name: object = "") -> str:
    return f"cp:{{{secrets.token_hex(8)}}}:{name}"


class TestEveryStore:
    async def test_tells_what_it_holds_as_far_as_it_can(self, store: OpenedStore) -> None:
        for number in range(3):
            await store.put(f"cp:{{{secrets.token_hex(8)}}}:{number}", b"x" * 1_000, TTL, only_new=True)
        await store.enroll("index:mine", "member", TTL)
        facts = await store.facts()
        if isinstance(store, RedisStore):
            assert (facts.entries, facts.eviction) == (None, "noeviction")
        else:
            assert facts.entries == {"cp": 3, "index": 1}
        assert facts.size is not None
        assert facts.size >= 3_000

    async def test_has_none_for_a_key_nobody_stored(self, store: OpenedStore) -> None:
        assert await store.get_many([new_key()]) == [None]

    async def test_answers_no_keys_with_no_values(self, store: OpenedStore) -> None:
        assert await store.get_many([]) == []
        await store.touch([], TTL)

    async def test_gives_back_the_bytes_it_was_given(self, store: OpenedStore) -> None:
        for value in (b"", b"\x00\xff\r\n$-1\r\n", bytes(range(256)), b"v" * MAX_VALUE_BYTES):
            key = new_key()
            assert await store.put(key, value, TTL, only_new=True) is None
            assert await store.get_many([key]) == [value]

    @pytest.mark.requirement("R1 4.2 write", "R4 2 rows")
    async def test_lets_the_first_value_win_and_tells_the_second_which_it_was(self, store: OpenedStore) -> None:
        key = new_key()
        assert await store.put(key, b"first", TTL, only_new=True) is None
        assert await store.put(key, b"second", TTL, only_new=True) == b"first"
        assert await store.put(key, b"first", TTL, only_new=True) == b"first"
        assert await store.get_many([key]) == [b"first"]

    async def test_puts_over_what_is_there_where_it_is_told_to(self, store: OpenedStore) -> None:
        key = new_key()
        for value in (b"first", b"second", b""):
            await store.put(key, value, TTL)
            assert await store.get_many([key]) == [value]
        with pytest.raises(ValueTooLargeError):
            await store.put(key, b"v" * (MAX_VALUE_BYTES + 1), TTL)

    async def test_has_one_winner_among_fifty_at_once(self, store: OpenedStore) -> None:
        key = new_key()
        values = [b"value %d" % number for number in range(50)]
        winners = await asyncio.gather(*(store.put(key, value, TTL, only_new=True) for value in values))
        assert winners.count(None) == 1
        assert set(winners) == {None, values[winners.index(None)]}

    async def test_answers_five_hundred_and_more_keys_in_their_order(self, store: OpenedStore) -> None:
        keys = [new_key(number) for number in range(1200)]
        for key in keys[::2]:
            await store.put(key, key.encode(), TTL, only_new=True)
        expected = [None if number % 2 else key.encode() for number, key in enumerate(keys)]
        assert await store.get_many(keys) == expected
        assert await store.get_many([keys[2], keys[1], keys[0], keys[2]]) == [
            expected[number] for number in (2, 1, 0, 2)
        ]

    async def test_refuses_a_value_over_the_cap_and_says_it_is_no_outage(self, store: OpenedStore) -> None:
        key = new_key()
        with pytest.raises(ValueTooLargeError) as refusal:
            await store.put(key, b"v" * (MAX_VALUE_BYTES + 1), TTL, only_new=True)
        assert not refusal.value.outage
        assert await store.get_many([key]) == [None]

    async def test_gives_a_lock_to_one_owner_and_takes_it_back_from_that_owner_only(self, store: OpenedStore) -> None:
        key = new_key()
        assert await store.lock(key, "mine", TTL)
        assert not await store.lock(key, "mine", TTL)
        assert not await store.lock(key, "theirs", TTL)
        await store.lock(key, "theirs", 0)
        assert not await store.lock(key, "theirs", TTL)
        await store.lock(key, "mine", 0)
        await store.lock(key, "mine", 0)
        assert await store.lock(key, "theirs", TTL)

    @pytest.mark.requirement("R3 4.1 resetState")
    async def test_erases_everything_under_a_tag_and_nothing_else(self, store: OpenedStore) -> None:
        tag, other = secrets.token_hex(8), new_key()
        keys = [f"{kind}:{{{tag}}}:{number}" for kind in ("cp", "cool") for number in range(5)]
        for key in keys[:-1]:
            await store.put(key, b"v", TTL, only_new=True)
        await store.put(keys[-1], b"v", TTL)
        await store.put(other, b"v", TTL, only_new=True)
        assert await store.erase(tag, b"mark", TTL) == b"mark"
        assert await store.get_many([*keys, other, tombstone(tag)]) == [None] * len(keys) + [b"v", b"mark"]

    async def test_keeps_what_was_undone_for_every_process_until_it_is_erased(self, store: OpenedStore) -> None:
        session, digests = secrets.token_bytes(32), [secrets.token_hex(32) for _ in range(3)]
        chain = Chain(b"", (), first=session)
        here, there = Epochs(store, TTL), Epochs(store, TTL)
        placed = await here.place(chain, stores=True)
        assert placed.undone == (await there.place(chain, stores=True)).undone == frozenset()
        await here.undo(placed.own_link, digests[:1])
        await there.undo(placed.own_link, digests[1:])
        for process in (here, there, Epochs(store, TTL)):
            assert await process.place(chain, stores=True) == replace(placed, undone=frozenset(digests))
            assert (await process.place(chain, stores=False)).undone == frozenset(digests)
        other = Chain(b"", (), mark_of(b"key", "label"), first=session)
        assert (await here.place(other, stores=True)).undone == frozenset(), "another label is another session"
        await here.erase(session)
        assert await store.get_many([undone_key(placed.own_link)]) == [None]
        for process in (here, there, Epochs(store, TTL)):
            assert (await process.place(chain, stores=True)).undone == frozenset()

    async def test_lets_what_comes_too_late_vanish(self, store: OpenedStore) -> None:
        tag = secrets.token_hex(8)
        await store.erase(tag, b"mark", TTL)
        keys = [f"cp:{{{tag}}}:{number}" for number in range(2)]
        assert await store.put(keys[0], b"late", TTL, only_new=True) is None
        await store.put(keys[1], b"late", TTL)
        await store.touch(keys, TTL)
        assert await store.get_many(keys) == [None, None]

    async def test_keeps_the_mark_of_who_erased_first(self, store: OpenedStore) -> None:
        tag = secrets.token_hex(8)
        assert [await store.erase(tag, mark, TTL) for mark in (b"one", b"two")] == [b"one", b"one"]
        marks = await asyncio.gather(*(store.erase("x" + tag, bytes([n]), TTL) for n in range(1, 20)))
        assert len(set(marks)) == 1

    async def test_keeps_indexes_of_members(self, store: OpenedStore) -> None:
        one, two = (f"index:{secrets.token_hex(8)}" for _ in range(2))
        assert await names_in(store, one) == []
        for member in ("b", "a", "b"):
            await store.enroll(one, member, TTL)
        await store.enroll(two, "c", TTL)
        assert (sorted(await names_in(store, one)), await names_in(store, two)) == (["a", "b"], ["c"])
        await store.enroll(one, "b", 0)
        await store.enroll(one, "never enrolled", 0)
        assert await names_in(store, one) == ["a"]

    async def test_tells_the_newest_members_of_an_index_page_by_page(self, store: OpenedStore) -> None:
        index = f"index:{secrets.token_hex(8)}"
        assert await store.members(index, 5, None) == []
        names = [secrets.token_hex(8) for _ in range(12)]
        for number, name in enumerate(names):
            await store.enroll(index, name, TTL + number)
        await store.enroll(f"{index}0", "other", TTL)
        found: list[Member] = []
        while page := await store.members(index, 5, found[-1] if found else None):
            found += page
            assert len(page) == min(5, 12 - len(found) + len(page))
        assert [member.name for member in found] == names[::-1]
        await store.enroll(index, names[-1], 0)
        await store.enroll(index, names[0], TTL + 100)
        assert [member.name for member in await store.members(index, 2, None) or ()] == [names[0], names[-2]]

    async def test_members_of_one_moment_have_an_order_too(self, store: OpenedStore) -> None:
        index, names = f"index:{secrets.token_hex(8)}", {secrets.token_hex(8) for _ in range(30)}
        await asyncio.gather(*(store.enroll(index, name, TTL) for name in names))
        found: list[Member] = []
        while page := await store.members(index, 7, found[-1] if found else None):
            found += page
        assert sorted(member.name for member in found) == sorted(names)
        assert found == sorted(found, reverse=True)

    async def test_says_which_names_are_members_of_an_index(self, store: OpenedStore) -> None:
        index = f"index:{secrets.token_hex(8)}"
        assert await store.enrolled(index, ["a"]) == [False]
        for name in ("a", "b"):
            await store.enroll(index, name, TTL)
        await store.enroll(index, "b", 0)
        assert await store.enrolled(index, ["b", "a", "c", "a"]) == [False, True, False, True]
        assert await store.enrolled(index, []) == []

    async def test_yields_each_member_of_a_long_index_though_some_are_enrolled_meanwhile(
        self, store: OpenedStore
    ) -> None:
        index = f"index:{secrets.token_hex(8)}"
        names = [f"{number:04}" for number in range(2 * PAGE + 10)]
        for name in names:
            await store.enroll(index, name, TTL)
        found: set[str] = set()
        async for page in pages_of(store, index):
            assert len(page) <= PAGE
            if not found:
                await store.enroll(index, names[0], TTL + 1)
                await store.enroll(index, "new", TTL + 1)
            found |= {member.name for member in page}
        assert found == {*names, "new"}

    # Of Redis' ways those that keep an index in another manner.
    @pytest.mark.parametrize("store", ["memory", "sqlite", "valkey", "cluster"], indirect=True)
    async def test_an_index_has_any_number_of_members(self, store: OpenedStore) -> None:
        """Each can be read by pages, and the oldest stay."""
        index, number = f"index:{secrets.token_hex(8)}", MAX_MEMBERS + 10
        names = [f"{each:06}" for each in range(number)]
        for at in range(0, number, 1_000):
            await asyncio.gather(*(store.enroll(index, name, TTL) for name in names[at : at + 1_000]))
        assert await store.enrolled(index, [names[0], names[-1]]) == [True, True]
        assert {member.name async for page in pages_of(store, index) for member in page} == {*names}
        assert len(await names_in(store, index) or ()) == MAX_MEMBERS

    async def test_counts_for_all_who_add(self, store: OpenedStore) -> None:
        key, other = (f"used:{secrets.token_hex(8)}:2026-11" for _ in range(2))
        assert await store.count([]) == []
        assert await store.count([Increment(key, {}, TTL)]) == [{}]
        assert await store.count([Increment(key, {"t": 3}, TTL)]) == [{"t": 3}]
        await asyncio.gather(*(store.count([Increment(key, {"t": 2, "r": 1}, TTL)]) for _ in range(20)))
        assert await store.count([Increment(key, {}, TTL)]) == [{"t": 43, "r": 20}]
        both = [Increment(other, {"t": 1}, TTL), Increment(key, {"t": -3}, TTL)]
        assert await store.count(both) == [{"t": 1}, {"t": 40, "r": 20}]

    async def test_appends_to_lists_and_keeps_their_newest_items(self, store: OpenedStore) -> None:
        key, plain = f"trail:{{{secrets.token_hex(8)}}}", f"figures:{secrets.token_hex(8)}"
        assert await store.items(key) == []
        for name in (key, plain):
            await store.items(name, [b"1", b"\x00\xff"], limit=3, ttl=TTL)
            assert await store.items(name) == [b"1", b"\x00\xff"]
            await store.items(name, [b"2", b""], limit=3, ttl=TTL)
            assert await store.items(name) == [b"\x00\xff", b"2", b""]
        with pytest.raises(ValueTooLargeError):
            await store.items(key, [b"3", b"v" * (MAX_VALUE_BYTES + 1)], limit=3, ttl=TTL)
        assert await store.items(key) == [b"\x00\xff", b"2", b""]

    async def test_loses_no_item_that_is_appended_at_the_same_time(self, store: OpenedStore) -> None:
        key, items = f"trail:{{{secrets.token_hex(8)}}}", [b"%d" % number for number in range(30)]
        await asyncio.gather(*(store.items(key, [item], limit=100, ttl=TTL) for item in items))
        assert sorted(await store.items(key) or ()) == sorted(items)

    async def test_erases_lists_and_what_is_appended_too_late(self, store: OpenedStore) -> None:
        tag = secrets.token_hex(8)
        await store.items(f"trail:{{{tag}}}", [b"early"], limit=3, ttl=TTL)
        await store.erase(tag, b"mark", TTL)
        assert await store.items(f"trail:{{{tag}}}") == []
        await store.items(f"trail:{{{tag}}}", [b"late"], limit=3, ttl=TTL)
        assert await store.items(f"trail:{{{tag}}}") == []

    async def test_touches_what_is_there_and_ignores_what_is_not(self, store: OpenedStore) -> None:
        key, missing = new_key(), new_key()
        await store.put(key, b"v", TTL, only_new=True)
        await store.touch([missing, key], TTL)
        assert await store.get_many([missing, key]) == [None, b"v"]

    async def test_may_be_closed_twice(self, store: OpenedStore) -> None:
        await store.close()
        await store.close()


class TestStoresWithAClock:
    @pytest.mark.requirement("R4 3.1 erased")
    async def test_forget_an_entry_when_its_time_is_over(self, clocked: OpenedStore, clock: Clock) -> None:
        key = new_key()
        await clocked.put(key, b"old", TTL, only_new=True)
        clock.now += TTL - 1
        assert await clocked.get_many([key]) == [b"old"]
        clock.now += 1
        assert await clocked.get_many([key]) == [None]
        assert await clocked.put(key, b"new", TTL, only_new=True) is None
        assert await clocked.get_many([key]) == [b"new"]

    async def test_forget_members_and_tombstones_when_their_time_is_over(
        self, clocked: OpenedStore, clock: Clock
    ) -> None:
        await clocked.enroll("index:x", "old", TTL)
        await clocked.erase("tag", b"mark", TTL)
        clock.now += TTL - 1
        await clocked.enroll("index:x", "new", TTL)
        assert sorted(await names_in(clocked, "index:x")) == ["new", "old"]
        clock.now += 1
        assert await names_in(clocked, "index:x") == ["new"]
        assert await clocked.enrolled("index:x", ["old", "new"]) == [False, True]
        assert await clocked.put("cp:{tag}:1", b"v", TTL, only_new=True) is None
        assert await clocked.get_many(["cp:{tag}:1"]) == [b"v"]

    async def test_give_what_is_put_again_its_time_anew(self, clocked: OpenedStore, clock: Clock) -> None:
        key = new_key()
        await clocked.put(key, b"old", TTL)
        clock.now += TTL - 1
        await clocked.put(key, b"new", TTL)
        clock.now += TTL - 1
        assert await clocked.get_many([key]) == [b"new"]

    async def test_let_a_list_live_from_its_last_item_on(self, clocked: OpenedStore, clock: Clock) -> None:
        await clocked.items("trail:{tag}", [b"old"], limit=9, ttl=TTL)
        clock.now += TTL - 1
        await clocked.items("trail:{tag}", [b"new"], limit=9, ttl=TTL)
        clock.now += TTL - 1
        assert await clocked.items("trail:{tag}") == [b"old", b"new"]
        clock.now += 1
        assert await clocked.items("trail:{tag}") == []

    @pytest.mark.requirement("R4 3.1 erased")
    async def test_keep_what_is_touched(self, clocked: OpenedStore, clock: Clock) -> None:
        touched, left = new_key(), new_key()
        for key in (touched, left):
            await clocked.put(key, b"v", TTL, only_new=True)
        clock.now += TTL - 1
        await clocked.touch([touched], TTL)
        clock.now += TTL - 1
        assert await clocked.get_many([touched, left]) == [b"v", None]
        clock.now += 1
        await clocked.touch([touched], TTL)
        assert await clocked.get_many([touched]) == [None]

    async def test_free_a_lock_whose_owner_died(self, clocked: OpenedStore, clock: Clock) -> None:
        key = new_key()
        assert await clocked.lock(key, "dead", 30)
        clock.now += 30
        assert await clocked.lock(key, "next", 30)
        await clocked.lock(key, "dead", 0)
        assert not await clocked.lock(key, "third", 30)


class TestMemory:
    async def test_drops_the_least_recently_used_beyond_its_entries(self, clock: Clock) -> None:
        store = MemoryStore(clock=clock, max_entries=2)
        await store.put("a", b"1", TTL, only_new=True)
        await store.put("b", b"2", TTL, only_new=True)
        await store.get_many(["a"])
        await store.put("c", b"3", TTL, only_new=True)
        assert await store.get_many(["a", "b", "c"]) == [b"1", None, b"3"]

    async def test_drops_the_members_enrolled_longest_ago_of_all_indexes_together(self, clock: Clock) -> None:
        store = MemoryStore(clock=clock, max_members=3)
        for index, name in (("index:1", "a"), ("index:2", "b"), ("index:1", "c"), ("index:1", "a"), ("index:3", "d")):
            clock.now += 1
            await store.enroll(index, name, TTL)
        assert [await names_in(store, f"index:{number}") for number in (1, 2, 3)] == [["a", "c"], [], ["d"]]
        clock.now += TTL
        await store.enroll("index:4", "e", TTL)
        assert [*store._indexes] == ["index:4"]

    async def test_drops_the_least_recently_used_beyond_its_bytes(self, clock: Clock) -> None:
        store = MemoryStore(clock=clock, max_bytes=1000)
        keys = [f"{number:04}" for number in range(1000)]
        for key in keys:
            await store.put(key, b"v" * 96, TTL, only_new=True)
        assert await store.get_many(keys) == [None] * 990 + [b"v" * 96] * 10


_RIVAL = """
import asyncio, sys
from pathlib import Path
from proxy.sessions.stores.sqlite import PURGE_ROWS, SqliteStore

async def main() -> None:
    store = SqliteStore(Path(sys.argv[1]), timeout=60)
    for number in range(50):
        mine = f"{sys.argv[2]} {number}".encode()
        print((await store.put(str(number), mine, 600, only_new=True) or mine).decode())
    await store.close()

asyncio.run(main())
"""


class TestSqlite:
    async def test_survives_a_restart(self, tmp_path: Path) -> None:
        for expected in (None, b"v"):
            store = SqliteStore(tmp_path / "deep" / "er" / "store.db")
            assert await store.put("key", b"v", TTL, only_new=True) == expected
            await store.close()

    async def test_shares_a_file_between_two_stores(self, tmp_path: Path) -> None:
        one, two = (SqliteStore(tmp_path / "store.db", timeout=5) for _ in range(2))
        winners = await asyncio.gather(*(s.put("key", b"v", TTL, only_new=True) for s in (one, two) * 25))
        assert winners.count(None) == 1
        assert await one.get_many(["key"]) == await two.get_many(["key"]) == [b"v"]
        await one.close()
        await two.close()

    def test_has_one_winner_per_key_among_processes_that_start_at_once(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", _RIVAL, str(tmp_path / "store.db")]
        root = Path(__file__).parents[3]
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
        await store.put("key", b"v", TTL, only_new=True)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}  # noqa: ASYNC240
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
        await store.close()

    async def test_keeps_no_more_expired_rows_however_many_sessions_come(self, tmp_path: Path, clock: Clock) -> None:
        store = SqliteStore(tmp_path / "store.db", clock=clock)
        rows: list[int] = []
        for second in range(30):
            clock.now += 1
            for session in range(10):
                tag = secrets.token_hex(16)
                await store.enroll("index:tenant", f"{second}x{session}", 10)
                for number in range(12):
                    await store.put(f"cp:{{{tag}}}:{number}", b"v", 10, only_new=bool(number % 2))
            rows += await store._run(store._connection.execute("SELECT count(*) FROM entries").fetchone)
        assert rows[9] == 10 * 13 * 10
        assert max(rows[10:]) <= 10 * 13 * 11
        await store.close()

    @pytest.mark.parametrize("write", ["put", "put_new", "append", "count", "enroll", "touch", "lock", "erase"])
    async def test_deletes_a_few_expired_rows_with_each_write(self, tmp_path: Path, clock: Clock, write: str) -> None:
        store = SqliteStore(tmp_path / "store.db", clock=clock)
        for number in range(100):
            await store.put(f"cp:{number}", b"v", 10)
        clock.now += 10
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: store.put("new", b"v", TTL),
            "put_new": lambda: store.put("new", b"v", TTL, only_new=True),
            "append": lambda: store.items("new", [b"v"], limit=1, ttl=TTL),
            "count": lambda: store.count([Increment("new", {"n": 1}, TTL)]),
            "enroll": lambda: store.enroll("index:new", "member", TTL),
            "touch": lambda: store.touch(["none"], TTL),
            "lock": lambda: store.lock("new", "token", TTL),
            "erase": lambda: store.erase("tag", b"mark", TTL),
        }
        await writes[write]()
        (left,) = await store._run(store._connection.execute("SELECT count(*) FROM entries").fetchone)
        assert left == 100 - PURGE_ROWS + (write != "touch")
        await store.close()

    async def test_no_statement_scans_the_table(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "store.db")
        statements: list[str] = []
        await store._run(lambda: store._connection.set_trace_callback(statements.append))
        await every_operation(store)
        await store._run(lambda: store._connection.set_trace_callback(None))
        asked = {each for each in statements if each.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE")}
        assert len(asked) >= 12
        for statement in asked:
            plan = await store._run(store._connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall)
            steps = [str(step[3]) for step in plan]
            assert not [step for step in steps if step.startswith("SCAN entries")], (statement, steps)
            if "entries_members" in statement:
                assert len(steps) == 1, "a page is read in its order"
        await store.close()

    async def test_reads_and_erases_what_an_earlier_version_stored(self, tmp_path: Path) -> None:
        """Its file has neither index of tags nor of members, and names of replicas have colons."""
        tag, first, run = secrets.token_hex(16), secrets.token_hex(32), "host:8080:abcd"
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as earlier:
            earlier.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL)")
            earlier.execute("CREATE INDEX entries_expires ON entries (expires)")
            earlier.execute("PRAGMA user_version = 1")
            rows = [(f"cp:{{{tag}}}:1", b"v"), (f"lock:cp:{{{tag}}}:1", b"t"), ("learned:x", b"l")]
            rows += [(f"index:sessions:{first}", b""), (f"index:replicas:{run}", b"")]
            earlier.executemany("INSERT INTO entries VALUES (?, ?, 9e12)", rows)
        store = SqliteStore(tmp_path / "store.db")
        assert [each.name for each in await store.members("index:sessions", 5)] == [first]
        assert await store.enrolled("index:sessions", [first, "other"]) == [True, False]
        assert await names_in(store, "index:replicas") == [run]
        await store.erase(tag, b"mark", TTL)
        assert await store.get_many([key for key, _ in rows[:3]]) == [None, None, b"l"]
        await store.close()


async def every_operation(store: OpenedStore) -> None:
    key, index = new_key(), f"index:{secrets.token_hex(8)}"
    await store.put(key, b"v", TTL)
    await store.put(key, b"v", TTL, only_new=True)
    await store.get_many([key, new_key()])
    await store.touch([key], TTL)
    await store.items(f"trail:{key}", [b"v"], limit=9, ttl=TTL)
    await store.items(f"trail:{key}")
    await store.enroll(index, "member", TTL)
    await store.members(index)
    await store.members(index, 5, Member(9e12, "x"))
    await store.enrolled(index, ["member", "other"])
    await store.enroll(index, "member", 0)
    await store.count([Increment(f"used:{key}", {"n": 1}, TTL)])
    assert await store.lock(f"lock:{key}", "token", TTL)
    await store.lock(f"lock:{key}", "token", 0)
    await store.erase("tag", b"mark", TTL)
    await store.facts()


class TestRedis:
    async def test_gives_entries_and_locks_their_time_to_live(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=5)
        entry, lock = new_key(), new_key()
        async with Redis.from_url(valkey_url) as redis:
            await store.put(entry, b"v", 100.5, only_new=True)
            await store.lock(lock, "token", 30)
            assert 90_000 < await redis.pttl(entry) <= 100_500
            assert 20_000 < await redis.pttl(lock) <= 30_000
            assert await store.put(entry, b"w", 5000, only_new=True) == b"v"
            assert await redis.pttl(entry) <= 100_500
            await store.touch([new_key(), entry], TTL)
            assert 590_000 < await redis.pttl(entry) <= 600_000
        await store.close()

    async def test_lists_what_lies_under_a_tag_for_as_long_as_any_of_it(self, valkey_url: str) -> None:
        store, tag = RedisStore(valkey_url, timeout=5), secrets.token_hex(8)
        await store.put(f"cp:{{{tag}}}:1", b"v", TTL, only_new=True)
        await store.lock(f"lock:{{{tag}}}", "token", 30)
        await store.touch([f"lock:{{{tag}}}"], 30)
        async with Redis.from_url(valkey_url) as redis:
            assert await redis.pttl(f"keys:{{{tag}}}") > 590_000
            await store.put(f"ask:{{{tag}}}", b"v", 30)
            assert await redis.pttl(f"keys:{{{tag}}}") > 590_000
            await store.touch([f"cp:{{{tag}}}:1"], 2 * TTL)
            assert await redis.pttl(f"keys:{{{tag}}}") > 1_190_000
        await store.close()

    async def test_pages_through_members_that_expire_in_one_moment(self, valkey_url: str) -> None:
        store, index, number = RedisStore(valkey_url, timeout=5), f"index:{secrets.token_hex(8)}", 1_000
        names = {f"{each:04}" for each in range(number)}
        async with Redis.from_url(valkey_url) as redis:
            await redis.zadd(index, dict.fromkeys(names, time.time() + TTL))
            await redis.pexpire(index, int(TTL * 1_000))
        found: list[Member] = []
        while page := await store.members(index, 30, found[-1] if found else None):
            found += page
        assert [each.name for each in found] == sorted(names, reverse=True)
        await store.close()

    async def test_expired_members_are_no_members_and_leave_a_few_at_a_time(self, valkey_url: str) -> None:
        store, index = RedisStore(valkey_url, timeout=5), f"index:{secrets.token_hex(8)}"
        async with Redis.from_url(valkey_url) as redis:
            await redis.zadd(index, {f"old {number}": time.time() - 1 for number in range(150)})
            assert await store.members(index) == await store.members(index, 5) == []
            assert await store.enrolled(index, ["old 1"]) == [False]
            for left in (51, 2, 3):
                await store.enroll(index, f"new {left}", TTL)
                assert await redis.zcard(index) == left
        await store.close()

    async def test_waits_for_a_connection_instead_of_failing(self, valkey_url: str) -> None:
        store = RedisStore(valkey_url, timeout=10)
        answers = await asyncio.gather(*(store.get_many([new_key()]) for _ in range(300)))
        assert answers == [[None]] * 300
        await store.close()

    @pytest.mark.parametrize("kind", REDIS)
    async def test_holds_every_live_connection_to_its_own_limits_whatever_the_url_says(
        self, request: pytest.FixtureRequest, kind: str
    ) -> None:
        """redis-py drops some options without a word on the way to a connection (BerriAI/litellm#35273)."""
        options = "socket_timeout=30&socket_connect_timeout=30&retry_on_timeout=true&max_connections=9&protocol=3"
        url = redis_url(request, kind)
        store = RedisStore(f"{url}{'&' if '?' in url else '?'}{options}&timeout=30&health_check_interval=7", timeout=5)
        assert await store.get_many([new_key(), *map(new_key, range(50))]) == [None] * 51
        asked = [node for node in nodes_of(store) if any(c.is_connected for c in node.pool._available_connections)]
        assert len(asked) >= {"cluster": 3, "sentinel": 2}.get(kind, 1)
        for node in asked:
            connection = await node.pool.get_connection()
            assert connection.is_connected
            assert effective(node, connection) == {
                "socket_timeout": None,  # the store bounds the operation: tests/runtime/test_deadlines.py
                "socket_connect_timeout": 5,
                "waits for a connection": 5,
                "max_connections": 32,
                "retries": 0,
                "retry_on_timeout": False,
                "retry_on_error": [],
                "health_check_interval": 0,
                "keepalive": True,
                "protocol": 2,
                "client_name": "concertina",
                "parser": "_AsyncRESP2Parser",
                "maintenance": False,
            }
            await node.pool.release(connection)
        await store.close()

    async def test_a_cancellation_that_closing_ends_with_is_no_cancellation_of_the_caller(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """redis-py raises what a connection's end gave, and its closing may have been cancelled with another task."""
        store = RedisStore("redis://127.0.0.1:1/0", timeout=5)
        (node,) = nodes_of(store)

        async def cancelled(**_: object) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(node.pool, "disconnect", cancelled)
        with pytest.raises(StoreError):
            await store.get_many([new_key()])

    async def test_names_itself_in_the_servers_list_of_clients_unless_told_not_to(self, valkey_url: str) -> None:
        named, nameless = RedisStore(valkey_url, timeout=5), RedisStore(f"{valkey_url}?client_name=", timeout=5)
        names = [await node.ask("CLIENT", "GETNAME") for store in (named, nameless) for node in nodes_of(store)]
        assert names == [b"concertina", None]
        await named.close()
        await nameless.close()

    async def test_has_one_answer_per_key_across_all_slots_of_a_cluster(self, cluster: ClusterOfServers) -> None:
        store = RedisStore(cluster.url, timeout=5)
        keys = [new_key(number) for number in range(300)]
        for key in keys:
            await store.put(key, key.encode(), TTL, only_new=True)
        assert await store.get_many([*keys, *reversed(keys)]) == [key.encode() for key in [*keys, *reversed(keys)]]
        held = [int(str(master.do("DBSIZE"))) for master in cluster.masters]
        assert min(held) > 0
        await store.close()

    async def test_asks_each_node_of_a_cluster_once_for_any_number_of_keys(self, cluster: ClusterOfServers) -> None:
        store = RedisStore(cluster.url, timeout=5)
        # Of different slots each: two of a hundred keys would share one in every fourth run.
        by_slot = {key_slot(key.encode()): key for key in map(new_key, range(200))}
        keys = list(by_slot.values())[:100]
        await store.get_many(keys)
        session = [f"cp:{{one}}:{number}" for number in range(512)]
        for asked, trips, commands in ((keys, 3, 100), (session, 1, 1)):
            rounds = Rounds(store)
            await store.get_many(asked)
            assert (rounds.trips, rounds.commands) == (trips, commands)
        await store.close()

    async def test_needs_one_of_the_addresses_it_is_given(
        self, cluster: ClusterOfServers, sentinels: Sentinels
    ) -> None:
        dead = f"127.0.0.1:{sentinels.deaf}"
        for url in (
            f"redis+cluster://{dead},{cluster.masters[1].address}",
            f"redis+sentinel://{dead},{sentinels.sentinel.address}/mymaster",
        ):
            store = RedisStore(url, timeout=5)
            assert await store.get_many([new_key()]) == [None]
            await store.close()

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("redis+sentinel://{sentinel}/nobody", "no Sentinel knows a master 'nobody'"),
            ("redis+cluster://{server}", "the server is not a node of a cluster|cluster support disabled"),
            ("redis+sentinel://{server}/mymaster", "unknown command"),
        ],
    )
    async def test_says_that_these_are_other_servers(self, sentinels: Sentinels, url: str, reason: str) -> None:
        store = RedisStore(url.format(sentinel=sentinels.sentinel.address, server=sentinels.replica.address), timeout=5)
        with pytest.raises(StoreError, match=reason) as failure:
            await store.get_many([new_key()])
        assert failure.value.outage
        await store.close()

    async def test_trusts_no_certificate_it_cannot_check(self, tls_url: str, certificates: Certificates) -> None:
        address = tls_url.partition("?")[0]
        for url in (address, f"{address}?ssl_ca_certs={certificates.authority}", address.replace("rediss", "redis")):
            store = RedisStore(url, timeout=5)
            with pytest.raises(StoreError):
                await store.get_many([new_key()])
            await store.close()

    @pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
    def test_reads_certificates_at_start(self, option: str) -> None:
        with pytest.raises(StoreError, match=r"store\.url.*No such file"):
            RedisStore(f"rediss://127.0.0.1:1/0?{option}=/nowhere.pem")

    async def test_speaks_tls_to_a_cluster_that_announces_it(self, tmp_path: Path, certificates: Certificates) -> None:
        with (
            one_node_cluster(tmp_path) as node,
            tls_front(node.port, certificates.context(clients=False)) as front,
        ):
            node.do("CONFIG", "SET", "cluster-announce-port", front.rpartition(":")[2])
            store = RedisStore(f"rediss+cluster://{front}?ssl_ca_certs={certificates.authority}", timeout=5)
            key = new_key()
            assert await store.put(key, b"v", TTL, only_new=True) is None
            assert await store.get_many([key]) == [b"v"]
            assert [f"127.0.0.1:{found.address[1]}" for found in nodes_of(store)] == [front]
            await store.close()


class TestTheDocumentedUser:
    async def test_may_do_nothing_else(self, acl_url: str) -> None:
        async with Redis.from_url(acl_url) as client:
            for words in (
                ("KEYS", "*"),
                ("FLUSHALL",),
                ("CONFIG", "GET", "*"),
                ("GET", "another:key"),
                ("EVAL", "return redis.call('flushall')", 0),
            ):
                with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|ACL"):
                    await client.execute_command(*words)

    async def test_has_every_command_it_needs_on_a_cluster(self, cluster: ClusterOfServers) -> None:
        for node in cluster.nodes:
            node.do(*documented_user("password"))
        store = RedisStore(cluster.url.replace("://", "://concertina:password@"), timeout=5)
        try:
            for number in range(20):
                key = new_key(number)
                assert await store.put(key, b"v", TTL, only_new=True) is None
                await store.put(key, b"w", TTL)
                await store.items(f"trail:{key}", [b"v"], limit=9, ttl=TTL)
                assert await store.items(f"trail:{key}") == [b"v"]
                await store.touch([key], TTL)
                assert await store.get_many([key]) == [b"w"]
                assert await store.lock(f"lock:{key}", "token", TTL)
                await store.lock(f"lock:{key}", "token", 0)
                assert await store.lock(f"lock:{key}", "token", TTL)
        finally:
            await store.close()
            for node in cluster.nodes:
                node.do("ACL", "DELUSER", "concertina")


class Rounds:
    """Counts the round trips of a store from now on."""

    def __init__(self, store: RedisStore) -> None:
        self.trips = self.commands = 0
        for node in nodes_of(store):
            node.run = self._counted(node.run)  # type: ignore[method-assign]

    def _counted(self, run: Callable[[Iterable[Words]], Awaitable[list[object]]]) -> Run:
        async def counted(commands: Iterable[Words]) -> list[object]:
            asked = list(commands)
            self.trips += 1
            self.commands += len(asked)
            return await run(asked)

        return counted


def nodes_of(store: RedisStore) -> list[Node]:
    """Every server the store has connections to, the Sentinels too."""
    match store._servers:
        case OneServer() as one:
            return [one._node]
        case SentinelServers() as watched:
            return [*watched._sentinels, *watched._nodes._nodes.values()]
        case Cluster() as nodes:
            return list(nodes._nodes._nodes.values())
        case _:
            raise AssertionError


def effective(node: Node, connection: AbstractConnection) -> dict[str, object]:
    sock = connection._writer.get_extra_info("socket")
    return {
        "socket_timeout": connection.socket_timeout,
        "socket_connect_timeout": connection.socket_connect_timeout,
        "waits for a connection": node.pool.timeout,
        "max_connections": node.pool.max_connections,
        "retries": connection.retry.get_retries(),
        "retry_on_timeout": connection.retry_on_timeout,
        "retry_on_error": connection.retry_on_error,
        "health_check_interval": connection.health_check_interval,
        "keepalive": bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)),
        "protocol": connection.protocol,
        "client_name": connection.client_name,
        "parser": type(connection._parser).__name__,
        "maintenance": bool(connection.maint_notifications_config),
    }


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
            "redis://:hunter2@host/0?ssl_ca_certs=/ca.pem",
            "redis://:hunter2#@host/0",
            "rediss://:hunter2@host/0?ssl_cert_reqs=sometimes",
            "rediss://:hunter2@host/0?ssl_check_hostname=perhaps",
            "redis+cluster://:hunter2@h1:1,h2:2/1",
            "redis+cluster://:hunter2@h1:1,,h2:2",
            "redis+cluster://:hunter2@",
            "redis+cluster://:hunter2@h1:1,[h2:2",
            "redis+sentinel://:hunter2@h1:1,h2:2",
            "redis+sentinel://:hunter2@h1:1/mymaster/zero",
            "redis://:hunter2@h1:1?sentinel_password=hunter2",
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
        with pytest.raises(StoreError, match=r"store\.url.*store\.db.*move this file away"):
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


async def test_all_that_lies_in_redis_begins_with_the_prefix(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        await prefixed(f"redis://{server.address}/0")


async def prefixed(url: str) -> None:
    mine, theirs = (RedisStore(url, timeout=5, prefix=prefix) for prefix in ("mine:", "theirs:"))
    try:
        await mine.put("cp:{tag}:a", b"a", TTL)
        await mine.put("part:{tag}:b", b"b", TTL, only_new=True)
        await mine.items("trail:{tag}", [b"c"], limit=9, ttl=TTL)
        await mine.put("learned:d", b"d", TTL)
        await mine.enroll("index:e", "e", TTL)
        assert await mine.lock("lock:f", "f", TTL)
        await mine.touch(["cp:{tag}:a"], TTL)
        assert await theirs.get_many(["cp:{tag}:a", "learned:d"]) == [None, None]
        assert (await theirs.items("trail:{tag}"), await names_in(theirs, "index:e")) == ([], [])
        await theirs.erase("tag", b"mark", TTL)
        assert await mine.get_many(["cp:{tag}:a", "learned:d"]) == [b"a", b"d"]
        await mine.erase("tag", b"mark", TTL)
        assert await mine.get_many(["cp:{tag}:a", "part:{tag}:b"]) == [None, None]
        async with Redis.from_url(url) as client:
            keys = [key async for key in client.scan_iter("*")]
        assert len(keys) >= 4
        assert all(key.startswith((b"mine:", b"theirs:gone:")) for key in keys)
    finally:
        await mine.close()
        await theirs.close()
