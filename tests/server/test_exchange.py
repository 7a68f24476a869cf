"""What an exchange writes by our protocol: header blocks whose lines end where they should, and framed bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from proxy.callers.api_head import ApiHead
from proxy.errors import BodyTooLargeError, ClientGoneError
from proxy.server.error_shape import JSONErrors
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers
from proxy.server.protocol import HttpProtocol
from proxy.server.served import Event, Receive, Scope, Send

pytestmark = pytest.mark.anyio

Work = Callable[[Exchange], Coroutine[None, None, None]]


class Line:
    """A connection of a client whose request is answered by `work`."""

    def __init__(self, work: Work, method: str = "POST", headers: bytes = b"") -> None:
        self.transport = Mock(get_extra_info=Mock(return_value=None))
        self.transport.is_closing.return_value = False
        self.ended = asyncio.Event()
        self.raised: BaseException | None = None
        self.exchange: Exchange

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            head = ApiHead(scope["method"], "/", scope["headers"])
            self.exchange = Exchange(head, receive, send, JSONErrors(), has_body=False)
            try:
                await work(self.exchange)
            except BaseException as error:  # noqa: BLE001 - told to the test
                self.raised = error
            finally:
                self.ended.set()

        config = uvicorn.Config(
            app, http=HttpProtocol, lifespan="off", log_config=None, access_log=False, proxy_headers=False
        )
        self.protocol = HttpProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        self.protocol.connection_made(self.transport)
        self.protocol.data_received(b"%b / HTTP/1.1\r\nHost: x\r\n%b\r\n" % (method.encode(), headers))

    @property
    def writes(self) -> list[bytes]:
        return [call.args[0] for call in self.transport.write.call_args_list]


@asynccontextmanager
async def answered(work: Work, method: str = "POST", headers: bytes = b"") -> AsyncIterator[Line]:
    line = Line(work, method, headers)
    async with asyncio.timeout(10):
        await line.ended.wait()
        await asyncio.sleep(0)
    yield line
    line.protocol.connection_lost(None)


@pytest.mark.parametrize("value", [b"a\r\nInjected: 1", b"a\nInjected: 1", b"a\r\n\r\nbody", b"a\rb\n"])
@pytest.mark.parametrize("place", ["name", "value"])
async def test_no_header_ends_its_line_before_its_time(value: bytes, place: str) -> None:
    header = (b"x", value) if place == "value" else (value, b"x")
    async with answered(lambda exchange: exchange.start(200, [header])) as line:
        assert isinstance(line.raised, RuntimeError)
        assert b"200 OK" not in b"".join(line.writes)


@pytest.mark.parametrize(
    ("method", "status", "headers", "chunks", "expected"),
    [
        ("POST", 200, [(b"content-length", b"4")], [b"ab", b"cd"], b"content-length: 4\r\n\r\nabcd"),
        ("POST", 200, [], [b"ab", b"cd"], b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"),
        ("POST", 200, [], [b"ab", b""], b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
        ("HEAD", 200, [(b"content-length", b"4")], [b""], b"content-length: 4\r\n\r\n"),
        ("POST", 204, [], [b""], b"\r\n"),
        ("POST", 204, [(b"content-length", b"0"), (b"etag", b'"x"')], [b""], b'etag: "x"\r\n\r\n'),
        ("GET", 304, [(b"content-length", b"100")], [b""], b"\r\n"),
        ("POST", 304, [(b"etag", b'"x"')], [b""], b'etag: "x"\r\n\r\n'),
    ],
)
async def test_a_response_is_framed_by_what_its_header_block_says(
    method: str, status: int, headers: Headers, chunks: list[bytes], expected: bytes
) -> None:
    async def work(exchange: Exchange) -> None:
        await exchange.start(status, headers)
        for chunk in chunks[:-1]:
            await exchange.write(chunk, more=True)
        await exchange.write(chunks[-1], more=False)

    async with answered(work, method) as line:
        named = b"x-concertina-request-id: %b\r\n" % line.exchange.id.encode()
        assert b"".join(line.writes).partition(b"\r\n")[2].replace(named, b"") == expected
        assert line.exchange.response_complete
        assert line.raised is None


@pytest.mark.parametrize("content", [b"abc", b"abcde"])
async def test_a_response_that_is_not_as_long_as_promised_is_never_complete(content: bytes) -> None:
    async def work(exchange: Exchange) -> None:
        await exchange.start(200, [(b"content-length", b"4")])
        await exchange.write(content, more=False)

    async with answered(work) as line:
        assert isinstance(line.raised, RuntimeError)
        assert not line.exchange.response_complete
        line.transport.close.assert_called()


async def test_the_header_block_leaves_with_the_first_bytes_or_in_the_next_turn() -> None:
    went = asyncio.Event()

    async def together(exchange: Exchange) -> None:
        await exchange.start(200, [])
        await exchange.write(b"ab", more=False)

    async def alone(exchange: Exchange) -> None:
        await exchange.start(200, [])
        await went.wait()
        await exchange.write(b"ab", more=False)

    async with answered(together) as line:
        (write,) = line.writes
        assert write.endswith(b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
    waiting = Line(alone)
    async with asyncio.timeout(10):
        while not waiting.writes:  # noqa: ASYNC110 - a transport tells nobody
            await asyncio.sleep(0)
        assert waiting.writes[0].endswith(b"\r\n\r\n")
        went.set()
        await waiting.ended.wait()
    waiting.protocol.connection_lost(None)


async def test_the_last_response_of_a_connection_says_so() -> None:
    async def work(exchange: Exchange) -> None:
        await exchange.start(200, [(b"content-length", b"0")])
        await exchange.write(b"", more=False)

    async with answered(work, headers=b"Connection: close\r\n") as line:
        assert b"\r\nconnection: close\r\n" in b"".join(line.writes)
        line.transport.close.assert_called_once()


def exchange_of(events: list[Event], sent: list[Event], headers: Headers | None = None) -> Exchange:
    """An exchange by an ASGI server that gives these events and keeps what it is sent."""

    async def receive() -> Event:
        return events.pop(0)

    async def send(event: Event) -> None:
        await asyncio.sleep(0)  # waits, as some servers do for every event
        sent.append(event)

    return Exchange(ApiHead("POST", "/", headers or []), receive, send, JSONErrors())


async def test_a_server_that_waits_for_every_event_gets_all_of_them_in_order() -> None:
    sent: list[Event] = []
    exchange = exchange_of([], sent)
    exchange.begin(200, [])
    rooms = [exchange.put(b"%d" % number, more=number < 9) for number in range(10)]
    assert not any(rooms)
    await exchange.finish()
    while len(sent) < 11:  # noqa: ASYNC110 - what was put behind the end of a task goes on in another
        await asyncio.sleep(0)
    assert [event.get("body") for event in sent] == [None, *(b"%d" % number for number in range(10))]


async def test_a_reader_of_the_body_learns_its_end_its_limit_and_a_disconnect() -> None:
    def part(body: bytes, *, more: bool) -> Event:
        return {"type": "http.request", "body": body, "more_body": more}

    whole = exchange_of([part(b"ab", more=True), part(b"", more=True), part(b"cd", more=False)], [])
    held: list[int] = []
    assert await whole.request.read(4, held.append) == b"abcd"
    assert (sum(held), whole.request.is_coming, whole.request.received) == (4, False, 4)
    large = exchange_of([part(b"abc", more=True), part(b"de", more=True)], [])
    with pytest.raises(BodyTooLargeError):
        await large.request.read(4)
    with pytest.raises(BodyTooLargeError):  # nothing is asked for
        await exchange_of([], [], [(b"content-length", b"5")]).request.read(4)
    with pytest.raises(ClientGoneError):
        await exchange_of([part(b"ab", more=True), {"type": "http.disconnect"}], []).request.read(4)
    with pytest.raises(ClientGoneError):
        async for _ in exchange_of([{"type": "http.disconnect"}], []).request.chunks(4):
            pass
