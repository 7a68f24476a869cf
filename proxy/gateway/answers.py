"""Looking at the beginning of an upstream's answer before any of it reaches the client."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from policies.ladder import StatedLimit
from proxy.dialects.base import Answers, Usage
from proxy.overflow.classify import (
    ERROR_EVENTS,
    MAX_ERROR_BYTES,
    NEXT_TO_NOTHING,
    classify,
    classify_event,
    full_window,
)
from proxy.overflow.entitlements import unentitled
from proxy.server import content_coding
from proxy.server.sse import EVENT_END, LONGEST_END, data_of, name_of
from proxy.upstream.http import UpstreamResponse
from proxy.upstream.response import is_event_stream

# After so many bytes it is known whether JSON begins like an error report.
_OPENING_BYTES = 400
# What a slow upstream sends ahead is held back for so many seconds; then the client needs it, lest it hang up.
_PATIENCE = 5.0
# Of a stream that says nothing yet: beyond it, it is read piece by piece.
_MOST_ANNOUNCED = 16 * 1024

_ERROR_KEY = re.compile(rb'"error"')
# Where an error says what it is about, in forms without such a key.
_SENTENCE_KEY = re.compile(rb'"(?:message|detail|details|msg|reason|error_\w+|errors|fault|exception|base_resp)"')
_WRAPPERS = (b'"error"', b'"errors"', b'"base_resp"', b'"response"', b'"fault"', b'"exception"')
# An answer may say that there is none; a value that has not come yet may be anything.
_NO_ERROR = re.compile(rb"\s*(?::\s*null\b|[^:\s])")

# How the first line of a stream of events begins (html.spec.whatwg.org, "Parsing an event stream").
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_BEFORE_FIELDS = b"\xef\xbb\xbf \t\r\n"

_FAILED = 400
Enough = Callable[[bytearray], bool]


class _Reported(msgspec.Struct):
    """An answer that reports an error, in any dialect."""

    error: object = None


class Answer(msgspec.Struct, frozen=True):
    """An upstream's answer of which `head` was already read.

    rest:        what follows it, where that is not the response's own body as it comes.
    overflow:    what it states, None if it is none.
    error:       the decoded body of what reports an error; empty where nothing does.
    hides_usage: a stream that was asked for its usage by us, and not by the client.
    usage:       what the upstream has billed, where that is known already.
    """

    response: UpstreamResponse
    head: bytes
    rest: AsyncIterator[bytes] | None
    overflow: StatedLimit | None
    error: bytes = b""
    hides_usage: bool = False
    usage: Usage | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether it is an overflow, or reports an error."""
        return self.overflow is not None or bool(self.error)

    @property
    def is_event_stream(self) -> bool:
        return is_event_stream(self.response.headers)

    @property
    def is_plain_event_stream(self) -> bool:
        """Whether its events can be read and left out as they come."""
        coded = self.response.header(b"content-encoding") or b"identity"
        return self.is_event_stream and coded.lower() == b"identity"

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole body, as it came; raises TruncatedError."""
        if self.head:
            yield self.head
        async for chunk in self.response.chunks() if self.rest is None else self.rest:
            yield chunk


async def look_at(
    response: UpstreamResponse, reads: Answers, window: int | None = None, clock: Callable[[], float] = time.monotonic
) -> Answer:
    """Read as much as tells an overflow from anything else: an error's body, a stream's first event, or one chunk.

    Nothing is held back beyond that, so a stream's first token is not delayed. `window` is the model's, where it is
    known: an answer that says nothing beside a full one is an overflow too. Raises TruncatedError.
    """
    coding = response.header(b"content-encoding")
    decoder = content_coding.decoder(coding, MAX_ERROR_BYTES)
    if decoder is None:
        return Answer(response, b"", None, None)
    begun, until = response.begun(), None
    while (answer := known_at_once(response, begun, reads, window)) is None and _may_be_known_soon(response, begun):
        until = until or (clock() + _PATIENCE if begun else None)
        if not await _has_more(response, begun, until and until - clock()):
            begun = response.begun()
            break
        begun = response.begun()
    if answer is not None:
        return answer
    chunks = _behind(begun, response)
    if response.status >= _FAILED:
        head, read = await _read_until(_is_failure, chunks, decoder)
        overflow = classify(response.status, read) or unentitled(response.status, read)
        return Answer(response, head, _rest(response, chunks), overflow, read)
    if not is_event_stream(response.headers):
        head, read = await _read_until(partial(_is_clear, reads), chunks, decoder)
        if not _has_events(read):
            return _object(response, head, read, _rest(response, chunks), reads, window)
        # Whatever its type says; what was decoded already is so again.
        chunks, decoder = _resumed_with(head, chunks), content_coding.decoder(coding, MAX_ERROR_BYTES) or decoder
    return await _stream(response, chunks, decoder, reads, window, clock, until)


def _may_be_known_soon(response: UpstreamResponse, begun: bytes) -> bool:
    """Whether what comes next may say enough, and can be waited for together with what is there."""
    if response.flowing is None or response.status >= _FAILED or len(begun) > _MOST_ANNOUNCED:
        return False
    return is_event_stream(response.headers) and response.header(b"content-encoding") is None


async def _has_more(response: UpstreamResponse, begun: bytes, seconds: float | None) -> bool:
    """Whether more has come behind what is given back for that."""
    flowing = response.flowing
    if flowing is None:
        return False
    if begun:
        flowing.untake(begun)
    return (seconds is None or seconds > 0) and await flowing.more(seconds)


def known_at_once(response: UpstreamResponse, begun: bytes, reads: Answers, window: int | None) -> Answer | None:
    """The answer, where what has come with its head says enough; that is nearly always so, unless it is a failure."""
    coding = response.header(b"content-encoding")
    if not begun or response.status >= _FAILED or (coding and content_coding.decoder(coding, 0) is not bytes):
        return None
    if _is_object(begun) or not (is_event_stream(response.headers) or _has_events(begun)):
        is_enough = response.at_end or _is_clear(reads, begun)
        return _object(response, begun, begun, None, reads, window) if is_enough else None
    seen = _EventSeen(reads)
    return _said(response, begun, None, seen, reads, window) if seen(begun) else None


async def _stream(
    response: UpstreamResponse,
    given: AsyncIterator[bytes],
    decoder: content_coding.Decoder,
    reads: Answers,
    window: int | None,
    clock: Callable[[], float],
    until: float | None,
) -> Answer:
    """until: when patience with it ends; None if it begins with the first chunk."""
    chunks, seen = _Patient(given, clock, until), _EventSeen(reads)
    head, read = await _read_until(partial(_is_told, seen, reads), chunks.for_a_while(), decoder)
    rest = chunks.rest() if response.flowing is None else None
    if response.flowing is not None:
        chunks.stop()
    if _is_object(read):
        return _object(response, head, read, rest, reads, window)
    seen.end(read)
    return _said(response, head, rest, seen, reads, window)


def _said(
    response: UpstreamResponse,
    head: bytes,
    rest: AsyncIterator[bytes] | None,
    seen: "_EventSeen",
    reads: Answers,
    window: int | None,
) -> Answer:
    """By the first event that says something."""
    data = seen.data
    overflow = classify_event(data, seen.name) if seen.name or _may_report(data, reads) else None
    overflow = overflow or full_answer(data, reads, window)
    return Answer(response, head, rest, overflow, data if overflow or _reports_error(data, reads) else b"")


def _object(
    response: UpstreamResponse,
    head: bytes,
    read: bytes,
    rest: AsyncIterator[bytes] | None,
    reads: Answers,
    window: int | None,
) -> Answer:
    is_error, at_end = _reports_error(read, reads), response.at_end
    usage = reads.usage((read,)) if at_end else None
    overflow = None
    if is_error or (at_end and _may_report(read, reads)):
        overflow = classify(response.status, read)
    if overflow is None and (is_error or at_end) and (usage is None or usage.completion_tokens <= NEXT_TO_NOTHING):
        overflow = full_answer(read, reads, window)
    return Answer(response, head, rest, overflow, read if overflow or is_error else b"", usage=usage)


def _rest(response: UpstreamResponse, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes] | None:
    """What follows: of a body that flows nothing is taken which was not asked for."""
    return chunks if response.flowing is None else None


async def _resumed_with(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What was read already, and what follows it."""
    yield head
    async for chunk in chunks:
        yield chunk


