"""An overflow that the upstream reports is answered with smaller requests, until the client has the first byte."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from tests.support.long_conversations import SHORT_TURNS
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    GZIP,
    JSON,
    OK_BODY,
    Call,
    Header,
    always,
    answer,
    ask,
    chunk,
    delta,
    event,
    head,
    in_turn,
    proxied,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.support.upstreams import Script, Upstream

pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
LIMIT = 4_000
OVERFLOW = {
    "error": {
        "message": f"This model's maximum context length is {LIMIT} tokens. However, your messages resulted in "
        f"9000 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
}
ERROR = json.dumps(OVERFLOW).encode()


def body_of(*, turns: int = 24, **more: object) -> bytes:
    """A conversation of about 370 tokens a turn."""
    return json.dumps(
        {"model": "m", "messages": [*SHORT_TURNS[:turns], {"role": "user", "content": "now?"}], **more}
    ).encode()


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
FILTERS = event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
CREATED = event({"type": "response.created", "response": {"id": "r"}}) + event({"type": "response.in_progress"})


def over(directory: Path, script: Script) -> AbstractAsyncContextManager[tuple[str, Upstream]]:
    """A proxy that summarizes without a model, so that every call is the client's."""
    without_model = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
    return proxied(directory, script, policies=without_model)


def pieces(content: bytes, size: int, *headers: Header, status: int = 200) -> bytes:
    parts = [chunk(content[start : start + size]) for start in range(0, len(content), size)]
    return head(status, *headers, CHUNKED) + b"".join(parts) + chunk(b"")


@pytest.mark.requirement("R1 2.3 after")
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (answer(400, ERROR, JSON), "as OpenAI does"),
        (answer(413, ERROR, JSON), "another status"),
        (answer(500, ERROR, JSON), "a server's fault with the code that suffices"),
        (answer(400, b"Prompt is too long for this model.", (b"Content-Type", b"text/plain")), "plain text"),
        (answer(400, gzip.compress(ERROR), JSON, GZIP), "compressed"),
        (pieces(ERROR, 7, JSON, status=400), "in small pieces"),
        (pieces(gzip.compress(ERROR), 7, JSON, GZIP, status=400), "compressed, in small pieces"),
        (pieces(b"data: " + ERROR + b"\n\n", 1_000, EVENTS), "the first event of a stream"),
        (pieces(b": wait\n\n\r\n: wait\r\rdata: " + ERROR + b"\r\r", 5, EVENTS), "the first event after comments"),
        (pieces(b"event: error\ndata: " + ERROR + b"\n\n", 3, EVENTS), "a named event in small pieces"),
        (pieces(gzip.compress(b"data: " + ERROR + b"\n\n"), 9, EVENTS, GZIP), "a compressed stream"),
        (pieces(ROLE + b"data: " + ERROR + b"\n\n", 11, EVENTS), "behind an announcement of who speaks"),
        (
            pieces(FILTERS + b": ping\n\n" + ROLE + b"data: " + ERROR + b"\n\n", 900, EVENTS),
            "behind a filter's verdict",
        ),
        (pieces(CREATED + b"event: error\ndata: " + ERROR + b"\n\n", 900, EVENTS), "behind an announced response"),
        (answer(200, ERROR, JSON), "JSON under status 200"),
        (pieces(ERROR, 3, JSON), "JSON under status 200 in small pieces"),
        (answer(200, gzip.compress(ERROR), JSON, GZIP), "compressed JSON under status 200"),
    ],
)
async def test_an_overflow_is_recognized_however_it_is_reported(tmp_path: Path, refusal: bytes, reason: str) -> None:
    events = delta("hi") + b"data: [DONE]\n\n"
    async with over(tmp_path, always(OK)) as (address, behind):
        for stream, success, content in ((True, pieces(events, 9, EVENTS), events), (False, OK, OK_BODY)):
            behind.play(in_turn(refusal, success))
            body = body_of(stream=stream).replace(b'"m"', b'"%d"' % stream)  # what one teaches is not the other's
            reply = await ask(address, "POST", CHAT, [JSON], body)
            assert (reply.status, reply.body) == (200, content), reason
            assert reply.header(b"x-compaction-reason") == b"overflow_retry"
            first, second = behind.calls
            assert first.body == body
            assert len(second.body) < 0.9 * len(first.body)
            assert json.loads(second.body)["messages"][-1] == {"role": "user", "content": "now?"}


def tokens(call: Call) -> int:
    return Tokenizer().count("\n".join(m["content"] for m in json.loads(call.body)["messages"]), DEFAULT_ENCODING)


@pytest.mark.requirement("R1 7 retry", "R3 3.1 maxIterations", "R3 6.1 maximum")
async def test_no_more_than_three_smaller_requests_are_tried_and_then_the_first_error_is_passed_on(
    tmp_path: Path,
) -> None:
    first = answer(400, ERROR, JSON, (b"X-Request-Id", b"req_1"), (b"Set-Cookie", b"a=1"))
    later = answer(400, ERROR + b" ", JSON, (b"X-Request-Id", b"req_2"))
    async with over(tmp_path, in_turn(first, later)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body_of())
    assert (reply.status, reply.body, reply.header(b"x-request-id")) == (400, ERROR, b"req_1")
    assert reply.header(b"set-cookie") == b"a=1"
    sizes = [tokens(call) for call in behind.calls]
    assert 2 <= len(sizes) <= 4
    assert all(after <= 0.92 * before for before, after in pairwise(sizes))


