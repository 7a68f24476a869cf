"""A streaming client that waits for a summary gets comments; the answer goes on from there, and so do errors."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import time
from codecs import BOM_UTF8
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import openai
import pytest

from proxy.app import App
from proxy.server.exchange import Exchange
from proxy.telemetry.log import open_log
from tests.support.long_conversations import LONG, SMALL_WINDOW, is_summary
from tests.support.responses import gzipped
from tests.support.servers import serve
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    GZIP,
    HOST,
    JSON,
    OK_BODY,
    Call,
    Client,
    Header,
    Upstream,
    answer,
    ask,
    chunk,
    config_for,
    connected,
    delta,
    event,
    head,
    request,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from proxy.config.loading import Config

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COMMENT = b": waiting\n"
DONE = b"data: [DONE]\n\n"
STREAM = delta("Hello") + delta(" 你好") + DONE
STREAMED = head(200, EVENTS, CHUNKED) + chunk(STREAM) + chunk(b"")
WAITING = LONG.replace(b'"model"', b'"stream": true, "model"')
# Of another model, so that one summarizer's failure is not held against the other.
ANOTHER = WAITING.replace(b'"m"', b'"m2"').replace(b'"0 some', b'"another of some')
TOO_LONG: dict[str, object] = {
    "message": "prompt is too long: 19000 tokens > 18000 maximum",
    "code": "context_length_exceeded",
}
OVERFLOW = answer(400, json.dumps({"error": TOO_LONG}).encode(), JSON)
SUMMARY = answer(200, OK_BODY, JSON)


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """The proxy runs on uvloop, which fails in ways of its own."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@dataclass
class Play:
    """An upstream whose summaries wait for `finish`, the proxy before it, and what the proxy logs."""

    answer: Callable[[Call], Awaitable[object]]
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    upstream: Upstream | None = None
    log: io.BytesIO = field(default_factory=io.BytesIO)

    async def script(self, call: Call) -> None:
        await call.read()
        await (self.summarize(call) if is_summary(call) else self.answer(call))

    async def summarize(self, call: Call) -> None:
        waiting = [asyncio.ensure_future(call.gone()), asyncio.ensure_future(self.finish.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if self.finish.is_set():
            await call.send(SUMMARY)

    @property
    def asked(self) -> list[Call]:
        """The calls that were no summaries."""
        assert self.upstream is not None
        return [call for call in self.upstream.calls if not is_summary(call)]

    @property
    def lines(self) -> list[dict[str, object]]:
        """The lines about requests."""
        lines = map(json.loads, self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == "request"]


def sends(content: bytes) -> Callable[[Call], Awaitable[None]]:
    return lambda call: call.send(content)


@asynccontextmanager
async def playing(
    directory: Path,
    answer: Callable[[Call], Awaitable[object]],
    models: Mapping[str, object] = SMALL_WINDOW,
    **policy: object,
) -> AsyncIterator[Play]:
    play = Play(answer)
    async with upstream(play.script) as play.upstream:
        policies = {"default": {"keepalive": "20ms", **policy}}
        config: Config = config_for(directory, play.upstream.address, policies=policies, **models)
        app = App(config, open_log("info", time.time, play.log))
        async with serve(app, lifespan="on") as play.address, asyncio.timeout(30):
            try:
                yield play
            finally:
                play.finish.set()  # of those who left, too


async def two_comments(client: Client, body: bytes = WAITING, *headers: Header) -> AsyncIterator[bytes]:
    """Ask, and read two comments; the chunks that follow are returned."""
    await client.send(request("POST", CHAT, [HOST, JSON, *headers], body))
    assert await client.head() == 200
    chunks = client.chunks()
    assert [await anext(chunks), await anext(chunks)] == [COMMENT, COMMENT]
    return chunks


async def after_comments(play: Play, *headers: Header) -> bytes:
    """What follows the comments, which were at least two, up to a clean end."""
    async with connected(play.address) as client:
        chunks = await two_comments(client, WAITING, *headers)
        play.finish.set()
        rest = b"".join([part async for part in chunks])
    return rest.replace(COMMENT, b"")


async def test_comments_begin_the_answer_and_the_upstreams_events_follow(tmp_path: Path) -> None:
    async with playing(tmp_path, sends(STREAMED)) as play:
        async with connected(play.address) as client:
            chunks = await two_comments(client, WAITING, (b"x-session-id", b"s"))
            told = dict(client.headers)
            play.finish.set()
            assert b"".join([part async for part in chunks]).lstrip(COMMENT) == STREAM.lstrip(COMMENT)
            assert (await client.ask("GET", "/livez")).status == 200, "the connection goes on"
        assert told.items() >= {
            b"content-type": b"text/event-stream", b"cache-control": b"no-cache", b"transfer-encoding": b"chunked",
            b"x-compaction": b"pending", b"x-compaction-reason": b"compacting", b"x-compaction-label": b"s",
            b"x-compaction-window": b"20000",
        }.items()  # fmt: skip
        assert int(told[b"x-compaction-tokens-received"]) > 14_000
        assert not told.keys() & {b"x-compaction-tokens-sent", b"x-compaction-overhead-ms", b"server-timing"}
        (line,) = play.lines
    assert line.items() >= {"end": "complete", "status": 200, "compaction": "applied", "reason": "proactive"}.items()
    assert int(str(line["comments"])) >= 2
    assert line["bytes"] == len(STREAM) + len(COMMENT) * int(str(line["comments"]))


async def test_comments_go_on_until_the_upstreams_answer_is_there(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def think(call: Call) -> None:
        play.finish.clear()
        await go_on.wait()
        await call.send(STREAMED)

    async with playing(tmp_path, think) as play, connected(play.address) as client:
        chunks = await two_comments(client)
        play.finish.set()
        while not play.asked:
            assert await anext(chunks) == COMMENT
        assert [await anext(chunks), await anext(chunks)] == [COMMENT, COMMENT]
        go_on.set()
        assert b"".join([part async for part in chunks]).endswith(STREAM)


async def test_comments_come_while_a_smaller_request_is_made_after_an_overflow(tmp_path: Path) -> None:
    async def overflow_once(call: Call) -> None:
        await call.send(OVERFLOW if len(play.asked) == 1 else STREAMED)

    async with playing(tmp_path, overflow_once, mode="on", compaction_threshold=1, overflow_threshold=1) as play:
        assert await after_comments(play) == STREAM
        assert len(play.asked) == 2
        assert play.asked[0].body == WAITING
        (line,) = play.lines
    assert line.items() >= {"compaction": "applied", "reason": "overflow_retry", "status": 200}.items()


SMALL = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()


async def test_an_upstream_that_thinks_is_waited_for_with_comments(tmp_path: Path) -> None:
    """Twice the interval goes by before the first, since its headers cannot be passed on then."""
    go_on = asyncio.Event()

    async def think(call: Call) -> None:
        await go_on.wait()
        await call.send(STREAMED)

    async with playing(tmp_path, think) as play, connected(play.address) as client:
        chunks = await two_comments(client, SMALL)
        go_on.set()
        assert b"".join([part async for part in chunks]).replace(COMMENT, b"") == STREAM
        (line,) = play.lines
        assert line["comments"] >= 2
        assert line["status"] == 200


@pytest.mark.parametrize("keepalive", ["500ms", "10s"])
async def test_a_quick_answer_keeps_its_status_and_headers(tmp_path: Path, keepalive: str) -> None:
    said = b'{"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}'
    limited = answer(429, said, JSON, (b"Retry-After", b"20"))
    async with playing(tmp_path, sends(limited), keepalive=keepalive) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON], SMALL)
        assert (reply.status, reply.header(b"retry-after")) == (429, b"20")


async def test_of_a_late_refusal_status_and_time_are_told_in_its_words(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def refuse(call: Call) -> None:
        await go_on.wait()
        said = b'{"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}'
        await call.send(answer(429, said, JSON, (b"Retry-After", b"20")))

    async with playing(tmp_path, refuse) as play, connected(play.address) as client:
        chunks = await two_comments(client, SMALL)
        go_on.set()
        told = b"".join([part async for part in chunks])
        assert b"Slow down. (the upstream's status 429, retry after 20 s)" in told


@pytest.mark.parametrize("is_begun", [True, False], ids=["between events", "inside of one"])
async def test_comments_come_where_an_answer_pauses_between_events_and_nowhere_else(
    tmp_path: Path, is_begun: bool
) -> None:
    go_on, half = asyncio.Event(), delta("b")[:20]

    async def pause(call: Call) -> None:
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("a")))
        if not is_begun:
            await call.send(chunk(half))
        await go_on.wait()
        await call.send(chunk(delta("b") if is_begun else delta("b")[20:]), chunk(DONE), chunk(b""))

    async with playing(tmp_path, pause) as play, connected(play.address) as client:
        await client.send(request("POST", CHAT, [HOST, JSON], SMALL))
        assert await client.head() == 200
        chunks = client.chunks()
        read = await anext(chunks)
        while not is_begun and not read.endswith(half):
            read += await anext(chunks)
        if is_begun:
            while read.count(COMMENT) < 2:
                read += await anext(chunks)
        else:
            async with connected(play.address) as other:  # so much time goes by
                await two_comments(other, ANOTHER)
        play.finish.set()
        go_on.set()
        rest = b"".join([part async for part in chunks])
        assert (read + rest).replace(COMMENT, b"") == delta("a") + delta("b") + DONE
        assert is_begun or COMMENT not in rest