async def _behind(begun: bytes, response: UpstreamResponse) -> AsyncIterator[bytes]:
    """The body, of which this is the beginning."""
    if begun:
        yield begun
    async for chunk in response.chunks():
        yield chunk


def full_answer(data: bytes, reads: Answers, window: int | None) -> StatedLimit | None:
    """What a finished answer, or the last event of a stream, says of a window so full that nothing was generated.

    Where a stream tells its finish reason and its usage in different events, see `full_window`.
    """
    ending = reads.ending(data)
    if ending is None:
        return None
    prompt, generated = ending.prompt_tokens, ending.completion_tokens
    return full_window(ending.reason, prompt, generated, said_nothing=ending.said_nothing, window=window)


def error_of(answer: Answer) -> object:
    """The error that an upstream's answer in JSON reports; None where it reports none."""
    decoder = content_coding.decoder(answer.response.header(b"content-encoding"), MAX_ERROR_BYTES)
    if decoder is None or not answer.head:
        return None
    try:
        error = msgspec.json.decode(decoder(answer.head), type=_Reported).error
    except (content_coding.UndecodableError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return error or None


async def _read_until(
    enough: Enough, chunks: AsyncIterator[bytes], decoder: content_coding.Decoder
) -> tuple[bytes, bytes]:
    """Chunks as they came and decoded, up to the first with which there is enough, or what an error may have at most.

    What is not as its coding says is decoded as nothing.
    """
    head = bytearray()
    read = bytearray()
    async for chunk in chunks:
        head += chunk
        try:
            read += decoder(chunk)
        except content_coding.UndecodableError:
            return bytes(head), b""
        if enough(read) or max(len(head), len(read)) > MAX_ERROR_BYTES:
            break
    return bytes(head), bytes(read)


def _is_failure(_: bytearray) -> bool:
    """An error's body is read to its end."""
    return False


def _is_clear(reads: Answers, read: bytes | bytearray) -> bool:
    """Whether JSON is known to be an answer; an error report is read to its end."""
    opening = read[:_OPENING_BYTES].lstrip()
    if not opening.startswith((b"{", b"[")) or reads.ANSWER_KEY in opening:
        # The first letters of what may be events are too few to tell.
        return bool(read) and not (opening and any(field.startswith(opening) for field in _FIELDS if field != opening))
    return len(read) >= _OPENING_BYTES and not _reports_error(read, reads)


def _is_told(seen: "_EventSeen", reads: Answers, read: bytearray) -> bool:
    """The same of a stream: JSON may stand in one as well."""
    return _is_clear(reads, read) if _is_object(read) else seen(read)


def _is_object(read: bytes | bytearray) -> bool:
    """Whether what has come begins like JSON."""
    return read[:_OPENING_BYTES].lstrip().startswith((b"{", b"["))


def _has_events(read: bytes | bytearray) -> bool:
    """Whether what has come begins like a stream of events."""
    return read[:_OPENING_BYTES].lstrip(_BEFORE_FIELDS).startswith(_FIELDS)


class _EventSeen:
    """Whether an event that says something is complete yet; then `name` and `data` are its own."""

    def __init__(self, reads: Answers) -> None:
        self.name: str | None = None
        self.data = b""
        self._reads = reads
        self._start = 0
        self._searched = 0

    def __call__(self, read: bytes | bytearray) -> bool:
        while (end := EVENT_END.search(read, self._searched)) is not None:
            event = read[self._start : end.start()]
            data = data_of(event)
            if self._is_told(event, data):
                return True
            self._start = self._searched = end.end()
        self._searched = max(self._start, len(read) - LONGEST_END)
        return False

    def end(self, read: bytes | bytearray) -> None:
        """Take what no empty line has ended for an event, where none was seen before it."""
        if not (self.data or self.name) and (event := bytes(read[self._start :]).strip()):
            self._is_told(event, data_of(event))

    def _is_told(self, event: bytes | bytearray, data: bytes) -> bool:
        name = name_of(event)
        is_told = name in ERROR_EVENTS or self._reads.says_something(data) or self._is_error(data)
        if is_told:
            self.name, self.data = name, data
        return is_told

    def _is_error(self, data: bytes) -> bool:
        """Whether an event without content reports an overflow: an error may have any name and any form."""
        if self._reads.ANSWER_KEY in data[:_OPENING_BYTES] or _SENTENCE_KEY.search(data) is None:
            return False
        return classify_event(data) is not None


class _Patient:
    """The chunks of a stream, which may be read for a while and gone on with later."""

    def __init__(self, chunks: AsyncIterator[bytes], clock: Callable[[], float], until: float | None) -> None:
        self._chunks = chunks
        self._clock = clock
        self._until = until
        self._next: asyncio.Task[bytes | None] | None = None

    async def for_a_while(self) -> AsyncIterator[bytes]:
        """The first chunk whenever it comes, and those that follow until patience has ended."""
        chunk = await self._take()
        until = self._clock() + _PATIENCE if self._until is None else self._until
        while chunk is not None:
            yield chunk
            chunk = await self._take_within(until - self._clock())

    def rest(self) -> AsyncIterator[bytes]:
        return self._chunks if self._next is None else self._resumed(self._next)

    def stop(self) -> None:
        """Wait for no further chunk."""
        if self._next is not None:
            self._next.cancel()

    async def _take(self) -> bytes | None:
        return await anext(self._chunks, None)

    async def _take_within(self, seconds: float) -> bytes | None:
        """The next chunk; None where there is none, or none in time: then it comes with the rest."""
        if seconds <= 0:
            return None
        task = asyncio.create_task(self._take())
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        # Nobody may ever ask for it, when the connection is closed first.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._next = task
        return None

    async def _resumed(self, first: asyncio.Task[bytes | None]) -> AsyncIterator[bytes]:
        if (chunk := await first) is not None:
            yield chunk
        async for chunk in self._chunks:
            yield chunk


def _may_report(read: bytes, reads: Answers) -> bool:
    """Whether an error may stand in what is there: an answer that names none of its wrappers is read no further."""
    if reads.ANSWER_KEY not in read[:_OPENING_BYTES]:
        return True
    lower = read.lower()  # six searches in it take a third of one for all of them that knows no case
    return any([wrapper in lower for wrapper in _WRAPPERS])  # noqa: C419 - a generator takes twice as long


def _reports_error(content: bytes | bytearray, reads: Answers) -> bool:
    """Whether JSON begins like an error report and not like an answer."""
    opening = content[:_OPENING_BYTES].lstrip()
    if not opening.startswith((b"{", b"[")) or reads.ANSWER_KEY in opening:
        return False
    return any(_NO_ERROR.match(content, key.end()) is None for key in _ERROR_KEY.finditer(content, 0, _OPENING_BYTES))
