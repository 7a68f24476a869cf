"""What the index of sessions consists of, and where its parts lie."""

from typing import NamedTuple, Protocol

import msgspec

from policies.conversation.prefix_digests import LINK_BYTES, NAME_DIGITS, hash_tag, mark_of
from proxy.sessions.stores.base import Member

# Digits of an id by which a conversation is looked up; with fewer they may be a label.
LEAST_OF_ID = 8
# So long a session is listed among those that failed, in seconds.
FAILED_FOR = 86_400.0


class SessionOwner(Protocol):
    """Whose sessions: the index that lists them, and the key of their labels' marks."""

    @property
    def index(self) -> str: ...

    @property
    def labels(self) -> bytes: ...


class Session(msgspec.Struct, frozen=True):
    """A conversation under a label, for people.

    id:      its first link, 64 hex digits; log lines and headers show the first 16. Conversations with the same key and
             the same first message have one id.
    label:   what the client calls it; empty where it has no name for it.
    seen:    Unix seconds of its last use, to the minute.
    covered: messages that its newest checkpoint stands for, 0 without one; generation: how many there were in a row.
    record:  where that lies: the tag of its conversation and its digest; None without one.
    left_out: how many things it covers and does not show, by kind.
    """

    id: str
    label: str
    model: str
    seen: float
    covered: int = 0
    generation: int = 0
    record: tuple[str, str] | None = None
    left_out: dict[str, int] = {}


class Target(NamedTuple):
    """What is to be erased: of the conversation with this first link the session whose label has this mark; None for
    all of its sessions."""

    first: bytes
    mark: bytes | None

    @property
    def id(self) -> str:
        return self.first.hex()


class SessionsPage(NamedTuple):
    """Sessions of a listing, the one enrolled last first, each with its place there; None for what is known of one no
    more. is_last: there are no others behind."""

    entries: list[tuple[Member, Session | None]]
    is_last: bool


def target_of(name: bytes) -> Target:
    return Target(name[:LINK_BYTES], name[LINK_BYTES:])


def indexes_of(owner: SessionOwner, mark: bytes) -> list[str]:
    """Return the indexes that have a session by its name: its tenant's and, with a label, that of the label."""
    return [owner.index, *([labelled_at(mark)] if mark else [])]


def failed_at(owner: SessionOwner) -> str:
    """Where those are listed that failed lately."""
    return f"{owner.index}:failed"


def compacted_at(owner: SessionOwner) -> str:
    """Return the key of the index that sorts a tenant's sessions by the time of their newest record."""
    return f"{owner.index}:compacted"


def named_at(owner: SessionOwner, id_: str) -> str:
    """Return the index of a tenant's conversations whose ids begin as this one does; of few, however many there are."""
    return _index_of_name(owner, id_[:LEAST_OF_ID])


def named_before(owner: SessionOwner, id_: str) -> str:
    """Return the index in which version 0.2.0 listed the sessions of the conversation with this id."""
    return _index_of_name(owner, id_[:NAME_DIGITS])


def _index_of_name(owner: SessionOwner, name: str) -> str:
    return f"index:name:{mark_of(owner.labels, name).hex()}"


def erased_at(owner: SessionOwner, name: str, mark: bytes | None) -> str:
    """Where it is noted that a session was erased, for as long as its tombstone lies; None: a whole conversation."""
    label = "" if mark is None else f":{mark.hex()}"
    return f"gone:name:{mark_of(owner.labels, name + label).hex()}"


def labelled_at(mark: bytes) -> str:
    return f"index:label:{mark.hex()}"


def entry_key(link: bytes) -> str:
    """Where what is known of a session lies."""
    return f"session:{{{hash_tag(link)}}}"
