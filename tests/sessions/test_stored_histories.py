"""Histories of all processes over one store: of killed and restarted processes, and after an erasure."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from policies.conversation.prefix_digests import LINK_BYTES, Chain, hash_tag, mark_of, name_of
from proxy.memory import Memory
from proxy.sessions.index import Target
from proxy.sessions.sessions import Sessions
from proxy.sessions.stored_histories import ENTRIES, PROCESSES, StoredHistories
from proxy.sessions.stores import CircuitBreaker, Sealer, StoreError, open_store
from proxy.sessions.stores.base import RefusedError
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from proxy.telemetry import figures
from proxy.telemetry.events import PromptComposed
from proxy.telemetry.message_fates import MOST, SentMessage, pack
from proxy.telemetry.session_history import HistoryView, Key, SessionHistories, SessionHistory
from tests.support.clock import Clock
from tests.support.pages import page_of
from tests.support.session_events import AT, compacted, requested

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from proxy.sessions.stores.base import OpenedStore

# The processes here learn of an erasure when the test says so.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("one_replica")]

TTL = 600.0
SEALER = Sealer(b"0123456789abcdef")
FIRST = bytes(range(LINK_BYTES))
ID = name_of(FIRST)
LABEL = "the deploy"


class Owner(NamedTuple):
    index: str = "index:somebody"
    labels: bytes = b"key of labels"


OWNER = Owner()
MARK = mark_of(OWNER.labels, LABEL)


class Failing(MemoryStore):
    """Does nothing while it is `down`, and adds nothing while it is `full`."""

    down = full = False

    async def items(self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0) -> list[bytes]:
        self._check()
        if self.full and added:
            raise RefusedError("full")
        return await super().items(key, added, limit=limit, ttl=ttl)

    def _check(self) -> None:
        if self.down:
            raise StoreError("down")


class Process:
    """One that serves, over a store that it shares."""

    def __init__(self, store: OpenedStore, clock: Clock) -> None:
        guarded = CircuitBreaker(store, clock)
        self.histories = SessionHistories()
        self.sessions = Sessions(SealedStore(guarded, SEALER, TTL), Memory(), clock, clock)
        self.epochs = self.sessions.epochs
        self.stored = StoredHistories(self.histories, self.sessions, lambda _: OWNER)

    async def serves(self, number: int = 1, *, is_listed: bool = True, **changes: object) -> None:
        if is_listed:
            link = await self.epochs.start(FIRST + MARK)
            await self.sessions.add(OWNER, Chain(b"", (), MARK, first=FIRST, link=link), LABEL, "m", None)
        for _ in range(number):
            told = {"session": ID, "label": LABEL, "tokens_received": 10, "tokens_sent": 4, "billed": 4, **changes}
            self.histories(requested(id=secrets.token_hex(8), **told))

    @property
    def history(self) -> SessionHistory | None:
        return next(iter(self.histories.of("default", ID)), None)

    async def sees(self) -> HistoryView | None:
        return await self.stored.view(Key("default", ID, LABEL), self.history, FIRST + MARK)

    async def counts(self) -> tuple[int, int]:
        """Return the numbers of requests and points."""
        seen = await self.sees()
        assert seen is not None
        return seen.sums.tally.requests, len(seen.points)


def composed(at: float) -> PromptComposed:
    messages = [SentMessage(number, "tool", f"tool {number % 300}", 99, "cooled", 9) for number in range(MOST)]
    return PromptComposed(
        at=at, tenant="default", session=ID, label=LABEL, tools=1, head=2, record=3, cooled=4, results=5,
        conversation=6, window=8_000, usable=7_000, soft=4_000, due=5_000, messages=pack(messages),
    )  # fmt: skip


class World:
    """A store, a clock, and processes that begin and end."""

    def __init__(self, store: OpenedStore) -> None:
        self.clock, self.store = Clock(AT), store

    def process(self) -> Process:
        return Process(self.store, self.clock)


@pytest.fixture
def world() -> World:
    return World(Failing(clock=lambda: AT))


@pytest.fixture(params=["memory", "sqlite", "valkey"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    urls = {"memory": lambda: "memory://", "sqlite": lambda: f"sqlite:///{tmp_path}/s.db"}
    url = urls.get(request.param, lambda: request.getfixturevalue("valkey_url"))()
    store = open_store(url, 1.0)
    yield World(store)
    await store.close()


async def test_two_processes_tell_the_same_of_a_session_that_both_served(shared: World) -> None:
    one, two = shared.process(), shared.process()
    await one.serves(40, at=AT)
    await two.serves(30, at=AT + 60, tokens_received=1_000)
    two.histories(compacted(session=ID, label=LABEL))
    await one.stored.write()
    await two.stored.write()
    for each in (one, two, shared.process()):
        assert await each.counts() == (70, 70)
        seen = await each.sees()
        assert seen is not None
        assert (seen.began, seen.newest.at, seen.newest.received, seen.is_whole) == (AT, AT + 60, 1_000, True)
        assert [point.number for point in seen.points] == [*range(1, 71)]
        assert (seen.sums.records, seen.sums.usd, figures.summaries(seen.sums.tally)) == (1, 0.02, 4_300)
        assert figures.not_sent(seen.sums.tally) == 40 * 6 + 30 * 996


async def test_a_restart_goes_on_counting(world: World) -> None:
    for number in range(1, 4):
        process = world.process()
        await process.serves(10)
        await process.stored.write()
        await process.stored.write()
        assert await process.counts() == (10 * number, 10 * number)


async def test_points_of_before_a_session_was_listed_come_along(world: World) -> None:
    one = world.process()
    await one.serves(100, is_listed=False)
    await one.stored.write()
    assert await world.process().sees() is None
    await one.serves()
    await one.stored.write()
    assert await world.process().counts() == (101, 101)


async def test_a_full_list_has_its_newest_entries_and_says_so(world: World) -> None:
    one, two = world.process(), world.process()
    for number in range(10):
        for process in (one, two):
            await process.serves(ENTRIES // 18, at=AT + number)
            await process.stored.write()
    seen = await world.process().sees()
    assert seen is not None
    assert (len(seen.points), seen.sums.tally.requests, seen.is_cut) == (ENTRIES, ENTRIES, True)
    assert (seen.points[0].number, seen.points[-1].at) == (1, AT + 9)
    assert figures.not_sent(seen.sums.tally) == 6 * ENTRIES


async def test_what_release_0_2_0_stored_of_a_session_is_left_alone(world: World) -> None:
    one = world.process()
    await one.serves()
    link = await one.epochs.link(FIRST + MARK)
    for kind in ("trail", "history"):
        old = msgspec.msgpack.encode(["run", {"run": [AT, [1], 0, None]}, [1, AT, ["none"], b"0" * 33]])
        key = f"{kind}:{{{hash_tag(link)}}}"
        await world.store.items(key, [SEALER.seal(key, old)], limit=ENTRIES, ttl=TTL)
    assert await one.counts() == (1, 1)
    await one.stored.write()
    assert await world.process().counts() == (1, 1)


async def test_what_a_process_has_forgotten_of_a_session_still_counts(world: World) -> None:
    one = world.process()
    await one.serves(5)
    await one.stored.write()
    one.histories._histories.clear()
    await one.serves(3)
    await one.stored.write()
    assert await one.counts() == await world.process().counts() == (8, 8)


async def test_without_the_store_a_process_tells_its_own_and_says_so(world: World) -> None:
    one, two = world.process(), world.process()
    await one.serves(3)
    await one.stored.write()
    await two.serves(2)
    world.store.down = True  # type: ignore[attr-defined]
    await two.stored.write()
    seen = await two.sees()
    assert seen is not None
    assert (seen.sums.tally.requests, len(seen.points), seen.is_whole) == (2, 2, False)
    world.store.down = False  # type: ignore[attr-defined]
    world.clock.now += 5
    await two.stored.write()
    assert await two.counts() == await one.counts() == (5, 5)


async def test_what_the_store_refuses_is_written_again(world: World) -> None:
    one = world.process()
    await one.serves(3)
    world.store.full = True  # type: ignore[attr-defined]
    await one.stored.write()
    world.store.full = False  # type: ignore[attr-defined]
    world.clock.now += 5
    await one.stored.write()
    assert await world.process().counts() == (3, 3)


async def test_what_is_not_yet_written_is_told_in_its_order_by_the_process_that_knows_it(world: World) -> None:
    one, two = world.process(), world.process()
    for number in range(10):
        await (one if number % 2 else two).serves(at=AT + number / 100, messages=number)
        await two.stored.write()
    assert await one.counts() == (10, 10)
    assert await two.counts() == (5, 5)
    seen = await one.sees()
    assert seen is not None
    assert [point.messages for point in seen.points] == [*range(10)]


async def test_what_a_prompt_consisted_of_is_told_everywhere_as_it_was_last_told(world: World) -> None:
    one, two = world.process(), world.process()
    for number, process in enumerate((one, two)):
        process.histories(composed(AT + number))
        await process.serves()
        await process.stored.write()
    two.histories(composed(AT + 2))
    for process, at in ((one, 1), (two, 2), (world.process(), 1)):
        seen = await process.sees()
        assert seen is not None
        assert seen.prompt == composed(AT + at)
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert not [key for key in world.store._entries if key.startswith("history:")]  # type: ignore[attr-defined]


async def test_of_an_erased_session_nothing_is_left_anywhere(world: World) -> None:
    one, two = world.process(), world.process()
    for each in (one, two):
        await each.serves(40)
        await each.stored.write()
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert not [key for key in world.store._entries if key.startswith("history:")]  # type: ignore[attr-defined]
    assert await two.epochs.look_after()
    assert await two.stored.forget_erased() == [Key("default", ID, LABEL)]
    assert two.history is None
    assert await world.process().sees() is None
    await two.serves(1)
    await two.stored.write()
    assert await world.process().counts() == (1, 1)


async def test_what_was_not_written_when_a_session_was_erased_never_is(world: World) -> None:
    one, two = world.process(), world.process()
    await two.serves(40)
    await two.stored.write()
    await two.serves(40)
    await one.sessions.erase(OWNER, page_of(Target(FIRST, None)))
    await two.stored.write()
    assert two.history is None
    assert await world.process().sees() is None


async def test_the_fullest_list_keeps_within_its_bound_whatever_is_counted(world: World) -> None:
    numbers, process = random.Random(7), world.process()
    for _ in range(6):
        for _ in range(ENTRIES // 5):
            await process.serves(
                at=AT + numbers.randrange(10_000_000),
                tokens_received=numbers.randrange(2**32),
                tokens_sent=numbers.randrange(2**32),
                messages=numbers.randrange(2**16),
                window=numbers.randrange(2**32),
                checkpoint=numbers.randbytes(8).hex(),
                cached=numbers.randrange(4),
                usd=numbers.random(),
                usd_received=numbers.random(),
                model=numbers.randbytes(64).hex(),
            )
        await process.stored.write()
    (history,) = [entry.value for key, entry in world.store._entries.items() if key.startswith("history:")]  # type: ignore[attr-defined]
    assert len(history) <= 800_000
    assert await world.process().counts() == (ENTRIES, ENTRIES)


async def test_an_append_that_the_store_did_without_a_reply_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.process()
    await one.serves(3)
    append = MemoryStore.items

    async def lose_reply(*arguments: Any, **options: Any) -> list[bytes]:
        await append(world.store, *arguments, **options)  # type: ignore[arg-type]
        raise StoreError("timeout")

    monkeypatch.setattr(world.store, "items", lose_reply)
    await one.stored.write()
    monkeypatch.undo()
    world.clock.now += 5
    await one.stored.write()
    assert await world.process().counts() == (3, 3)


async def test_what_is_kept_is_sealed_and_what_is_damaged_is_left_out(world: World) -> None:
    one = world.process()
    await one.serves(3, model="a secret model")
    await one.stored.write()
    (key,) = [key for key in world.store._entries if key.startswith("history:")]  # type: ignore[attr-defined]
    assert b"secret" not in world.store._entries[key].value  # type: ignore[attr-defined]
    await world.store.items(key, [b"damaged"], limit=ENTRIES, ttl=TTL)
    assert await world.process().counts() == (3, 3)


async def test_a_session_that_failed_is_known_to_every_process_until_a_day_is_over_or_it_is_erased(
    shared: World,
) -> None:
    one, two = shared.process(), shared.process()
    await one.serves(3)
    await one.stored.write()
    assert await two.sessions.newest_failures(OWNER, 9) == ([], True)
    for changes in ({"status": 502}, {"compaction": "failed-open"}):
        await one.serves(**changes)
        await one.serves()
        await one.stored.write()
        page = await two.sessions.newest_failures(OWNER, 9)
        assert [session.label for _, session in page.entries if session] == [LABEL]
    await one.sessions.erase(OWNER, page_of(Target(FIRST, MARK)))
    assert await two.sessions.newest_failures(OWNER, 9) == ([], True)


async def test_a_failure_that_the_store_did_not_take_is_noted_later(world: World) -> None:
    process = world.process()
    await process.serves(status=0)
    assert isinstance(world.store, Failing)
    world.store.down = True
    await process.stored.write()
    world.store.down = False
    world.clock.now += 5
    await process.stored.write()
    assert len((await process.sessions.newest_failures(OWNER, 9)).entries) == 1


async def test_a_list_has_the_figures_of_all_processes(shared: World) -> None:
    one, two, third = shared.process(), shared.process(), shared.process()
    key = Key("default", ID, LABEL)
    await one.serves(4, at=AT, usd=0.25, usd_received=0.5, output=1)
    await two.serves(3, at=AT + 60, usd=0.5, usd_received=0.5, output=1)
    await one.stored.write()
    await two.stored.write()
    await two.serves(1, at=AT + 90, usd=0.5, usd_received=0.5, output=1)
    seen = (await third.stored.figures({key: FIRST + MARK}))[key]
    assert (seen.newest.at, seen.sums.tally.requests) == (AT + 60, 7)
    assert figures.cost_of_answers(seen.sums.tally) == 2.5
    assert figures.usd_saved(seen.sums.tally) == 1.0
    assert (await two.stored.figures({key: FIRST + MARK}))[key].sums.tally.requests == 8
    await third.sessions.epochs.erase(FIRST + MARK)
    assert await shared.process().stored.figures({key: FIRST + MARK}) == {}


async def test_the_figures_of_no_more_processes_than_may_are_stored(world: World) -> None:
    key = Key("default", ID, LABEL)
    for number in range(PROCESSES + 3):
        process = world.process()
        await process.serves(1, at=AT + number)
        await process.stored.write()
    seen = await world.process().stored.figures({key: FIRST + MARK})
    assert seen[key].sums.tally.requests == PROCESSES
