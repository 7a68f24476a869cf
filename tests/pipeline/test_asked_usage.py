"""Streams that differ from the client's anyway are asked for their usage, which is taken out again and learned from."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.long_conversations import SHORT_TURNS
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    JSON,
    OK_BODY,
    Call,
    Script,
    Upstream,
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

pytestmark = pytest.mark.anyio

LARGE = [*SHORT_TURNS, {"role": "user", "content": "now?"}]
SMALL = LARGE[-3:]
USAGE = event(
    {"id": "c1", "choices": [], "usage": {"prompt_tokens": 9_000, "completion_tokens": 3, "total_tokens": 9_003}}
)
SAID = delta("Hel") + delta("lo")
DONE = b"data: [DONE]\n\n"


def over(directory: Path, script: Script) -> AbstractAsyncContextManager[tuple[str, Upstream]]:
    """A proxy that compacts the large request and not the small one."""
    policies = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
    return proxied(directory, script, policies=policies, models=[{"match": "*", "context_window": 8_192}])


def request(messages: list[dict[str, str]] = LARGE, **more: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True, **more}).encode()


def stream(content: bytes, size: int) -> bytes:
    parts = [chunk(content[start : start + size]) for start in range(0, len(content), size)]
    return head(200, EVENTS, CHUNKED) + b"".join(parts) + chunk(b"")


def asks(call: Call) -> bool:
    return json.loads(call.body).get("stream_options") == {"include_usage": True}


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
async def test_usage_that_the_client_did_not_ask_for_is_asked_for_and_taken_out(tmp_path: Path, size: int) -> None:
    async with over(tmp_path, always(stream(SAID + USAGE + DONE, size))) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, (b"Accept-Encoding", b"gzip")], request())
    assert reply.header(b"x-compaction") == b"applied"
    assert (reply.body, reply.complete) == (SAID + DONE, True)
    (call,) = behind.calls
    assert asks(call)
    assert call.header(b"accept-encoding") == b"identity"


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (request(stream_options={"include_usage": True}), [], "the client wants it"),
        (request(stream_options={"include_usage": False}), [], "the client does not want it"),
        (request(SMALL), [], "the client's own bytes"),
        (request(), [(b"X-Compaction", b"off")], "nothing of ours"),
        (request(stream=False), [], "no stream"),
    ],
)
async def test_nothing_else_is_asked_or_taken_out(
    tmp_path: Path, body: bytes, headers: list[tuple[bytes, bytes]], reason: str
) -> None:
    content = SAID + USAGE + DONE
    async with over(tmp_path, always(stream(content, 50))) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON, *headers], body)
    assert reply.body == content, reason
    assert json.loads(behind.calls[0].body).get("stream_options") == json.loads(body).get("stream_options"), reason


@pytest.mark.parametrize(
    "last",
    [
        event(
            {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
        ),
        event({"id": "c1", "choices": [], "usage": None}),
        delta('"usage": {"prompt_tokens": 1}, "choices": []'),
        b'data: {"usage"',
        b": comment\n\n",
    ],
)
async def test_whatever_says_more_than_its_usage_stays(tmp_path: Path, last: bytes) -> None:
    async with over(tmp_path, always(stream(SAID + last + DONE, 9))) as (address, _):
        assert (await ask(address, "POST", CHAT, [JSON], request())).body == SAID + last + DONE


async def test_a_server_that_refuses_the_question_is_not_asked_again(tmp_path: Path) -> None:
    refusal = answer(400, b'{"error": {"message": "Unrecognized request argument: stream_options"}}', JSON)
    async with over(tmp_path, in_turn(refusal, stream(SAID + DONE, 50))) as (address, behind):
        for _ in range(2):
            assert (await ask(address, "POST", CHAT, [JSON], request())).body == SAID + DONE
    assert [asks(call) for call in behind.calls] == [True, False, False]


def billed(tokens: int) -> bytes:
    body = {**json.loads(OK_BODY), "usage": {"prompt_tokens": tokens, "completion_tokens": 2}}
    return answer(200, json.dumps(body).encode(), JSON)


async def test_a_prompt_that_was_cut_off_is_flagged_in_header_log_and_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = request(SMALL * 3, stream=False)
    streamed = request(SMALL * 3)
    warned = (b"prompt_cut_off", None)
    script = in_turn(billed(300), stream(SAID + DONE, 50), billed(2_200), stream(SAID + DONE, 50))
    settings: dict[str, object] = {"models": [{"match": "*", "context_window": 131_072}]}
    settings |= {"server": {"admin_token": "t" * 16}, "logging": {"level": "info"}}
    async with proxied(tmp_path, script, **settings) as (address, _):
        replies = [await ask(address, "POST", CHAT, [JSON], sent) for sent in (body, streamed, body, streamed)]
        told = [reply.header(b"x-compaction-warning") for reply in replies]
        metrics = (await ask(address, "GET", "/metrics", [(b"Authorization", b"Bearer " + b"t" * 16)])).body.decode()
    assert told == [warned[0], warned[0], None, None]
    series = 'tenant="default",upstream="main"'
    assert f'concertina_prompts_cut_off_total{{model="m",{series}}} 1.0' in metrics
    assert 'concertina_estimate_ratio_count{model="m",upstream="main"} 2.0' in metrics
    lines = [json.loads(line) for line in "".join(capsys.readouterr()).splitlines() if '"cut_off"' in line]
    assert [(line["tokens_read"], line["level"]) for line in lines] == [(300, "warning")]


async def test_a_stream_with_a_length_from_which_something_is_taken_comes_whole(tmp_path: Path) -> None:
    content = SAID + USAGE + DONE
    whole = head(200, EVENTS, (b"Content-Length", b"%d" % len(content))) + content
    async with over(tmp_path, always(whole)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], request())
    assert asks(behind.calls[0])
    assert (reply.body, reply.complete, reply.header(b"content-length")) == (SAID + DONE, True, None)
