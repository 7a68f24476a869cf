"""The bytes around the items of a request. An agent repeats them with every request, so they are parsed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.dialects import bounds, json_array
from proxy.dialects.base import Dialect, RequestSettings
from proxy.dialects.json_array import Envelope, Parsed
from proxy.dialects.spans import ByteSpans
from proxy.models.media import family_of

# Of both sides together. A longer frame is read anew with every request.
_MOST_BYTES = 32 * 1024


class Measure(NamedTuple):
    """The way to count messages: an encoding for texts, and the media formulas of a model family."""

    dialect: Dialect
    encoding: str
    family: str

    @property
    def name(self) -> str:
        """Return a key that is equal for equal measures."""
        return f"{self.dialect.name} {self.encoding} {self.family}"


class Frame(msgspec.Struct, frozen=True):
    """The parsed top level of a request without its items. `name` is the measure's."""

    envelope: Envelope
    settings: RequestSettings
    measure: Measure
    name: str


def frame_of(envelope: Envelope, dialect: Dialect, encoding_of: Callable[[str], str]) -> Frame:
    """Return the frame of an envelope. encoding_of: returns the encoding of a model by its name."""
    settings = dialect.settings(envelope.fields)
    measure = Measure(dialect, encoding_of(settings.model), family_of(settings.model))
    return Frame(envelope, settings, measure, measure.name)


class Repeated(msgspec.Struct):
    """A frame as its bytes up to the first item, and from the end of the last one on.

    It is parsed when it is repeated. encoding_of: as above.
    """

    dialect: Dialect
    encoding_of: Callable[[str], str]
    opening: bytes
    closing: bytes
    _frame: Frame | None = None

    def parse(self, body: bytes) -> Parsed | None:
        """Parse a body with exactly this frame; None for any other frame, or items that cannot be read.

        Bytes that are valid JSON around one array are valid around any other.
        """
        start, end = len(self.opening), len(body) - len(self.closing)
        if start > end or not (body.startswith(self.opening) and body.endswith(self.closing)):
            return None
        return json_array.with_items(body, self.frame.envelope, start - 1, end + 1)

    def longer(self, body: bytes, length: int, known_spans: ByteSpans, array_start: int) -> Parsed | None:
        """Parse the new end of a body of this frame; None for any other frame.

        The body is known up to the end of an item at `length`. known: the spans of all items up to there.
        """
        end = len(body) - len(self.closing)
        if array_start != len(self.opening) - 1 or not (body.startswith(self.opening) and body.endswith(self.closing)):
            return None
        start = json_array.rest_position(body, length)
        if not 0 <= start <= end or end - start > bounds.QUICK:  # a whole body is read off the event loop
            return None
        tail = json_array.with_items(b"[" + body[start : end + 1], self.frame.envelope, 0, end + 2 - start)
        if tail is None or len(known_spans) + len(tail.spans) > json_array.MAX_ITEMS:
            return None
        shift = start - 1
        spans = known_spans + ((item_start + shift, item_end + shift) for item_start, item_end in tail.spans)
        return Parsed(self.frame.envelope, body, spans, (array_start, end + 1))

    def is_around(self, parsed: Parsed) -> bool:
        """Return True if a body was parsed by exactly this frame."""
        return self._frame is not None and parsed.envelope is self._frame.envelope

    @property
    def frame(self) -> Frame:
        """Return the parsed frame."""
        if self._frame is None:  # parsed from these bytes alone, so that no others are kept in memory
            envelope = self.dialect.array.envelope(self.opening + self.closing)
            self._frame = frame_of(envelope, self.dialect, self.encoding_of)
        return self._frame


def repeated_frame(parsed: Parsed, dialect: Dialect, encoding_of: Callable[[str], str]) -> Repeated | None:
    """Return the frame to look for in later requests; None if it is too long or the request has no items."""
    body, (start, end) = parsed.text, parsed.array
    if parsed.envelope.text or start + len(body) - end > _MOST_BYTES:
        return None
    return Repeated(dialect, encoding_of, body[: start + 1], body[end - 1 :])
