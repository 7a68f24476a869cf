"""Bytes that are no request of ours to serve: refused on real sockets, in OpenAI's shape, and the connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from proxy.server.protocol import MIN_RATE, HttpProtocol
from proxy.server.served import Served
from tests.support.http_requests import BODY, HOST, LENGTH, POST, ROWS, TE, Row, large, post
from tests.support.upstreams import (
    CHAT,
    JSON,
    OK_BODY,
    TWO_WAYS,
    Upstream,
    always,
    answer,
    backends,
    chat,
    connected,
    proxied,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


pytestmark = pytest.mark.anyio


anyio_backend = backends(TWO_WAYS)


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    async with proxied(tmp_path_factory.mktemp("guard"), always(answer(200, OK_BODY, JSON))) as found:
        yield found


@pytest.mark.parametrize("pieces", ["at once", "in pieces"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason)
async def test_each_is_served_or_refused_and_nothing_is_smuggled(
    both: tuple[str, Upstream], row: Row, pieces: str
) -> None:
    address, behind = both
    behind.calls.clear()
    async with connected(address) as client, asyncio.timeout(30):
        client.method = "POST"
        step = len(row.sent) if pieces == "at once" else max(1, len(row.sent) // 7)
        sending = asyncio.create_task(client.send(*(row.sent[at : at + step] for at in range(0, len(row.sent), step))))
        reply = await client.reply()
        await asyncio.gather(sending, return_exceptions=True)
        if not row.message:
            assert (reply.status, reply.body) == (200, OK_BODY)
            return
        await client.gone()
    error = {"message": row.message, "type": "invalid_request_error", "param": None, "code": row.code}
    assert (reply.status, reply.json(), reply.complete) == (row.status, {"error": error}, True)
    assert (reply.header(b"connection"), reply.header(b"content-type")) == (b"close", b"application/json")
    assert behind.calls == []


async def test_an_answer_under_way_is_not_disturbed_by_what_comes_behind_it(both: tuple[str, Upstream]) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        await client.send(post(HOST, LENGTH) + b"nonsense\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, OK_BODY)
        await client.gone()


async def test_a_connection_serves_many_requests_with_and_without_pauses(both: tuple[str, Upstream]) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        whole = post(HOST, large(20_000), LENGTH)
        for _ in range(5):
            await client.send(whole[:9_000], whole[9_000:-3], whole[-3:])
            assert (await client.reply()).status == 200
        await client.send(whole + whole)
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]


LATE = [
    ("half a head", POST + HOST, "The header block of the request did not arrive in time."),
    ("no body", post(HOST, LENGTH, body=b""), "The body of the request did not arrive in time."),
    ("half a body", post(HOST, LENGTH, body=BODY[:9]), "The body of the request did not arrive in time."),
    ("half a chunk", post(HOST, TE, body=b"9\r\nab"), "The body of the request did not arrive in time."),
]


@pytest.mark.parametrize("before", [b"", post(HOST, LENGTH)], ids=["first", "second"])
@pytest.mark.parametrize(("sent", "message"), [row[1:] for row in LATE], ids=[row[0] for row in LATE])
async def test_what_does_not_come_in_time_is_given_up(tmp_path: Path, before: bytes, sent: bytes, message: str) -> None:
    server = {"header_timeout": "300ms", "body_timeout": "300ms"}  # the request before it must come in time
    async with (
        proxied(tmp_path, always(answer(200, OK_BODY, JSON)), server=server) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        client.method = "POST"
        if before:
            await client.send(before)
            assert (await client.reply()).status == 200
        await client.send(sent)
        reply = await client.reply()
        await client.gone()
    assert (reply.status, reply.header(b"connection")) == (408, b"close")
    assert reply.json()["error"] == {  # type: ignore[comparison-overlap]
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": "request_timeout",
    }


async def test_a_connection_that_says_nothing_is_closed_without_a_word(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, always(b""), server={"header_timeout": "20ms"}) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        assert await client._reader.read() == b""


async def test_an_empty_line_keeps_no_connection_open(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, always(answer(200, OK_BODY, JSON)), server={"header_timeout": "300ms"}) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        assert (await client.ask("POST", CHAT, [JSON], BODY)).status == 200
        await client.send(b"\r\n")
        await client.gone()


async def test_a_client_that_takes_nothing_of_its_answer_is_given_up(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def endless(call: object) -> None:
        await call.read()  # type: ignore[attr-defined]
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")  # type: ignore[attr-defined]
        try:
            while True:
                await call.send(b"x" * 65_536)  # type: ignore[attr-defined]
        finally:
            left.set()

    async with (
        proxied(tmp_path, endless, server={"body_timeout": "50ms"}) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        client.pause()
        await client.send(post(HOST, LENGTH))
        await left.wait()


async def test_an_answer_that_takes_longer_than_a_request_may_is_waited_for(tmp_path: Path) -> None:
    async def slow(call: object) -> None:
        await call.read()  # type: ignore[attr-defined]
        await asyncio.sleep(0.9)
        await call.send(answer(200, OK_BODY, JSON))  # type: ignore[attr-defined]

    server = {"header_timeout": "400ms", "body_timeout": "400ms"}
    async with proxied(tmp_path, slow, server=server) as (address, _), connected(address) as client:
        assert (await client.ask("POST", CHAT, [JSON], BODY)).status == 200


@dataclass
class Timer:
    at: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Loop:
    """A loop whose time is set, and whose tasks never run: no request is answered."""

    now: float = 1_000.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + seconds, call))
        return self.timers[-1]

    def create_task(self, task: object, **more: object) -> Mock:
        task.close()  # type: ignore[attr-defined]
        return Mock()

    def waiting(self) -> list[Timer]:
        return sorted((timer for timer in self.timers if not timer.is_cancelled), key=lambda timer: timer.at)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.waiting()) and due[0].at <= end:
            self.now = due[0].at
            self.timers.remove(due[0])
            due[0].call()
        self.now = end


class Connection:
    """A connection without a socket, whose `body_timeout` is 60 s and `header_timeout` 10 s; nothing answers."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.transport = Mock(get_extra_info=Mock(return_value=None))
        config = uvicorn.Config(Served(), http=HttpProtocol, lifespan="off", proxy_headers=False, log_config=None)
        self.guard = HttpProtocol(config, ServerState(), {}, self.loop)  # type: ignore[arg-type]
        self.guard.connection_made(self.transport)

    @property
    def answered(self) -> bytes:
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)

    def feed(self, sent: bytes, every: float = 1.0, size: int = 1, most: float = 4_000) -> float:
        """Send it in pieces of this size; returns the seconds until an answer was seen, or all was sent."""
        started = self.loop.now
        for at in range(0, len(sent), size):
            if self.answered or self.loop.now > started + most:
                break
            self.guard.data_received(sent[at : at + size])
            if self.guard.cycle is not None:  # as if the application had read on
                self.guard.cycle.body.clear()
                self.guard.flow.resume_reading()
            self.loop.pass_time(every)
        return self.loop.now - started


