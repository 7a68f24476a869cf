"""Passing an answer on: the upstream's status, headers and bytes, chunk by chunk, with the client's back-pressure."""

from collections.abc import AsyncIterator

from proxy.errors import UpstreamAnswerError, UpstreamConnectionError
from proxy.gateway.answers import Answer, error_of
from proxy.gateway.usage import UsageTap
from proxy.server import content_coding
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers, to_client, without
from proxy.upstream.http import TruncatedError
from proxy.upstream.response import Flowing

_CUT_OFF = UpstreamConnectionError("The upstream's answer was cut off.")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# No piece of a stream says more than this.
_MOST_DECODED = 16 * 1024 * 1024


async def relay(answer: Answer, exchange: Exchange, extra: Headers, tap: UsageTap | None = None) -> None:
    """Send an answer to the client. `extra` are headers of ours; `tap` is fed with what passes.

    An answer that breaks off is never ended cleanly: event streams get an error event, and the connection is closed
    without the end a complete answer has. Raises TruncatedError.
    """
    if exchange.end_comments():
        await _go_on(tap.answer if tap else answer, exchange)
        return
    headers = to_client(answer.response.headers)
    if answer.hides_usage:  # less is passed on than has come
        headers = without(headers, b"content-length")
    await exchange.drained()
    exchange.begin(answer.response.status, [*headers, *extra])
    if answer.rest is None and answer.response.at_end:
        exchange.put(answer.head, more=False)
    elif answer.rest is None and answer.response.flowing is not None:
        sink = RelaySink(exchange, answer, answer.response.flowing, tap)
        sink.begin(answer.head, is_last=answer.response.at_end)
        await sink.finish()
    else:
        exchange.flush()
        chunks = (tap.answer if tap else answer).chunks()
        await _pass_on(answer, chunks, exchange, b"", takes_events=_takes_events(answer))


class RelaySink:
    """Where the bytes of an answer go, in the callback that brings them: to the client, then to the tap."""

    def __init__(self, exchange: Exchange, answer: Answer, body: Flowing, tap: UsageTap | None) -> None:
        self.tap = tap
        self.has_ended = False
        self._exchange = exchange
        self._body = body
        self._takes_events = _takes_events(answer)
        self._tail = b""

    def take(self, chunk: bytes, *, is_last: bool) -> bool:
        more = self._put(chunk, is_last=is_last)
        if self.tap is not None:
            self.tap.feed(chunk)
        return more

    def begin(self, head: bytes, *, is_last: bool) -> None:
        """With what the tap has seen already."""
        self._exchange.on_writable = self._body.resume
        if head:
            self._put(head, is_last=is_last)
        else:
            self._exchange.flush()

    def end(self) -> None:
        """Nothing follows; what has to end the answer is written, where its last bytes did not say so."""
        self._exchange.on_writable = None
        if not self.has_ended:
            self._put(b"", is_last=True)

    async def finish(self) -> None:
        """Pass on what is to come; raises TruncatedError."""
        try:
            if not self.has_ended:
                await self._exchange.drained()
                await self._body.pour(self)
        except TruncatedError:
            if self._is_between_events:
                await _tell_cut(self._exchange)
            raise
        finally:
            self._exchange.on_writable = None
        await self._exchange.drained()
        self.end()

    def _put(self, chunk: bytes, *, is_last: bool) -> bool:
        self.has_ended = is_last
        if self._takes_events:
            self._tail = (self._tail + chunk)[-4:] if len(chunk) < len(_EVENT_ENDS[1]) else chunk[-4:]
        more = self._exchange.put(chunk, more=not is_last)
        self._exchange.takes_event = self._is_between_events
        return more

    @property
    def _is_between_events(self) -> bool:
        return self._takes_events and self._tail.endswith(_EVENT_ENDS)


async def _go_on(answer: Answer, exchange: Exchange) -> None:
    """Go on with a stream that comments have begun.

    Its status and headers are with the client, so those of the upstream are not: of its answer only the events are
    passed on, without their content coding. An error, or what is no event stream, is told in one event.
    """
    status = answer.response.status
    decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _MOST_DECODED)
    if status >= 400 or not answer.is_event_stream or decoder is None:
        told = UpstreamAnswerError(f"The upstream answered {status}, and not with a stream of events.")
        await exchange.end_with_error(error_of(answer) or told.fields(), status)
    else:
        await _pass_on(answer, _decoded(answer.chunks(), decoder), exchange, _EVENT_ENDS[0], takes_events=True)


async def _decoded(chunks: AsyncIterator[bytes], decoder: content_coding.Decoder) -> AsyncIterator[bytes]:
    """The chunks' content; raises TruncatedError where it is not as its coding says, or too large to be true."""
    async for chunk in chunks:
        try:
            read = decoder(chunk)
        except content_coding.UndecodableError:
            raise TruncatedError("undecodable") from None
        if len(read) > _MOST_DECODED:
            raise TruncatedError("too_large")
        yield read


async def _pass_on(
    answer: Answer, chunks: AsyncIterator[bytes], exchange: Exchange, tail: bytes, *, takes_events: bool
) -> None:
    ended = False
    exchange.takes_event = takes_events
    try:
        async for chunk in chunks:
            ended = answer.response.at_end
            await exchange.write(chunk, more=not ended)
            tail = (tail + chunk)[-4:]
            exchange.takes_event = takes_events and tail.endswith(_EVENT_ENDS)
    except TruncatedError:
        if takes_events and tail.endswith(_EVENT_ENDS):
            await _tell_cut(exchange)
        raise
    if not ended:
        await exchange.write(b"", more=False)


async def _tell_cut(exchange: Exchange) -> None:
    await exchange.write_error(_CUT_OFF)


def _takes_events(answer: Answer) -> bool:
    """Whether an event of ours may follow: not inside a compressed content, nor where a length was promised."""
    fixed = any(answer.response.header(name) is not None for name in (b"content-encoding", b"content-length"))
    return answer.is_event_stream and not fixed
