"""A head that comes again is read as the parser would read it, or left to the parser."""

from __future__ import annotations

import pytest
from httptools import HttpParserError, HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.head import ApiHead
from proxy.server.connections.repeats import repeat_of

_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\nContent-Length:%b\r\nAuthorization: Bearer sk-1\r\n"
    b"X-Other: 4\r\n\r\n"
)


class _Parsed:
    """All that a parser finds in these bytes, as one request."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.begun = self.ended = 0
        self.url = b""
        parser = HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method().decode()

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended += 1

    @property
    def head(self) -> ApiHead:
        return ApiHead(self.method, self.url.decode(), self.headers)


def _request(body: bytes, written: bytes | None = None) -> bytes:
    return _HEAD % (b" %d" % len(body) if written is None else written) + body


_FIRST = _request(b'{"model": "m"}')
_REPEAT = repeat_of(_Parsed(_FIRST).head, _FIRST)


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 70_000, b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"])
def test_another_body_comes_with_the_same_head(body: bytes) -> None:
    assert _REPEAT is not None
    found = _REPEAT.read(_request(body))
    assert found is not None
    head, read, left = found
    assert left == 0
    parsed = _Parsed(_request(body))
    assert read == body == parsed.body
    assert (head.method, head.target, head.headers) == (parsed.method, parsed.url.decode(), parsed.headers)
    assert head.header(b"content-length") == b"%d" % len(body)
    assert head.header(b"authorization") == b"Bearer sk-1"
    assert _REPEAT.head.header(b"content-length") == b"14"


@pytest.mark.parametrize(
    "data",
    [
        _request(b"12345") + b"P",  # another one follows
        _request(b"12345", b" +5"),
        _request(b"12345", b" 5 "),
        _request(b"12345", b" 5, 5"),
        _request(b"12345", b" \xb25"),
        _request(b"12345", b" "),
        _request(b"12345", b" 0" * 20 + b"5"),
        _request(b"12345").replace(b"POST", b"PUT"),
        _request(b"12345").replace(b"sk-1", b"sk-2"),
        _request(b"12345").replace(b"X-Other: 4", b"X-Other: 4\r\nTransfer-Encoding: chunked"),
        _request(b"12345").replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
        b"\r\n" + _request(b"12345"),
        b"",
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert _REPEAT is not None
    assert _REPEAT.read(data) is None


@pytest.mark.parametrize(
    "data",
    [
        _request(b"12345")[:-6],
        _request(b"12345") + b"GET / HTTP/1.1\r\n",
        _request(b"12345").replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        _request(b"12345").replace(b"X-Other: 4", b"Expect: 100-continue"),
        _request(b"12345").replace(b"X-Other: 4", b"X-Other: 4\r\n  folded"),
        b"\r\n" + _request(b"12345"),
    ],
)
def test_what_is_not_one_plain_request_is_not_waited_for_again(data: bytes) -> None:
    headers = [(b"host", b"proxy"), (b"authorization", b"Bearer sk-1"), (b"x-other", b"4")]
    named = [(name, value) for name, value in ((b"expect", b"100-continue"),) if b"Expect" in data]
    length = [] if b"chunked" in data else [(b"content-length", b"5")]
    head = ApiHead("POST", "/v1/chat/completions", [*headers[: 3 - len(named)], *length, *named])
    assert repeat_of(head, data) is None


@given(st.data())
def test_what_is_read_is_what_the_parser_reads(data: st.DataObject) -> None:
    """Of requests that were changed somewhere."""
    changed = bytearray(_request(data.draw(st.binary(max_size=40))))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"7", b" ", b"\r\n", b"x"])
        )
    assert _REPEAT is not None
    found = _REPEAT.read(bytes(changed))
    if found is None:
        return
    try:
        parsed = _Parsed(bytes(changed))
    except HttpParserError as error:
        raise AssertionError("the parser refuses what was read") from error
    assert (parsed.begun, parsed.ended) == (1, found[2] == 0)
    assert (found[0].headers, found[1]) == (parsed.headers, parsed.body)
    assert len(found[1]) + found[2] == int(found[0].header(b"content-length") or b"")


@pytest.mark.parametrize("come", [0, 1, 4])
def test_what_is_to_come_of_a_body_is_known(come: int) -> None:
    assert _REPEAT is not None
    whole = _request(b"12345")
    found = _REPEAT.read(whole[: len(whole) - 5 + come])
    assert found is not None
    assert found[1:] == (b"12345"[:come], 5 - come)
    assert _REPEAT.read(whole[: len(whole) - 6]) is None, "its head is not there yet"
