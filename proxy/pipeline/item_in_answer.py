"""Inserting a compaction item into a model's response while it is relayed. Only such responses are rewritten."""

from collections.abc import Callable

import msgspec

from proxy.dialects.compaction import Inserter
from proxy.dialects.json_array import decode_object
from proxy.server.sse import EventSplitter, data_of

_DATA = b"data:"
# Bytes. A longer response or event is relayed unchanged. An event is parsed on the event loop, in at most 60 ms per
# million bytes, and those that hold an item are smaller.
_LONGEST, _LONGEST_EVENT = 16 * 1024 * 1024, 2 * 1024 * 1024


class ItemInAnswer:
    """Inserts an item into a stream. It relays whole events."""

    def __init__(self, inserter: Inserter) -> None:
        """Create a filter for one stream."""
        self._inserter = inserter
        self._events = EventSplitter(_LONGEST_EVENT)

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return the bytes to relay after this chunk."""
        events = self._events.feed(chunk, is_last=is_last)
        return b"".join(self._event(event) if is_whole else event for event, is_whole in events)

    def _event(self, event: bytes) -> bytes:
        fields = decode_object(data_of(event))
        if fields is None:
            return event
        other_lines = [line for line in event.splitlines() if line and not line.startswith((_DATA, b"event:"))]
        new_events = [_encode_event(event_fields) for event_fields in self._inserter.events(fields)]
        return b"".join([*(line + b"\n" for line in other_lines), *new_events])


class BodyRewriter:
    """Replaces a whole response. One that is too long is relayed unchanged."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        """Create a filter. change: returns the new response."""
        self._change = change
        self._received = bytearray()
        self._is_too_long = False

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return nothing until the response is complete; then the new response."""
        if self._is_too_long:
            return chunk
        self._received += chunk
        self._is_too_long = len(self._received) > _LONGEST
        if not (is_last or self._is_too_long):
            return b""
        whole, self._received = bytes(self._received), bytearray()
        return whole if self._is_too_long else self._change(whole)


def with_item(answer: bytes, inserter: Inserter) -> bytes:
    """Return a whole response with the item; unchanged if it is not an object."""
    fields = decode_object(answer)
    return answer if fields is None else msgspec.json.encode(inserter.full_response(fields))


def _encode_event(event: dict[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), msgspec.json.encode(event))