HEAD = POST + HOST + b"Content-Length: 100000000\r\n\r\n"


@pytest.mark.parametrize(
    ("every", "size", "given_up"),
    [(1, 1, 61), (50, 1, 100), (1, 100, 75), (1, 400, 300), (10, 4_000, 310)],
    ids=["a byte a second", "a byte in 50 s", "100 bytes a second", "400 bytes a second", "4,000 bytes in 10 s"],
)
def test_a_body_that_is_too_slow_is_given_up(every: float, size: int, given_up: float) -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    assert connection.feed(b"x" * 1_000_000, every, size) == pytest.approx(given_up, abs=1)
    assert connection.answered.startswith(b"HTTP/1.1 408 ")


def test_a_body_at_the_least_speed_is_waited_for() -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    assert connection.feed(b"x" * MIN_RATE * 5_000, 1, MIN_RATE, most=3_600) > 3_600
    assert connection.answered == b""


def test_a_body_that_was_fast_and_then_stops_is_given_up() -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    connection.feed(b"x" * 10_000_000, 0.001, 100_000)
    connection.loop.pass_time(60.1)
    assert connection.answered.startswith(b"HTTP/1.1 408 ")


def test_the_time_in_which_a_body_is_not_read_does_not_count() -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    for _ in range(50):
        connection.feed(b"x", every=1)
        connection.guard.flow.pause_reading()
        connection.loop.pass_time(600)
        connection.guard.flow.resume_reading()
    assert connection.answered == b""
    connection.loop.pass_time(11)
    assert connection.answered.startswith(b"HTTP/1.1 408 ")


