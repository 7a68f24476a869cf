"""What stands around the items of a request: an agent sends the same with every one, so that it is read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from proxy.dialects import bounds, json_array
from proxy.dialects.base import Dialect, RequestSettings
from proxy.dialects.json_array import Envelope, Parsed
from proxy.dialects.spans import ByteSpans
from proxy.models.media import family_of

# Of both sides together; what is longer is read anew with every request.
_MOST_BYTES = 32 * 1024


class Measure(NamedTuple):
    """What messages are read and counted by: texts by an encoding, media by the formulas of a family of models."""

    dialect: Dialect
    encoding: str
    family: str

    @property
    def name(self) -> str:
        return f"{self.dialect.name} {self.encoding} {self.family}"


class Frame(msgspec.Struct, frozen=True):
    """The top level of a request but for its items, read. `name` is the measure's."""

    envelope: Envelope
    settings: RequestSettings
    measure: Measure
    name: str


def frame_of(envelope: Envelope, dialect: Dialect, encoding_of: Callable[[str], str]) -> Frame:
    """encoding_of: the encoding of a model by its name."""
    settings = dialect.settings(envelope.fields)
    measure = Measure(dialect, encoding_of(settings.model), family_of(settings.model))
    return Frame(envelope, settings, measure, measure.name)


class Repeated(msgspec.Struct):
    """A frame as its bytes: those up to the first item, and those from the end of the last one on. It is read when it
    has come again; `encoding_of` as above."""

    dialect: Dialect
    encoding_of: Callable[[str], str]
    before: bytes
    behind: bytes
    _frame: Frame | None = None

    def parse(self, body: bytes) -> Parsed | None:
        """A body of this very frame; None for any other, and where the items are none or not to be read.

        What is valid JSON around one array is so around another one in its place.
        """
        start, end = len(self.before), len(body) - len(self.behind)
        if start > end or not (body.startswith(self.before) and body.endswith(self.behind)):
            return None
        return json_array.with_items(body, self.frame.envelope, start - 1, end + 1)

    def longer(self, body: bytes, length: int, known: ByteSpans, array_start: int) -> Parsed | None:
        """The same of a body that is known up to the end of an item at `length`, with the spans of all items so far."""
        end = len(body) - len(self.behind)
        if array_start != len(self.before) - 1 or not (body.startswith(self.before) and body.endswith(self.behind)):
            return None
        start = json_array.rest_position(body, length)
        if not 0 <= start <= end or end - start > bounds.QUICK:  # as a whole it is read off the event loop
            return None
        rest = json_array.with_items(b"[" + body[start : end + 1], self.frame.envelope, 0, end + 2 - start)
        if rest is None or len(known) + len(rest.spans) > json_array.MAX_ITEMS:
            return None
        shift = start - 1
        spans = known + ((first + shift, last + shift) for first, last in rest.spans)
        return Parsed(self.frame.envelope, body, spans, (array_start, end + 1))

    def is_around(self, parsed: Parsed) -> bool:
        """Whether a body was parsed by this very frame."""
        return self._frame is not None and parsed.envelope is self._frame.envelope

    @property
    def frame(self) -> Frame:
        if self._frame is None:  # of these bytes alone, so that it keeps no others
            envelope = self.dialect.array.envelope(self.before + self.behind)
            self._frame = frame_of(envelope, self.dialect, self.encoding_of)
        return self._frame


def repeated_frame(parsed: Parsed, dialect: Dialect, encoding_of: Callable[[str], str]) -> Repeated | None:
    """What may come again around other items; None where there are none, and for what is not worth it."""
    body, (start, end) = parsed.text, parsed.array
    if parsed.envelope.text or start + len(body) - end > _MOST_BYTES:
        return None
    return Repeated(dialect, encoding_of, body[: start + 1], body[end - 1 :])
