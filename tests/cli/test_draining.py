"""The process is told to end: what is under way is finished, and what cannot be says so."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import openai
import pytest

from proxy.app import App
from proxy.server.exchange import Exchange
from proxy.server.process import OrderlyServer, listen
from proxy.telemetry.log import open_log
from tests.support.long_conversations import LONG, SMALL_WINDOW
from tests.support.upstreams import (
    CHAT,
    CHUNKED,
    EVENTS,
    HOST,
    JSON,
    OK_BODY,
    Call,
    Client,
    answer,
    chat,
    chunk,
    config_for,
    connected,
    delta,
    head,
    request,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

STREAM = chat("a", stream=True)
DONE = b"data: [DONE]\n\n"
MESSAGE = "This server is shutting down and could not finish the request; send it again."
ERROR = {"error": {"message": MESSAGE, "type": "server_error", "param": None, "code": "server_shutting_down"}}
LAST_EVENT = b"data: " + json.dumps(ERROR, separators=(",", ":")).encode() + b"\n\n"


class Held:
    """An upstream that begins an answer, and goes on when it is let."""

    def __init__(self, *parts: bytes, rest: bytes = b"") -> None:
        self.parts = parts
        self.rest = rest
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.read()
        await call.send(*self.parts)
        self.began.set()
        await self.goes_on.wait()
        await call.send(self.rest)


@dataclass
class Running:
    server: OrderlyServer
    address: str
    log: io.BytesIO
    sockets: list[socket.socket]
    ending: asyncio.Task[None] | None = None

    async def end(self) -> None:
        """Begin to end; returns once the process is no longer ready."""
        self.ending = asyncio.create_task(self.server.shutdown(self.sockets))
        await asyncio.sleep(0)
        assert self.server.app.is_draining

    async def ended(self) -> None:
        assert self.ending is not None
        async with asyncio.timeout(30):
            await self.ending

    async def closed(self) -> None:
        """Return once nothing listens any more."""
        async with asyncio.timeout(30):
            while any(listener.fileno() >= 0 for listener in self.sockets):  # noqa: ASYNC110 - a socket tells nobody
                await asyncio.sleep(0)

    async def until(self, is_so: Callable[[Exchange], bool]) -> None:
        """Return once this is so of the one open request."""
        async with asyncio.timeout(30):
            while not any(map(is_so, self.server.app._pipeline.open_requests._open)):  # noqa: ASYNC110 - the proxy tells nobody
                await asyncio.sleep(0)

    def lines(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def requests(self) -> list[dict[str, object]]:
        return self.lines("request")


@asynccontextmanager
async def draining(
    directory: Path, script: Held, drain: str, grace: float = 0, delay: str = "0s", **more: object
) -> AsyncIterator[Running]:
    log = io.BytesIO()
    async with upstream(script) as behind:
        config = config_for(directory, behind.address, server={"drain": drain, "drain_delay": delay}, **more)
        server = OrderlyServer(App(config, open_log("info", time.time, log)), grace)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        listener = listen("127.0.0.1", 0)
        await server.startup([listener])
        running = Running(server, f"http://127.0.0.1:{listener.getsockname()[1]}", log, [listener])
        try:
            yield running
        finally:
            if running.ending is None:
                await running.end()
            await running.ended()
            script.goes_on.set()
            for call in behind.calls:
                await call.closed.wait()


async def status(client: Client, path: str) -> tuple[int, object]:
    reply = await client.ask("GET", path)
    return reply.status, reply.json()


async def test_what_is_under_way_is_finished_and_nothing_new_is_taken(tmp_path: Path) -> None:
    held = Held(head(200, EVENTS, CHUNKED) + chunk(delta("a")), rest=chunk(DONE) + chunk(b""))
    async with draining(tmp_path, held, "1h") as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], STREAM))
        await held.began.wait()
        await running.end()
        await running.closed()
        with pytest.raises(ConnectionError):
            async with connected(running.address):
                pass
        held.goes_on.set()
        reply = await asking
        await running.ended()
    assert (reply.status, reply.complete, reply.body) == (200, True, delta("a") + DONE)
    assert [line["end"] for line in running.requests()] == ["complete"]


async def test_a_connection_that_waits_to_be_accepted_is_served(tmp_path: Path) -> None:
    held = Held(rest=answer(200, OK_BODY, JSON))
    held.goes_on.set()
    async with draining(tmp_path, held, "1h", 3600) as running:
        with socket.create_connection(running.sockets[0].getsockname()) as waiting:  # the loop has no turn to accept it
            waiting.sendall(request("POST", CHAT, [HOST, JSON], chat("a")))
            await running.end()
            await running.closed()
            waiting.setblocking(False)
            client = Client(*await asyncio.open_connection(sock=waiting.dup()))
            assert (await client.reply()).body == OK_BODY
            client.close()
        await running.ended()


async def test_it_is_not_ready_at_once_and_alive_to_the_end(tmp_path: Path) -> None:
    held = Held(rest=answer(200, OK_BODY, JSON))
    async with (
        draining(tmp_path, held, "1h", 3600) as running,
        connected(running.address) as one,
        connected(running.address) as other,
        connected(running.address) as unused,
        connected(running.address) as client,
    ):
        for idle in (one, other):
            assert await status(idle, "/readyz") == (200, {"status": "ready", "store": "up"})
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a")))
        await held.began.wait()
        await running.end()
        # What came in on a connection that was open is answered, with word that it is the last.
        assert await status(one, "/readyz") == (503, {"status": "draining"})
        assert one.headers[-1] == (b"connection", b"close")
        assert await status(other, "/livez") == (200, {"status": "alive"})
        held.goes_on.set()
        assert (await asking).body == OK_BODY
        assert (await unused.ask("POST", CHAT, [JSON], chat("a"))).body == OK_BODY
        await running.ended()


async def test_connections_are_accepted_as_long_as_front_ends_need_to_look(tmp_path: Path) -> None:
    held = Held(rest=answer(200, OK_BODY, JSON))
    held.goes_on.set()
    async with draining(tmp_path, held, "1h", delay="1h") as running, connected(running.address) as kept:
        assert (await kept.ask("POST", CHAT, [JSON], chat("a"))).header(b"connection") is None
        await running.end()
        for _ in range(2):
            async with connected(running.address) as new:
                assert await status(new, "/readyz") == (503, {"status": "draining"})
            async with connected(running.address) as new:
                reply = await new.ask("POST", CHAT, [JSON], chat("a"))
                assert (reply.status, reply.body, reply.header(b"connection")) == (200, OK_BODY, b"close")
                await new.gone()
        assert (await kept.ask("POST", CHAT, [JSON], chat("a"))).header(b"connection") == b"close"
        await kept.gone()
        for _ in range(2):
            running.server.handle_exit(signal.SIGTERM, None)
        await running.ended()
        await running.server.lifespan.shutdown()
    assert [line["end"] for line in running.requests()] == ["complete"] * 4


async def test_behind_that_time_none_is_accepted_any_more(tmp_path: Path) -> None:
    async with draining(tmp_path, Held(), "1h", delay="10ms") as running:
        await running.end()
        async with connected(running.address):
            pass
        await running.ended()
        with pytest.raises(ConnectionError):
            async with connected(running.address):
                pass


async def test_the_log_says_that_it_stops_and_that_it_has(tmp_path: Path) -> None:
    held = Held()
    async with draining(tmp_path, held, "0s", delay="10ms") as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a")))
        await held.began.wait()
        await running.end()
        assert (await asking).status == 503
        await running.ended()
    (stopping,), (stopped,) = running.lines("stopping"), running.lines("stopped")
    assert (stopping["requests"], stopping["drain_delay_s"], stopping["drain_s"]) == (1, 0.01, 0)
    assert stopped["broken_off"] == 1
    assert stopping["ts"] < running.requests()[0]["ts"] < stopped["ts"]  # type: ignore[operator]
    assert 0.01 <= stopped["seconds"] < 30  # type: ignore[operator]


async def test_a_stream_past_the_deadline_ends_with_an_event_and_without_an_end(tmp_path: Path) -> None:
    held = Held(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
    async with draining(tmp_path, held, "0s") as running, connected(running.address) as client:
        client.method = "POST"
        await client.send(request("POST", CHAT, [HOST, JSON], STREAM))
        await client.head()
        chunks = client.chunks()
        assert await anext(chunks) == delta("a")
        await running.end()
        assert await anext(chunks) == LAST_EVENT
        with pytest.raises(asyncio.IncompleteReadError):
            await anext(chunks)
        await running.ended()
    (line,) = running.requests()
    assert (line["end"], line["status"], line["level"]) == ("shut_down", 200, "warning")


async def test_no_event_is_put_into_the_middle_of_another(tmp_path: Path) -> None:
    held = Held(head(200, EVENTS, CHUNKED) + chunk(delta("a") + b'data: {"half'))
    async with draining(tmp_path, held, "0s") as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], STREAM))
        await held.began.wait()
        await running.until(lambda exchange: exchange.sent > 0)
        await running.end()
        reply = await asking
    assert (reply.body, reply.complete) == (delta("a") + b'data: {"half', False)


async def test_the_sdk_takes_no_broken_off_stream_for_complete(tmp_path: Path) -> None:
    held = Held(head(200, EVENTS, CHUNKED) + chunk(delta("a")))
    async with (
        draining(tmp_path, held, "0s") as running,
        openai.AsyncOpenAI(base_url=f"{running.address}/v1", api_key="k", max_retries=0) as client,
    ):
        messages = [{"role": "user", "content": "a"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)  # type: ignore[call-overload]
        await anext(aiter(stream))
        await running.end()
        with pytest.raises(openai.APIError) as caught:
            await anext(aiter(stream))
    assert caught.value.code == "server_shutting_down"


async def test_an_answer_that_did_not_begin_is_an_error_to_try_again(tmp_path: Path) -> None:
    held = Held()
    async with draining(tmp_path, held, "0s") as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a")))
        await held.began.wait()
        await running.end()
        reply = await asking
        await client.gone()
    assert (reply.status, reply.json(), reply.complete) == (503, ERROR, True)
    assert (reply.header(b"retry-after"), reply.header(b"x-should-retry")) == (b"1", b"true")
    (line,) = running.requests()
    assert (line["end"], line["status"]) == ("shut_down", 503)


async def test_a_request_whose_body_is_still_coming_is_told_too(tmp_path: Path) -> None:
    async with draining(tmp_path, Held(), "0s") as running, connected(running.address) as client:
        await client.send(request("POST", CHAT, [HOST, JSON, (b"Content-Length", b"100")]) + b"{")
        await running.until(lambda exchange: True)
        await running.end()
        reply = await client.reply()
        client.close()
    assert (reply.status, reply.json()) == (503, ERROR)


async def test_a_stream_that_comments_began_ends_with_the_event_and_without_an_end(tmp_path: Path) -> None:
    held = Held(rest=answer(200, b"{}", JSON))
    more = {**SMALL_WINDOW, "policies": {"default": {"keepalive": "10ms"}}}
    waiting = LONG.replace(b'"model"', b'"stream": true, "model"')
    async with draining(tmp_path, held, "0s", **more) as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], waiting))
        await held.began.wait()
        await running.until(lambda exchange: exchange.comments > 0)
        await running.end()
        reply = await asking
        held.goes_on.set()  # the summary is seen through
    assert reply.body.endswith(b": waiting\n" + LAST_EVENT)
    assert not reply.complete


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    held = Held()
    async with draining(tmp_path, held, "1h") as running, connected(running.address) as client:
        asking = asyncio.create_task(client.ask("POST", CHAT, [JSON], chat("a")))
        await held.began.wait()
        running.server.handle_exit(signal.SIGTERM, None)
        assert (running.server.should_exit, running.server.force_exit) == (True, False)
        await running.end()
        running.server.handle_exit(signal.SIGTERM, None)
        await running.ended()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asking
        await running.server.lifespan.shutdown()
