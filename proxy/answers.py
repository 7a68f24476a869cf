"""Looking at the beginning of an upstream's answer before any of it reaches the client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from policies.ladder import StatedLimit
from proxy.upstream.client import UpstreamResponse
from proxy.wire import coding
from proxy.wire.events import EVENT_END, LONGEST_END, data_of, says_something, split_events
from proxy.wire.overflow import MAX_ERROR_BYTES, classify
from proxy.wire.templates import refuses_roles

_EVENT_STREAM = b"text/event-stream"
# After so many bytes it is known whether JSON begins like an error report.
_OPENING_BYTES = 400
# What a slow upstream sends ahead is held back for so many seconds; then the client needs it, lest it hang up.
_PATIENCE = 5.0

Enough = Callable[[bytearray], bool]


class _Reported(msgspec.Struct):
    error: object = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream's answer of which `head` was already read.

    overflow:      what it states, None if it is none.
    refuses_roles: it is the error of a chat template that takes no two user messages in a row.
    """

    response: UpstreamResponse
    head: bytes
    rest: AsyncIterator[bytes]
    overflow: StatedLimit | None
    refuses_roles: bool = False

    @property
    def is_event_stream(self) -> bool:
        return _is_event_stream(self.response)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole body, as it came; raises TruncatedError."""
        if self.head:
            yield self.head
        async for chunk in self.rest:
            yield chunk


async def look_at(response: UpstreamResponse, clock: Callable[[], float] = time.monotonic) -> Answer:
    """Read as much as tells an overflow from anything else: an error's body, a stream's first event, or one chunk.

    Nothing is held back beyond that, so a stream's first token is not delayed. Raises TruncatedError.
    """
    rest = response.chunks()
    decoder = coding.decoder(response.header(b"content-encoding"), MAX_ERROR_BYTES)
    if decoder is None:
        return Answer(response, b"", rest, None)
    head, read = await _read_until(_enough(response, clock), rest, decoder)
    report = _report(response, read)
    overflow = classify(response.status, report) if report else None
    return Answer(response, head, rest, overflow, overflow is None and refuses_roles(report))


def error_of(answer: Answer) -> bytes | None:
    """`{"error": …}` in one line, as an upstream's answer in JSON reports it; None where it reports none."""
    decoder = coding.decoder(answer.response.header(b"content-encoding"), MAX_ERROR_BYTES)
    if decoder is None or not answer.head:
        return None
    try:
        error = msgspec.json.decode(decoder(answer.head), type=_Reported).error
    except (coding.UndecodableError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return msgspec.json.encode({"error": error}) if error else None


async def _read_until(enough: Enough, chunks: AsyncIterator[bytes], decoder: coding.Decoder) -> tuple[bytes, bytes]:
    """Chunks as they came and decoded, up to the first with which there is enough, or what an error may have at most.

    What is not as its coding says is decoded as nothing.
    """
    head = bytearray()
    read = bytearray()
    async for chunk in chunks:
        head += chunk
        try:
            read += decoder(chunk)
        except coding.UndecodableError:
            return bytes(head), b""
        if enough(read) or max(len(head), len(read)) > MAX_ERROR_BYTES:
            break
    return bytes(head), bytes(read)


def _enough(response: UpstreamResponse, clock: Callable[[], float]) -> Enough:
    if response.status >= 400:
        return lambda _: False
    return _EventSeen(clock) if _is_event_stream(response) else _is_clear


def _is_clear(read: bytearray) -> bool:
    """Whether JSON is known to be an answer; an error report is read to its end."""
    opening = read[:_OPENING_BYTES].lstrip()
    if not opening.startswith((b"{", b"[")) or b'"choices"' in opening:
        return bool(read)
    return len(read) >= _OPENING_BYTES and not _reports_error(read)


class _EventSeen:
    """Whether an event that says something is complete yet; what comes before it is held back while patience lasts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + _PATIENCE
        self._start = 0
        self._searched = 0

    def __call__(self, read: bytearray) -> bool:
        while (end := EVENT_END.search(read, self._searched)) is not None:
            if says_something(data_of(read[self._start : end.start()])):
                return True
            self._start = self._searched = end.end()
        self._searched = max(self._start, len(read) - LONGEST_END)
        return self._clock() >= self._until


def _report(response: UpstreamResponse, read: bytes) -> bytes:
    """The error that an answer beginning like this reports; empty where it reports none."""
    if response.status >= 400:
        return read
    content = _first_said(read) if _is_event_stream(response) else read
    return content if _reports_error(content) else b""


def _first_said(read: bytes) -> bytes:
    """The first event that is more than an announcement."""
    return next((data for event in split_events(read)[:-1] if says_something(data := data_of(event))), b"")


def _reports_error(content: bytes | bytearray) -> bool:
    """Whether JSON begins like an error report and not like an answer."""
    opening = content[:_OPENING_BYTES].lstrip()
    return opening.startswith((b"{", b"[")) and b'"error"' in opening and b'"choices"' not in opening


def _is_event_stream(response: UpstreamResponse) -> bool:
    return (response.header(b"content-type") or b"").lower().startswith(_EVENT_STREAM)
