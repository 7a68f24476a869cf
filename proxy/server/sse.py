"""Server-sent events (html.spec.whatwg.org, "Parsing an event stream")."""

import re
from collections.abc import Iterator

# There are three line endings, and an empty line ends an event.
_LINE_END = re.compile(rb"\r\n|\n|\r")
EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
LONGEST_END = 4


def split_events(read: bytes) -> list[bytes]:
    """Return the events of a stream as received. The last may be unfinished."""
    return EVENT_END.split(read)


class EventSplitter:
    """Splits a stream into events while its chunks arrive. Each byte is searched once.

    An event of more than `most` bytes is not kept until its end, but yielded in pieces.
    """

    def __init__(self, most: int) -> None:
        """Create a splitter. most: bytes of an event to keep."""
        self._most = most
        self._buffer = bytearray()
        self._searched = 0
        self._is_in_pieces = False

    def feed(self, chunk: bytes, *, is_last: bool = False) -> Iterator[tuple[bytes, bool]]:
        """Yield the events that a chunk completes, with their ends, and True if each is whole.

        The last chunk also yields an event without an end.
        """
        buffer, start = self._buffer, 0
        buffer += chunk
        for end in EVENT_END.finditer(buffer, max(0, self._searched - LONGEST_END + 1)):
            yield bytes(buffer[start : end.end()]), not self._is_in_pieces
            start, self._is_in_pieces = end.end(), False
        if is_last and start < len(buffer):
            yield bytes(buffer[start:]), not self._is_in_pieces
            start = len(buffer)
        elif len(buffer) - start > self._most:
            # The first bytes of the event's end may have arrived.
            piece_end = len(buffer) - LONGEST_END + 1
            yield bytes(buffer[start:piece_end]), False
            start, self._is_in_pieces = piece_end, True
        del buffer[:start]
        self._searched = len(buffer)


def data_of(event: bytes | bytearray) -> bytes:
    """Return the data of an event; empty if it has none."""
    return b"\n".join(_values(event, b"data:"))


def name_of(event: bytes | bytearray) -> str | None:
    """Return the name of an event; None if it has none."""
    names = _values(event, b"event:")
    return names[-1].decode("utf-8", "replace") if names else None


def _values(event: bytes | bytearray, field: bytes) -> list[bytes]:
    lines = (line for line in _LINE_END.split(bytes(event)) if line.startswith(field))
    return [line.removeprefix(field).removeprefix(b" ") for line in lines]
