"""Digests that name a prefix of a conversation: equal for what means the same, different for anything else.

A checkpoint is found by the digest of the messages it covers, so no session id is needed and an edited history can
never meet a summary that was made from another one (docs/design.md, "Digests and keys"; invariant 11).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from policies.cached import cached_property
from policies.conversation.message import Message
from policies.conversation.outline import links_of

_VERSION = b"v1"
# First links under which one history is looked up.
_MOST_NAMES = 8
# A scope is a caller's.
_SCOPES = 1_000
INSTRUCTIONS = b"instructions"
LINK_BYTES = 32
MARK_BYTES = 16
NAME_DIGITS = 16


@lru_cache(_SCOPES)
def _root(scope: bytes) -> bytes:
    """d_0."""
    return hashlib.sha256(_VERSION + scope).digest()


def digest_of(seed: bytes, form: object) -> bytes:
    """SHA-256 of an item's canonical form, 32 bytes. `seed` tells the dialects apart: no item of one is another's."""
    return hashlib.sha256(seed + msgspec.json.encode(form, order="sorted")).digest()


def set_apart(link: bytes, mark: bytes) -> bytes:
    """Another name for what a first link names: of the same messages, of which nothing is to be found by the old."""
    return hashlib.sha256(link + mark).digest()


def prefix_digests(
    scope: bytes,
    body: Sequence[Message],
    *,
    links: Sequence[bytes] | None = None,
    known: Sequence[bytes] = (),
) -> list[bytes]:
    """Return d_0 … d_n: d_i names body[:i] under `scope`.

    links: of every message, which calls its results answer (`policies.conversation.outline`). known: the first of these
    digests.
    """
    links = links_of(body) if links is None else links
    digests = [*known] or [_root(scope)]
    for position in range(len(digests) - 1, len(body)):
        digests.append(hashlib.sha256(digests[-1] + body[position].digest + links[position]).digest())
    return digests


class Digests(msgspec.Struct):
    """The digests of the first `length` messages of a body, by the first link: requests that continue it have them."""

    length: int = 0
    _found: dict[bytes, list[bytes]] = {}

    def longer(self, length: int) -> Digests:
        return Digests(length, self._found.copy())

    def known(self, first: bytes) -> Sequence[bytes]:
        return self._found.get(first, ())

    def keep(self, first: bytes, digests: Sequence[bytes]) -> None:
        if len(self._found) >= _MOST_NAMES:
            self._found.clear()
        self._found[first] = [*digests[: self.length + 1]]


class Chain(msgspec.Struct, frozen=True, dict=True):
    """The names of one request's conversation: of its prefixes, of its session, and of the place where both are kept.

    scope:  the caller's: nothing of one scope is found from another.
    body:   the messages without the head.
    mark:   of the label that the client gives its session; empty where it gives none.
    covers_instructions: whether records may cover instructions: they never meet requests that keep theirs.
    links:  of every message, which calls its results answer; None where nobody has looked.
    seen:   digests of the messages that other requests began with too.
    link:   from which the keys of what is stored of its session are derived; None if no epoch was looked up.
    undone: digests, in hex, of the records that were undone for its session, as far as they were looked up.
    first:  the conversation's first link, where that is known without the scope, as an operator knows a session's id.
    """

    scope: bytes
    body: Sequence[Message]
    mark: bytes = b""
    covers_instructions: bool = False
    link: bytes | None = None
    undone: frozenset[str] = frozenset()
    links: Sequence[bytes] | None = None
    seen: Digests = msgspec.field(default_factory=Digests)
    first: bytes | None = None

    @cached_property
    def first_link(self) -> bytes:
        """Names the conversation, at the price of one message."""
        if self.first is not None:
            return self.first
        first = self.body[:1]
        links = links_of(first) if first and first[0].results else [b""]
        return prefix_digests(self.scope, first, links=links)[-1]

    @property
    def session(self) -> bytes:
        """The session's name: the conversation as it began, and the mark of its label."""
        return self.first_link + self.mark

    @cached_property
    def name(self) -> str:
        """The conversation's name for people."""
        return name_of(self.first_link)

    @property
    def own_link(self) -> bytes:
        """The link of this session, as far as it was looked up."""
        return self.link or link_of_label(self.first_link, self.mark)

    @cached_property
    def digests(self) -> list[bytes]:
        """`digests[i]` names body[:i], whatever the session's label or epoch."""
        first = set_apart(self.first_link, INSTRUCTIONS) if self.covers_instructions else self.first_link
        known = self.seen.known(first) or [_root(self.scope), first][: len(self.body) + 1]
        digests = prefix_digests(self.scope, self.body, links=self.links, known=known)
        self.seen.keep(first, digests)
        return digests

    @cached_property
    def barred(self) -> frozenset[int]:
        """The cuts whose records were undone: no record is used, or made, that covers just so many messages."""
        if not self.undone:
            return frozenset()
        return frozenset(cut for cut, digest in enumerate(self.digests) if digest.hex() in self.undone)

    @property
    def tag(self) -> str:
        """The hash tag of all that is stored of the session."""
        return hash_tag(self.own_link)


def name_of(first: bytes) -> str:
    """Return a conversation's name for people: the first hex digits of its first link."""
    return first.hex()[:NAME_DIGITS]


def mark_of(key: bytes, label: str) -> bytes:
    """What stands for a label in the store, empty for none: only who has the key can say which label that is."""
    return hmac.digest(key, label.encode(), "sha256")[:MARK_BYTES] if label else b""


def link_of_label(first: bytes, mark: bytes) -> bytes:
    """Return the link of a session without an epoch, and in version 0.2.0."""
    return set_apart(first, mark) if mark else first


def hash_tag(first: bytes) -> str:
    """What the keys of everything that belongs to one conversation share, by its first link: so they share a cluster
    slot, and can be erased together."""
    return first.hex()[:32]


def is_session(text: str) -> bool:
    """Whether this names a session, in hex: by the first link of its conversation, and the mark of its label if any."""
    lengths = (2 * LINK_BYTES, 2 * (LINK_BYTES + MARK_BYTES))
    return len(text) in lengths and all(digit in "0123456789abcdef" for digit in text)