async def test_a_short_request_that_cannot_shrink_is_not_sent_again(tmp_path: Path) -> None:
    async with over(tmp_path, always(answer(400, ERROR, JSON))) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body_of(turns=0))
    assert (reply.status, reply.body, len(behind.calls)) == (400, ERROR, 1)


@pytest.mark.parametrize(
    "content",
    [
        delta("Hel") + b"data: " + ERROR + b"\n\n",
        event({"choices": [{"delta": {"role": "assistant", "reasoning": "Hm"}}]}) + b"data: " + ERROR + b"\n\n",
        event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}) + b"data: " + ERROR + b"\n\n",
        event({"type": "response.output_text.delta", "delta": "Hel"}) + b"data: " + ERROR + b"\n\n",
    ],
)
async def test_after_the_first_event_an_overflow_is_the_clients_to_see(tmp_path: Path, content: bytes) -> None:
    async with over(tmp_path, always(pieces(content, 1_000, EVENTS))) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body_of(stream=True))
    assert (reply.status, reply.body, len(behind.calls)) == (200, content, 1)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (
            answer(400, b'{"error":{"message":"max_tokens is too large: 9 completion tokens"}}', JSON),
            "the answer's cap",
        ),
        (answer(429, ERROR, JSON), "a rate limit, whatever it says"),
        (answer(401, ERROR, JSON), "a key"),
        (answer(400, b'{"error":{"message":"Unknown parameter: tokens"}}', JSON), "something about tokens"),
        (answer(400, b"", JSON), "nothing"),
        (answer(400, b"\x1f\x8bnot gzip", JSON, GZIP), "damaged"),
        (answer(400, ERROR, JSON, (b"Content-Encoding", b"zstd")), "a coding that was not offered"),
        (answer(503, b"overloaded: context", JSON), "busy"),
        (answer(400, ERROR + b" " * 200_000, JSON), "larger than any error"),
        (pieces(ERROR + b" " * 200_000, 50_000, JSON, status=400), "larger than any error, in pieces"),
        (answer(400, gzip.compress(ERROR + b" " * 50_000_000), JSON, GZIP), "a bomb"),
    ],
)
async def test_what_is_no_overflow_passes_untouched_after_one_call(tmp_path: Path, refusal: bytes, reason: str) -> None:
    async with over(tmp_path, always(refusal)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], body_of())
    assert reply.complete, reason
    assert (b"%d" % reply.status) in refusal[:16]
    if b"chunked" not in refusal[:120]:
        assert reply.body == refusal.partition(b"\r\n\r\n")[2]
    assert len(behind.calls) == 1


@pytest.mark.parametrize(
    ("headers", "more"),
    [([(b"x-compaction", b"off")], {}), ([(b"x-compaction", b"shadow")], {}), ([], {"n": 2})],
)
async def test_where_nothing_may_be_changed_nothing_is_tried(
    tmp_path: Path, headers: list[Header], more: dict[str, object]
) -> None:
    async with over(tmp_path, always(answer(400, ERROR, JSON))) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, *headers], body_of(**more))
    assert (reply.status, reply.body, len(behind.calls)) == (400, ERROR, 1)


async def test_the_limit_that_an_error_states_is_known_to_the_next_request(tmp_path: Path) -> None:
    async with over(tmp_path, in_turn(answer(400, ERROR, JSON), OK)) as (address, behind):
        first = await ask(address, "POST", CHAT, [JSON], body_of())
        second = await ask(address, "POST", CHAT, [JSON], body_of(user="another"))
        other = await ask(address, "POST", CHAT, [JSON], body_of().replace(b'"m"', b'"another model"'))
    assert first.header(b"x-compaction-reason") == b"overflow_retry"
    assert second.header(b"x-compaction-window") == b"%d" % LIMIT
    assert second.header(b"x-compaction") in (b"applied", b"reused")
    assert other.header(b"x-compaction") == b"none"
    assert len(behind.calls) == 4


async def test_a_compressed_request_that_had_to_shrink_goes_out_uncompressed(tmp_path: Path) -> None:
    async with over(tmp_path, in_turn(answer(400, ERROR, JSON), OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, GZIP], gzip.compress(body_of()))
    first, second = behind.calls
    assert reply.status == 200
    assert (first.header(b"content-encoding"), second.header(b"content-encoding")) == (b"gzip", None)
    assert json.loads(second.body)["messages"]
    assert second.header(b"content-length") == b"%d" % len(second.body)


async def test_what_stands_around_the_messages_is_sent_again_as_the_client_wrote_it(tmp_path: Path) -> None:
    body = body_of(seed=123456789012345678901234567890, user="  é ")
    before, _, behind_them = body.partition(b'"messages": [')[0], None, b', "seed": 123456789012345678901234567890'
    async with over(tmp_path, in_turn(answer(400, ERROR, JSON), OK)) as (address, behind):
        await ask(address, "POST", CHAT, [JSON, (b"Authorization", b"Bearer k")], body)
    again = behind.calls[1]
    assert again.body.startswith(before)
    assert behind_them in again.body
    assert again.body.endswith(body[body.index(behind_them) :])
    assert again.header(b"authorization") == b"Bearer k"


async def test_an_overflow_of_another_endpoint_is_none_of_ours(tmp_path: Path) -> None:
    async with over(tmp_path, always(answer(400, ERROR, JSON))) as (address, behind):
        reply = await ask(address, "POST", "/v1/embeddings", [JSON], body_of())
    assert (reply.status, reply.body, len(behind.calls)) == (400, ERROR, 1)
