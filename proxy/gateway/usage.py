"""What an upstream reports as used, read from the bytes of its answer while they pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

import msgspec

from proxy.gateway.answers import Answer
from proxy.server import content_coding
from proxy.server.sse import EVENT_END, data_of, split_events

# Usage stands at the end: after the choices, or in the last event that carries any.
_TAIL = 64 * 1024
# Decompressing more than this at once would hold up the event loop for milliseconds.
_PIECE = 1024 * 1024
_KEY = b'"usage"'
_TRIES = 16

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call, as the upstream counted them; those it had cached are among the prompt's."""

    prompt_tokens: _Tokens
    completion_tokens: _Tokens


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Billed(msgspec.Struct):
    """A usage in OpenAI's form; some gateways leave the cached part of a prompt out, as Anthropic does."""

    prompt_tokens: _Tokens
    completion_tokens: _Tokens
    prompt_tokens_details: _Details | None = None
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None

    @property
    def usage(self) -> Usage:
        details = self.prompt_tokens_details
        read = max(self.cache_read_input_tokens or 0, (details and details.cached_tokens) or 0)
        cached = read + (self.cache_creation_input_tokens or 0)
        left_out = cached if cached > self.prompt_tokens else 0
        return Usage(self.prompt_tokens + left_out, self.completion_tokens)


class _Reported(msgspec.Struct):
    usage: _Billed | None = None


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"")


_REPORTED = msgspec.json.Decoder(_Reported)
_EVENT = msgspec.json.Decoder(_Event)


class UsageTap:
    """Keeps the end of an answer while it is relayed; `answer` is the one to relay. What is odd is no usage."""

    def __init__(self, answer: Answer) -> None:
        self.answer = replace(answer, rest=self._seen(answer.rest))
        self._decoder = content_coding.decoder(answer.response.header(b"content-encoding"), _PIECE)
        self._tail = bytearray()
        self._cut = False
        self.feed(answer.head)

    async def _seen(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk
            self.feed(chunk)

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body, as they came."""
        if self._decoder is None or not chunk:
            return
        try:
            read = self._decoder(chunk)
        except content_coding.UndecodableError:
            self._decoder = None
            return
        if len(read) == _PIECE + 1:  # there was more, which is lost
            self._decoder = None
            return
        self._tail += read
        if len(self._tail) > _TAIL:
            del self._tail[:-_TAIL]
            self._cut = True

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has passed already."""
        return self.answer.response.at_end

    def usage(self) -> Usage | None:
        """What was reported, once the whole body has passed."""
        if self._decoder is None:
            return None
        tail = bytes(self._tail)
        return _of_events(tail, cut=self._cut) if self.answer.is_event_stream else _of_object(tail)


def _of_events(tail: bytes, *, cut: bool) -> Usage | None:
    """The usage of the last event that has one; some upstreams send `"usage": null` with all others."""
    for event in reversed(split_events(tail)[cut:]):
        if _KEY in event:
            try:
                reported = _REPORTED.decode(data_of(event))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return None
            if reported.usage is not None:
                return reported.usage.usage
    return None


def _of_object(tail: bytes) -> Usage | None:
    """The `usage` of an object of which this is the end.

    Inside a text of JSON quotes are escaped, so the bytes of the key are a key or a value there. With a brace put
    before them the rest is an object by itself only if they are a key of the outermost object: a key further in is
    followed by one closing brace too many, and a value by no colon.
    """
    end = len(tail)
    for _ in range(_TRIES):
        end = tail.rfind(_KEY, 1, end)
        if end < 0:
            return None
        if tail[end - 1] == ord("\\"):  # the end of a longer key
            continue
        try:
            reported = _REPORTED.decode(b"{" + tail[end:]).usage
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        return None if reported is None else reported.usage
    return None


def without_usage(answer: Answer) -> Answer:
    """A stream without the event that tells nothing but its usage, for a client that did not ask for it."""
    return replace(answer, head=b"", rest=_without_usage(answer))


async def _without_usage(answer: Answer) -> AsyncIterator[bytes]:
    """Whole events as they come, for one chunk one: what says whether it was the last holds for what is passed on."""
    held = bytearray()
    async for chunk in answer.chunks():
        held += chunk
        end = len(held) if answer.response.at_end else _whole(held)
        if end:
            passed = _wanted(bytes(held[:end]))
            del held[:end]
            yield passed
    if held:
        yield _wanted(bytes(held))


def _whole(read: bytearray) -> int:
    """Where the last complete event ends."""
    return max((end.end() for end in EVENT_END.finditer(read)), default=0)


def _wanted(events: bytes) -> bytes:
    if _KEY not in events:
        return events
    passed = []
    start = 0
    for end in [*(end.end() for end in EVENT_END.finditer(events)), len(events)]:
        if not _is_usage_alone(data_of(events[start:end])):
            passed.append(events[start:end])
        start = end
    return b"".join(passed)


def _is_usage_alone(data: bytes) -> bool:
    if _KEY not in data:
        return False
    try:
        event = _EVENT.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return event.choices == [] and bytes(event.usage) not in (b"", b"null")
