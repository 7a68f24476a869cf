"""Finding a record again behind a beginning that has changed or vanished (docs/design.md, section 8).

A record is found by the digest of the prefix it was made from. Some clients write a time into their first message, or
send their newest messages only: then no prefix is ever the same. A trail is what a record covered, message by message,
so that it can be told whether a request still holds, or replaces, all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from policies.budget import Budget
from policies.conversation import Message

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

    absolute: messages it stands for, counted from the conversation's real beginning.
    """

    absolute: int
    exact: bytes
    kin: bytes

    def __len__(self) -> int:
        return len(self.exact) // _BYTES

    def holds(self, at: int, message: Message) -> bool:
        return self.exact[at * _BYTES : (at + 1) * _BYTES] == message.digest[:_BYTES]

    def holds_kin(self, at: int, message: Message) -> bool:
        return message.role == "user" and self.kin[at * _BYTES : (at + 1) * _BYTES] == message.kin[:_BYTES]


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a request goes on from a record.

    changed: positions of user messages that differ from those covered. opening: so many messages at the beginning are
    where they always were; those behind them stood `shift` places later.
    """

    changed: tuple[int, ...]
    opening: int
    shift: int

    def absolute(self, position: int) -> int:
        """Where a message stood before others vanished."""
        return position if position < self.opening else position + self.shift


class Restarts(msgspec.Struct, frozen=True):
    """How often a conversation was summarized from the same place on; each time the record before was of no use.

    tokens: of the history when a model last did so. messages: of the history, and digest: of the record, when it last
    was. root: the tag of the first conversation in a row of which each goes on from none.
    """

    root: str
    count: int = 0
    tokens: int = 0
    messages: int = 0
    digest: str = ""


def trail_of(covered: Sequence[Message], absolute: int) -> Trail:
    exact = b"".join(message.digest[:_BYTES] for message in covered)
    return Trail(absolute, exact, b"".join(message.kin[:_BYTES] for message in covered))


def suffix_of(body: Sequence[Message], cut: int) -> bytes | None:
    """Names the messages before a cut; None where they are too few, or so alike that they name nothing."""
    last = [message.kin for message in body[max(0, cut - SUFFIX) : cut]]
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
    vanished = behind > 0
    return Resumed(tuple(sorted(changed)), opening if vanished else cut, trail.absolute - cut)


def changed_at(trail: Trail, body: Sequence[Message]) -> int | None:
    """The first message that is not what the trail's record covered, where many of those behind it are; else None."""
    places = range(min(len(trail), len(body)))
    changed = next((at for at in places if not trail.holds(at, body[at])), None)
    if changed is None:
        return None
    known = {trail.exact[at * _BYTES : (at + 1) * _BYTES] for at in range(changed + 1, len(trail))}
    found = {message.digest[:_BYTES] for message in body[changed + 1 :]}
    return changed if len(known & found) >= max(SUFFIX, _SAME * len(known)) else None


def began_anew(known: Restarts, tag: str, digest: str, *, tokens: int, messages: int, by_model: bool) -> Restarts:
    """After another record was made, of a history of so many tokens and messages of the conversation with this tag."""
    if messages <= known.messages:  # no later state of the one before
        known = Restarts(tag)
    made = {"tokens": tokens, "count": known.count + 1} if by_model else {}
    return msgspec.structs.replace(known, digest=digest, messages=messages, **made)


def is_unstable(known: Restarts, budget: Budget, *, tokens: int, messages: int) -> bool:
    """Whether another summary of this history would be lost like those before it."""
    if known.count < _ENOUGH or messages <= known.messages:
        return False
    longer: int = 2 ** min(known.count - _ENOUGH, _MOST_DOUBLINGS)
    return tokens - known.tokens < longer * _REGROWTH * budget.movable