async def test_no_comment_stands_behind_the_end(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def linger(call: Call) -> None:
        await call.send(head(200, EVENTS, CHUNKED), chunk(STREAM))
        await go_on.wait()
        await call.send(chunk(b""))

    async with playing(tmp_path, linger) as play, connected(play.address) as client:
        await client.send(request("POST", CHAT, [HOST, JSON], SMALL))
        assert await client.head() == 200
        chunks = client.chunks()
        read = await anext(chunks)
        while not read.endswith(STREAM):  # a comment may stand before it
            read += await anext(chunks)
        async with connected(play.address) as other:  # so much time goes by
            await two_comments(other, ANOTHER)
        go_on.set()
        assert b"".join([part async for part in chunks]) == b""


@pytest.mark.parametrize(("body", "keepalive"), [(LONG, "20ms"), (WAITING, 0)], ids=["no stream", "never"])
async def test_whoever_wants_none_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, keepalive: object
) -> None:
    signs: list[bytes] = []
    monkeypatch.setattr(Exchange, "write_sign", lambda _, sign: signs.append(sign))
    async with playing(tmp_path, sends(STREAMED), keepalive=keepalive) as play:
        play.finish.set()
        reply = await ask(play.address, "POST", CHAT, [JSON], body)
        assert (reply.body, reply.header(b"x-compaction"), signs) == (STREAM, b"applied", [])