def test_a_body_that_is_not_read_is_looked_at_once_a_second() -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    connection.loop.pass_time(59.999)
    connection.guard.flow.pause_reading()
    looked = Mock(wraps=connection.loop.call_later)
    connection.loop.call_later = looked  # type: ignore[method-assign]
    connection.loop.pass_time(100)
    assert looked.call_count in range(99, 102)


def test_a_head_has_its_time_as_a_whole() -> None:
    connection = Connection()
    assert connection.feed(POST + HOST * 100, every=0.9, size=1) == pytest.approx(10, abs=1)
    assert connection.answered.startswith(b"HTTP/1.1 408 ")


def test_a_request_that_comes_whole_starts_no_timer() -> None:
    connection = Connection()
    connection.guard.data_received(post(HOST, LENGTH))
    assert connection.loop.waiting() == []


def test_a_body_in_many_pieces_starts_one_timer() -> None:
    connection = Connection()
    connection.guard.data_received(HEAD)
    connection.feed(b"x" * 100_000, every=0.0001, size=1_000)
    assert len(connection.loop.waiting()) == 1
    assert len(connection.loop.timers) == 2  # and the one for the head, which has ended


async def test_trailers_are_no_headers(both: tuple[str, Upstream]) -> None:
    address, behind = both
    behind.calls.clear()
    trailers = b"X-Injected: yes\r\nAuthorization: Bearer other\r\n"
    async with connected(address) as client, asyncio.timeout(30):
        client.method = "POST"
        body = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers)
        await client.send(post(HOST, TE, b"Authorization: Bearer mine\r\n", body=body))
        assert (await client.reply()).status == 200
    (call,) = behind.calls
    assert (call.header(b"x-injected"), call.header(b"authorization")) == (None, b"Bearer mine")


@pytest.mark.parametrize(
    "endless", [b"0\r\nX: ", b"0\r\n", b"1;a="], ids=["a trailer", "the name of a trailer", "an extension"]
)
async def test_what_comes_beside_a_body_has_a_bound(both: tuple[str, Upstream], endless: bytes) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        await client.send(post(HOST, TE, body=b""))
        sending = asyncio.create_task(client.send(endless, *[b"x" * 1_000] * 1_000))
        assert (await client.reply()).status == 431
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def test_of_a_header_block_without_end_no_more_is_kept_than_its_limit() -> None:
    connection = Connection()
    connection.guard.data_received(POST + HOST)
    for _ in range(1_000):  # 120 MB
        connection.guard.data_received(b"X-Filler: " + b"y" * 120_000 + b"\r\n")
    assert connection.answered.startswith(b"HTTP/1.1 431 ")
    assert sum(len(value) for _, value in connection.guard.headers) < 2 * 120_000


async def test_requests_that_come_at_once_are_not_read_beyond_what_is_answered(both: tuple[str, Upstream]) -> None:
    """A client that sends without end and reads nothing is paused: the system's buffers hold what it sends."""
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.pause()
        whole = post(HOST, large(20_000), LENGTH)
        sending = asyncio.create_task(client.send(*[whole] * 10_000))
        await asyncio.wait([sending], timeout=1)
        assert not sending.done(), sending.exception()
        sending.cancel()


async def test_small_chunks_are_served_however_many(both: tuple[str, Upstream]) -> None:
    async with connected(both[0]) as client, asyncio.timeout(30):
        client.method = "POST"
        body = chat("a" * 50_000)
        await client.send(post(HOST, TE, body=b""))
        await client.send(*(b"1\r\n%c\r\n" % byte for byte in body), b"0\r\n\r\n")
        assert (await client.reply()).status == 200


async def test_an_upgrade_is_ignored_and_its_body_is_read(both: tuple[str, Upstream]) -> None:
    """What Java's HttpClient sends first; httptools would leave the body to another protocol."""
    address, behind = both
    behind.calls.clear()
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with connected(address) as client, asyncio.timeout(30):
        client.method = "POST"
        await client.send(post(HOST, LENGTH, upgrade, b"X-Kept: yes\r\n"))
        assert (await client.reply()).status == 200
    (call,) = behind.calls
    assert call.body == BODY
    headers = [call.header(name) for name in (b"upgrade", b"http2-settings", b"x-kept")]
    assert headers == [None, None, b"yes"]
