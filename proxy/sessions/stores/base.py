"""What a store is: a shared, forgetful map from hashed keys to sealed bytes, with expiry and locks.

Everything in a store can be rebuilt from the client's next request, so nothing here is durable by contract: an entry
may vanish at any time, and no caller may be wrong, only slower, when one does.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

MAX_VALUE_BYTES = 256_000
DEFAULT_TIMEOUT = 0.25
# Members of an index that are read in one call where an index may have any number of them.
PAGE = 500
# An index has any number of members. A call that names no limit returns at most so many, the newest.
MAX_MEMBERS = 10_000


class StoreError(Exception):
    """The store could not do it. The only exception that leaves a store; messages hold neither keys nor values."""

    outage = True
    """Whether the store itself is in trouble, so that the next call would most likely fail too."""


class EntryError(StoreError):
    """This one entry cannot be stored or read; the store is well."""

    outage = False


class RefusedError(StoreError):
    """The store is well, but refuses this operation: it is full, read-only, or we may not. Others may go on."""

    outage = False


class ValueTooLargeError(EntryError):
    """The value is over `MAX_VALUE_BYTES`."""


class Member(NamedTuple):
    """One of an index. expires: seconds, by the store's clock."""

    expires: float
    name: str


class Increment(NamedTuple):
    """What is added to the counters of one entry, in any order with other replicas; nothing to read them."""

    key: str
    added: Mapping[str, int]
    ttl: float


class Facts(NamedTuple):
    """What a store tells of itself; None for what it does not tell.

    entries: their number by kind, the first word of their keys; those that have expired may be among them. size: bytes
    that it takes; most: that it may take. eviction: what a full server drops, in its own words.
    """

    entries: dict[str, int] | None = None
    size: int | None = None
    most: int | None = None
    eviction: str | None = None


class Store(Protocol):
    """What reads and writes. Keys are hashed by the caller (`cp:{<hex>}:<hex>`) and passed on; `ttl` is in seconds."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys, None for a miss; one round trip."""

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store the value over whatever was there: for statistics, where the last to speak may win.

        only_new: unless the key is taken: None if this call stored it, else the value that was there first. Storing the
        same bytes again is answered with those bytes, so a repeated call is harmless.
        """

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Let these entries live for `ttl` from now; misses are ignored."""

    async def items(
        self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0
    ) -> list[bytes] | None:
        """A list in the order of its items; empty for a miss. None if it could not be looked up.

        added: put these behind the others, and return none; the list lives for `ttl` from now, and beyond `limit` the
        oldest drop out.
        """

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member] | None:
        """Return the members of an index, the one enrolled last first; None if the index could not be read.

        limit: return at most so many, in a fixed order. before: return the members after this one. Only members
        without a colon in their name can be read by `limit`.
        """

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool] | None:
        """Return for each name if it is a member of this index; None if the index could not be read."""

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Make `member` a member of this index for `ttl` seconds from now. A `ttl` of 0 removes it."""

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to the counters of entries, which begin at 0, and let each entry live for its `ttl` from now.

        One round trip; each entry is named once. Returns all counters of each entry, also what other replicas have
        added; None for an entry that could not be counted.
        """

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take the lock for at most `ttl`; whether it was free. It saves duplicate work; correctness never hangs on it.

        A `ttl` of 0 gives it back; whether it was still held with this token.
        """

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove every entry under this hash tag and leave a tombstone (`tombstone(tag)`) with this mark for `ttl`.

        While it lies there, entries under the tag vanish as they are stored, so what is under way leaves nothing.
        Returns the mark that lies there: that of the first. None if it could not be done.
        """


class OpenedStore(Store, Protocol):
    """A store with what concerns the one who opened it; what only reads and writes must not close it."""

    async def facts(self) -> Facts:
        """What it reports of itself, for people."""

    async def close(self) -> None:
        """Let go of files, threads and connections; closing twice is harmless."""


async def names_in(store: Store, index: str) -> list[str] | None:
    """Return the names of an index with few members, at most `MAX_MEMBERS`; None if the index could not be read."""
    members = await store.members(index)
    return None if members is None else [member.name for member in members]


async def pages_of(store: Store, index: str) -> AsyncIterator[list[Member]]:
    """Yield the members of an index page by page. Raises StoreError.

    A member that is enrolled again while the pages are read moves to the front of the index. Such members are the
    last page, so no member is missed. One may come twice.
    """
    page = await _read_page(store, index, None)
    if page:
        yield page
    if len(page) < PAGE:
        return
    first = page[0]
    while page := await _read_page(store, index, page[-1]):
        yield page
    before: Member | None = None
    while page := [member for member in await _read_page(store, index, before) if member > first]:
        yield page
        before = page[-1]


async def _read_page(store: Store, index: str, before: Member | None) -> list[Member]:
    page = await store.members(index, PAGE, before)
    if page is None:
        raise StoreError("the store could not read an index")
    return page


def kind_of(key: str) -> str:
    """Of an entry, as operators are told."""
    return key.partition(":")[0]


def tag_of(key: str) -> str | None:
    """The hash tag of a key, by which entries belong together; None where it has none."""
    tag = key.partition("{")[2].partition("}")
    return tag[0] if tag[1] and tag[0] else None


def tombstone(tag: str) -> str:
    """Where the mark of what was erased lies."""
    return f"gone:{{{tag}}}"


def check_size(value: bytes) -> None:
    """Raise `ValueTooLargeError` for a value no store takes: one record must not push thousands of others out."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLargeError(f"a value of {len(value):,} bytes is over the store's limit of {MAX_VALUE_BYTES:,}")


def check_sizes(items: Sequence[bytes]) -> None:
    """The same for each item of a list."""
    for item in items:
        check_size(item)


def add_counts(value: bytes | None, added: Mapping[str, int]) -> dict[str, int]:
    """Counters as one value, for stores that have only those, and what is added to them."""
    try:
        there = {} if value is None else msgspec.json.decode(value, type=dict[str, int])
    except msgspec.MsgspecError:
        there = {}
    return {name: there.get(name, 0) + added.get(name, 0) for name in {**there, **added}}


def pack_list(items: Sequence[bytes]) -> bytes:
    """A list as one value, for stores that have only those."""
    return msgspec.msgpack.encode(items)


def unpack_list(value: bytes | None) -> list[bytes]:
    """The list that was packed; empty for none, and for what is no list."""
    try:
        return [] if value is None else msgspec.msgpack.decode(value, type=list[bytes])
    except msgspec.MsgspecError:
        return []
