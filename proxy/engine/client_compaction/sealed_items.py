"""What a compaction item of ours holds, sealed for its tenant: it needs no store to be opened.

`ccn1.` and the base64url of what the store's sealing makes of it (`proxy/stores/sealing.py`).
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64Error
from dataclasses import dataclass
from typing import Literal

import msgspec

from policies.record.record import VERSION as RECORD_VERSION
from policies.record.record import Record
from proxy.memory import Cache
from proxy.stores.sealing import Sealer

PREFIX = "ccn1."
# How an item's value begins wherever it stands in a body.
PREFIX_IN_JSON = b'"ccn1.'
VERSION = 1
# Characters: a longer one is none of ours.
MOST = 400_000
_GROWTH = 8

Unreadable = Literal["foreign", "damaged", "later"]
"""Why an item is not read: another has made it; nobody can open it here; a later release of ours has made it."""


class CompactionItem(msgspec.Struct, frozen=True):
    """A history as it goes on: what the model gets in its place.

    at:      when it was made, in Unix seconds.
    head:    the instructions among its items. tail: its newest items word for word, the first `anchors` of which stood
             before the cut.
    covers:  names the history that it stands for. text: of the readable text beside it, a digest.
    """

    v: int
    dialect: str
    at: float
    record: Record
    head: tuple[msgspec.Raw, ...] = ()
    tail: tuple[msgspec.Raw, ...] = ()
    anchors: int = 0
    covers: str = ""
    text: str = ""


class _Version(msgspec.Struct):
    v: int


@dataclass(eq=False, repr=False)
class ItemSealer:
    """Seals and opens items; one per process. What was opened is remembered."""

    _sealer: Sealer
    _opened: Cache[tuple[str, bytes], CompactionItem]

    def seal(self, tenant: str, item: CompactionItem) -> str:
        sealed = self._sealer.seal(_name(tenant), msgspec.json.encode(item))
        return PREFIX + urlsafe_b64encode(sealed).decode()

    def open(self, tenant: str, sealed: str) -> CompactionItem | Unreadable:
        """The item that this tenant was given, or why it cannot be read."""
        if not sealed.startswith(PREFIX):
            return "foreign"
        if len(sealed) > MOST:
            return "damaged"
        key = tenant, hashlib.sha256(sealed.encode("utf-8", "surrogatepass")).digest()
        if (known := self._opened.get(key)) is not None:
            return known
        raw = _decode_base64(sealed[len(PREFIX) :])
        plain = None if raw is None else self._sealer.open_foreign(_name(tenant), raw)
        found = "damaged" if plain is None else _read(plain)
        return found if isinstance(found, str) else self._opened.keep(key, found, _GROWTH * len(sealed))


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
    try:
        if msgspec.json.decode(plain, type=_Version).v > VERSION:
            return "later"
        item = msgspec.json.decode(plain, type=CompactionItem)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "damaged"
    return item if item.record.version == RECORD_VERSION else "later"