async def test_a_summary_that_is_made_in_time_leaves_the_upstreams_headers(tmp_path: Path) -> None:
    content = head(200, EVENTS, CHUNKED, (b"x-request-id", b"r1")) + chunk(STREAM) + chunk(b"")
    async with playing(tmp_path, sends(content), keepalive="10s") as play:
        play.finish.set()
        reply = await ask(play.address, "POST", CHAT, [JSON], WAITING)
    assert (reply.body, reply.header(b"x-compaction"), reply.header(b"x-request-id")) == (STREAM, b"applied", b"r1")
    assert "comments" not in play.lines[0]


def ours(message: str, code: str = "upstream_error") -> dict[str, object]:
    return {"message": message, "type": "server_error", "param": None, "code": code}


def no_stream(status: int) -> dict[str, object]:
    return ours(f"The upstream responded with status {status} and without an event stream.")


def with_status(error: Mapping[str, object], status: str) -> dict[str, object]:
    """As it is told behind comments, where its head is not."""
    return {**error, "message": f"{error['message']} (the upstream's status {status})"}


LIMITED = {
    "message": "Rate limit\nreached.",
    "type": "requests",
    "param": None,
    "code": "rate_limit",
    "more": [1, 2],
}
LIMIT = json.dumps({"error": LIMITED}, indent=2).replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("content", "told", "status"),
    [
        (answer(429, LIMIT, JSON, (b"Retry-After", b"7")), with_status(LIMITED, "429, retry after 7 s"), 429),
        (answer(429, gzip.compress(LIMIT), JSON, GZIP), with_status(LIMITED, "429"), 429),
        (answer(200, LIMIT, JSON), LIMITED, 200),
        (OVERFLOW, TOO_LONG, 400),
        (answer(404, b'{"error":"no such model"}', JSON), "no such model", 404),
        (answer(500, b"<html>", JSON), no_stream(500), 500),
        (answer(500, LIMIT[:-9], JSON), no_stream(500), 500),
        (answer(500, LIMIT, JSON, GZIP), no_stream(500), 500),
        (answer(503, b'{"error":null}', JSON), no_stream(503), 503),
        (answer(422, b"[" * 50_000, JSON), no_stream(422), 422),
        (answer(401, b""), no_stream(401), 401),
        (answer(302, b"", (b"Location", b"/")), no_stream(302), 302),
        (SUMMARY, no_stream(200), 200),
        (answer(200, STREAM, EVENTS, (b"Content-Encoding", b"br")),
         no_stream(200), 200),
    ],
)  # fmt: skip
async def test_an_error_comes_as_an_event_and_the_stream_ends_cleanly(
    tmp_path: Path, content: bytes, told: object, status: int
) -> None:
    async with playing(tmp_path, sends(content), retry_on_overflow=0) as play:
        rest = await after_comments(play)
        assert rest.endswith(b"\n\n" + DONE)
        assert rest.count(b"\n") == 4
        assert json.loads(rest.removesuffix(DONE).removeprefix(b"data: ")) == {"error": told}
        (line,) = play.lines
    assert (line["end"], line["status"]) == ("complete", status)


