"""Streams pass chunk by chunk, at the client's pace, and end upstream as soon as the client leaves."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
from typing import TYPE_CHECKING

import pytest

from proxy.compaction.compactor import Compactor
from tests.support.long_conversations import LONG, SMALL_WINDOW, is_summary
from tests.support.responses import gzipped
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    GZIP,
    HOST,
    JSON,
    OK_BODY,
    WAYS,
    Call,
    Client,
    Header,
    Upstream,
    always,
    answer,
    ask,
    backends,
    chat,
    chunk,
    connected,
    delta,
    head,
    proxied,
    request,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from policies.record.record import Record
    from proxy.compaction.job import Job

pytestmark = pytest.mark.anyio

OK = answer(200, OK_BODY, JSON)
# How long a client that left may go unnoticed.
SOON = 10.0  # sooner than an idle connection is closed
TEXT = (b"Content-Type", b"application/x-ndjson")


anyio_backend = backends(WAYS)


@pytest.mark.parametrize(
    ("path", "headers", "pieces"),
    [
        (CHAT, [EVENTS], [delta("a"), delta("b"), delta("c"), b"data: [DONE]\n\n"]),
        (CHAT, [EVENTS], [b'data: {"a":1}\r\r', b"data: 2\r\r"]),
        (CHAT, [EVENTS], [b"data: {}\r\n\r\n", b"da", b"ta: 2\r\n", b"\r\n", b": comment\n"]),
        (CHAT, [EVENTS, GZIP], gzipped(delta("a"), delta("b"), delta("c"))),
        (CHAT, [EVENTS, (b"Content-Encoding", b"br")], [b"whatever", b"it", b"is"]),
        (CHAT, [JSON], [b'{"choices":', b"[]", b"}"]),
        (CHAT, [JSON], [b" \n", b" \n", OK_BODY]),
        (CHAT, [TEXT], [b"line\n", b"line\n"]),
        ("/v1/responses", [EVENTS], [b"event: x\n", b"data: {}\n\n", b": ping\n\n"]),
        ("/v1/files/f/content", [TEXT], [b"\0", b"\xff", b"x" * 100_000]),
    ],
)
async def test_a_client_has_every_chunk_before_the_next_is_sent(
    address: str,
    behind: Upstream,
    path: str,
    headers: list[Header],
    pieces: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What does not look like an event yet is held back that long.
    monkeypatch.setattr("proxy.pipeline.answers._MAX_HOLD_S", 0.01)
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, *headers, CHUNKED))
        for piece in pieces:
            await call.send(chunk(piece))
            left = len(piece)
            while left > 0:
                left -= await seen.get()
        await call.send(chunk(b""))

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", path, [HOST, JSON], chat("hi", stream=True)))
        assert await client.head() == 200
        received = b""
        async for piece in client.chunks():
            received += piece
            seen.put_nowait(len(piece))
    assert received == b"".join(pieces)


async def test_comments_ahead_of_the_first_event_are_held_back_only_for_a_while(
    address: str, behind: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.pipeline.answers._MAX_HOLD_S", 0.0)
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), chunk(b": working on it\n\n"))
        await seen.wait()
        await call.send(chunk(delta("a")), chunk(b""))

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", CHAT, [HOST, JSON], chat("hi", stream=True)))
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == b": working on it\n\n"
        seen.set()
        assert await anext(chunks) == delta("a")


async def stalled(progressed: asyncio.Event) -> None:
    """Return when there was no progress for a while."""
    while True:
        progressed.clear()
        try:
            async with asyncio.timeout(0.25):
                await progressed.wait()
        except TimeoutError:
            return


@pytest.mark.parametrize("path", [CHAT, "/v1/files/f/content"])
async def test_an_upstream_is_not_read_faster_than_the_client_reads(address: str, behind: Upstream, path: str) -> None:
    total, piece = 120, b"x" * 1_000_000
    sent = 0
    progressed = asyncio.Event()

    async def script(call: Call) -> None:
        nonlocal sent
        await call.read()
        await call.send(head(200, TEXT, CHUNKED))
        for _ in range(total):
            await call.send(chunk(piece))
            sent += 1
            progressed.set()
        await call.send(chunk(b""))

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", path, [HOST, JSON], chat("hi")))
        client.pause()
        await stalled(progressed)
        # Buffers of four sockets, twenty megabytes on Linux, and the proxy's own, whatever the answer's size.
        assert sent < total // 2
        client.resume()
        reply = await client.reply()
    assert (len(reply.body), reply.complete) == (total * len(piece), True)


async def test_a_client_is_not_read_faster_than_the_upstream_reads(address: str, behind: Upstream) -> None:
    total, piece = 40, b"u" * 1_000_000
    sent = 0
    progressed, go_on = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        call.pause()
        await go_on.wait()
        call.resume()
        assert len(await call.read()) == total * len(piece)
        await call.send(OK)

    async def upload(client: Client) -> None:
        nonlocal sent
        length = (b"Content-Length", b"%d" % (total * len(piece)))
        await client.send(request("POST", "/v1/files", [HOST, length]))
        for _ in range(total):
            await client.send(piece)
            sent += 1
            progressed.set()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        sending = asyncio.create_task(upload(client))
        await stalled(progressed)
        assert sent < total // 2
        go_on.set()
        await sending
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_the_upstream_thinks_ends_its_call(
    address: str, behind: Upstream, leave: Callable[[Client], None], path: str, stream: bool
) -> None:
    thinking = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        thinking.set()
        await call.gone()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", path, [HOST, JSON], chat("hi", stream=stream)))
        await thinking.wait()
        leave(client)
        async with asyncio.timeout(SOON):
            await behind.calls[0].closed.wait()


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_it(
    address: str, behind: Upstream, leave: Callable[[Client], None], path: str
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("a")))
        await call.gone()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", path, [HOST, JSON], chat("hi", stream=True)))
        await client.head()
        await anext(client.chunks())
        leave(client)
        async with asyncio.timeout(SOON):
            await behind.calls[0].closed.wait()


async def test_a_client_that_leaves_ends_the_call_of_the_first_of_its_requests_too(
    address: str, behind: Upstream
) -> None:
    thinking = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        thinking.set()
        await call.gone()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", CHAT, [HOST, JSON], chat("hi")) * 2)
        await thinking.wait()
        client.close()
        async with asyncio.timeout(SOON):
            await behind.calls[0].closed.wait()
    assert len(behind.calls) == 1


@pytest.mark.parametrize("path", ["/v1/responses/r", "/v1/files/f/content"])
async def test_a_client_has_the_head_of_an_answer_before_its_body(address: str, behind: Upstream, path: str) -> None:
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, TEXT, CHUNKED))
        await seen.wait()
        await call.send(chunk(b"line"), chunk(b""))

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("GET", path, [HOST]))
        assert await client.head() == 200
        seen.set()
        assert [piece async for piece in client.chunks()] == [b"line"]


async def test_a_client_that_leaves_without_having_read_ends_the_stream(address: str, behind: Upstream) -> None:
    progressed = asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED))
        while True:
            await call.send(chunk(delta("x" * 100_000)))
            progressed.set()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        await client.send(request("POST", CHAT, [HOST, JSON], chat("hi", stream=True)))
        client.pause()
        await stalled(progressed)
        client.reset()
        async with asyncio.timeout(SOON):
            await behind.calls[0].closed.wait()


@pytest.mark.parametrize("framing", [CHUNKED, (b"Content-Length", b"1000000")])
async def test_a_client_that_leaves_during_an_upload_ends_it_without_completing_it(
    address: str, behind: Upstream, framing: Header
) -> None:
    arrived = asyncio.Event()
    whole = asyncio.Event()

    async def script(call: Call) -> None:
        async for _ in call.chunks():
            arrived.set()
        whole.set()

    behind.play(script)

    async with connected(address) as client, asyncio.timeout(60):
        part = b"u" * 100
        await client.send(request("POST", "/v1/files", [HOST, framing]), chunk(part) if framing is CHUNKED else part)
        await arrived.wait()
        client.close()
        async with asyncio.timeout(SOON):
            await behind.calls[0].closed.wait()
    assert not whole.is_set()


async def test_two_hundred_clients_that_left_leave_the_pool_as_it_was(tmp_path: Path) -> None:
    chance = random.Random(7)

    async def script(call: Call) -> None:
        await call.read()
        if call.header(b"x-stays"):
            await call.send(OK)
            return
        await call.send(head(200, EVENTS, CHUNKED), chunk(delta("a")))
        await call.gone()

    async def leaving(address: str, behind: Upstream) -> None:
        path, steps = chance.choice([CHAT, "/v1/responses"]), chance.randrange(4)
        async with connected(address) as client:
            whole = request("POST", path, [HOST, JSON], chat("hi", stream=True))
            await client.send(whole[: len(whole) // 2] if steps == 0 else whole)
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            if steps > 1:
                await client.head()
            if steps > 2:
                await anext(client.chunks())
            chance.choice([client.close, client.reset])()

    async with proxied(tmp_path, script, main={"max_connections": 5}) as (address, behind), asyncio.timeout(60):
        for _ in range(20):
            await asyncio.gather(*(leaving(address, behind) for _ in range(10)))
        replies = await asyncio.gather(
            *(ask(address, "POST", CHAT, [JSON, (b"X-Stays", b"1")], chat("hi")) for _ in range(10))
        )
        assert [reply.body for reply in replies] == [OK_BODY] * 10
        assert len(behind.calls) > 100
        await asyncio.gather(*(call.closed.wait() for call in behind.calls if call.header(b"x-stays") is None))


async def test_one_upstream_connection_serves_request_after_request(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(OK)) as (address, behind), connected(address) as client:
        for path in (CHAT, "/v1/models", CHAT, "/v1/embeddings"):
            assert (await client.ask("POST", path, [JSON], chat("hi"))).status == 200
    assert (behind.connections, len(behind.calls)) == (1, 4)


async def test_a_compaction_goes_on_for_the_others_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summarizing, finish, joined = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)
    following = Compactor.checkpoint

    async def joining(compactor: Compactor, job: Job) -> Record:
        joined.release()
        return await following(compactor, job)

    monkeypatch.setattr(Compactor, "checkpoint", joining)

    async def script(call: Call) -> None:
        await call.read()
        if is_summary(call):
            summarizing.set()
            await finish.wait()
        await call.send(OK)

    async with (
        proxied(tmp_path, script, **SMALL_WINDOW) as (address, behind),
        connected(address) as leaving,
        connected(address) as staying,
        asyncio.timeout(60),
    ):
        for client in (leaving, staying):
            await client.send(request("POST", CHAT, [HOST, JSON], LONG))
        for _ in (leaving, staying):
            await joined.acquire()
        await summarizing.wait()
        leaving.close()
        finish.set()
        reply = await staying.reply()
    assert (reply.status, reply.header(b"x-compaction")) == (200, b"applied")
    assert sum(is_summary(call) for call in behind.calls) <= 2  # the answer has no headings, so it is asked again once


async def test_a_client_that_left_during_a_compaction_and_asks_again_gets_what_it_began(tmp_path: Path) -> None:
    summarizing, finish = asyncio.Event(), asyncio.Event()

    async def script(call: Call) -> None:
        await call.read()
        if is_summary(call):
            summarizing.set()
            await finish.wait()
        await call.send(OK)

    async with (
        proxied(tmp_path, script, server={"max_requests": 1}, **SMALL_WINDOW) as (address, behind),
        connected(address) as leaving,
        asyncio.timeout(60),
    ):
        await leaving.send(request("POST", CHAT, [HOST, JSON], LONG))
        await summarizing.wait()
        leaving.close()
        while (await ask(address, "POST", CHAT, [JSON], chat("hi"))).status != 200:
            continue  # until its place is free
        finish.set()
        reply = await ask(address, "POST", CHAT, [JSON], LONG)
    assert (reply.status, reply.header(b"x-compaction") in (b"applied", b"reused")) == (200, True)
    assert sum(is_summary(call) for call in behind.calls) == 2  # the answer has no headings, so it is asked again once


async def test_a_request_that_follows_on_the_same_connection_is_answered_in_turn(
    address: str, behind: Upstream
) -> None:
    async def script(call: Call) -> None:
        await call.read()
        await call.send(answer(200, call.target.encode(), JSON))

    behind.play(script)

    async with connected(address) as client:
        paths = [f"/v1/models/{number}" for number in range(5)]
        await client.send(b"".join(request("GET", path, [HOST]) for path in paths))
        assert [(await client.reply()).body.decode() for _ in paths] == paths


@pytest.mark.usefixtures("only_new_objects")
async def test_a_request_leaves_nothing_that_the_garbage_collector_must_look_for(
    address: str, behind: Upstream
) -> None:
    seen = asyncio.Semaphore(0)

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
        await seen.acquire()
        await call.send(chunk(delta("b")) + chunk(b""))

    behind.play(script)

    async def streamed(client: Client) -> None:
        await client.send(request("POST", CHAT, [HOST, JSON], chat("hi", stream=True)))
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == delta("a")
        seen.release()
        assert [chunk async for chunk in chunks] == [delta("b")]

    async with connected(address) as client, asyncio.timeout(60):
        for number in range(40):
            if number == 20:
                gc.collect()
                gc.disable()
            await streamed(client)
        found = gc.collect()
        gc.enable()
    assert found < 20


def test_the_socket_of_the_proxy_waits_for_no_acknowledgement() -> None:
    from proxy.server.process import listen

    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
