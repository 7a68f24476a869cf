"""Server-sent events (html.spec.whatwg.org, "Parsing an event stream"), and which of them begin an answer."""

from __future__ import annotations

import re

import msgspec

# Lines end in one of three ways, and an empty one ends an event.
_LINE_END = re.compile(rb"\r\n|\n|\r")
EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
LONGEST_END = 4
# Events that only announce an answer.
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued", "message_start", "ping"})


class _Choice(msgspec.Struct):
    delta: dict[str, object] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    choices: list[_Choice] | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Event).decode


def split_events(read: bytes) -> list[bytes]:
    """The events of a stream as they came; the last may be unfinished."""
    return EVENT_END.split(read)


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


def says_something(data: bytes) -> bool:
    """Whether an event's data is more than an announcement: a role, a filter's verdict or a number comes before it."""
    if not data:
        return False
    try:
        event = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return True
    if event.error is not None or event.choices is None:
        return event.type not in _ANNOUNCEMENTS
    return any(map(_has_content, event.choices))


def _has_content(choice: _Choice) -> bool:
    said = choice.delta or {}
    return bool(choice.text or choice.finish_reason or any(value for key, value in said.items() if key != "role"))
