"""Passing an answer on: the upstream's status, headers and bytes, chunk by chunk, with the client's back-pressure."""

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

_CUT_OFF = UpstreamConnectionError("The upstream's answer was cut off.")
_OK, _FAILED = 200, 400
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# No piece of a stream says more than this.
_MOST_DECODED = 16 * 1024 * 1024


Chosen = Callable[..., bytes]
"""What is passed on of an answer: called with what has come of it, and `is_last`."""


async def relay(
    answer: UpstreamAnswer,
    exchange: Exchange,
    extra: Headers,
    tap: UsageTap | None = None,
    reads: Answers | None = None,
    rewritten: Chosen | None = None,
) -> None:
    """Send an upstream's response to the client.

    extra: headers of ours. tap: is fed with what passes. reads: needed to hide the usage that we have asked for.
    rewritten: passed on in its place.

    A response that breaks off is never ended cleanly: event streams get an error event, and the connection is closed
    without the end that a complete response has. Raises TruncatedError.
    """
    chosen = rewritten or (WithoutUsage(reads) if answer.hides_usage and reads is not None else None)
    signs = exchange.waiting
    if signs is not None:
        signs.stop()
    if exchange.is_begun_by_sign:
        decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _MOST_DECODED)
        if answer.response.status >= _FAILED or not answer.is_event_stream or decoder is None:
            await _end_begun_stream(answer, exchange)
            return
        sink = RelaySink(exchange, answer, tap, _EventsAfterSigns(decoder, chosen))
    else:
        headers = to_client(answer.response.headers)
        if chosen is not None:  # less is passed on than has come
            headers = without(headers, b"content-length")
        await exchange.wait_for_room()
        exchange.begin(answer.response.status, [*headers, *extra])
        sink = RelaySink(exchange, answer, tap, chosen)
    if signs is None or answer.response.status != _OK or not answer.is_event_stream:
        await sink.relay()
        return
    signs.watch(sink.may_speak)
    sink.heard = signs.heard
    try:
        await sink.relay()
    finally:
        signs.stop()
        sink.heard = None  # each would keep the other, and all that they hold, until the garbage collector comes


class RelaySink:
    """Where the bytes of an answer go, in the callback that brings them: to the client, then to the tap."""

    def __init__(self, exchange: Exchange, answer: UpstreamAnswer, tap: UsageTap | None, chosen: Chosen | None) -> None:
        """`chosen`: what is passed on of them; None for all."""
        self._exchange = exchange
        self._body = answer.response.body
        self._tap = tap
        self._chosen = chosen
        # Of a stream that a sign has begun, only events are passed on, decoded.
        self._is_begun = exchange.is_begun_by_sign
        self._takes_events = self._is_begun or _takes_events(answer)
        self._has_ended = False
        self._tail = _EVENT_ENDS[0] if self._is_begun else b""
        self.heard: Callable[[], None] | None = None

    async def relay(self) -> None:
        """Pass on what has come and is to come; raises TruncatedError."""
        exchange, body = self._exchange, self._body
        exchange.on_writable = body.resume
        try:
            begun = body.take()
            if begun or body.is_complete:
                self.take(begun, is_last=body.is_complete)
            if not self._has_ended:
                await exchange.wait_for_room()
                await body.pour(self)
        except TruncatedError:
            if self._is_between_events:
                await exchange.write_error(_CUT_OFF)
            raise
        finally:
            exchange.on_writable = None
        if not self._has_ended:
            await exchange.wait_for_room()
            self.take(b"", is_last=True)

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        passed = chunk if self._chosen is None else self._chosen(chunk, is_last=is_last)
        self._has_ended = is_last
        if self.heard is not None:
            self.heard()
        if self._takes_events and passed:
            self._tail = (self._tail + passed)[-4:] if len(passed) < len(_EVENT_ENDS[1]) else passed[-4:]
        more = self._exchange.put(passed, more=not is_last)
        self._exchange.takes_event = self._is_between_events
        if self._tap is not None:
            self._tap.feed(chunk)
        return more

    def may_speak(self) -> bool:
        """Return True if an event of ours may be written here: between two events, and not after the last."""
        return self._is_between_events and not self._has_ended and not (self._tap is not None and self._tap.is_whole)

    @property
    def _is_between_events(self) -> bool:
        return self._takes_events and self._tail.endswith(_EVENT_ENDS)


async def _end_begun_stream(answer: UpstreamAnswer, exchange: Exchange) -> None:
    """Report in one event of a stream that a sign has begun what is an error, or no event stream.

    The client has a status and headers already, so those of the upstream are not sent.
    """
    status, error = answer.response.status, error_of(answer)
    told = UpstreamAnswerError(f"The upstream answered {status}, and not with a stream of events.")
    await exchange.end_with_error(told.fields() if error is None else _with_status(error, answer), status)


class _EventsAfterSigns:
    """Decodes the events of a stream that a sign of life has begun, without their byte order mark."""

    def __init__(self, decoder: content_coding.Decoder, chosen: Chosen | None) -> None:
        self._decoder = decoder
        self._without_mark = _WithoutMark()
        self._chosen = chosen

    def __call__(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Raises TruncatedError if the content is not as its coding says, or too large to be true."""
        events = self._without_mark(_decode_chunk(chunk, self._decoder) if chunk else b"", is_last=is_last)
        return events if self._chosen is None else self._chosen(events, is_last=is_last)


class _WithoutMark:
    """Takes the byte order mark off a stream: after comments it would be a part of the first event's first field."""

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
    """Return an error with what its client would have read in the header block: status, and when to come again."""
    is_told = answer.response.status < _FAILED or answer.overflow is not None
    if is_told or not isinstance(error, dict) or not isinstance(said := error.get("message"), str):
        return error
    after = (answer.response.header(b"retry-after") or b"").decode("latin-1")
    wait = f", retry after {after} s" if after.isdigit() else ""
    return {**error, "message": f"{said} (the upstream's status {answer.response.status}{wait})"}


def _decode_chunk(chunk: bytes, decoder: content_coding.Decoder) -> bytes:
    """Its content; raises TruncatedError if it is not as its coding says, or too large to be true."""
    try:
        read = decoder(chunk)
    except content_coding.UndecodableError:
        raise TruncatedError("undecodable") from None
    if len(read) > _MOST_DECODED:
        raise TruncatedError("too_large")
    return read


def _takes_events(answer: UpstreamAnswer) -> bool:
    """Return True if an event of ours may follow: not in compressed content, nor if a length was promised."""
    header = answer.response.header
    return answer.is_event_stream and header(b"content-encoding") is None and header(b"content-length") is None
