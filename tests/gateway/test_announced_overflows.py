"""An overflow is recognized behind whatever says nothing, and in whatever form it is sent: dialects, shapes, pieces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.base import Usage
from tests.support.dialects import PLAIN, WRITERS, Writer, model, path_of, request_body, user
from tests.support.scenarios import prose
from tests.support.upstreams import CHUNKED, EVENTS, JSON, Header, answer, ask, chunk, head, in_turn, proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

WITHOUT_MODEL = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
# With a window that is far from full, requests go straight on.
LANE = {"models": [{"match": "*", "context_window": 200_000}]}
WORDS = "Your input exceeds the context window of this model."
ERROR = json.dumps({"error": {"message": WORDS, "code": "context_length_exceeded"}}).encode()
TEXT: Header = (b"Content-Type", b"text/plain; charset=utf-8")


def event(value: object, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


# What says nothing, before an overflow.
BEFORE = {
    "codex.rate_limits": event({"type": "codex.rate_limits", "plan_type": "plus", "rate_limits": {"primary": None}}),
    "codex.response.metadata": event({"type": "codex.response.metadata", "headers": {"x-request-id": "r"}}, "meta"),
    "websocket_timing": event({"type": "responsesapi.websocket_timing", "timing": {"queue_ms": 3.5}}),
    "a name that nobody knows": event({"type": "vendor.something", "id": "1", "count": 3}, "vendor.something"),
    "a note": event({"type": "keepalive", "message": "still at work"}),
    "no type": event({"queue_position": 4}),
    "pings": event({"type": "ping"}, "ping") + b": comment\n\n" + b"event: ping\n\n",
    "an empty delta": event({"type": "response.output_text.delta", "delta": ""}),
    "a role": event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    "many of them": b"".join(event({"type": "codex.rate_limits", "at": at}) for at in range(40)),
}
# How it is told behind that.
TOLD = {
    "an event": b"data: " + ERROR + b"\n\n",
    "a named event": b"event: error\ndata: " + ERROR + b"\n\n",
    "a name alone": event({"message": WORDS}, "error"),
    "response.failed": event(
        {"type": "response.failed", "response": {"status": "failed", "error": json.loads(ERROR)["error"]}}
    ),
    "flat": event({"object": "error", "message": WORDS, "code": 400}),
    "without an empty line": b"data: " + ERROR,
}  # fmt: skip
SIZES = [1, 7, 1_000_000]


def pieces(content: bytes, size: int, *headers: Header) -> bytes:
    parts = [chunk(content[start : start + size]) for start in range(0, len(content), size)]
    return head(200, *headers, CHUNKED) + b"".join(parts) + chunk(b"")


def streamed(writer: Writer) -> bytes:
    return b"".join(b"data: " + data + b"\n\n" for data in writer.events("Fine.", Usage(5_000, 10)))


def body_of(writer: Writer) -> bytes:
    history = [user("Go."), *(entry for at in range(12) for entry in (model(prose(at, 200)), user(prose(-at, 100))))]
    items = [item for entry in history for item in writer.items(entry, PLAIN)]
    return json.dumps({**request_body(writer.dialect, "You code.", items, writer.fields()), "stream": True}).encode()


async def solved(directory: Path, writer: Writer, refusal: bytes) -> bool:
    """Whether the client never sees the refusal, and gets the answer to a smaller request."""
    success = pieces(streamed(writer), 1_000_000, EVENTS)
    found = []
    for config in ({}, LANE):
        parts = {"policies": WITHOUT_MODEL, **config}
        async with proxied(directory, in_turn(refusal, success), **parts) as (address, behind):
            reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer))
        is_answer = b"Fine." in reply.body and b"exceeds" not in reply.body
        found.append((reply.status, len(behind.calls), is_answer))
    return found == [(200, 2, True)] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_what_says_nothing_is_held_back_whatever_its_name(
    tmp_path: Path, writer: Writer, before: str, size: int
) -> None:
    assert await solved(tmp_path, writer, pieces(BEFORE[before] + TOLD["an event"], size, EVENTS))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_an_overflow_behind_an_announcement_may_have_any_form(
    tmp_path: Path, writer: Writer, told: str, size: int
) -> None:
    assert await solved(tmp_path, writer, pieces(BEFORE["codex.rate_limits"] + TOLD[told], size, EVENTS))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (ERROR, (EVENTS,)),
        (b"\n" + ERROR, (EVENTS,)),
        (json.dumps({"base_resp": {"status_msg": "context window exceeds limit"}}).encode(), (EVENTS,)),
        (TOLD["an event"], (TEXT,)),
        (TOLD["an event"], ()),
        (TOLD["an event"], (JSON,)),
        (TOLD["a named event"], (TEXT,)),
        (b": wait\n\n" + TOLD["an event"], ()),
        (BEFORE["codex.rate_limits"] + TOLD["an event"], (TEXT,)),
        (ERROR, (TEXT,)),
        (ERROR, ()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_what_is_sent_counts_and_not_its_type(
    tmp_path: Path, writer: Writer, content: bytes, headers: tuple[Header, ...], size: int
) -> None:
    assert await solved(tmp_path, writer, pieces(content, size, *headers))
    assert await solved(tmp_path, writer, answer(200, content, *headers))


@pytest.mark.parametrize("headers", [(EVENTS,), (TEXT,), ()], ids=["events", "text", "no type"])
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_an_answer_behind_what_says_nothing_passes_byte_for_byte(
    tmp_path: Path, writer: Writer, before: str, headers: tuple[Header, ...]
) -> None:
    content = BEFORE[before] + streamed(writer) + TOLD["an event"]
    async with proxied(tmp_path, in_turn(pieces(content, 50, *headers)), policies=WITHOUT_MODEL) as (address, behind):
        reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer))
    assert (reply.status, reply.body, len(behind.calls)) == (200, content, 1)
