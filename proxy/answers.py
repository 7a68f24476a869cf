"""Looking at the beginning of an upstream's answer before any of it reaches the client."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from policies.ladder import StatedLimit
from proxy.upstream.client import UpstreamResponse
from proxy.wire import coding
from proxy.wire.headers import first
from proxy.wire.overflow import MAX_ERROR_BYTES, classify

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data:[ ]?(.*)$", re.MULTILINE)
_EVENT_STREAM = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream's answer of which `head` was already read. `overflow` is what it states, None if it is none."""

    response: UpstreamResponse
    head: bytes
    rest: AsyncIterator[bytes]
    overflow: StatedLimit | None

    @property
    def is_event_stream(self) -> bool:
        return _is_event_stream(self.response)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The whole body, as it came; raises TruncatedError."""
        if self.head:
            yield self.head
        async for chunk in self.rest:
            yield chunk


async def look_at(response: UpstreamResponse) -> Answer:
    """Read as much as tells an overflow from anything else: an error's body, a stream's first event, or one chunk.

    Nothing is held back beyond that, so a stream's first token is not delayed. Raises TruncatedError.
    """
    rest = response.chunks()
    if response.status >= 400:
        head = await _read_until(rest, lambda _: False)
        return Answer(response, head, rest, classify(response.status, _plain(response, head)))
    if _is_event_stream(response):
        head = await _read_until(rest, lambda read: _first_event(read) is not None)
        event = _first_event(_plain(response, head)) or b""
        overflow = classify(response.status, event) if _reports_error(event) else None
        return Answer(response, head, rest, overflow)
    head = await _read_until(rest, lambda read: not _reports_error(read))
    overflow = classify(response.status, _plain(response, head)) if _reports_error(head) else None
    return Answer(response, head, rest, overflow)


async def _read_until(chunks: AsyncIterator[bytes], enough: Callable[[bytes], bool]) -> bytes:
    """Chunks up to the first after which `enough` holds, the end, or what an error may have at most."""
    read = b""
    async for chunk in chunks:
        read += chunk
        if enough(read) or len(read) > MAX_ERROR_BYTES:
            break
    return read


def _first_event(read: bytes) -> bytes | None:
    """The data of the first complete event; comments and empty events do not count."""
    position = 0
    while (end := _EVENT_END.search(read, position)) is not None:
        data = b"\n".join(_DATA.findall(read[position : end.start()].replace(b"\r\n", b"\n")))
        if data:
            return data
        position = end.end()
    return None


def _reports_error(content: bytes) -> bool:
    """Whether JSON begins like an error report and not like an answer."""
    start = content[:400].lstrip()
    return start.startswith((b"{", b"[")) and b'"error"' in start and b'"choices"' not in start


def _plain(response: UpstreamResponse, content: bytes) -> bytes:
    """The content without its coding; empty where it cannot be read, which is no overflow."""
    used = (first(((k.lower(), v) for k, v in response.headers), b"content-encoding") or b"").lower()
    if used in (b"", b"identity"):
        return content
    if used not in coding.READABLE:
        return b""
    try:
        return coding.decompress(content, used, MAX_ERROR_BYTES)
    except (coding.TooLargeError, coding.UndecodableError):
        return b""


def _is_event_stream(response: UpstreamResponse) -> bool:
    kind = first(((k.lower(), v) for k, v in response.headers), b"content-type") or b""
    return kind.lower().startswith(_EVENT_STREAM)
