"""What an exchange writes: heads whose lines end where they should, and bodies as they were framed."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from proxy.api.head import ApiHead
from proxy.server.exchange import Exchange
from proxy.server.headers import Headers

pytestmark = pytest.mark.anyio


class Line:
    """A connection that keeps what is written."""

    def __init__(self, method: str = "POST", *, keep_alive: bool = True) -> None:
        self.connection = Mock(loop=asyncio.get_running_loop())
        self.connection.next_id.return_value = "0" * 16
        self.connection.flow.write_paused = False
        self.connection.transport.is_closing.return_value = False
        self.exchange = Exchange(ApiHead(method, "/", []), self.connection, keep_alive=keep_alive, expects=False)

    @property
    def written(self) -> bytes:
        return b"".join(call.args[0] for call in self.connection.transport.write.call_args_list)


@pytest.mark.parametrize("value", [b"a\r\nInjected: 1", b"a\nInjected: 1", b"a\r\n\r\nbody", b"a\rb\n"])
@pytest.mark.parametrize("place", ["name", "value"])
async def test_no_header_ends_its_line_before_its_time(value: bytes, place: str) -> None:
    line = Line()
    header = (b"x", value) if place == "value" else (value, b"x")
    with pytest.raises(RuntimeError):
        await line.exchange.start(200, [header])
    await asyncio.sleep(0)
    assert line.written == b""


@pytest.mark.parametrize(
    ("method", "status", "headers", "chunks", "expected"),
    [
        ("POST", 200, [(b"content-length", b"4")], [b"ab", b"cd"], b"content-length: 4\r\n\r\nabcd"),
        ("POST", 200, [], [b"ab", b"cd"], b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"),
        ("POST", 200, [], [b"ab", b""], b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
        ("HEAD", 200, [(b"content-length", b"4")], [b""], b"content-length: 4\r\n\r\n"),
        ("POST", 204, [], [b""], b"\r\n"),
        ("POST", 204, [(b"content-length", b"0"), (b"etag", b'"x"')], [b""], b'etag: "x"\r\n\r\n'),
        ("GET", 304, [(b"content-length", b"100")], [b""], b"content-length: 100\r\n\r\n"),
        ("POST", 304, [(b"etag", b'"x"')], [b""], b'etag: "x"\r\n\r\n'),
    ],
)
async def test_an_answer_is_framed_by_what_its_head_says(
    method: str, status: int, headers: Headers, chunks: list[bytes], expected: bytes
) -> None:
    line = Line(method)
    await line.exchange.start(status, headers)
    for chunk in chunks[:-1]:
        await line.exchange.write(chunk, more=True)
    await line.exchange.write(chunks[-1], more=False)
    named = b"x-concertina-request-id: %b\r\n" % line.exchange.id.encode()
    assert line.written.partition(b"\r\n")[2].replace(named, b"") == expected
    assert line.exchange.response_complete


@pytest.mark.parametrize("content", [b"abc", b"abcde"])
async def test_an_answer_that_is_not_as_long_as_promised_is_never_complete(content: bytes) -> None:
    line = Line()
    await line.exchange.start(200, [(b"content-length", b"4")])
    with pytest.raises(RuntimeError):
        await line.exchange.write(content, more=False)
    assert not line.exchange.response_complete


async def test_the_head_leaves_with_the_first_bytes_or_in_the_next_turn() -> None:
    alone, together = Line(), Line()
    for line in (alone, together):
        await line.exchange.start(200, [])
        assert line.written == b""
    await together.exchange.write(b"ab", more=True)
    assert together.connection.transport.write.call_count == 1
    await asyncio.sleep(0)
    assert alone.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert together.connection.transport.write.call_count == 1


async def test_the_last_answer_of_a_connection_says_so() -> None:
    line = Line(keep_alive=False)
    await line.exchange.start(200, [(b"content-length", b"0")])
    await line.exchange.write(b"", more=False)
    assert b"\r\nconnection: close\r\n" in line.written
    line.connection.transport.close.assert_called_once()
