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
    from collections.abc import Sequence
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


def body_of(writer: Writer, name: str = "m") -> bytes:
    """A streaming request; what is learned from others does not touch it, as model and conversation are its own."""
    history = [user(f"Go to {name}.")]
    history += [entry for at in range(12) for entry in (model(prose(at, 200)), user(prose(-at, 100)))]
    items = [item for entry in history for item in writer.items(entry, PLAIN)]
    fields = {**writer.fields(), "model": name, "stream": True}
    return json.dumps(request_body(writer.dialect, "You code.", items, fields)).encode()


async def unsolved(directory: Path, writer: Writer, refusals: Sequence[bytes]) -> list[object]:
    """What went wrong: of none does the client see the refusal, but the answer to a smaller request."""
    success = pieces(streamed(writer), 1_000_000, EVENTS)
    found: list[object] = []
    for config in ({}, LANE):
        parts = {"policies": WITHOUT_MODEL, **config}
        async with proxied(directory, in_turn(success), **parts) as (address, behind):
            for number, refusal in enumerate(refusals):
                behind.play(in_turn(refusal, success))
                reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer, f"m{number}"))
                is_answer = b"Fine." in reply.body and b"exceeds" not in reply.body
                if (reply.status, len(behind.calls), is_answer) != (200, 2, True):
                    found.append((config, refusal, reply, len(behind.calls)))
    return found


def in_pieces(content: bytes, *headers: Header) -> list[bytes]:
    return [pieces(content, size, *headers) for size in SIZES]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_what_says_nothing_is_held_back_whatever_its_name(tmp_path: Path, writer: Writer, before: str) -> None:
    assert await unsolved(tmp_path, writer, in_pieces(BEFORE[before] + TOLD["an event"], EVENTS)) == []


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_an_overflow_behind_an_announcement_may_have_any_form(tmp_path: Path, writer: Writer, told: str) -> None:
    assert await unsolved(tmp_path, writer, in_pieces(BEFORE["codex.rate_limits"] + TOLD[told], EVENTS)) == []


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
    tmp_path: Path, writer: Writer, content: bytes, headers: tuple[Header, ...]
) -> None:
    sent = [*in_pieces(content, *headers), answer(200, content, *headers)]
    assert await unsolved(tmp_path, writer, sent) == []


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_an_answer_behind_what_says_nothing_passes_byte_for_byte(
    tmp_path: Path, writer: Writer, before: str
) -> None:
    content = BEFORE[before] + streamed(writer) + TOLD["an event"]
    async with proxied(tmp_path, in_turn(b""), policies=WITHOUT_MODEL) as (address, behind):
        for headers in ((EVENTS,), (TEXT,), ()):
            behind.play(in_turn(pieces(content, 50, *headers)))
            reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body_of(writer))
            assert (headers, reply.status, reply.body, len(behind.calls)) == (headers, 200, content, 1)
