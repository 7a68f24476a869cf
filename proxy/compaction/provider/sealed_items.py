"""What a compaction item of ours holds, sealed for its tenant: it needs no store to be opened.

`ccn1.` and the base64url of what the store's sealing makes of it for a client (`proxy/sessions/stores/sealing.py`).
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
# How an item's value begins wherever it stands in a body.
PREFIX_IN_JSON = b'"ccn1.'
VERSION = 1
# Characters of an item as clients keep it; bytes of its content, and of the contents of all items in one request.
MOST, MOST_CONTENT, MOST_CONTENTS = 400_000, 2_000_000, 8_000_000
# JSON of so many values takes fifty times its size in memory.
_MOST_COMMAS = 200_000
_MOST_MESSAGES = 4_000
# What an item that was read takes in memory, for each byte of its content.
_GROWTH = 2

_Messages = Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=_MOST_MESSAGES)]

Unreadable = Literal["foreign", "damaged", "later"]
"""Why an item is not read: another has made it; nobody can open it here; a later release of ours has made it."""


class CompactionItem(msgspec.Struct, frozen=True):
    """A history as it goes on: what the model gets in its place.

    at:      when it was made, in Unix seconds.
    head:    the instructions among its items. tail: its newest items word for word, the first `anchors` of which stood
             before the cut.
    covers:  names the history that it stands for. text: of the readable text beside it, a digest.
    places:  of the sessions whose text it holds, the oldest first: the name of each, and its link when this was made.
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
    """An item, and how many bytes its content has."""

    item: CompactionItem
    size: int


@dataclass(eq=False, repr=False)
class ItemSealer:
    """Seals and opens items; one per process. Opened items are remembered."""

    _sealer: Sealer
    _opened: Cache[tuple[str, bytes], OpenedItem]

    def seal(self, tenant: str, item: CompactionItem) -> str:
        sealed = self._sealer.seal_for_client(_name(tenant), msgspec.json.encode(item))
        return PREFIX + urlsafe_b64encode(sealed).decode()

    def open(self, tenant: str, sealed: str, most: int = MOST_CONTENT) -> OpenedItem | Unreadable:
        """Return the item that this tenant was given, or why it cannot be read.

        most: bytes that its content may have.
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
    """Of a readable text that stands beside an item."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _decode_base64(text: str) -> bytes | None:
    """Of the one text that stands for these bytes; a lenient decoder takes others as well."""
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
