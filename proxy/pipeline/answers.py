"""Inspection of the beginning of an upstream's response, before any of it reaches the client."""

import re
import time
from collections.abc import Callable
from functools import partial

import msgspec

from policies.decision.overflow_retries import StatedLimit
from proxy.dialects.base import Answers, Usage
from proxy.server import content_coding
from proxy.server.sse import EVENT_END, LONGEST_END, data_of, name_of
from proxy.upstreams.http import UpstreamResponse
from proxy.upstreams.refusals.account_limits import account_limit
from proxy.upstreams.refusals.classify import (
    ERROR_EVENTS,
    MAX_ERROR_BYTES,
    NEXT_TO_NOTHING,
    classify,
    classify_event,
    full_window,
)
from proxy.upstreams.refusals.media_refusals import MediaRefusal, media_refusal, media_refusal_in
from proxy.upstreams.response import BodySource, is_event_stream

# Bytes after which JSON is known to begin like an error report or not.
_OPENING_BYTES = 400
# Seconds for which the beginning of a slow stream is held back. Then the client gets it, so that it does not time out.
_MAX_HOLD_S = 5.0

_ERROR_KEY = re.compile(rb'"error"')
# Keys under which an error has its text, in forms without an `error` key.
_SENTENCE_KEY = re.compile(rb'"(?:message|detail|details|msg|reason|error_\w+|errors|fault|exception|base_resp)"')
_holds_wrapper = re.compile(rb'"(?:errors?|base_resp|response|fault|exception)"').search
# A response may state that it has no error. A value that has not arrived yet may be anything.
_NO_ERROR = re.compile(rb"\s*(?::\s*null\b|[^:\s])")

# Beginnings of the first line of an event stream (html.spec.whatwg.org, "Parsing an event stream").
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_BEFORE_FIELDS = b"\xef\xbb\xbf \t\r\n"

_FAILED = 400


class _ReportedError(msgspec.Struct):
    """A response that reports an error, in any dialect."""

    error: object = None


class UpstreamAnswer(msgspec.Struct, frozen=True):
    """An upstream's response after inspection. Its body is still unread.

    overflow:    the limit that it states; None if it is not an overflow.
    media:       the media limit that it states, if it may reject media.
    error:       the decoded body of an error report; empty for any other response.
    hides_usage: True for a stream whose usage the proxy requested, and not the client.
    usage:       the billed usage, if known already.
    """

    response: UpstreamResponse
    overflow: StatedLimit | None = None
    media: MediaRefusal | None = None
    error: bytes = b""
    hides_usage: bool = False
    usage: Usage | None = None

    @property
    def is_refusal(self) -> bool:
        """Return True if it is an overflow or reports an error."""
        return self.overflow is not None or self.media is not None or bool(self.error)

    @property
    def is_event_stream(self) -> bool:
        """Return True if its headers announce an event stream."""
        return is_event_stream(self.response.headers)

    @property
    def is_plain_event_stream(self) -> bool:
        """Return True if its events can be read and removed without decompression."""
        coded = self.response.header(b"content-encoding") or b"identity"
        return self.is_event_stream and coded.lower() == b"identity"


async def inspect_response(
    response: UpstreamResponse, reads: Answers, window: int | None = None, clock: Callable[[], float] = time.monotonic
) -> UpstreamAnswer:
    """Read as much of a response as distinguishes an overflow: an error's body, one event or one chunk.

    Nothing more is held back, so a stream's first token is not delayed. Raises TruncatedError.
    window: that of the model, if known. An empty response to a prompt that fills it is an overflow too.
    """
    decoder = content_coding.decoder(response.header(b"content-encoding"), MAX_ERROR_BYTES)
    if decoder is None:
        return UpstreamAnswer(response)
    if decoder is bytes and (received := _inspect_received(response, reads, window)) is not None:
        return received
    beginning = _Beginning(response.body, decoder, clock)
    try:
        if response.status >= _FAILED:
            read = await beginning.read_until(_is_failure)
            overflow = account_limit(response.status, read) or classify(response.status, read)
            return UpstreamAnswer(response, overflow, media_refusal(response.status, read), error=read)
        if not is_event_stream(response.headers):
            read = await beginning.read_until(partial(_is_clear, reads))
            if not _has_events(read):
                return _object(response, read, reads, window)
        # Whatever the content type is.
        first_event = _FirstEvent(reads)
        read = await beginning.read_until(partial(_is_decided, first_event, reads), may_wait=False)
        if _is_object(read):
            return _object(response, read, reads, window)
        first_event.end(read)
        return _event(response, first_event, reads, window)
    finally:
        beginning.give_back()