async def hang_up(call: Call) -> None:
    call.close()


async def test_a_refusal_of_ours_comes_as_an_event_too(tmp_path: Path) -> None:
    async with playing(tmp_path, hang_up) as play:
        rest = await after_comments(play)
        told = ours("The upstream closed the connection before it responded.", "upstream_unreachable")
        assert rest == event({"error": told}).replace(b'": ', b'":').replace(b', "', b',"') + DONE
        (line,) = play.lines
    assert line.items() >= {"end": "refused", "status": 502, "code": "upstream_unreachable"}.items()


async def test_a_compressed_stream_is_decoded(tmp_path: Path) -> None:
    pieces = b"".join(map(chunk, gzipped(delta("Hello"), delta(" 你好"), DONE)))
    async with playing(tmp_path, sends(head(200, EVENTS, GZIP, CHUNKED) + pieces + chunk(b""))) as play:
        assert await after_comments(play, (b"accept-encoding", b"gzip")) == STREAM


@pytest.mark.parametrize(
    "pieces",
    [[BOM_UTF8 + STREAM], [BOM_UTF8, STREAM], [BOM_UTF8[:1], BOM_UTF8[1:2], BOM_UTF8[2:] + STREAM], [STREAM]],
    ids=["in front", "alone", "byte by byte", "none"],
)
async def test_a_byte_order_mark_does_not_stand_behind_comments(tmp_path: Path, pieces: list[bytes]) -> None:
    body = b"".join(map(chunk, pieces))
    async with playing(tmp_path, sends(head(200, EVENTS, CHUNKED) + body + chunk(b""))) as play:
        assert await after_comments(play) == STREAM


async def left_of(chunks: AsyncIterator[bytes]) -> tuple[list[bytes], bool]:
    """What still comes, and whether it ends as a complete answer does."""
    parts: list[bytes] = []
    try:
        async for part in chunks:
            parts.append(part)  # noqa: PERF401 - what comes before an early end counts
    except (asyncio.IncompleteReadError, ConnectionError):
        return parts, False
    return parts, True


