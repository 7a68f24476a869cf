"""Digests of conversation prefixes: equal for equal meaning, otherwise different.

A record is looked up by the digest of the messages it covers. So no session id is needed, and an edited history never
matches a summary of another one (docs/design.md, "Digests and keys"; invariant 11).
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
# Maximum first links for which digests of one history are stored.
_MOST_NAMES = 8
# Maximum scopes to cache. Each caller has one.
_SCOPES = 1_000
INSTRUCTIONS = b"instructions"
LINK_BYTES = 32
MARK_BYTES = 16
NAME_DIGITS = 16
# A request has about so many messages more than the one before, at most.
_NEWEST = 8


@lru_cache(_SCOPES)
def _root(scope: bytes) -> bytes:
    """Return d_0 of a scope."""
    return hashlib.sha256(_VERSION + scope).digest()


def digest_of(seed: bytes, form: object) -> bytes:
    """Return the SHA-256 of an item's canonical form, 32 bytes. seed: distinguishes the dialects."""
    return hashlib.sha256(seed + msgspec.json.encode(form, order="sorted")).digest()


def set_apart(link: bytes, mark: bytes) -> bytes:
    """Return a different name for the same messages, under which nothing stored by the old name is found."""
    return hashlib.sha256(link + mark).digest()


def prefix_digests(
    scope: bytes,
    body: Sequence[Message],
    *,
    links: Sequence[bytes] | None = None,
    known: Sequence[bytes] = (),
) -> list[bytes]:
    """Return d_0 … d_n: d_i names body[:i] within `scope`.

    links: for every message the calls of its results (`policies.conversation.outline`).
    known: the first of these digests.
    """
    links = links_of(body) if links is None else links
    digests = [*known] or [_root(scope)]
    for position in range(len(digests) - 1, len(body)):
        digests.append(hashlib.sha256(digests[-1] + body[position].digest + links[position]).digest())
    return digests


class Digests(msgspec.Struct):
    """The digests of the first `length` messages of a body, by first link. Requests that continue it share them."""

    length: int = 0
    _digests_by_link: dict[bytes, list[bytes]] = {}

    def longer(self, length: int) -> Digests:
        """Return a copy for a longer history."""
        return Digests(length, self._digests_by_link.copy())

    def known(self, first: bytes) -> Sequence[bytes]:
        """Return the stored digests for a first link."""
        return self._digests_by_link.get(first, ())

    def keep(self, first: bytes, digests: Sequence[bytes]) -> None:
        """Store digests for a first link."""
        if len(self._digests_by_link) >= _MOST_NAMES:
            self._digests_by_link.clear()
        self._digests_by_link[first] = [*digests[: self.length + 1]]


class Chain(msgspec.Struct, frozen=True, dict=True):
    """The names of one request's conversation: of its prefixes, its session, and their place in the store.

    scope:  the caller's scope. Nothing of one scope is found from another.
    body:   the messages without the head.
    mark:   of the label that the client gives its session; empty without one.
    covers_instructions: True if records may cover instructions. Such records never match requests that keep theirs.
    links:  for every message the calls of its results; None if not computed.
    seen:   digests of messages that other requests begin with too.
    link:   source of the keys of everything stored for the session; None if no epoch was looked up.
    undone: hex digests of the session's records that were undone, as far as looked up.
    first:  the conversation's first link, if known without the scope, such as from a session id.
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
        """Return the name of the conversation, which costs one message."""
        if self.first is not None:
            return self.first
        first_message = self.body[:1]
        links = links_of(first_message) if first_message and first_message[0].results else [b""]
        return prefix_digests(self.scope, first_message, links=links)[-1]

    @property
    def session(self) -> bytes:
        """Return the session's name: the beginning of the conversation, and the mark of its label."""
        return self.first_link + self.mark

    @cached_property
    def name(self) -> str:
        """Return the conversation's name for people."""
        return name_of(self.first_link)

    @property
    def own_link(self) -> bytes:
        """Return the link of this session, as far as it was looked up."""
        return self.link or link_of_label(self.first_link, self.mark)

    @cached_property
    def digests(self) -> list[bytes]:
        """Return the digests: `digests[i]` names body[:i] for every label and epoch of the session."""
        link = set_apart(self.first_link, INSTRUCTIONS) if self.covers_instructions else self.first_link
        stored = self.seen.known(link) or [_root(self.scope), link][: len(self.body) + 1]
        digests = prefix_digests(self.scope, self.body, links=self.links, known=stored)
        self.seen.keep(link, digests)
        return digests

    @property
    def newest_digests(self) -> list[bytes]:
        """Return the digests of the longest prefixes, that of the whole body first; none if they were not computed."""
        digests: list[bytes] = self.__dict__.get("digests", [])
        return digests[: -_NEWEST - 1 : -1]

    @cached_property
    def barred(self) -> frozenset[int]:
        """Return the cuts whose records were undone. No record with exactly this coverage is used or made."""
        if not self.undone:
            return frozenset()
        return frozenset(cut for cut, digest in enumerate(self.digests) if digest.hex() in self.undone)

    @property
    def tag(self) -> str:
        """Return the hash tag of everything stored for the session."""
        return hash_tag(self.own_link)


def name_of(first: bytes) -> str:
    """Return a conversation's name for people: the first hex digits of its first link."""
    return first.hex()[:NAME_DIGITS]


def mark_of(key: bytes, label: str) -> bytes:
    """Return the mark of a label in the store; empty for no label. Only the owner of the key can derive it."""
    return hmac.digest(key, label.encode(), "sha256")[:MARK_BYTES] if label else b""


def link_of_label(first: bytes, mark: bytes) -> bytes:
    """Return the link of a session without an epoch, and in version 0.2.0."""
    return set_apart(first, mark) if mark else first


def hash_tag(first: bytes) -> str:
    """Return the hash tag of all keys of one conversation, from its first link.

    The keys share a cluster slot and can be erased together.
    """
    return first.hex()[:32]


def is_session(text: str) -> bool:
    """Return True if the text is a session id in hex: the first link of its conversation, and the mark of its label."""
    lengths = (2 * LINK_BYTES, 2 * (LINK_BYTES + MARK_BYTES))
    return len(text) in lengths and all(digit in "0123456789abcdef" for digit in text)
