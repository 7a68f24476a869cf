"""Finding a record again behind a beginning that has changed or vanished (docs/design.md, "Histories that change").

A record is found by the digest of the prefix it was made from. Some clients write a time into their first message, or
send their newest messages only: then no prefix is ever the same. A trail is what a record covered, message by message,
so that it can be told whether a request still holds, or replaces, all of it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from policies.budget import Budget
from policies.conversation import Conversation
from policies.message import Message

# Messages before a cut that a record is looked up by; fewer may be the same in conversations that share nothing else.
SUFFIX = 4
_DIFFERENT = 3
# What a covered prefix may have at most, so that a trail stays small.
LONGEST = 8_000
# User messages that may have changed: each is sent beside the record.
_MOST_CHANGED = 3
# Of a digest; equal by chance in one of 10^15 messages.
_BYTES = 8
# Summaries from the same place on until a history counts as unstable: the second may be an edit or a fork.
_ENOUGH = 2
# Share of what was covered behind the first change that must still be there: behind an edit or a fork all is new.
_SAME = 0.4
# Until a history that does not stay the same has grown by this share of M, no model is asked again: twice as much with
# every further summary.
_REGROWTH = 0.25
_MOST_DOUBLINGS = 10


class Trail(msgspec.Struct, frozen=True):
    """What a record covered: digests of its messages, cut and joined, as sent and with stamps and wrappers left out.

    What stood there in another form when it was summarized has zeros for its exact digest.
    opening, shift: as of `Resumed`, of the request it was made for. anchor: the position there of the user message that
    is sent beside it and left out of it; -1 where none is.
    """

    opening: int
    shift: int
    anchor: int
    exact: bytes
    kin: bytes

    def __len__(self) -> int:
        return len(self.exact) // _BYTES

    def holds(self, at: int, message: Message) -> bool:
        return _digest_at(self.exact, at) == message.digest[:_BYTES]

    def holds_kin(self, at: int, message: Message) -> bool:
        return message.role == "user" and _digest_at(self.kin, at) == message.kin[:_BYTES]


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a request goes on from a record.

    changed: positions of user messages that differ from those covered. opening: so many messages at the beginning are
    where they always were; those behind them stood `shift` places later. left_out: where the message stood that the
    record leaves out and that has vanished since; None where it is still sent.
    """

    changed: tuple[int, ...]
    opening: int
    shift: int
    left_out: int | None = None

    def absolute(self, position: int) -> int:
        """Where a message stood before others vanished."""
        return position if position < self.opening else position + self.shift

    def relative(self, position: int) -> int | None:
        """Where a message stands now; None where it has vanished."""
        if position < self.opening:
            return position
        return position - self.shift if position - self.shift >= self.opening else None


class Restarts(msgspec.Struct, frozen=True):
    """How often a conversation was summarized from the same place on; each time the record before was of no use.

    tokens: of the history when a model last did so. digest: of the newest such record. newest: of the history it was
    made of, as of `newest_of`. root: the tag of the first conversation in a row of which each goes on from none.
    """

    root: str
    count: int = 0
    tokens: int = 0
    newest: str = ""
    digest: str = ""


def _digest_at(joined: bytes, at: int) -> bytes:
    return joined[at * _BYTES : (at + 1) * _BYTES]


def trail_of(covered: Sequence[Message], came: Resumed | None = None, anchor: int | None = None) -> Trail:
    """Of the messages that a record covers, of a request that itself came from another in this way."""
    came = came or Resumed((), len(covered), 0)
    exact = (bytes(_BYTES) if i in came.changed else m.digest[:_BYTES] for i, m in enumerate(covered))
    kin = b"".join(message.kin[:_BYTES] for message in covered)
    return Trail(came.opening, came.shift, -1 if anchor is None else anchor, b"".join(exact), kin)


def left_out(conversation: Conversation, cut: int, came: Resumed | None) -> int | None:
    """The user message of body[:cut] that a record leaves out, since it is sent beside it; none where messages have
    vanished already: it may be the next."""
    return None if came and came.shift else conversation.anchor(cut)


