"""The usage that an upstream reports, read from the bytes of its response while they are relayed."""

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from proxy.dialects.base import Answers, ReadsUsage, Usage
from proxy.pipeline.answers import UpstreamAnswer
from proxy.server import content_coding
from proxy.server.sse import LONGEST_END, EventSplitter, data_of, split_events

# Usage is at the end: after the choices, or in the last event with content. Some streams have it in the first too.
_TAIL = 64 * 1024
_HEAD = 64 * 1024
# Decompressing more at once would block the event loop for milliseconds.
_PIECE = 1024 * 1024
# The most pieces of one chunk, so that it blocks the event loop for at most some 30 ms.
_MOST_INFLATED = 16
_TRIES = 16
# These include the event that ends a response. Its usage and [DONE] may follow.
_LAST_EVENTS = 4
_MOST_PIECES = 1_000
# Bytes. An event with only usage has about 500.
_LONGEST_USAGE = 64 * 1024

_decode = msgspec.json.Decoder(msgspec.Raw).decode


class UsageTap:
    """Keeps both ends of a response while it is relayed. Malformed content has no usage."""

    def __init__(self, answer: UpstreamAnswer, reads: ReadsUsage) -> None:
        """Create a tap for this response."""
        self._reads = reads
        self._is_event_stream = answer.is_event_stream
        self._decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _PIECE)
        # The `_size` newest bytes. All earlier ones are in the ends.
        self._newest: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""
        self._cut = False
        self._result: tuple[Usage | None] | None = None
        self._is_known = answer.usage is not None
        if self._is_known:
            self._result = (answer.usage,)

    def feed(self, chunk: bytes) -> None:
        """Take a chunk of the response."""
        if self._is_known:
            return
        if self._decoder is bytes:
            self._take(chunk)
        else:
            for piece in self._decode_chunk(chunk):
                self._take(piece)

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._newest.append(chunk)
        self._size += len(chunk)
        if self._size > _TAIL or len(self._newest) > _MOST_PIECES:
            self._fold()

    def _decode_chunk(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of a chunk. Invalid content, or too many pieces, ends the tap."""
        decoder = self._decoder
        if not isinstance(decoder, content_coding.Inflater) or not chunk:
            return
        try:
            read = decoder(chunk)
            for _ in range(_MOST_INFLATED):
                yield read
                if not (read := decoder.more()):
                    return
        except content_coding.UndecodableError:
            pass
        self._decoder = None

    def _fold(self) -> None:
        """Move the newest bytes to the ends."""
        self._result = None
        read = b"".join(self._newest)
        self._newest.clear()
        self._size = 0
        if len(self._head) < _HEAD:
            self._head += read[: _HEAD - len(self._head)]
        self._tail = self._tail + read if self._tail else read
        if len(self._tail) > _TAIL:
            self._tail, self._cut = self._tail[-_TAIL:], True

    def usage(self) -> Usage | None:
        """Return the reported usage, after the whole body was relayed."""
        if self._result is None or self._newest:
            self._fold()
            self._result = (self._read(),)
        return self._result[0]

    @property
    def ends(self) -> bytes:
        """Return the first and the last relayed bytes of the body."""
        self._fold()
        return self._head + self._tail

    @property
    def is_whole(self) -> bool:
        """Return True if a relayed stream is complete so far."""
        self._fold()
        if not self._is_event_stream:
            return False
        events = split_events(self._tail)
        if self._cut and len(events) <= 2:  # one event, larger than the kept end: a whole response
            return not events[-1] and self.usage() is not None
        return any(self._reads.is_last(data) for event in events[-_LAST_EVENTS:] if (data := data_of(event)))

    def _read(self) -> Usage | None:
        tail, key = self._tail, self._reads.USAGE_KEY
        if self._decoder is None or not (key in tail or key in self._head):
            return None
        if not self._is_event_stream:
            bodies = () if self._cut else (tail,)
            end = tail.rstrip().removesuffix(b"]") if self._reads.STREAM == "array" else tail
            return self._reads.usage(bodies) or self._reads.usage(_end_of_object(end, key))
        cut_event, *events = split_events(tail) if self._cut else [b"", *split_events(tail)]
        head_events = split_events(self._head)[:-1] if self._cut else []
        datas = (data_of(event) for event in reversed([*head_events, *events]) if key in event)
        # If nothing else was kept, it is a single larger event.
        return self._reads.usage(datas) or self._reads.usage(
            _end_of_event(cut_event, key) if len(cut_event) >= _TAIL - LONGEST_END else ()
        )


def _end_of_object(tail: bytes, key: bytes) -> Iterator[bytes]:
    """Yield an object with the usage of the object that ends here; nothing if it has none.

    Quotes are escaped in JSON strings, so the bytes of the key are a key or a value. With a brace before them, the rest
    is an object only if they are a key of the outermost object. A key further in has one closing brace too many after
    it, and a value has no colon.
    """
    end = len(tail)
    for _ in range(_TRIES):
        end = tail.rfind(key, 1, end)
        if end < 0:
            return
        if tail[end - 1] == ord("\\"):  # the end of a longer key
            continue
        candidate = b"{" + tail[end:]
        with suppress(msgspec.DecodeError, RecursionError):
            _decode(candidate)
            yield candidate
            return


def _end_of_event(tail: bytes, key: bytes) -> Iterator[bytes]:
    """Yield an object with the usage of the event that ends here, at any depth.

    Some last events repeat the whole response.
    """
    start = end = tail.rfind(key)
    for _ in range(_TRIES if start >= 0 else 0):
        end = tail.find(b"}", end + 1)
        candidate = b"{" + tail[start : end + 1] + b"}"
        with suppress(msgspec.DecodeError, RecursionError):
            _decode(candidate)
            yield candidate
            return


def usage_at_once(answer: UpstreamAnswer, reads: Answers) -> Usage | None:
    """Return the usage of a response that is complete before it is relayed; None for any other."""
    body = answer.response.body
    if answer.usage is not None or not body.is_complete:
        return answer.usage
    tap, body_bytes = UsageTap(answer, reads), body.take()
    tap.feed(body_bytes)
    body.untake(body_bytes)
    return tap.usage()


class WithoutUsage:
    """Removes events that have only usage from a stream, for a client that did not request it."""

    def __init__(self, reads: Answers) -> None:
        """Create a filter for one stream."""
        self._reads = reads
        self._events = EventSplitter(_LONGEST_USAGE)

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return the bytes to relay after this chunk: whole events, or pieces of one too long to be only usage."""
        events = self._events.feed(chunk, is_last=is_last)
        return b"".join(event for event, is_whole in events if not (is_whole and _is_usage_alone(event, self._reads)))


def _is_usage_alone(event: bytes, reads: Answers) -> bool:
    return reads.USAGE_KEY in event and reads.is_usage_alone(data_of(event))
