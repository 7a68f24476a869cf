"""Finding a record again behind a beginning that has changed or slid away (docs/design.md, "Histories that change").

A record is found by the digest of the prefix it was made from. Some clients write a time into their first message, or
send their newest messages only: then no prefix is ever the same. A trail is what a record covered, message by message,
so that a request can be held against all of it. What a record covers may be missing for one reason alone: the client's
own window slid over it (`policies.slide`).
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
# A third of what a record covers has vanished.
_FADING = 2
# Of a digest; equal by chance in one of 10^15 messages.
BYTES = 8
# Summaries from the same place on until a history counts as unstable: the second may be an edit or a fork.
_ENOUGH = 2
# Share of what was covered behind the first change that must still be there: behind an edit or a fork all is new.
_SAME = 0.4
# Until a history that does not stay the same has grown by this share of M, no model is asked again: twice as much with
# every further summary.
_REGROWTH = 0.25
_MOST_DOUBLINGS = 10


class Trail(msgspec.Struct, frozen=True):
    """What a record covered: digests of its messages, cut and joined, as sent and with stamps left out.

    What stood there in another form when it was summarized has zeros for its exact digest.
    shift: messages that had vanished from the front of the request it was made for. length: of
    that request's body. anchor: the position there of the user message that is sent beside it and left out of it; -1
    for none.
    """

    shift: int
    length: int
    anchor: int
    exact: bytes
    kin: bytes

    def __len__(self) -> int:
        return len(self.exact) // BYTES

    def holds(self, at: int, digests: bytes) -> bool:
        """Whether the message at a position is what was covered there; `digests` as of `joined_digests`."""
        return _digest_at(self.exact, at) == _digest_at(digests, at)

    def holds_kin(self, at: int, message: Message) -> bool:
        return message.role == "user" and _digest_at(self.kin, at) == message.kin[:BYTES]


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a request goes on from a record.

    changed: positions of user messages that differ from those covered, in stamps alone. shift: so many messages have
    vanished from the front, since the record's conversation began; `missing` of them since the record was made.
    left_out: the position, counted from the beginning, of the message that the record leaves out and that has vanished
    since; None if it is still sent.
    """

    changed: tuple[int, ...]
    shift: int
    missing: int = 0
    left_out: int | None = None

    def is_fading(self, covered: int) -> bool:
        """Whether a record of which `covered` messages are still there will soon be lost: half of them must be."""
        return _FADING * self.missing >= covered

    def absolute(self, position: int) -> int:
        """The position of a message, counted from where the conversation began."""
        return position + self.shift

    def relative(self, position: int) -> int | None:
        """The position in this request; None if the message has vanished."""
        return position - self.shift if position >= self.shift else None


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
    return joined[at * BYTES : (at + 1) * BYTES]


def joined_digests(messages: Sequence[Message], links: Sequence[bytes]) -> bytes:
    """The digests of these messages, each with its link, which says whose results it holds; `BYTES` of each."""
    return b"".join(
        hashlib.sha256(message.digest + link).digest()[:BYTES] if link else message.digest[:BYTES]
        for message, link in zip(messages, links, strict=True)
    )


def trail_of(
    body: Sequence[Message], digests: bytes, cut: int, came: Resumed | None = None, anchor: int | None = None
) -> Trail:
    """The trail of a record of body[:cut], of a request that itself came from another record in this way."""
    changed = came.changed if came else ()
    exact = b"".join(bytes(BYTES) if i in changed else _digest_at(digests, i) for i in range(cut))
    kin = b"".join(message.kin[:BYTES] for message in body[:cut])
    return Trail(came.shift if came else 0, len(body), -1 if anchor is None else anchor, exact, kin)


def beside(conversation: Conversation, cut: int, came: Resumed | None) -> list[int]:
    """The user messages of body[:cut] that a record leaves out, since they are sent beside it; none if messages have
    vanished already: they may be the next."""
    return [] if came and came.shift else conversation.anchors(cut)


