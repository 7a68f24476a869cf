"""Compaction items of ours: who can open them, and what becomes of those that are not as they were made."""

from __future__ import annotations

import random
import tracemalloc
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest

from policies.record.record import Record
from proxy.compaction.provider.sealed_items import (
    MOST,
    MOST_CONTENT,
    PREFIX,
    CompactionItem,
    ItemSealer,
    OpenedItem,
)
from proxy.memory import Cache, Memory
from proxy.sessions.stores.sealing import Sealer
from tests.support.items import forged
from tests.support.records import generation, made

KEY, OTHER = b"k" * 32, b"o" * 32
ITEM = CompactionItem(
    1, "responses", 1e9, made(generation(1)), tail=(msgspec.Raw(b'{"role":"user","content":"hi"}'),), covers="ab"
)


def sealer(key: bytes | None = None, *retired: bytes, secret: bytes = b"the store's") -> ItemSealer:
    return ItemSealer(Sealer(key, retired, secret=secret), Cache(Memory(), "items"))


OPENS = {
    "no key": (sealer(), sealer()),
    "the key": (sealer(KEY), sealer(KEY)),
    "a retired key": (sealer(KEY), sealer(OTHER, KEY)),
    "a key that was set since": (sealer(), sealer(KEY)),
}
CLOSED = {
    "another key": (sealer(KEY), sealer(OTHER)),
    "no key any more": (sealer(KEY), sealer()),
    "another secret": (sealer(), sealer(secret=b"another")),
}


@pytest.mark.parametrize("case", OPENS)
def test_an_item_opens_with_the_key_that_sealed_it_and_where_none_did(case: str) -> None:
    maker, reader = OPENS[case]
    sealed = maker.seal("acme", ITEM)
    opened = reader.open("acme", sealed)
    assert isinstance(opened, OpenedItem)
    assert msgspec.json.encode(opened.item) == msgspec.json.encode(ITEM)
    assert opened.size == len(msgspec.json.encode(ITEM))
    assert reader.open("acme", sealed) is opened, "remembered"
    assert reader.open("other", sealed) == "damaged", "of another tenant"


@pytest.mark.parametrize("case", CLOSED)
def test_no_other_key_opens_it(case: str) -> None:
    maker, reader = CLOSED[case]
    assert reader.open("acme", maker.seal("acme", ITEM)) == "damaged"


@pytest.mark.parametrize("key", [None, KEY])
def test_an_item_that_is_not_as_it_was_made_is_never_read(key: bytes | None) -> None:
    """Cut, doubled, one letter or one byte another one, long, or with more behind it."""
    items, draw = sealer(key), random.Random(7)
    sealed = items.seal("acme", ITEM)
    raw = bytearray(urlsafe_b64decode(sealed.removeprefix(PREFIX)))
    changed = {sealed[:end] for end in range(len(PREFIX), len(sealed), 7)}
    changed |= {sealed + sealed, sealed + "A", sealed + "=", sealed[:-1], f"{sealed}\n", PREFIX + "A" * MOST, PREFIX}
    for _ in range(10_000):
        at, letter = draw.randrange(len(PREFIX), len(sealed)), draw.choice("abcXYZ019-_=+/ é")
        changed.add(sealed[:at] + letter + sealed[at + 1 :])
    for at in range(0, len(raw), 5):
        other = raw.copy()
        other[at] ^= 1 + draw.randrange(255)
        changed.add(PREFIX + urlsafe_b64encode(bytes(other)).decode())
    changed.discard(sealed)
    assert {items.open("acme", each) for each in changed} <= {"damaged", "foreign"}


def test_one_of_a_later_release_is_told_from_a_damaged_one() -> None:
    items, plain = sealer(), msgspec.json.decode(msgspec.json.encode(ITEM))
    later = msgspec.structs.replace(ITEM, record=msgspec.structs.replace(ITEM.record, version=99))
    assert items.open("acme", forged({**plain, "v": 2}, tenant="acme")) == "later"
    assert items.open("acme", items.seal("acme", later)) == "later"
    assert items.open("acme", forged({**plain, "record": 1}, tenant="acme")) == "damaged"
    assert items.open("acme", forged([], tenant="acme")) == "damaged"
    assert items.open("acme", "gAAAAAB") == "foreign"
    assert isinstance(ITEM.record, Record)


def test_an_item_of_release_0_2_0_opens_unless_a_key_is_set() -> None:
    sealed = forged(ITEM, tenant="acme")
    assert isinstance(sealer().open("acme", sealed), OpenedItem)
    assert sealer(KEY).open("acme", sealed) == "damaged"


LARGE = msgspec.structs.replace(ITEM, covers="a" * MOST_CONTENT)
MANY = msgspec.structs.replace(ITEM, tail=(msgspec.Raw(b"1"),) * 100_000)
BOMBS = {
    "a long text": msgspec.json.encode(LARGE),
    "many messages": msgspec.json.encode(MANY),
    "many values": msgspec.json.encode(ITEM)[:-1] + b',"tail":[' + b"1," * 900_000 + b"1]}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_inflates_beyond_all_bounds_is_not_read(bomb: str) -> None:
    sealed, items = forged(BOMBS[bomb], tenant="acme"), sealer()
    assert len(sealed) < MOST
    tracemalloc.start()
    try:
        assert items.open("acme", sealed) == "damaged"
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_CONTENT
    finally:
        tracemalloc.stop()


def test_an_item_is_only_read_if_there_is_room_for_its_content() -> None:
    items = sealer()
    sealed = items.seal("acme", ITEM)
    opened = items.open("acme", sealed)
    assert isinstance(opened, OpenedItem)
    for reader in (items, sealer()):  # one has read it before
        assert reader.open("acme", sealed, opened.size - 1) == "damaged"
        assert reader.open("acme", sealed, opened.size) == opened