BROKEN = {
    "cut between events": (head(200, EVENTS, CHUNKED) + chunk(delta("a")), delta("a"), True),
    "cut where a length was promised": (
        head(200, EVENTS, (b"Content-Length", b"9999")) + delta("a"),
        delta("a"),
        True,
    ),
    "cut in an event": (head(200, EVENTS, CHUNKED) + chunk(delta("a") + b"data: {"), delta("a") + b"data: {", False),
    "cut in a compressed stream": (head(200, EVENTS, GZIP, CHUNKED) + chunk(gzipped(delta("a"))[0]), delta("a"), True),
    "not what its coding says": (head(200, EVENTS, GZIP, CHUNKED) + chunk(delta("a")) + chunk(b""), b"", True),
}


@pytest.mark.parametrize(("content", "sent", "told"), BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_off_after_comments_never_looks_complete(
    tmp_path: Path, content: bytes, sent: bytes, told: bool
) -> None:
    async def broken(call: Call) -> None:
        await call.send(content)
        call.close()

    async with playing(tmp_path, broken) as play, connected(play.address) as client:
        chunks = await two_comments(client)
        play.finish.set()
        parts, complete = await left_of(chunks)
        rest = b"".join(parts).replace(COMMENT, b"")
        assert not complete
        assert rest.startswith(sent)
        assert rest[len(sent) :].startswith(b'data: {"error"') == told
        (line,) = play.lines
    assert line.items() >= {"end": "truncated", "level": "warning", "status": 200}.items()


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
async def test_a_client_that_leaves_while_it_gets_comments_is_told_of_no_more_and_its_summary_is_finished(
    tmp_path: Path, leave: Callable[[Client], None]
) -> None:
    async with playing(tmp_path, sends(STREAMED)) as play:
        async with connected(play.address) as client:
            await two_comments(client)
            leave(client)
        while not play.lines:  # noqa: ASYNC110 - the other side of a socket
            await asyncio.sleep(0)
        (line,) = play.lines
        while any("_comment" in str(task.get_coro()) for task in asyncio.all_tasks()):  # noqa: ASYNC110 - being cancelled
            await asyncio.sleep(0)
        assert not play.asked
        play.finish.set()
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        assert play.upstream is not None
        assert len(play.upstream.calls) - len(play.asked) == 2  # an unusable answer, and the one after its reminder
    assert line.items() >= {"end": "client_gone", "status": 200, "tenant": "default"}.items()


async def test_a_compaction_that_fails_closed_is_told_in_the_stream(tmp_path: Path) -> None:
    """Of a model whose window is not known, so that nobody can say that the request fits."""
    async with playing(tmp_path, sends(STREAMED), {}, fail="closed", token_limit=15_000) as play:
        rest = await after_comments(play)
        error = json.loads(rest.removesuffix(DONE).removeprefix(b"data: "))["error"]
        assert (error["name"], error["details"]["reason"]) == ("CompactionError", "summarizer_invalid")
        assert not play.asked


async def ask_with_sdk(play: Play) -> str:
    messages = json.loads(LONG)["messages"]
    async with openai.AsyncOpenAI(base_url=f"{play.address}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        assert stream.response.headers["x-compaction"] == "pending"
        play.finish.set()
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])


async def test_openais_sdk_reads_over_comments(tmp_path: Path) -> None:
    async with playing(tmp_path, sends(STREAMED)) as play:
        assert await ask_with_sdk(play) == "Hello 你好"


@pytest.mark.parametrize("content", [answer(429, LIMIT, JSON), OVERFLOW, answer(500, b"no"), SUMMARY])
async def test_openais_sdk_raises_an_error_that_comes_after_comments(tmp_path: Path, content: bytes) -> None:
    async with playing(tmp_path, sends(content), retry_on_overflow=0) as play:
        with pytest.raises(openai.APIError) as caught:
            await ask_with_sdk(play)
    if content is OVERFLOW:
        assert (caught.value.code, caught.value.message) == ("context_length_exceeded", TOO_LONG["message"])
