"""Records in the store, followed back from the newest."""

from __future__ import annotations

import msgspec
import pytest

from policies.conversation.prefix_digests import Chain, hash_tag
from policies.record.record import Record
from proxy.sessions.record_store import RecordStore
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.conversations import described, user
from tests.support.records import generation, made

pytestmark = pytest.mark.anyio

LINK = b"l" * 32
TURNS = [user(f"turn {number}") for number in range(40)]
CHAIN = Chain(b"scope", described(TURNS), link=LINK)
DIGESTS = CHAIN.digests


def record(covered: int, parent: int | None) -> Record:
    names = {"digest": DIGESTS[covered].hex(), "parent": None if parent is None else DIGESTS[parent].hex()}
    return msgspec.structs.replace(made(generation(0)), covered=covered, **names)


@pytest.mark.parametrize(
    ("parents", "found"),
    [
        ({10: None, 20: 10, 30: 20}, [30, 20, 10]),
        ({10: None, 30: 20}, [30]),
        ({20: None}, []),
        ({30: 30}, [30] * 100),
    ],
    ids=["all of them", "the parent is gone", "the newest is gone", "damaged so that it leads back to itself"],
)
async def test_the_history_of_a_record_is_what_the_store_has_of_it(
    parents: dict[int, int | None], found: list[int]
) -> None:
    store = MemoryStore()
    for covered, parent in parents.items():
        await RecordStore(SealedStore(store, Sealer(None), 60)).publish(CHAIN, record(covered, parent))
    history = await RecordStore(SealedStore(store, Sealer(None), 60)).history(hash_tag(LINK), DIGESTS[30].hex())
    assert [each.covered for each in history] == found
