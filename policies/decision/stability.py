"""Detection of histories in which no record matches twice (docs/design.md, "Histories that change").

A record matches exactly the messages it was made from. Some clients change a message near the beginning with each
request, so each summary is lost as soon as it is paid for. Clients change assistant messages least. Each record
therefore leaves a note under the last assistant messages that it covers.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from policies import numbers
from policies.conversation.message import Message
from policies.decision.budget import Budget


class SummaryNote(msgspec.Struct, frozen=True):
    """A note on the summaries that models made of one history up to a place.

    count: number of summaries. Only the last one can still be useful.
    tokens: size of the history at the last one.
    """

    count: int
    tokens: int


class Place(NamedTuple):
    """The end of an assistant message. name: SHA-256 of this message and those before it, 32 bytes."""

    position: int
    name: bytes


def places_in(body: Sequence[Message]) -> Iterator[Place]:
    """Yield the places of a history, the newest first. A place whose messages are too similar is left out."""
    assistant_positions = [position for position, message in enumerate(body) if message.role == "assistant"]
    for end in range(len(assistant_positions), numbers.PLACE_MESSAGES - 1, -1):
        digests = [body[position].digest for position in assistant_positions[end - numbers.PLACE_MESSAGES : end]]
        if len(set(digests)) >= numbers.PLACE_DIFFERENT:
            yield Place(assistant_positions[end - 1], hashlib.sha256(b"".join(digests)).digest())


def after_record(notes: Sequence[SummaryNote], tokens: int, *, by_model: bool) -> SummaryNote | None:
    """Return the note of another record for a history of this size; None if no model has summarized it.

    notes: those in the history after the record that this one continues.
    """
    newest = max(notes, key=_order, default=None)
    if by_model:
        return SummaryNote(1 + (newest.count if newest else 0), tokens)
    return newest


def is_unstable(notes: Sequence[SummaryNote], budget: Budget, tokens: int) -> bool:
    """Return True if no model should be called for a history of this size.

    notes: those in the history after its current record.
    """
    newest = max(notes, key=_order, default=None)
    if newest is None or newest.count < numbers.ENOUGH_NOTES:
        return False
    return tokens - newest.tokens < backoff(newest.count - numbers.ENOUGH_NOTES) * numbers.REGROWTH * budget.movable


def backoff(times: int) -> int:
    """Return the factor of a wait after `times` further ineffective summaries. It doubles with each, up to a bound."""
    factor: int = 2 ** min(times, numbers.MOST_DOUBLINGS)
    return factor


def _order(note: SummaryNote) -> tuple[int, int]:
    return note.count, note.tokens