def suffix_of(body: Sequence[Message], cut: int) -> bytes | None:
    """Names the messages before a cut; None where they are too few, or so alike that they name nothing."""
    return _name_of_last([message.kin for message in body[max(0, cut - SUFFIX) : cut]])


def spoken_suffix_of(body: Sequence[Message], cut: int) -> bytes | None:
    """The same of what the assistant said and called before a cut: clients change that least."""
    spoken = (body[at].digest for at in range(cut - 1, -1, -1) if body[at].role == "assistant")
    return _name_of_last([*islice(spoken, SUFFIX)])


def _name_of_last(last: Sequence[bytes]) -> bytes | None:
    if len(last) < SUFFIX or len(set(last)) < _DIFFERENT:
        return None
    return hashlib.sha256(b"".join(last)).digest()


def find_resumption(trail: Trail, body: Sequence[Message], digests: bytes, cut: int) -> Resumed | None:
    """How body[:cut] goes on from what the trail's record covered; None if it does not. `digests`: of the body.

    All of it must be there, in order. A user message may differ in stamps. Or the front is missing, at most half of it,
    and the rest stands at one place only: that is of use if the client's window was seen to slide (`Resumed.shift`).
    """
    missing = len(trail) - cut
    if missing < 0 or cut > len(body):
        return None
    if missing:
        return _slid(trail, digests, cut, missing)
    changed = [at for at in range(cut) if not trail.holds(at, digests)]
    if len(changed) > _MOST_CHANGED or not all(trail.holds_kin(at, body[at]) for at in changed):
        return None
    return Resumed(tuple(changed), trail.shift)


def _slid(trail: Trail, digests: bytes, cut: int, missing: int) -> Resumed | None:
    if cut < max(SUFFIX, missing) or shifts_of(trail.exact, digests) != [missing]:
        return None
    if len(digests) // BYTES <= trail.length - missing:  # shortened, and nothing came behind: a client that deletes
        return None
    return Resumed((), missing + trail.shift, missing, trail.anchor if 0 <= trail.anchor < missing else None)


def shifts_of(before: bytes, after: bytes) -> list[int]:
    """By how many messages the front of `before` may have vanished, so that all the rest of it begins `after`.

    Both are joined digests. More than one for what repeats itself: then nobody can tell. A rest of a few messages is
    not counted: many a history begins, and ends, with "go on".
    """
    first = after[:BYTES]
    shifts = range(max(0, len(before) - len(after)), len(before) - (SUFFIX - 1) * BYTES, BYTES)
    return [at // BYTES for at in shifts if before[at : at + BYTES] == first and after.startswith(before[at:])]


def changed_at(trail: Trail, digests: bytes) -> int | None:
    """The first message that is not what the trail's record covered, where many of those behind it are; else None."""
    length = len(digests) // BYTES
    changed = next((at for at in range(min(len(trail), length)) if not trail.holds(at, digests)), None)
    if changed is None:
        return None
    known = {_digest_at(trail.exact, at) for at in range(changed + 1, len(trail))}
    found = {_digest_at(digests, at) for at in range(changed + 1, length)}
    return changed if len(known & found) >= max(SUFFIX, _SAME * len(known)) else None


def newest_of(body: Sequence[Message]) -> str:
    """Names the end of a history, by what a client changes least; empty where that names nothing."""
    return (spoken_suffix_of(body, len(body)) or b"").hex()


def _goes_on_from(known: Restarts, body: Sequence[Message]) -> bool:
    """Whether this is a later state of the history that was summarized last, rather than another that is like it."""
    if not known.newest:
        return False
    spoken = [message.digest for message in body if message.role == "assistant"]
    earlier = (_name_of_last(spoken[end - SUFFIX : end][::-1]) for end in range(SUFFIX, len(spoken)))
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
