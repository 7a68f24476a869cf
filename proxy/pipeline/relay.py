"""Relaying a response: the upstream's status, headers and bytes, chunk by chunk, with the client's back-pressure."""

from codecs import BOM_UTF8
from collections.abc import Callable

from proxy.dialects.base import Answers
from proxy.errors import UpstreamAnswerError, UpstreamConnectionError
from proxy.pipeline.answers import UpstreamAnswer, error_of
from proxy.pipeline.usage import UsageTap, WithoutUsage
from proxy.server import content_coding
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers, to_client, without
from proxy.upstreams.http import TruncatedError

_TRUNCATED = UpstreamConnectionError("The upstream's response was cut off.")
_OK, _FAILED = 200, 400
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# The most bytes of a decoded chunk.
_MOST_DECODED = 16 * 1024 * 1024


BodyFilter = Callable[..., bytes]
"""A function that returns the bytes to relay. It is called with each chunk, and `is_last`."""


async def relay(
    answer: UpstreamAnswer,
    exchange: Exchange,
    extra: Headers,
    tap: UsageTap | None = None,
    reads: Answers | None = None,
    rewritten: BodyFilter | None = None,
) -> None:
    """Send an upstream's response to the client. Raises TruncatedError.

    A truncated response is never ended cleanly. An event stream gets an error event, and the connection is closed
    without the end of a complete response.
    extra:     headers of the proxy.
    tap:       reads all relayed bytes.
    reads:     needed to hide usage that the proxy requested.
    rewritten: filters the relayed bytes.
    """
    body_filter = rewritten or (WithoutUsage(reads) if answer.hides_usage and reads is not None else None)
    keep_alive = exchange.waiting
    if keep_alive is not None:
        keep_alive.stop()
    if exchange.is_begun_by_sign:
        decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _MOST_DECODED)
        if answer.response.status >= _FAILED or not answer.is_event_stream or decoder is None:
            await _end_begun_stream(answer, exchange)
            return
        sink = RelaySink(exchange, answer, tap, _EventsAfterSigns(decoder, body_filter))
    else:
        headers = to_client(answer.response.headers)
        if body_filter is not None:  # fewer bytes are relayed than received
            headers = without(headers, b"content-length")
        await exchange.wait_for_room()
        exchange.begin(answer.response.status, [*headers, *extra])
        sink = RelaySink(exchange, answer, tap, body_filter)
    if keep_alive is None or answer.response.status != _OK or not answer.is_event_stream:
        await sink.relay()
        return
    keep_alive.watch(sink.may_speak)
    sink.on_bytes = keep_alive.on_bytes
    try:
        await sink.relay()
    finally:
        keep_alive.stop()
        sink.on_bytes = None  # the two refer to each other and would stay in memory until garbage collection


class RelaySink:
    """The receiver of a response's bytes. In one callback it passes them to the client, then to the tap."""

    def __init__(
        self, exchange: Exchange, answer: UpstreamAnswer, tap: UsageTap | None, body_filter: BodyFilter | None
    ) -> None:
        """Create a receiver. body_filter: filters the relayed bytes; None for all."""
        self._exchange = exchange
        self._body = answer.response.body
        self._tap = tap
        self._filter = body_filter
        # If a keep-alive began the stream, only events are relayed, decoded.
        self._is_begun = exchange.is_begun_by_sign
        self._takes_events = self._is_begun or _takes_events(answer)
        self._has_ended = False
        self._tail = _EVENT_ENDS[0] if self._is_begun else b""
        self.on_bytes: Callable[[], None] | None = None

    async def relay(self) -> None:
        """Relay the received bytes and all later ones. Raises TruncatedError."""
        exchange, body = self._exchange, self._body
        exchange.on_writable = body.resume
        try:
            beginning = body.take()
            if beginning or body.is_complete:
                self.take(beginning, is_last=body.is_complete)
            if not self._has_ended:
                await exchange.wait_for_room()
                await body.pour(self)
        except TruncatedError:
            if self._is_between_events:
                await exchange.write_error(_TRUNCATED)
            raise
        finally:
            exchange.on_writable = None
        if not self._has_ended:
            await exchange.wait_for_room()
            self.take(b"", is_last=True)

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        """Relay a chunk. Returns True if the client accepts more now."""
        relayed = chunk if self._filter is None else self._filter(chunk, is_last=is_last)
        self._has_ended = is_last
        if self.on_bytes is not None:
            self.on_bytes()
        if self._takes_events and relayed:
            self._tail = (self._tail + relayed)[-4:] if len(relayed) < len(_EVENT_ENDS[1]) else relayed[-4:]
        more = self._exchange.put(relayed, more=not is_last)
        self._exchange.takes_event = self._is_between_events
        if self._tap is not None:
            self._tap.feed(chunk)
        return more

    def may_speak(self) -> bool:
        """Return True if the proxy may write an event now: between two events, and not after the last."""
        return self._is_between_events and not self._has_ended and not (self._tap is not None and self._tap.is_whole)

    @property
    def _is_between_events(self) -> bool:
        return self._takes_events and self._tail.endswith(_EVENT_ENDS)


