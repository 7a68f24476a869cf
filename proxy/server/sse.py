"""Server-sent events (html.spec.whatwg.org, "Parsing an event stream")."""

import re

# Lines end in one of three ways, and an empty one ends an event.
_LINE_END = re.compile(rb"\r\n|\n|\r")
EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
LONGEST_END = 4


def split_events(read: bytes) -> list[bytes]:
    """The events of a stream as they came; the last may be unfinished."""
    return EVENT_END.split(read)


def whole_events(read: bytes | bytearray) -> tuple[list[bytes], bytes]:
    """The complete events of what has come, each with its end, and what is left behind them."""
    events, start = [], 0
    for found in EVENT_END.finditer(read):
        events.append(bytes(read[start : found.end()]))
        start = found.end()
    return events, bytes(read[start:])


def data_of(event: bytes | bytearray) -> bytes:
    """What an event says; empty where it has no data."""
    return b"\n".join(_values(event, b"data:"))


def name_of(event: bytes | bytearray) -> str | None:
    """The event's name, None where it has none."""
    names = _values(event, b"event:")
    return names[-1].decode("utf-8", "replace") if names else None


def _values(event: bytes | bytearray, field: bytes) -> list[bytes]:
    lines = (line for line in _LINE_END.split(bytes(event)) if line.startswith(field))
    return [line.removeprefix(field).removeprefix(b" ") for line in lines]
