"""Which sessions are listed, and that nobody is told of an erasure that was not done."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import pytest

from policies.conversation.prefix_digests import Chain, hash_tag, link_of_label, mark_of, name_of
from proxy.callers.tenants import Tenants
from proxy.memory import Memory
from proxy.sessions.index import Session, Target
from proxy.sessions.sessions import Sessions
from proxy.sessions.stores.base import PAGE, Member
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.clock import Clock
from tests.support.long_conversations import SMALL_WINDOW, summarizing
from tests.support.pages import items_of, page_of
from tests.support.servers import reserve_port
from tests.support.upstreams import ask, config_for, serving, upstream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from proxy.callers.tenants import Caller
    from tests.support.upstreams import Header

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_replica")]

TTL = 600.0
SESSIONS = "/admin/api/sessions"
TOKEN: Header = (b"Authorization", b"Bearer " + b"t-1" * 8)


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
    store = {"url": f"redis://127.0.0.1:{reserve_port()}", "secret": "shared"}
    async with upstream(summarizing) as behind:
        config = config_for(tmp_path, behind.address, store=store, server={"admin_token": "t-1" * 8}, **SMALL_WINDOW)
        async with serving(config) as address:
            for _ in range(2):  # the second meets a store that is known to be down
                reply = await ask(address, method, path, [TOKEN])
                error = reply.json()["error"]
                assert (reply.status, error["code"]) == (503, "store_unavailable")  # type: ignore[index]


class Bench:
    """An index over a store in memory, for the tenant that everybody is of."""

    def __init__(self, tmp_path: Path, store: MemoryStore | None = None) -> None:
        self.store, self.sealer = store or MemoryStore(), Sealer(None)
        self.memory = Memory()
        self.index = Sessions(SealedStore(self.store, self.sealer, TTL), self.memory, Clock(), Clock())
        self.epochs = self.index.epochs
        caller = Tenants(config_for(tmp_path, "http://127.0.0.1:1")).operator_of("default")
        assert caller is not None
        self.caller: Caller = caller

    @property
    def counting(self) -> CountingStore:
        assert isinstance(self.store, CountingStore)
        return self.store

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
    assert await items_of(bench.index.find_targets(bench.caller, "A")) == [], "and not as what it is not"
    names = {"id": listed.id, "beginning": listed.id[:8], "without a label": f"{listed.id}:{listed.label}"}
    found = bench.index.find_targets(bench.caller, names[named]) if named in names else bench.index.every(bench.caller)
    erased = await bench.index.erase(bench.caller, found)
    assert (len(erased.targets), erased.is_complete) == (1, True)
    assert await bench.store.get_many([record]) == [None]
    assert await bench.index.of(bench.caller) == []


async def test_a_session_whose_entry_is_gone_or_unreadable_is_erased_all_the_same(tmp_path: Path) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    record = await bench.stored_by_an_earlier_version(first, "A")
    await bench.store.put(f"session:{{{hash_tag(first)}}}", b"sealed by another key", TTL)
    assert await bench.index.of(bench.caller) == []
    assert len((await bench.index.erase(bench.caller, bench.index.every(bench.caller))).targets) == 1
    assert await bench.store.get_many([record]) == [None]


async def added(bench: Bench, first: bytes, label: str = "") -> None:
    mark = mark_of(bench.caller.labels, label)
    link = await bench.epochs.start(first + mark)
    await bench.index.add(bench.caller, Chain(b"", (), mark, first=first, link=link), label, "m", None)


async def test_sessions_are_listed_page_by_page_and_last_those_that_the_store_has_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    firsts = [secrets.token_bytes(32) for _ in range(9)]
    for first in firsts:
        await added(bench, first)
    for first in firsts[:2]:  # of these the store has lost everything
        bench.store._drop(f"session:{{{hash_tag(await bench.epochs.link(first))}}}")
        await bench.store.enroll(bench.caller.index, first.hex(), 0)
    await bench.epochs.erase(firsts[0])
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
    assert len((await bench.index.erase(bench.caller, bench.index.every(bench.caller))).targets) == 1
    assert bench.index.place(bench.caller, name_of(first), "A") is None


@pytest.mark.parametrize("every", [True, False])
async def test_it_is_known_of_a_session_that_it_was_erased(tmp_path: Path, *, every: bool) -> None:
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    await added(bench, first, "A")
    known = [await bench.index.was_erased(bench.caller, name_of(first), label) for label in ("A", "B")]
    assert known == [False, False]
    mark = None if every else mark_of(bench.caller.labels, "A")
    await bench.index.erase(bench.caller, page_of(Target(first, mark)))
    known = [await bench.index.was_erased(bench.caller, name_of(first), label) for label in ("A", "B")]
    assert known == [True, every]
    assert not await bench.index.was_erased(bench.caller, "0" * 16, "A")


class CountingStore(MemoryStore):
    """Counts its operations, and the members that it has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Counter[str] = Counter()

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.work["keys"] += len(keys)
        return await super().get_many(keys)

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member]:
        found = await super().members(index, limit, before)
        self.work["members"] += len(found)
        return found

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool]:
        self.work["members"] += len(members)
        return await super().enrolled(index, members)

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        self.work["enroll"] += 1
        await super().enroll(index, member, ttl)

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        self.work["erase"] += 1
        return await super().erase(tag, mark, ttl)


