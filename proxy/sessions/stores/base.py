"""The interface of stores: a shared, lossy map from hashed keys to sealed bytes, with expiry and locks.

Everything in a store can be rebuilt from the client's next request, so no entry is durable: it may vanish at any time,
and callers are then slower but still correct.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

MAX_VALUE_BYTES = 256_000
DEFAULT_TIMEOUT = 0.25
# Members of an index that are read in one call if the index may have any number of them.
PAGE = 500
# An index has any number of members. A call without a limit returns at most so many, the newest.
MAX_MEMBERS = 10_000


class StoreError(Exception):
    """The store could not do it. Stores raise no other exception, and messages contain neither keys nor values."""

    outage = True
    """True if the store itself has failed, so that the next call would probably fail too."""


class EntryError(StoreError):
    """The entry cannot be stored or read. The store works."""

    outage = False


class RefusedError(StoreError):
    """The store works, but refuses this operation: it is full, read-only, or the user lacks a permission."""

    outage = False


class ValueTooLargeError(EntryError):
    """The value exceeds `MAX_VALUE_BYTES`."""


class Member(NamedTuple):
    """A member of an index.

    expires: seconds, by the store's clock.
    """

    expires: float
    name: str


class Increment(NamedTuple):
    """An addition to the counters of one entry, in any order with other replicas. An empty one only reads."""

    key: str
    added: Mapping[str, int]
    ttl: float


class Facts(NamedTuple):
    """The store's report about itself. None for unknown values.

    entries: their number by kind, the first word of their keys, maybe with expired ones. size: bytes in use. most:
    bytes available. eviction: the policy of a full server, in its own words.
    """

    entries: dict[str, int] | None = None
    size: int | None = None
    most: int | None = None
    eviction: str | None = None


class Store(Protocol):
    """The operations on a store. Keys are hashed by the caller (`cp:{<hex>}:<hex>`). `ttl` is in seconds."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values in the order of the keys, None for a miss. One round trip."""

    async def put(self, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> bytes | None:
        """Store the value over an existing one. This suits statistics, where the last writer may win.

        only_new: do not overwrite. Return None if this call stored the value, otherwise the existing value. Storing the
        same bytes again returns these bytes, so a repeated call is harmless.
        """

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Let these entries live for `ttl` from now. Misses are ignored."""

    async def items(
        self, key: str, added: Sequence[bytes] = (), *, limit: int = 0, ttl: float = 0
    ) -> list[bytes] | None:
        """Return a list in its order; empty for a miss. None if it could not be read.

        added: append these, and return an empty list. The list lives for `ttl` from now, and beyond `limit` the oldest
        items are dropped.
        """

    async def members(self, index: str, limit: int | None = None, before: Member | None = None) -> list[Member] | None:
        """Return the members of an index, the last enrolled first; None if the index could not be read.

        limit: return at most so many, in a fixed order. before: return the members after this one. Only members without
        a colon in their name can be read by `limit`.
        """

    async def enrolled(self, index: str, members: Sequence[str]) -> list[bool] | None:
        """Return for each name if it is a member of this index; None if the index could not be read."""

    async def enroll(self, index: str, member: str, ttl: float) -> None:
        """Make `member` a member of this index for `ttl` seconds from now. A `ttl` of 0 removes it."""

    async def count(self, increments: Sequence[Increment]) -> list[dict[str, int] | None]:
        """Add to the counters of entries, which begin at 0, and let each entry live for its `ttl` from now.

        One round trip. Each entry is named once. Return all counters of each entry, including those of other replicas;
        None for an entry that could not be counted.
        """

    async def lock(self, key: str, token: str, ttl: float) -> bool:
        """Take the lock for at most `ttl`. Return True if it was free.

        It saves duplicate work, and correctness never depends on it. A `ttl` of 0 releases the lock, and returns True
        if it was held with this token.
        """

    async def erase(self, tag: str, mark: bytes, ttl: float) -> bytes | None:
        """Remove every entry under this hash tag, and leave a tombstone (`tombstone(tag)`) with this mark for `ttl`.

        While it exists, entries under the tag vanish as they are stored, so requests in flight leave nothing. Return
        the mark of the first tombstone; None if the operation failed.
        """


class OpenedStore(Store, Protocol):
    """A store with the operations of its owner. Code that only reads and writes must not close it."""

    async def facts(self) -> Facts:
        """Return the store's report about itself, for people."""

    async def close(self) -> None:
        """Close files, threads and connections. Closing twice is harmless."""


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
    newest = page[0]
    while page := await _read_page(store, index, page[-1]):
        yield page
    before: Member | None = None
    while page := [member for member in await _read_page(store, index, before) if member > newest]:
        yield page
        before = page[-1]


async def _read_page(store: Store, index: str, before: Member | None) -> list[Member]:
    page = await store.members(index, PAGE, before)
    if page is None:
        raise StoreError("the store could not read an index")
    return page


def kind_of(key: str) -> str:
    """Return the kind of an entry for operators."""
    return key.partition(":")[0]


def tag_of(key: str) -> str | None:
    """Return the hash tag of a key, by which entries belong together; None without a tag."""
    tag = key.partition("{")[2].partition("}")
    return tag[0] if tag[1] and tag[0] else None


def tombstone(tag: str) -> str:
    """Return the key of a tag's tombstone."""
    return f"gone:{{{tag}}}"


def check_size(value: bytes) -> None:
    """Check the size of a value. Raises ValueTooLargeError: one record must not evict thousands of others."""
    if len(value) > MAX_VALUE_BYTES:
        raise ValueTooLargeError(f"a value of {len(value):,} bytes is over the store's limit of {MAX_VALUE_BYTES:,}")


def check_sizes(items: Sequence[bytes]) -> None:
    """Check the size of each item of a list. Raises ValueTooLargeError."""
    for item in items:
        check_size(item)


def add_counts(value: bytes | None, added: Mapping[str, int]) -> dict[str, int]:
    """Return the counters in a value with `added`, for stores without counters."""
    try:
        counts = {} if value is None else msgspec.json.decode(value, type=dict[str, int])
    except msgspec.MsgspecError:
        counts = {}
    return {name: counts.get(name, 0) + added.get(name, 0) for name in {**counts, **added}}


def pack_list(items: Sequence[bytes]) -> bytes:
    """Return a list as one value, for stores without lists."""
    return msgspec.msgpack.encode(items)


def unpack_list(value: bytes | None) -> list[bytes]:
    """Return the packed list; empty for None and for an invalid value."""
    try:
        return [] if value is None else msgspec.msgpack.decode(value, type=list[bytes])
    except msgspec.MsgspecError:
        return []
