"""The parts of the index of sessions, and their keys."""

from typing import NamedTuple, Protocol

import msgspec

from policies.conversation.prefix_digests import LINK_BYTES, NAME_DIGITS, hash_tag, mark_of
from proxy.sessions.stores.base import Member

# The minimum digits of an id for a lookup. Shorter texts are labels.
LEAST_OF_ID = 8
# The time that a session is listed as failed, in seconds.
FAILED_FOR = 86_400.0


class SessionOwner(Protocol):
    """The owner of sessions: the index that lists them, and the key of their labels' marks."""

    @property
    def index(self) -> str:
        """Return the key of the index."""

    @property
    def labels(self) -> bytes:
        """Return the key of the labels' marks."""


class Session(msgspec.Struct, frozen=True):
    """A conversation under a label, for people.

    id: its first link, 64 hex digits. Log lines and headers show the first 16. Conversations with the same key and
    first message have one id.
    label: the client's name for it; empty if it has none.
    seen: Unix seconds of its last use, to the minute.
    covered: messages that its newest checkpoint replaces; 0 without one. generation: the number of checkpoints in a
    row.
    record: the tag of its conversation and the digest; None without a record.
    left_out: the number of covered and not shown things, by kind.
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
    """A target of an erasure.

    first: the first link of the conversation. mark: of the session's label; None for all of its sessions.
    """

    first: bytes
    mark: bytes | None

    @property
    def id(self) -> str:
        """Return the id of the conversation."""
        return self.first.hex()


class SessionsPage(NamedTuple):
    """Sessions of a listing, the last enrolled first, each with its place. A session is None if its entry is gone.

    is_last: True if no sessions follow.
    """

    entries: list[tuple[Member, Session | None]]
    is_last: bool


def target_of(name: bytes) -> Target:
    """Return the target of a session's name."""
    return Target(name[:LINK_BYTES], name[LINK_BYTES:])


def indexes_of(owner: SessionOwner, mark: bytes) -> list[str]:
    """Return the indexes that contain a session: its tenant's and, with a label, that of the label."""
    return [owner.index, *([labelled_at(mark)] if mark else [])]


def failed_at(owner: SessionOwner) -> str:
    """Return the key of the index of recently failed sessions."""
    return f"{owner.index}:failed"


def compacted_at(owner: SessionOwner) -> str:
    """Return the key of the index that sorts a tenant's sessions by the time of their newest record."""
    return f"{owner.index}:compacted"


def named_at(owner: SessionOwner, id_: str) -> str:
    """Return the index of a tenant's conversations whose ids begin like this one."""
    return _index_of_name(owner, id_[:LEAST_OF_ID])


def named_before(owner: SessionOwner, id_: str) -> str:
    """Return the index in which version 0.2.0 listed the sessions of the conversation with this id."""
    return _index_of_name(owner, id_[:NAME_DIGITS])


def _index_of_name(owner: SessionOwner, name: str) -> str:
    return f"index:name:{mark_of(owner.labels, name).hex()}"


def erased_at(owner: SessionOwner, name: str, mark: bytes | None) -> str:
    """Return the key of the note that a session, or with None a whole conversation, was erased.

    The note lives as long as the tombstone.
    """
    label = "" if mark is None else f":{mark.hex()}"
    return f"gone:name:{mark_of(owner.labels, name + label).hex()}"


def labelled_at(mark: bytes) -> str:
    """Return the index of a label."""
    return f"index:label:{mark.hex()}"


def entry_key(link: bytes) -> str:
    """Return the key of a session's entry."""
    return f"session:{{{hash_tag(link)}}}"
