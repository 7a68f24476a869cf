"""Marks of media: put once, the same for every replica, and of a conversation that begins alike."""

from __future__ import annotations

import pytest

from policies.chain import Chain
from policies.media import MediaLimits
from policies.message import Message
from proxy.memory import Cache, Memory
from proxy.records.media_marks import MOST, MediaMark, MediaMarks
from proxy.stores.memory import MemoryStore
from proxy.stores.sealing import SealedStore, Sealer

pytestmark = pytest.mark.anyio


def chain(*words: bytes) -> Chain:
    return Chain(b"scope", [Message("user", 10, word.rjust(32)) for word in words])


def replica(store: MemoryStore) -> MediaMarks:
    return MediaMarks(SealedStore(store, Sealer(None), ttl=60.0), Cache(Memory(), "marks"))


def mark(of: Chain, length: int, pictures: int) -> MediaMark:
    return MediaMark(length, of.digests[length].hex(), pictures=pictures)


async def test_the_first_to_put_one_wins() -> None:
    store, talk = MemoryStore(), chain(b"a", b"b", b"c")
    one, two = replica(store), replica(store)
    assert await two.of(talk) == []
    first, second = mark(talk, 2, 15), mark(talk, 3, 10)
    assert await one.add(talk, 0, first) == first
    assert await two.add(talk, 0, second) == first
    assert await two.add(talk, 1, second) == second
    for other in (one, two, replica(store)):
        assert await other.of(talk) == [first, second]
    assert first.limits == MediaLimits(pictures=15)


async def test_a_mark_is_of_those_that_begin_with_its_messages() -> None:
    talk = chain(b"a", b"b", b"c")
    put = mark(talk, 2, 15)
    assert put.is_of(chain(b"a", b"b"))
    assert put.is_of(chain(b"a", b"b", b"d", b"e"))
    assert not put.is_of(chain(b"a", b"x", b"c"))
    assert not put.is_of(chain(b"a"))


async def test_a_conversation_has_so_many_and_others_see_none_of_them() -> None:
    store, talk = MemoryStore(), chain(b"a", b"b")
    marks = replica(store)
    for number in range(MOST):
        await marks.add(talk, number, mark(talk, 1, number + 1))
    assert [each.pictures for each in await replica(store).of(talk)] == [*range(1, MOST + 1)]
    assert await marks.of(chain(b"another")) == []