def _inspect_received(response: UpstreamResponse, reads: Answers, window: int | None) -> UpstreamAnswer | None:
    """Return the response if the bytes that came with its header block are enough; else None. Errors need more."""
    body = response.body
    beginning = body.take() if response.status < _FAILED else b""
    if not beginning:
        return None
    body.untake(beginning)
    if _is_object(beginning) or not (is_event_stream(response.headers) or _has_events(beginning)):
        is_enough = body.is_complete or _is_clear(reads, beginning)
        return _object(response, beginning, reads, window) if is_enough else None
    first_event = _FirstEvent(reads)
    return _event(response, first_event, reads, window) if first_event(beginning) else None


class _Beginning:
    """The beginning of a body, raw and decoded. It is given back to the body in the end."""

    def __init__(self, body: BodySource, decoder: content_coding.Decoder, clock: Callable[[], float]) -> None:
        self._body = body
        self._decoder = decoder
        self._clock = clock
        self._raw = self._read = b""
        self._is_damaged = False

    async def read_until(self, enough: Callable[[bytes], bool], *, may_wait: bool = True) -> bytes:
        """Return the decoded bytes when `enough` returns True, at the end of the body, or at the limit for errors.

        may_wait: False stops at a time limit after the first byte. A body with an invalid coding decodes to nothing.
        """
        until = None
        while not self._take() or not (self._is_damaged or self._is_long or enough(self._read)):
            if self._body.is_complete:
                break
            seconds = None
            if self._raw and not may_wait:
                until = self._clock() + _MAX_HOLD_S if until is None else until
                seconds = until - self._clock()
            if (seconds is not None and seconds <= 0) or not await self._body.more(seconds):
                break
        return self._read

    def _take(self) -> bytes:
        """Return all bytes received so far."""
        chunk = self._body.take()
        try:
            self._read += self._decoder(chunk) if chunk else b""
        except content_coding.UndecodableError:
            self._read, self._is_damaged = b"", True
        self._raw += chunk
        return self._raw

    @property
    def _is_long(self) -> bool:
        return max(len(self._raw), len(self._read)) > MAX_ERROR_BYTES

    def give_back(self) -> None:
        """Give the bytes back to the body."""
        if self._raw:
            self._body.untake(self._raw)


def _event(
    response: UpstreamResponse, first_event: "_FirstEvent", reads: Answers, window: int | None
) -> UpstreamAnswer:
    """Return the response, judged by the first event with content."""
    data = first_event.data
    overflow, media = None, None
    if first_event.name or _may_report(data, reads):
        overflow = account_limit(200, data) or classify_event(data, first_event.name)
        if _SENTENCE_KEY.search(data) is not None:
            media = media_refusal_in(data, failed=first_event.name in ERROR_EVENTS)
    overflow = overflow or full_answer(data, reads, window)
    return UpstreamAnswer(
        response, overflow, media, error=data if overflow or media or _reports_error(data, reads) else b""
    )


def _object(response: UpstreamResponse, read: bytes, reads: Answers, window: int | None) -> UpstreamAnswer:
    is_error, is_whole = _reports_error(read, reads), response.body.is_complete
    usage = reads.usage((read,)) if is_whole else None
    overflow, media = None, media_refusal_in(read, failed=False) if is_error else None
    if is_error or (is_whole and _may_report(read, reads)):
        overflow = account_limit(response.status, read) or classify(response.status, read)
    if overflow is None and (is_error or is_whole) and (usage is None or usage.completion_tokens <= NEXT_TO_NOTHING):
        overflow = full_answer(read, reads, window)
    reports_error = overflow is not None or media is not None or is_error
    return UpstreamAnswer(response, overflow, media, error=read if reports_error else b"", usage=usage)


