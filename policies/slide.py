"""Whether the window of a client slides: it sends its newest messages only, so the oldest vanish, request by request.

A user who deletes the beginning of a conversation sends the same once. So a slide counts once it was seen in two
requests that follow each other: each has lost messages at the very beginning, holds all the others of the one before,
in order and at one place only, and goes on behind them (invariant 11).
"""

from collections.abc import Sequence

import msgspec

from policies.message import Message
from policies.outline import joins
from policies.trail import BYTES, shifts_of

# Slides in a row that make a sliding window.
_ENOUGH = 2
BROKEN = -1
# Messages of a request that is followed: no client's window is as large.
_LONGEST = 2_000
# Conversations that are told apart behind one record: forks of it.
_MOST = 4


class Slide(msgspec.Struct, frozen=True):
    """A request of a history: one that held all that a record covers, or a later one, whose front has vanished.

    digests: of its messages, joined. steps: requests since the first, each following the one before, in which the
    window slid; `BROKEN` after one in which it did not, before it was known to slide: then what vanished was deleted,
    for all that is known.
    """

    digests: bytes
    steps: int

    @property
    def is_seen(self) -> bool:
        return self.steps >= _ENOUGH

    def __len__(self) -> int:
        return len(self.digests) // BYTES


def slides_behind(body: Sequence[Message]) -> list[Slide]:
    """The slides behind a record after a request that holds all it covers. Empty for one that is too long."""
    return [] if len(body) > _LONGEST else [Slide(_digests(body), 0)]


def follow_slides(slides: Sequence[Slide], body: Sequence[Message]) -> list[Slide]:
    """The slides behind a record after a request whose front has vanished, its own first. Empty if it follows none."""
    if len(body) > _LONGEST:
        return []
    digests = _digests(body)
    found = [(steps, before) for before in slides if (steps := _steps(before, digests, body)) is not None]
    if not found:
        return []
    steps, before = max(found, key=lambda each: each[0])
    return [Slide(digests, steps), *(other for other in slides if other is not before)][:_MOST]


def _digests(body: Sequence[Message]) -> bytes:
    return b"".join([message.digest[:BYTES] for message in body])


def _steps(before: Slide, digests: bytes, body: Sequence[Message]) -> int | None:
    """Steps with this request; None if it does not go on from the one before."""
    shifts = shifts_of(before.digests, digests)
    if len(shifts) != 1:
        return None
    (shift,) = shifts
    grown = range(len(before) - shift, len(body))
    if before.steps == BROKEN or not (grown or shift):
        return before.steps
    # What follows a request directly holds one answer; with more, other requests came between.
    is_next = sum(body[at].role == "assistant" and not joins(body, at) for at in grown) <= 1
    if not (grown and is_next):
        return BROKEN
    if before.is_seen:
        return before.steps
    return before.steps + 1 if shift else BROKEN
