"""The beginning of an answer is read as far as it takes to tell an overflow from anything else, and no further."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import TYPE_CHECKING, cast

import pytest

from policies.decision.overflow_retries import StatedLimit
from proxy.dialects.table import CHAT
from proxy.pipeline.answers import UpstreamAnswer, inspect_response
from proxy.server.headers import Headers
from proxy.upstreams.http import UpstreamResponse
from proxy.upstreams.refusals.classify import MAX_ERROR_BYTES
from tests.support.responses import Scripted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

ERROR = json.dumps({"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}}).encode()
WINDOW = 8_192
STATED = StatedLimit(8192, 9000, "input")
LONG = json.dumps({"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum " + "x" * 700}}).encode()
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
DELTA = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


async def looked(response: Scripted, *times: float) -> UpstreamAnswer:
    """What was seen; the clock shows these times one after another, then the last of them."""
    left = list(times) or [0.0]
    return await inspect_response(
        cast("UpstreamResponse", response),
        CHAT.answers,
        WINDOW,
        clock=lambda: left.pop(0) if len(left) > 1 else left[0],
    )


async def rest(answer: UpstreamAnswer) -> bytes:
    return b"".join([chunk async for chunk in answer.response.chunks()])


def kind(name: bytes, coding: bytes | None = None) -> Headers:
    return [(b"content-type", name), *([] if coding is None else [(b"content-encoding", coding)])]


JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"


def bytewise(content: bytes) -> list[bytes]:
    return [content[i : i + 1] for i in range(len(content))]


def flushed(*contents: bytes) -> list[bytes]:
    compressor = zlib.compressobj(wbits=31)
    return [compressor.compress(content) + compressor.flush(zlib.Z_SYNC_FLUSH) for content in contents]


@pytest.mark.parametrize(
    ("response", "taken", "reason"),
    [
        (Scripted([b'{"choices":[', b"]}"], headers=kind(JSON)), 1, "an answer's beginning"),
        (Scripted([b" ", b" ", b"{}"], headers=kind(JSON)), 1, "blanks that keep a connection alive"),
        (Scripted([b"\0\xff", b"x"], headers=kind(b"audio/mpeg")), 1, "no JSON"),
        (Scripted([b'{"id":"', b"x" * 400, b'"}'], headers=kind(JSON)), 2, "JSON that is longer than errors begin"),
        (Scripted([DELTA, DELTA], headers=kind(EVENTS)), 1, "one event"),
        (Scripted([DELTA[:9], DELTA[9:], DELTA], headers=kind(EVENTS)), 2, "an event in two pieces"),
        (Scripted([DELTA[:-1], DELTA[-1:], DELTA], headers=kind(EVENTS)), 2, "an event whose end comes late"),
        (Scripted([b": x\n\n", b"\n", b"id: 1\n\n", DELTA, DELTA], headers=kind(EVENTS)), 4, "no data before"),
        (Scripted([b"data: 1\r\r", DELTA], headers=kind(EVENTS)), 1, "lines that end in a carriage return"),
        (
            Scripted([b"data: 1\r\n\r", b"\n", DELTA], headers=kind(EVENTS)),
            1,
            "an end that is clear before it is whole",
        ),
        (Scripted(flushed(DELTA, DELTA), headers=kind(EVENTS, b"gzip")), 1, "one compressed event"),
        (Scripted([b"\x1f\x8bno", DELTA], headers=kind(EVENTS, b"gzip")), 1, "damaged"),
        (Scripted([b"a", b"b"], headers=kind(EVENTS, b"br")), 0, "a coding not read here"),
        (Scripted([b"x" * 60_000] * 4, status=400), 2, "an error longer than errors are"),
        (Scripted([b"data: " + b"x" * 60_000] * 4, headers=kind(EVENTS)), 2, "an event longer than errors are"),
        (Scripted([gzip.compress(b"\0" * 10**7), b"", b""], 400, kind(JSON, b"gzip")), 1, "a bomb"),
    ],
)
async def test_no_more_is_taken_than_it_takes(response: Scripted, taken: int, reason: str) -> None:
    answer = await looked(response)
    assert (response.taken, answer.overflow) == (taken, None), reason
    assert await rest(answer) == b"".join(response.pieces)


@pytest.mark.parametrize("error", [ERROR, LONG])
@pytest.mark.parametrize(
    ("status", "headers", "before", "behind"),
    [
        (400, kind(JSON), b"", b""),
        (200, kind(JSON), b"", b""),
        (200, kind(EVENTS), b"data: ", b"\n\n"),
        (200, kind(EVENTS), b": wait\n\n\nevent: error\r\ndata:", b"\r\r"),
        (500, kind(EVENTS), b"", b""),
    ],
)
async def test_an_overflow_is_seen_byte_by_byte(
    status: int, headers: Headers, before: bytes, error: bytes, behind: bytes
) -> None:
    content = before + error + behind
    for pieces in ([content], bytewise(content)):
        answer = await looked(Scripted(pieces, status, headers))
        assert answer.overflow == STATED
        assert await rest(answer) == content


async def test_an_overflow_is_seen_through_its_compression_byte_by_byte() -> None:
    for content, headers, status in (
        (ERROR, kind(JSON, b"gzip"), 400),
        (ERROR, kind(JSON, b"gzip"), 200),
        (b"data: " + ERROR + b"\n\n", kind(EVENTS, b"gzip"), 200),
        (b"data: " + ERROR + b"\n\n", kind(EVENTS, b"deflate"), 200),
    ):
        compressed = gzip.compress(content) if headers[1][1] == b"gzip" else zlib.compress(content)
        answer = await looked(Scripted(bytewise(compressed), status, headers))
        assert answer.overflow == STATED
        assert await rest(answer) == compressed


async def test_comments_are_held_back_while_patience_lasts() -> None:
    patient = Scripted([b": 1\n\n", b": 2\n\n", b": 3\n\n", DELTA], headers=kind(EVENTS))
    answer = await looked(patient, 0.0, 1.0, 4.9, 5.0)
    assert (patient.taken, answer.response.body.take()) == (3, b": 1\n\n: 2\n\n: 3\n\n")


async def test_an_event_over_the_bound_is_passed_on_unread() -> None:
    content = b"data: " + ERROR[:-1] + b" " * MAX_ERROR_BYTES + b"}\n\n"
    answer = await looked(Scripted([content[:70_000], content[70_000:]], headers=kind(EVENTS)))
    assert answer.overflow is None
    assert await rest(answer) == content


def ended(reason: str, content: str = "", **usage: int) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("response", "overflow", "reason"),
    [
        (Scripted([ended("model_context_window_exceeded")], headers=kind(JSON)), True, "nothing beside a full window"),
        (Scripted([ended("model_context_window_exceeded", "Yes, ")], headers=kind(JSON)), False, "a beginning"),
        (Scripted([ended("length", prompt_tokens=8_190, completion_tokens=0)], headers=kind(JSON)), True, "all prompt"),
        (Scripted([ended("length", prompt_tokens=4_000, completion_tokens=0)], headers=kind(JSON)), False, "half full"),
        (Scripted([ended("stop", prompt_tokens=4_000, completion_tokens=0)], headers=kind(JSON)), False, "silence"),
        (
            Scripted(
                [b'data: {"choices":[{"delta":{},"finish_reason":"model_context_window_exceeded"}]}\n\n'],
                200,
                kind(EVENTS),
            ),
            True,
            "a stream that ends before it began",
        ),
        (
            Scripted([b'{"base_resp":{"status_code":2013,"status_msg":"prompt is too long"}}'], headers=kind(JSON)),
            True,
            "MiniMax",
        ),
        (
            Scripted(
                [b'{"base_resp":{"status_code":0,"status_msg":""},"reply":"context_length_exceeded"}'], 200, kind(JSON)
            ),
            False,
            "talk",
        ),
        (
            Scripted([b'event: error\ndata: {"message":"prompt is too long"}\n\n'], headers=kind(EVENTS)),
            True,
            "its name",
        ),
    ],
)
async def test_a_status_of_200_may_hide_an_overflow(response: Scripted, overflow: bool, reason: str) -> None:
    answer = await looked(response)
    assert (answer.overflow is not None) == overflow, reason
    assert bool(answer.error) == overflow
    assert await rest(answer) == b"".join(response.pieces)


async def test_an_error_without_a_body_is_left_to_whoever_knows_how_much_was_sent() -> None:
    answer = await looked(Scripted([], 413))
    assert answer.overflow is not None
    assert answer.overflow.action == "inspect"


class Gated(Scripted):
    """A stream that says who speaks, and nothing more until it may."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        super().__init__([ROLE, DELTA], headers=kind(EVENTS))

    async def come(self) -> AsyncIterator[bytes]:
        yield ROLE
        await self.go_on.wait()
        yield DELTA


async def test_a_stream_that_says_nothing_for_long_is_passed_on_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.pipeline.answers._MAX_HOLD_S", 0.001)
    gated = Gated()
    answer = await inspect_response(cast("UpstreamResponse", gated), CHAT.answers)
    begun = answer.response.body.take()
    assert (begun, answer.overflow) == (ROLE, None)
    answer.response.body.untake(begun)
    gated.go_on.set()
    assert await rest(answer) == ROLE + DELTA


async def test_who_gives_up_waiting_for_a_stream_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    looking = asyncio.create_task(inspect_response(cast("UpstreamResponse", Gated()), CHAT.answers))
    for _ in range(10):  # until it waits for a chunk
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == 2, "the look, and the chunk that it waits for"
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    await asyncio.sleep(0)
    assert not asyncio.all_tasks() - before