def suffix_of(body: Sequence[Message], cut: int) -> bytes | None:
    """Names the messages before a cut; None where they are too few, or so alike that they name nothing."""
    return _named([message.kin for message in body[max(0, cut - SUFFIX) : cut]])


def spoken_suffix_of(body: Sequence[Message], cut: int) -> bytes | None:
    """The same of what the assistant said and called before a cut: clients change that least."""
    spoken = (body[at].digest for at in range(cut - 1, -1, -1) if body[at].role == "assistant")
    return _named([*islice(spoken, SUFFIX)])


def _named(last: Sequence[bytes]) -> bytes | None:
    if len(last) < SUFFIX or len(set(last)) < _DIFFERENT:
        return None
    return hashlib.sha256(b"".join(last)).digest()


def resumed(trail: Trail, body: Sequence[Message], cut: int) -> Resumed | None:
    """How body[:cut] goes on from what the trail's record covered; None where it does not.

    From the cut back everything must be what was covered. Where that ends, messages may have vanished; what stands
    before them must be what was covered at the beginning. A user message may differ in stamps and wrappers.
    """
    changed: list[int] = []

    def same(position: int, at: int) -> bool:
        if trail.holds(at, body[position]):
            return True
        if trail.holds_kin(at, body[position]):
            changed.append(position)
            return True
        return False

    behind = len(trail) - cut
    if behind < 0:
        return None
    opening = cut
    while opening and same(opening - 1, opening - 1 + behind):
        opening -= 1
    if cut - opening < SUFFIX or not all(same(position, position) for position in range(opening)):
        return None
    if len(changed) > _MOST_CHANGED:
        return None
    if not behind:
        return Resumed(tuple(sorted(changed)), trail.opening, trail.shift)
    first = min(opening, trail.opening) if trail.shift else opening
    left_out = trail.anchor if opening <= trail.anchor < opening + behind else None
    return Resumed(tuple(sorted(changed)), first, behind + trail.shift, left_out)


def changed_at(trail: Trail, body: Sequence[Message]) -> int | None:
    """The first message that is not what the trail's record covered, where many of those behind it are; else None."""
    places = range(min(len(trail), len(body)))
    changed = next((at for at in places if not trail.holds(at, body[at])), None)
    if changed is None:
        return None
    known = {_digest_at(trail.exact, at) for at in range(changed + 1, len(trail))}
    found = {message.digest[:_BYTES] for message in body[changed + 1 :]}
    return changed if len(known & found) >= max(SUFFIX, _SAME * len(known)) else None


def newest_of(body: Sequence[Message]) -> str:
    """Names the end of a history, by what a client changes least; empty where that names nothing."""
    return (spoken_suffix_of(body, len(body)) or b"").hex()


def _goes_on_from(known: Restarts, body: Sequence[Message]) -> bool:
    """Whether this is a later state of the history that was summarized last, rather than another that is like it."""
    if not known.newest:
        return False
    spoken = [message.digest for message in body if message.role == "assistant"]
    earlier = (_named(spoken[end - SUFFIX : end][::-1]) for end in range(SUFFIX, len(spoken)))
    return bytes.fromhex(known.newest) in earlier


def began_anew(
    known: Restarts, tag: str, digest: str, body: Sequence[Message], *, tokens: int, by_model: bool
) -> Restarts:
    """After another record was made, of a history of so many tokens of the conversation with this tag."""
    if not _goes_on_from(known, body):
        known = Restarts(tag)
    made = {"tokens": tokens, "count": known.count + 1} if by_model else {}
    return msgspec.structs.replace(known, digest=digest, newest=newest_of(body), **made)


def is_unstable(known: Restarts, body: Sequence[Message], budget: Budget, *, tokens: int) -> bool:
    """Whether another summary of this history would be lost like those before it."""
    if known.count < _ENOUGH or not _goes_on_from(known, body):
        return False
    longer: int = 2 ** min(known.count - _ENOUGH, _MOST_DOUBLINGS)
    return tokens - known.tokens < longer * _REGROWTH * budget.movable
