"""The content of a compaction item, sealed for its tenant. It is opened without a store.

The format is `ccn1.` and the base64url of the sealed content (`proxy/sessions/stores/sealing.py`).
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64Error
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec

from policies.record.record import VERSION as RECORD_VERSION
from policies.record.record import Record
from proxy.memory import Cache
from proxy.sessions.stores.sealing import Sealer

PREFIX = "ccn1."
# The beginning of an item's value anywhere in a body.
PREFIX_IN_JSON = b'"ccn1.'
VERSION = 1
# The most characters of an item, bytes of its content, and bytes of the contents of all items in a request.
MOST, MOST_CONTENT, MOST_CONTENTS = 400_000, 2_000_000, 8_000_000
# Parsed JSON of so many values takes fifty times its size in memory.
_MOST_COMMAS = 200_000
_MOST_MESSAGES = 4_000
# The memory of a parsed item, for each byte of its content.
_GROWTH = 2

_Messages = Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=_MOST_MESSAGES)]

Unreadable = Literal["foreign", "damaged", "later"]
"""The reason why an item is not read: it is from elsewhere, it cannot be opened, or a later release made it."""


class CompactionItem(msgspec.Struct, frozen=True):
    """A history in the form in which it continues: the content that the model gets in its place.

    at:     the time it was made, in Unix seconds.
    head:   the instructions among its messages.
    tail:   its newest items word for word. The first `anchors` of them were before the cut.
    covers: a digest of the history that it replaces.
    text:   a digest of the readable text next to it.
    places: the sessions whose text it holds, the oldest first: the name of each, and its link at that time.
    """

    v: int
    dialect: str
    at: float
    record: Record
    head: _Messages = ()
    tail: _Messages = ()
    anchors: int = 0
    covers: str = ""
    text: str = ""
    places: tuple[tuple[bytes, bytes], ...] = ()


class _Version(msgspec.Struct):
    v: int


class OpenedItem(NamedTuple):
    """An item, and the number of bytes of its content."""

    item: CompactionItem
    size: int


@dataclass(eq=False, repr=False)
class ItemSealer:
    """Seals and opens items. One per process. Opened items are cached."""

    _sealer: Sealer
    _opened: Cache[tuple[str, bytes], OpenedItem]

    def seal(self, tenant: str, item: CompactionItem) -> str:
        """Return the sealed form of an item for this tenant."""
        sealed = self._sealer.seal_for_client(_name(tenant), msgspec.json.encode(item))
        return PREFIX + urlsafe_b64encode(sealed).decode()

    def open(self, tenant: str, sealed: str, most: int = MOST_CONTENT) -> OpenedItem | Unreadable:
        """Return the item that this tenant was given, or the reason why it cannot be read.

        most: the most bytes of its content.
        """
        if not sealed.startswith(PREFIX):
            return "foreign"
        if len(sealed) > MOST:
            return "damaged"
        key = tenant, hashlib.sha256(sealed.encode("utf-8", "surrogatepass")).digest()
        if (opened := self._opened.get(key)) is not None:
            return opened if opened.size <= most else "damaged"
        raw = _decode_base64(sealed[len(PREFIX) :])
        plain = None if raw is None else self._sealer.open_from_client(_name(tenant), raw, min(most, MOST_CONTENT))
        if plain is None:
            return "damaged"
        item = _read(plain)
        if not isinstance(item, CompactionItem):
            return item
        return self._opened.keep(key, OpenedItem(item, len(plain)), _GROWTH * len(plain))


def text_digest(text: str) -> str:
    """Return the digest of the readable text next to an item."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _decode_base64(text: str) -> bytes | None:
    """Return the bytes of canonical base64url; None for any other text, which lenient decoders may accept."""
    try:
        raw = urlsafe_b64decode(text)
    except (BadBase64Error, ValueError):
        return None
    return raw if urlsafe_b64encode(raw).decode() == text else None


def _name(tenant: str) -> str:
    return f"item:{tenant}"


def _read(plain: bytes) -> CompactionItem | Unreadable:
    if plain.count(b",") > _MOST_COMMAS:
        return "damaged"
    try:
        if msgspec.json.decode(plain, type=_Version).v > VERSION:
            return "later"
        item = msgspec.json.decode(plain, type=CompactionItem)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "damaged"
    return item if item.record.version == RECORD_VERSION else "later"
