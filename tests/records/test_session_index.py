"""Which sessions are listed, and that nobody is told of an erasure that was not done."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
import pytest

from policies.chain import Chain, hash_tag, mark_of, name_of
from proxy.callers.tenants import Tenants
from proxy.memory import Memory
from proxy.records.index import Session, Target
from proxy.records.sessions import Sessions
from proxy.stores.memory import MemoryStore
from proxy.stores.sealing import SealedStore, Sealer
from tests.support.clock import Clock
from tests.support.long_conversations import SMALL_WINDOW, summarizing
from tests.support.servers import free_port
from tests.support.upstreams import ask, config_for, serving, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.callers.tenants import Caller
    from tests.support.upstreams import Header

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_replica")]

TTL = 600.0
SESSIONS = "/admin/api/sessions"
TOKEN: Header = (b"Authorization", b"Bearer t-1")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", SESSIONS),
        ("DELETE", f"{SESSIONS}?all=true"),
        ("DELETE", f"{SESSIONS}/the%20deploy"),
        ("DELETE", f"{SESSIONS}/{'ab' * 4}"),
        ("DELETE", f"{SESSIONS}/{'ab' * 32}"),
        ("DELETE", f"{SESSIONS}/{'ab' * 32}:the%20deploy"),
    ],
)
async def test_without_its_store_the_proxy_neither_lists_nor_erases_and_says_so(
    tmp_path: Path, method: str, path: str
) -> None:
    store = {"url": f"redis://127.0.0.1:{free_port()}", "secret": "shared"}
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, store=store, server={"admin_token": "t-1"}, **SMALL_WINDOW)
        async with serving(config) as address:
            for _ in range(2):  # the second meets a store that is known to be down
                reply = await ask(address, method, path, [TOKEN])
                error = reply.json()["error"]
                assert (reply.status, error["code"]) == (503, "store_unavailable")  # type: ignore[index]


class Bench:
    """An index over a store in memory, for the tenant that everybody is of."""

    def __init__(self, tmp_path: Path) -> None:
        self.store, self.sealer = MemoryStore(), Sealer(None)
        self.memory = Memory()
        self.index = Sessions(SealedStore(self.store, self.sealer, TTL), self.memory, Clock(), Clock())
        self.erasures = self.index.erasures
        caller = Tenants(config_for(tmp_path, "http://127.0.0.1:1")).operator_of("default")
        assert caller is not None
        self.caller: Caller = caller

    async def stored_by_an_earlier_version(self, first: bytes, label: str) -> str:
        """A session with a label under the conversation's own tag, as a5b9732 put it; the key of its record."""
        tag = hash_tag(first)
        record, key = f"cp:{{{tag}}}:2:00", f"session:{{{tag}}}"
        session = msgspec.json.encode(Session(first.hex(), label, "m", 1.0))
        await self.store.put(record, b"a record", TTL)
        await self.store.put(key, self.sealer.seal(key, session), TTL)
        await self.store.enroll(self.caller.index, first.hex(), TTL)
        return record


@pytest.mark.parametrize("named", ["every", "id", "beginning", "without a label"])
async def test_what_an_earlier_version_stored_with_a_label_is_erased_as_it_is_listed(
    tmp_path: Path, named: str
) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    record = await bench.stored_by_an_earlier_version(first, "A")
    (listed,) = await bench.index.of(bench.caller)
    assert (listed.id, listed.label) == (first.hex(), "")
    assert await bench.index.find_targets(bench.caller, "A") == [], "and not as what it is not"
    names = {"id": listed.id, "beginning": listed.id[:8], "without a label": f"{listed.id}:{listed.label}"}
    found = await (
        bench.index.find_targets(bench.caller, names[named]) if named in names else bench.index.every(bench.caller)
    )
    assert await bench.index.erase(bench.caller, found) == 1
    assert await bench.store.get_many([record]) == [None]
    assert await bench.index.of(bench.caller) == []


async def test_a_session_whose_entry_is_gone_or_unreadable_is_erased_all_the_same(tmp_path: Path) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    record = await bench.stored_by_an_earlier_version(first, "A")
    await bench.store.put(f"session:{{{hash_tag(first)}}}", b"sealed by another key", TTL)
    assert await bench.index.of(bench.caller) == []
    assert await bench.index.erase(bench.caller, await bench.index.every(bench.caller)) == 1
    assert await bench.store.get_many([record]) == [None]


async def added(bench: Bench, first: bytes, label: str = "") -> None:
    mark = mark_of(bench.caller.labels, label)
    link = await bench.erasures.link(first + mark)
    await bench.index.add(bench.caller, Chain(b"", (), mark, first=first, link=link), label, "m", None)


async def test_sessions_are_listed_page_by_page_and_last_those_that_the_store_has_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    firsts = [secrets.token_bytes(32) for _ in range(9)]
    for first in firsts:
        await added(bench, first)
    for first in firsts[:2]:  # of these the store has lost everything
        bench.store._drop(f"session:{{{hash_tag(first)}}}")
        await bench.store.enroll(bench.caller.index, first.hex(), 0)
    await bench.erasures.erase(firsts[0])
    seen: list[str] = []
    before = None
    for size, is_last in ((3, False), (3, False), (2, True)):
        page = await bench.index.newest(bench.caller, 3, before)
        assert (len(page.entries), page.is_last) == (size, is_last)
        seen += [session.id for _, session in page.entries if session is not None]
        before = page.entries[-1][0]
    assert sorted(seen[:-1]) == sorted(first.hex() for first in firsts[2:])
    assert seen[-1] == firsts[1].hex()
    assert (await bench.index.newest(bench.caller, 3, before)).entries == []


async def test_a_session_is_found_by_its_name_without_a_look_at_all_of_its_tenants(tmp_path: Path) -> None:
    bench, other, first = Bench(tmp_path), Bench(tmp_path), secrets.token_bytes(32)
    other.store.__dict__ = bench.store.__dict__
    await added(bench, first, "A")
    await bench.store.enroll(bench.caller.index, (first + mark_of(bench.caller.labels, "A")).hex(), 0)
    for index in (bench.index, other.index):
        found = await index.find(bench.caller, name_of(first), "A")
        assert found is not None
        assert (found.id, found.label) == (first.hex(), "A")
        assert await index.find(bench.caller, name_of(first), "B") is None


@pytest.mark.parametrize("most", [10_000, 2_000, 600])
async def test_an_erased_session_has_no_place_whatever_else_of_it_was_forgotten(tmp_path: Path, most: int) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    await added(bench, first, "A")
    assert bench.index.place(bench.caller, name_of(first), "A") is not None
    await added(bench, first, "A")
    bench.memory.most = most  # what was used longest ago goes first
    assert await bench.index.erase(bench.caller, await bench.index.every(bench.caller)) == 1
    assert bench.index.place(bench.caller, name_of(first), "A") is None


@pytest.mark.parametrize("every", [True, False])
async def test_it_is_known_of_a_session_that_it_was_erased(tmp_path: Path, *, every: bool) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    await added(bench, first, "A")
    known = [await bench.index.was_erased(bench.caller, name_of(first), label) for label in ("A", "B")]
    assert known == [False, False]
    mark = None if every else mark_of(bench.caller.labels, "A")
    await bench.index.erase(bench.caller, [Target(first, mark)])
    known = [await bench.index.was_erased(bench.caller, name_of(first), label) for label in ("A", "B")]
    assert known == [True, every]
    assert not await bench.index.was_erased(bench.caller, "0" * 16, "A")