def full_answer(data: bytes, reads: Answers, window: int | None) -> StatedLimit | None:
    """Return the overflow that a complete response or a stream's last event reports without an error; else None.

    The model generated nothing because the prompt fills the window. If a stream has its finish reason and its usage in
    different events, see `full_window`.
    """
    ending = reads.ending(data)
    if ending is None:
        return None
    prompt, generated = ending.prompt_tokens, ending.completion_tokens
    return full_window(ending.reason, prompt, generated, is_empty=ending.is_empty, window=window)


def error_of(answer: UpstreamAnswer) -> object:
    """Return the error that a JSON response reports; None if it reports none."""
    try:
        error = msgspec.json.decode(answer.error, type=_ReportedError).error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return error or None


def _is_failure(_: bytes) -> bool:
    """Return False: an error's body is read to its end."""
    return False


def _is_clear(reads: Answers, read: bytes) -> bool:
    """Return True if JSON is known to be a response. An error report is read to its end."""
    opening = read[:_OPENING_BYTES].lstrip()
    if not opening.startswith((b"{", b"[")) or reads.ANSWER_KEY in opening:
        # The first letters of a field name are too few to decide.
        return bool(read) and not (opening and any(field.startswith(opening) for field in _FIELDS if field != opening))
    return len(read) >= _OPENING_BYTES and not _reports_error(read, reads)


def _is_decided(first_event: "_FirstEvent", reads: Answers, read: bytes) -> bool:
    """Return True if a stream is known to be a response. It may hold JSON instead of events."""
    return _is_clear(reads, read) if _is_object(read) else first_event(read)


def _is_object(read: bytes) -> bool:
    """Return True if the bytes begin like JSON."""
    return read[:_OPENING_BYTES].lstrip().startswith((b"{", b"["))


def _has_events(read: bytes) -> bool:
    """Return True if the bytes begin like a stream of events."""
    return read[:_OPENING_BYTES].lstrip(_BEFORE_FIELDS).startswith(_FIELDS)


class _FirstEvent:
    """Searches for the first complete event with content, and stores its `name` and `data`."""

    def __init__(self, reads: Answers) -> None:
        self.name: str | None = None
        self.data = b""
        self._reads = reads
        self._start = 0
        self._searched = 0

    def __call__(self, read: bytes) -> bool:
        while (end := EVENT_END.search(read, self._searched)) is not None:
            event = read[self._start : end.start()]
            data = data_of(event)
            if self._is_decided(event, data):
                return True
            self._start = self._searched = end.end()
        self._searched = max(self._start, len(read) - LONGEST_END)
        return False

    def end(self, read: bytes) -> None:
        """Take the rest as an event, if there was no event and no empty line ended it."""
        if not (self.data or self.name) and (event := bytes(read[self._start :]).strip()):
            self._is_decided(event, data_of(event))

    def _is_decided(self, event: bytes, data: bytes) -> bool:
        name = name_of(event)
        reports_error = name in ERROR_EVENTS or self._reads.has_content(data) or self._is_error(data)
        if reports_error:
            self.name, self.data = name, data
        return reports_error

    def _is_error(self, data: bytes) -> bool:
        """Return True if an event without content reports an excess. Such an error may have any name and form."""
        if self._reads.ANSWER_KEY in data[:_OPENING_BYTES] or _SENTENCE_KEY.search(data) is None:
            return False
        return classify_event(data) is not None or media_refusal_in(data, failed=False) is not None


def _may_report(read: bytes, reads: Answers) -> bool:
    """Return True if the bytes may hold an error. A response with none of the wrapper keys is read no further."""
    if reads.ANSWER_KEY not in read[:_OPENING_BYTES]:
        return True
    return _holds_wrapper(read.lower()) is not None  # a case-insensitive pattern takes up to twice as long


def _reports_error(content: bytes, reads: Answers) -> bool:
    """Return True if JSON begins like an error report and not like a response."""
    opening = content[:_OPENING_BYTES].lstrip()
    if not opening.startswith((b"{", b"[")) or reads.ANSWER_KEY in opening:
        return False
    return any(_NO_ERROR.match(content, key.end()) is None for key in _ERROR_KEY.finditer(content, 0, _OPENING_BYTES))
