"""Putting a compaction item into a model's answer while it passes: the only answers that are rewritten."""

from collections.abc import Callable

import msgspec

from proxy.dialects.compaction import Inserter
from proxy.dialects.json_array import decode_object
from proxy.server.sse import EventSplitter, data_of

_DATA = b"data:"
# Bytes; a longer response or event is passed on as it is. An event is read on the event loop, 60 ms a million bytes at
# most, and those that hold an item have fewer.
_LONGEST, _LONGEST_EVENT = 16 * 1024 * 1024, 2 * 1024 * 1024


class ItemInAnswer:
    """Puts an item into a stream. It passes on whole events."""

    def __init__(self, inserter: Inserter) -> None:
        self._inserter = inserter
        self._events = EventSplitter(_LONGEST_EVENT)

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        events = self._events.feed(chunk, is_last=is_last)
        return b"".join(self._event(event) if is_whole else event for event, is_whole in events)

    def _event(self, event: bytes) -> bytes:
        told = decode_object(data_of(event))
        if told is None:
            return event
        beside = [line for line in event.splitlines() if line and not line.startswith((_DATA, b"event:"))]
        written = [_written(each) for each in self._inserter.events(told)]
        return b"".join([*(line + b"\n" for line in beside), *written])


class WholeRewritten:
    """Passes on something else in the place of a response, when it is whole; one that is too long, as it is."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change
        self._held = bytearray()
        self._is_too_long = False

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        if self._is_too_long:
            return chunk
        self._held += chunk
        self._is_too_long = len(self._held) > _LONGEST
        if not (is_last or self._is_too_long):
            return b""
        held, self._held = bytes(self._held), bytearray()
        return held if self._is_too_long else self._change(held)


def with_item(answer: bytes, inserter: Inserter) -> bytes:
    """Return a whole response with the item, or unchanged if it is no object."""
    told = decode_object(answer)
    return answer if told is None else msgspec.json.encode(inserter.whole(told))


def _written(event: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), msgspec.json.encode(event))
