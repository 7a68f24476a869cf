"""What an upstream reports as used, read from the bytes of its answer while they pass."""

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from proxy.dialects.base import Answers, ReadsUsage, Usage
from proxy.pipeline.answers import UpstreamAnswer
from proxy.server import content_coding
from proxy.server.sse import LONGEST_END, EventSplitter, data_of, split_events

# Usage stands at the end: after the choices, or in the last event that carries any; in some streams in the first too.
_TAIL = 64 * 1024
_HEAD = 64 * 1024
# Decompressing more than this at once would hold up the event loop for milliseconds.
_PIECE = 1024 * 1024
# Pieces of one chunk, so that it holds up the event loop for some 30 milliseconds at most.
_MOST_INFLATED = 16
_TRIES = 16
# Among these is the one that ends an answer: behind it there may be its usage and [DONE].
_LAST_EVENTS = 4
_MOST_PIECES = 1_000
# Bytes; an event of usage alone has about 500.
_LONGEST_USAGE = 64 * 1024

_decode = msgspec.json.Decoder(msgspec.Raw).decode


class UsageTap:
    """Keeps the ends of an answer while it is relayed, of which it is fed every chunk. What is odd is no usage."""

    def __init__(self, answer: UpstreamAnswer, reads: ReadsUsage) -> None:
        self._reads = reads
        self._is_event_stream = answer.is_event_stream
        self._decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _PIECE)
        # What has come lately, `_size` bytes; what came before that is in the ends.
        self._lately: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""
        self._cut = False
        self._told: tuple[Usage | None] | None = None
        self._is_known = answer.usage is not None
        if self._is_known:
            self._told = (answer.usage,)

    def feed(self, chunk: bytes) -> None:
        if self._is_known:
            return
        if self._decoder is bytes:
            self._take(chunk)
        else:
            for piece in self._decoded(chunk):
                self._take(piece)

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._lately.append(chunk)
        self._size += len(chunk)
        if self._size > _TAIL or len(self._lately) > _MOST_PIECES:
            self._fold()

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the content of a chunk. One that expands into too many pieces, or is no such content, ends the tap."""
        decoder = self._decoder
        if not isinstance(decoder, content_coding.Inflater) or not chunk:
            return
        try:
            read = decoder(chunk)
            for _ in range(_MOST_INFLATED):
                yield read
                if not (read := decoder.rest()):
                    return
        except content_coding.UndecodableError:
            pass
        self._decoder = None

    def _fold(self) -> None:
        """Keep of what has come lately what belongs to the ends."""
        self._told = None
        read = b"".join(self._lately)
        self._lately.clear()
        self._size = 0
        if len(self._head) < _HEAD:
            self._head += read[: _HEAD - len(self._head)]
        self._tail = self._tail + read if self._tail else read
        if len(self._tail) > _TAIL:
            self._tail, self._cut = self._tail[-_TAIL:], True

    def usage(self) -> Usage | None:
        """Return the reported usage, after the whole body has passed."""
        if self._told is None or self._lately:
            self._fold()
            self._told = (self._read(),)
        return self._told[0]

    @property
    def ends(self) -> bytes:
        """Return the first and the last bytes of the body that have passed."""
        self._fold()
        return self._head + self._tail

    @property
    def is_whole(self) -> bool:
        """Return True if a stream that has passed so far is complete."""
        self._fold()
        if not self._is_event_stream:
            return False
        events = split_events(self._tail)
        if self._cut and len(events) <= 2:  # one that is larger than what is kept of it: those say all once more
            return not events[-1] and self.usage() is not None
        return any(self._reads.is_last(data) for event in events[-_LAST_EVENTS:] if (data := data_of(event)))

    def _read(self) -> Usage | None:
        tail, key = self._tail, self._reads.USAGE_KEY
        if self._decoder is None or not (key in tail or key in self._head):
            return None
        if not self._is_event_stream:
            whole = () if self._cut else (tail,)
            end = tail.rstrip().removesuffix(b"]") if self._reads.STREAM == "array" else tail
            return self._reads.usage(whole) or self._reads.usage(_end_of_object(end, key))
        begun, *events = split_events(tail) if self._cut else [b"", *split_events(tail)]
        first = split_events(self._head)[:-1] if self._cut else []
        told = (data_of(event) for event in reversed([*first, *events]) if key in event)
        # Where nothing else was kept, it is one event that is larger.
        return self._reads.usage(told) or self._reads.usage(
            _end_of_event(begun, key) if len(begun) >= _TAIL - LONGEST_END else ()
        )


def _end_of_object(tail: bytes, key: bytes) -> Iterator[bytes]:
    """Yield an object with the usage of the object that ends here, nothing if it has none.

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
        rest = b"{" + tail[end:]
        with suppress(msgspec.DecodeError, RecursionError):
            _decode(rest)
            yield rest
            return


def _end_of_event(tail: bytes, key: bytes) -> Iterator[bytes]:
    """Yield an object with the usage of the event that ends here, wherever it is in the event.

    Some last events repeat the whole response.
    """
    start = end = tail.rfind(key)
    for _ in range(_TRIES if start >= 0 else 0):
        end = tail.find(b"}", end + 1)
        told = b"{" + tail[start : end + 1] + b"}"
        with suppress(msgspec.DecodeError, RecursionError):
            _decode(told)
            yield told
            return


def usage_at_once(answer: UpstreamAnswer, reads: Answers) -> Usage | None:
    """Return the usage of a response that came whole before any of it was relayed, None for any other."""
    body = answer.response.body
    if answer.usage is not None or not body.is_complete:
        return answer.usage
    tap, whole = UsageTap(answer, reads), body.take()
    tap.feed(whole)
    body.untake(whole)
    return tap.usage()


class WithoutUsage:
    """Leaves out the event of a stream that has only the usage, for a client that did not ask for it."""

    def __init__(self, reads: Answers) -> None:
        self._reads = reads
        self._events = EventSplitter(_LONGEST_USAGE)

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return what is passed on after this chunk: whole events, or pieces of one too long to be usage alone."""
        events = self._events.feed(chunk, is_last=is_last)
        return b"".join(event for event, is_whole in events if not (is_whole and _is_usage_alone(event, self._reads)))


def _is_usage_alone(event: bytes, reads: Answers) -> bool:
    return reads.USAGE_KEY in event and reads.is_usage_alone(data_of(event))
