"""Server-sent events (html.spec.whatwg.org, "Parsing an event stream")."""

import re
from collections.abc import Iterator

# Lines end in one of three ways, and an empty one ends an event.
_LINE_END = re.compile(rb"\r\n|\n|\r")
EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
LONGEST_END = 4


def split_events(read: bytes) -> list[bytes]:
    """Return the events of a stream as they came. The last may be unfinished."""
    return EVENT_END.split(read)


class EventSplitter:
    """Splits a stream into events while its chunks arrive. Each byte is searched once.

    An event of more than `most` bytes is not kept until it ends: it is passed on in pieces.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = bytearray()
        self._searched = 0
        self._is_in_pieces = False

    def feed(self, chunk: bytes, *, is_last: bool = False) -> Iterator[tuple[bytes, bool]]:
        """Yield the events that a chunk completes, with their ends, and whether each is whole.

        The last chunk also yields the event that nothing has ended.
        """
        held, start = self._held, 0
        held += chunk
        for end in EVENT_END.finditer(held, max(0, self._searched - LONGEST_END + 1)):
            yield bytes(held[start : end.end()]), not self._is_in_pieces
            start, self._is_in_pieces = end.end(), False
        if is_last and start < len(held):
            yield bytes(held[start:]), not self._is_in_pieces
            start = len(held)
        elif len(held) - start > self._most:
            # The first bytes of the event's end may have arrived.
            piece_end = len(held) - LONGEST_END + 1
            yield bytes(held[start:piece_end]), False
            start, self._is_in_pieces = piece_end, True
        del held[:start]
        self._searched = len(held)


def data_of(event: bytes | bytearray) -> bytes:
    """Return the data of an event, empty if it has none."""
    return b"\n".join(_values(event, b"data:"))


def name_of(event: bytes | bytearray) -> str | None:
    """Return the name of an event, None if it has none."""
    names = _values(event, b"event:")
    return names[-1].decode("utf-8", "replace") if names else None


def _values(event: bytes | bytearray, field: bytes) -> list[bytes]:
    lines = (line for line in _LINE_END.split(bytes(event)) if line.startswith(field))
    return [line.removeprefix(field).removeprefix(b" ") for line in lines]
