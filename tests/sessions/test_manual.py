"""Compactions that were asked for: each made once, by whichever process meets the session's next request."""

from __future__ import annotations

import asyncio

import pytest

from policies.conversation.prefix_digests import LINK_BYTES, Chain
from proxy.sessions.epochs import Epochs
from proxy.sessions.manual import ManualCompactions
from proxy.sessions.stores import CircuitBreaker, Sealer, StoreError
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore
from tests.support.clock import Clock

pytestmark = pytest.mark.anyio

FIRST = bytes(range(LINK_BYTES))
CHAIN = Chain(b"", (), first=FIRST)


class Failing(MemoryStore):
    """Does nothing while it is `down`."""

    down = False

    async def get_many(self, keys: object) -> list[bytes | None]:
        if self.down:
            raise StoreError("down")
        return await super().get_many(keys)  # type: ignore[arg-type]


def process(store: MemoryStore) -> tuple[ManualCompactions, Epochs]:
    guarded = CircuitBreaker(store, Clock())
    epochs = Epochs(guarded, 600.0, Clock())
    return ManualCompactions(SealedStore(guarded, Sealer(None), 600.0), epochs), epochs


async def test_of_all_processes_one_makes_it_and_once() -> None:
    store = MemoryStore()
    one, two, three = (process(store)[0] for _ in range(3))
    await one.ask(FIRST)
    assert one.may_be_due(CHAIN)
    assert not two.may_be_due(CHAIN)
    for each in (two, three):
        await each.look()
    assert two.may_be_due(CHAIN)
    assert not two.may_be_due(Chain(b"", (), b"label", first=FIRST))
    taken = await asyncio.gather(*(each.take(FIRST) for each in (one, two, three, one, two, three)))
    assert sum(taken) == 1
    for each in (one, two, three):
        await each.look()
        assert not each.may_be_due(CHAIN)


async def test_it_may_be_asked_for_again() -> None:
    one = process(MemoryStore())[0]
    for _ in range(2):
        await one.ask(FIRST)
        assert await one.take(FIRST)
        assert not await one.take(FIRST)


async def test_what_was_asked_of_a_session_is_erased_with_it() -> None:
    store = MemoryStore()
    (one, epochs), (two, _) = process(store), process(store)
    await one.ask(FIRST)
    await epochs.erase(FIRST)
    await two.look()
    assert not await two.take(FIRST)
    assert not await one.take(FIRST)
    await one.ask(FIRST)
    assert await two.take(FIRST)


async def test_without_the_store_nothing_is_made_and_nothing_lost() -> None:
    store = Failing()
    one, two = process(store)[0], process(store)[0]
    await one.ask(FIRST)
    store.down = True
    assert not await one.take(FIRST)
    store.down = False
    await two.look()
    assert not two.may_be_due(CHAIN) or await two.take(FIRST)