async def _end_begun_stream(answer: UpstreamAnswer, exchange: Exchange) -> None:
    """Report an error, or a response other than an event stream, in an event of a stream begun by a keep-alive.

    The client already has a status and headers, so those of the upstream are not sent.
    """
    status, error = answer.response.status, error_of(answer)
    mismatch = UpstreamAnswerError(f"The upstream responded with status {status} and without an event stream.")
    await exchange.end_with_error(mismatch.fields() if error is None else _with_status(error, answer), status)


class _EventsAfterSigns:
    """Decodes the events of a stream that a keep-alive has begun, without their byte order mark."""

    def __init__(self, decoder: content_coding.Decoder, body_filter: BodyFilter | None) -> None:
        self._decoder = decoder
        self._without_mark = _WithoutMark()
        self._filter = body_filter

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return the events to relay. Raises TruncatedError if the coding is invalid or the content is too large."""
        events = self._without_mark(_decode_chunk(chunk, self._decoder) if chunk else b"", is_last=is_last)
        return events if self._filter is None else self._filter(events, is_last=is_last)


class _WithoutMark:
    """Removes the byte order mark of a stream. After comments it would be part of the first event's first field."""

    def __init__(self) -> None:
        self._begin: bytes | None = b""

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        if self._begin is None:
            return chunk
        begin = self._begin + chunk
        if not is_last and len(begin) < len(BOM_UTF8) and BOM_UTF8.startswith(begin):
            self._begin = begin
            return b""
        self._begin = None
        return begin.removeprefix(BOM_UTF8)


def _with_status(error: object, answer: UpstreamAnswer) -> object:
    """Return an error with facts from the upstream's header block: its status, and when to retry."""
    is_known = answer.response.status < _FAILED or answer.overflow is not None
    if is_known or not isinstance(error, dict) or not isinstance(message := error.get("message"), str):
        return error
    retry_after = (answer.response.header(b"retry-after") or b"").decode("latin-1")
    wait = f", retry after {retry_after} s" if retry_after.isdigit() else ""
    return {**error, "message": f"{message} (the upstream's status {answer.response.status}{wait})"}


def _decode_chunk(chunk: bytes, decoder: content_coding.Decoder) -> bytes:
    """Return the decoded chunk. Raises TruncatedError if the coding is invalid or the content is too large."""
    try:
        read = decoder(chunk)
    except content_coding.UndecodableError:
        raise TruncatedError("undecodable") from None
    if len(read) > _MOST_DECODED:
        raise TruncatedError("too_large")
    return read


def _takes_events(answer: UpstreamAnswer) -> bool:
    """Return True if an event of the proxy may follow: not in compressed content, nor after a Content-Length."""
    header = answer.response.header
    return answer.is_event_stream and header(b"content-encoding") is None and header(b"content-length") is None