async def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int) -> tuple[Bench, bytes]:
    """A tenant of so many sessions, half of them labels of one conversation, and the one that was used first."""
    monkeypatch.setattr("proxy.sessions.sessions.SETTLED", 0)
    bench, first = Bench(tmp_path, CountingStore()), secrets.token_bytes(32)
    await added(bench, first, "the deploy")
    busy = secrets.token_bytes(32)
    for number in range(others):
        await added(bench, busy if number % 2 else secrets.token_bytes(32), f"job {number}")
    bench.memory.most = 0  # as another replica, that has enrolled none of them
    return bench, first


NAMES = {
    "whole id": lambda id_: id_,
    "name": lambda id_: id_[:16],
    "eight digits": lambda id_: id_[:8],
    "id and label": lambda id_: f"{id_[:16]}:the deploy",
    "label": lambda _: "the deploy",
}


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize("may_be_unlisted", [True, False])
async def test_erasing_one_session_costs_the_same_among_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, *, may_be_unlisted: bool
) -> None:
    work: list[Counter[str]] = []
    for others in (10, 1_500):
        bench, first = await filled(tmp_path, monkeypatch, others)
        bench.counting.work.clear()
        pages = bench.index.find_targets(bench.caller, NAMES[named](first.hex()), may_be_unlisted=may_be_unlisted)
        erased = await bench.index.erase(bench.caller, pages)
        work.append(bench.counting.work.copy())
        assert ([target.first for target in erased.targets], erased.is_complete) == ([first], True)
        assert await bench.index.find(bench.caller, first.hex(), "the deploy") is None
        if not may_be_unlisted:
            assert await items_of(bench.index.find_targets(bench.caller, first.hex(), may_be_unlisted=False)) == []
    assert work[0] == work[1]


@pytest.mark.parametrize("digits", [8, 16, 40, 64])
async def test_opening_one_session_costs_the_same_among_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: int
) -> None:
    work: list[Counter[str]] = []
    for others in (10, 1_500):
        bench, first = await filled(tmp_path, monkeypatch, others)
        bench.counting.work.clear()
        found = await bench.index.find(bench.caller, first.hex()[:digits], "the deploy")
        assert found is not None
        work.append(bench.counting.work.copy())
        assert await bench.index.find(bench.caller, first.hex()[:digits], "another label") is None
    assert work[0] == work[1]


async def test_a_session_among_many_labels_of_its_conversation_is_opened_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: list[Counter[str]] = []
    for others in (10, 1_500):
        bench, _ = await filled(tmp_path, monkeypatch, others)
        (busy,) = {session.id for session in await bench.index.of(bench.caller) if session.label == "job 1"}
        bench.counting.work.clear()
        assert await bench.index.find(bench.caller, busy[:8], "job 1") is not None
        work.append(bench.counting.work.copy())
    assert work[0] == work[1]


async def test_a_conversation_is_known_by_its_id_until_its_last_session_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.sessions.SETTLED", 0)
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    for label in ("", "A", "B"):
        await added(bench, first, label)
    for label, is_known in (("A", True), ("", True), ("B", False)):
        pages = bench.index.find_targets(bench.caller, f"{first.hex()[:8]}:{label}", may_be_unlisted=False)
        assert len((await bench.index.erase(bench.caller, pages)).targets) == 1
        known = await items_of(bench.index.find_targets(bench.caller, first.hex()[:8], may_be_unlisted=False))
        assert known == [Target(first, None)] * is_known


@pytest.mark.parametrize("name", [None, "every job"])
async def test_all_sessions_are_erased_however_many_pages_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr("proxy.sessions.sessions.SETTLED", 0)
    bench, number = Bench(tmp_path), 2 * PAGE + 10
    for _ in range(number):
        await added(bench, secrets.token_bytes(32), "every job")
    bench.memory.most = 0
    pages = bench.index.every(bench.caller) if name is None else bench.index.find_targets(bench.caller, name)
    erased = await bench.index.erase(bench.caller, pages)
    assert (len(erased.targets), erased.is_complete) == (number, True)
    assert await bench.index.of(bench.caller) == []


async def test_sessions_that_version_0_2_0_listed_are_found_and_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listed a conversation's sessions by sixteen digits of its id, and dropped the oldest of a tenant."""
    monkeypatch.setattr("proxy.sessions.sessions.SETTLED", 0)
    bench, first = Bench(tmp_path), secrets.token_bytes(32)
    mark = mark_of(bench.caller.labels, "A")
    link = link_of_label(first, mark)
    key = f"session:{{{hash_tag(link)}}}"
    await bench.store.put(key, bench.sealer.seal(key, msgspec.json.encode(Session(first.hex(), "A", "m", 1.0))), TTL)
    for index in (f"index:name:{mark_of(bench.caller.labels, name_of(first)).hex()}", f"index:label:{mark.hex()}"):
        await bench.store.enroll(index, (first + mark).hex(), TTL)
    found = await bench.index.find(bench.caller, name_of(first), "A")
    assert found is not None
    assert found.id == first.hex()
    for name in ("A", first.hex(), name_of(first), f"{name_of(first)}:A"):
        assert await items_of(bench.index.find_targets(bench.caller, name, may_be_unlisted=False)) != []
    pages = bench.index.find_targets(bench.caller, f"{name_of(first)}:A", may_be_unlisted=False)
    assert len((await bench.index.erase(bench.caller, pages)).targets) == 1
    assert await bench.index.find(bench.caller, name_of(first), "A") is None
    assert await items_of(bench.index.find_targets(bench.caller, name_of(first), may_be_unlisted=False)) == []
