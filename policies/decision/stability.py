"""Detect histories in which no record holds twice (docs/design.md, "Histories that change").

A record holds for exactly the messages that it was made from. Some clients change a message near the beginning with
each request. Then each summary is lost as soon as it is paid for. Clients change what the assistant said least, so
each record leaves a note under the last assistant messages that it covers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from policies import numbers
from policies.conversation.message import Message
from policies.decision.budget import Budget


class SummaryNote(msgspec.Struct, frozen=True):
    """A note of the summaries that models made of one history up to a place.

    count: number of summaries. Only the last one can still be of use. tokens: size of the history when it was made.
    """

    count: int
    tokens: int


class Place(NamedTuple):
    """The end of an assistant message. name: SHA-256 of this message and those before it, 32 bytes."""

    position: int
    name: bytes


def places_in(body: Sequence[Message]) -> Iterator[Place]:
    """Yield the places of a history, the newest first. A place whose messages are too much alike is left out."""
    spoken = [position for position, message in enumerate(body) if message.role == "assistant"]
    for end in range(len(spoken), numbers.PLACE_MESSAGES - 1, -1):
        digests = [body[position].digest for position in spoken[end - numbers.PLACE_MESSAGES : end]]
        if len(set(digests)) >= numbers.PLACE_DIFFERENT:
            yield Place(spoken[end - 1], hashlib.sha256(b"".join(digests)).digest())


def after_record(notes: Sequence[SummaryNote], tokens: int, *, by_model: bool) -> SummaryNote | None:
    """Return the note of another record for a history of this size, None if no model has summarized it.

    notes: those met in the history after the record that this one continues.
    """
    last = max(notes, key=_order, default=None)
    if by_model:
        return SummaryNote(1 + (last.count if last else 0), tokens)
    return last


def is_unstable(notes: Sequence[SummaryNote], budget: Budget, tokens: int) -> bool:
    """Return True if no model should be asked about a history of this size.

    notes: those met in the history after its standing record.
    """
    last = max(notes, key=_order, default=None)
    if last is None or last.count < numbers.ENOUGH_NOTES:
        return False
    return tokens - last.tokens < backoff(last.count - numbers.ENOUGH_NOTES) * numbers.REGROWTH * budget.movable


def backoff(times: int) -> int:
    """Return the factor of a wait after so many further summaries in vain: each doubles it, within a bound."""
    factor: int = 2 ** min(times, numbers.MOST_DOUBLINGS)
    return factor


def _order(note: SummaryNote) -> tuple[int, int]:
    return note.count, note.tokens
