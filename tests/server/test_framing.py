"""Where a request ends is the same for everyone: bytes that could be read in two ways, direct and behind front ends."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.fronts import PROGRAMS, Front, before
from tests.support.http_requests import BODY, HOST, LENGTH, POST, ROWS, SMUGGLED, TE, hosted, post
from tests.support.upstreams import JSON, OK_BODY, TWO_WAYS, Upstream, always, answer, backends, connected, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


pytestmark = pytest.mark.anyio

# Sent behind every case.
INNOCENT = b"GET /v1/innocent HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n"
REFUSED = (400,)
BOTH = (200, 200)
# Served, and the connection ends with it.
LAST = (200,)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True)
class Case:
    """What is sent before the innocent request, and the statuses of all answers without a front end."""

    reason: str
    sent: bytes
    statuses: tuple[int, ...] = REFUSED


def get(target: bytes, *headers: bytes, method: bytes = b"GET", host: bytes = HOST) -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\n" + host + b"".join(headers) + b"\r\n"


def line(before: bytes, after: bytes) -> bytes:
    """A chat request whose first line is changed."""
    return post(HOST, LENGTH).replace(before, after, 1)


def chunked(size: bytes = b"%x" % len(BODY), content: bytes = BODY + b"\r\n", end: bytes = b"0\r\n\r\n") -> bytes:
    return post(HOST, TE, body=size + b"\r\n" + content + end)


def trailer(field: bytes) -> bytes:
    return chunked(end=b"0\r\n" + field + b"\r\n\r\n")


def coded(value: bytes) -> bytes:
    return post(HOST, b"Transfer-Encoding:" + value + b"\r\n", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))


def disguised(header: bytes) -> bytes:
    """A length that covers a second request, which shows where the header is taken for chunks."""
    inner = b"0\r\n\r\n" + SMUGGLED
    return post(HOST, b"Content-Length: %d\r\n" % len(inner), header + b"\r\n", body=inner)


def lengthened(value: bytes) -> bytes:
    return post(HOST, b"Content-Length:" + value + b"\r\n")


def with_body(method: bytes, *headers: bytes) -> bytes:
    return get(b"/v1/x", b"Content-Length: %d\r\n" % len(SMUGGLED), *headers, method=method) + SMUGGLED


def unique(cases: list[Case]) -> list[Case]:
    assert len({case.reason for case in cases}) == len(cases)
    return cases


CODINGS = [
    Case("a coding after a tab", coded(b"\tchunked"), BOTH),
    Case("a coding without a space", coded(b"chunked"), BOTH),
    Case("a coding in mixed case", coded(b" cHuNkEd"), BOTH),
    *(
        Case(f"the coding {value!r}", coded(value))
        for value in (
            *(b"\x0bchunked", b" \x0bchunked", b" \x0cchunked", b" \x85chunked", b" \xa0chunked", b" chun\xe7ked"),
            *(
                b" chunked, chunked",
                b" gzip, chunked",
                b" identity, chunked",
                b" ,chunked",
                b" chunked,",
                b" x chunked",
            ),
            *(b' "chunked"', b" chunked;a=b", b" chunked\0", b" chunked \x0b", b"", b" chunke", b" chunkedx", b" gzip"),
            *(b"\r\n chunked", b" chunked\r\n ,identity", " chun\u212aed".encode()),
        )
    ),
    Case("chunks stated twice", post(HOST, TE, TE, body=b"0\r\n\r\n")),
    Case("chunks after an unknown coding", post(HOST, b"Transfer-Encoding: cow\r\n", TE, body=b"0\r\n\r\n")),
    Case("chunks before an unknown coding", post(HOST, TE, b"Transfer-Encoding: cow\r\n", body=b"0\r\n\r\n")),
    Case("chunks in HTTP/1.0", chunked().replace(b"HTTP/1.1", b"HTTP/1.0")),
    Case("chunks and a length in HTTP/1.0", post(HOST, TE, LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0")),
    *(
        Case(f"a length and {header!r}", disguised(header))
        for header in (
            *(b"Transfer-Encoding: chunked", b"Transfer-Encoding:chunked", b"Transfer-Encoding:\tchunked"),
            *(b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked", b"Transfer-Encoding:"),
            *(b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked", b"Transfer-Encoding\t: chunked"),
            *(
                b"X: y\nTransfer-Encoding: chunked",
                b"X: y\rTransfer-Encoding: chunked",
                b"\nTransfer-Encoding: chunked",
            ),
            *(b"Transfer-Encoding:\n chunked", b"Transfer-Encoding\r\n: chunked", b"Transfer-Encoding: chunked\r"),
            *(b"Transfer-Encoding\0: chunked", b"\x00Transfer-Encoding: chunked", b"Transfer\xadEncoding: chunked"),
        )
    ),
    Case("a length and a name with an underscore", disguised(b"Transfer_Encoding: chunked"), (400, 200)),
]

CHUNKS = [
    Case("extensions", chunked(b'%x;a=b;c="d"' % len(BODY), end=b"0;x\r\n\r\n"), BOTH),
    Case("a size with zeros before it", chunked(b"0" * 40 + b"%x" % len(BODY), end=b"000\r\n\r\n"), BOTH),
    Case("a size in capitals", chunked(b"%X" % len(BODY)), BOTH),
    *(
        Case(f"the size {size!r}", chunked(size, end=b"0\r\n\r\n" + SMUGGLED))
        for size in (
            *(b"0x10", b"1_0", b" 10", b"10 ", b"10\t", b"10 ;a", b"-1", b"", b"\r\n10", b"1\x0b0", "\uff15".encode()),
            *(b"f" * 17, b"1" + b"0" * 14 + b"%02x" % len(BODY), b"%x;a\n" % len(BODY)),
            *(b"%x;a\rb" % len(BODY), b"10,", b"10\x00"),
        )
    ),
    Case("a NUL in an extension", chunked(b"%x;a\0" % len(BODY))),
    Case("a DEL in an extension", chunked(b"%x;a=\x7f" % len(BODY))),
    Case("a size that no body has", chunked(b"f" * 16), (408,)),
    Case("a line feed after the size", chunked().replace(b"%x\r\n" % len(BODY), b"%x\n" % len(BODY))),
    Case("a carriage return after the size", chunked().replace(b"%x\r\n" % len(BODY), b"%x\r" % len(BODY))),
    Case("a line feed after the chunk", chunked(content=BODY + b"\n")),
    Case("a carriage return after the chunk", chunked(content=BODY + b"\r")),
    Case("nothing after the chunk", chunked(content=BODY)),
    Case("two bytes after the chunk", chunked(content=BODY + b"XX")),
    Case("line feeds after the last chunk", chunked(end=b"0\n\n")),
    Case("a line feed at the end", chunked(end=b"0\r\n\n")),
    Case("no end after the last chunk", chunked(end=b"0\r\n") + SMUGGLED),
    Case("a trailer", trailer(b"X-A: b"), BOTH),
    Case("a Host in a trailer", trailer(b"Host: other"), BOTH),
    Case("a connection ended by a trailer", trailer(b"Connection: close"), LAST),
    Case("an upgrade in a trailer", trailer(b"Connection: upgrade\r\nUpgrade: h2c"), BOTH),
    *(
        Case(f"the trailer {field!r}", trailer(field))
        for field in (
            *(b"Content-Length: 60", b"Transfer-Encoding: chunked", b"X Y: z", b": z", b"X: \0", b" X: y", b"nonsense"),
            *(b"X: y\n", b"X: y\r\n z"),
        )
    ),
]

LENGTHS = [
    Case("a length with zeros before it", lengthened(b" 000%d" % len(BODY)), BOTH),
    Case("a length between blanks", lengthened(b" \t %d \t" % len(BODY)), BOTH),
    Case("a length by another name", post(HOST, LENGTH, b"Content_Length: 0\r\n"), BOTH),
    *(
        Case(f"the length {value!r}", lengthened(value))
        for value in (
            *(b" 1 0", b" 0x10", b" 1e1", b" 1.0", b" 1_0", b"", b" 5,5", b" 5,", b" \x0b5", b' "5"', b" -0", b" 5;"),
            *(b" %d" % (2**64 + len(BODY)), b" 5\0", " \uff15".encode(), " \u0665".encode(), b"\r\n 5", b" 5\r\n ,6"),
        )
    ),
    Case("two lengths in other cases", post(HOST, b"content-length: 5\r\n", b"CONTENT-LENGTH: 0\r\n")),
    Case("a tab before a length's colon", post(HOST, LENGTH, b"Content-Length\t: 0\r\n")),
    Case("a line feed after a length", post(HOST, LENGTH.replace(b"\r\n", b"\n"))),
    *(Case(f"{method} with a body", with_body(method.encode()), BOTH) for method in ("GET", "DELETE", "OPTIONS")),
    Case("chunks on a GET", get(b"/v1/x", TE) + b"0\r\n\r\n", BOTH),
]

FIELDS = [
    Case("a folded Host", post(b"Host:\r\n proxy\r\n", LENGTH)),
    Case("a Host that goes on", post(b"Host: proxy\r\n other\r\n", LENGTH)),
    Case("a first header that is folded", POST + b" X: a\r\n" + HOST + LENGTH + b"\r\n" + BODY),
    Case("two Hosts in a list", hosted(b"a, b")),
    Case("two Hosts in HTTP/1.0", post(HOST, HOST, LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0")),
    Case("an empty name", post(HOST, LENGTH, b": x\r\n")),
    Case("nothing but a colon", post(HOST, LENGTH, b":\r\n")),
    Case("a tab in a value", post(HOST, LENGTH, b"X-A: a\tb\r\n"), BOTH),
    Case("a value beyond ASCII", post(HOST, LENGTH, b"X-A: a\xffb\r\n"), BOTH),
    *(
        Case(f"byte {code:02x} in a value", post(HOST, LENGTH, b"X-A: a" + bytes([code]) + b"b\r\n"))
        for code in (0x00, 0x01, 0x08, 0x0A, 0x0B, 0x0C, 0x0D, 0x1F, 0x7F)
    ),
    *(
        Case(f"byte {code:02x} in a name", post(HOST, LENGTH, b"X-" + bytes([code]) + b"A: b\r\n"))
        for code in (0x00, 0x01, 0x09, 0x0A, 0x0B, 0x0D, 0x20, 0x22, 0x28, 0x2F, 0x3B, 0x40, 0x5B, 0x7F, 0x80, 0xFF)
    ),
    Case("a carriage return at the end of a header", post(HOST, LENGTH, b"X: y\r\r\n")),
    Case("a line feed at the end of the head", POST + HOST + LENGTH + b"\n" + BODY),
    Case("a carriage return at the end of the head", POST + HOST + LENGTH + b"\r" + BODY),
    Case("no end of the head", POST + HOST + LENGTH),
]

TARGETS = [
    Case("a URL", get(b"http://proxy/v1/x"), BOTH),
    Case("a URL of another host", get(b"http://other/v1/x"), BOTH),
    Case("a URL of another port", get(b"http://proxy:81/v1/x"), BOTH),
    Case("a URL with a user", get(b"http://u:p@proxy/v1/x")),
    Case("a URL with a user and no path", get(b"http://u:p@proxy")),
    Case("a URL with an @ in its path", get(b"http://other/@proxy/v1/x"), BOTH),
    Case("a URL with a query for a path", get(b"http://proxy?/v1/x")),
    Case("a URL without a path", get(b"http://proxy")),
    Case("a URL without a Host header", get(b"http://proxy/v1/x", host=b"")),
    Case("a URL of another scheme", get(b"ftp://proxy/v1/x")),
    Case("a URL in HTTP/1.0", get(b"http://proxy/v1/x", host=b"").replace(b"HTTP/1.1", b"HTTP/1.0"), LAST),
    Case("two slashes", get(b"//v1/x"), BOTH),
    Case("encoded dots", get(b"/v1/%2e%2e/x")),
    Case("an encoded end of a line", get(b"/v1/%0d%0aX:y"), BOTH),
    Case("a fragment", get(b"/v1/x#f")),
    Case("a fragment in a query", get(b"/v1/x?a#f")),
    Case("an encoded fragment", get(b"/v1/x%23f"), BOTH),
    *(
        Case(f"the target {target!r}", get(target))
        for target in (b"*", b"v1/x", b"?x", b"proxy:80", b"/v1/\0", b"/v1/\x7f", b"/v1/\xff", b"/v1/\tx", b"/v1/\rx")
    ),
    Case("OPTIONS of everything", get(b"*", method=b"OPTIONS")),
    Case("CONNECT", get(b"proxy:80", method=b"CONNECT")),
    Case("CONNECT to a path", get(b"/v1/x", method=b"CONNECT")),
    Case("CONNECT with a body", get(b"proxy:80", LENGTH, method=b"CONNECT") + BODY),
]

CONNECTIONS = [
    Case("an upgrade", get(b"/v1/x", H2C), BOTH),
    Case("an upgrade with a body", post(HOST, LENGTH, H2C), BOTH),
    Case(
        "an upgrade with a request for a body",
        with_body(b"GET", H2C),
        BOTH,
    ),
    Case("an upgrade with chunks", post(HOST, TE, H2C, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), BOTH),
    Case("an upgrade to another protocol", with_body(b"POST", b"Connection: upgrade\r\nUpgrade: other\r\n"), BOTH),
    Case("an upgrade in HTTP/1.0", post(HOST, LENGTH, H2C).replace(b"HTTP/1.1", b"HTTP/1.0"), LAST),
    Case("two upgrades", get(b"/v1/x", H2C) * 2, (200, 200, 200)),
    Case("an upgrade to WebSocket", get(b"/v1/x", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), BOTH),
    Case("an upgrade that nobody asked for", get(b"/v1/x", b"Upgrade: h2c\r\n"), BOTH),
    Case("a length of this connection only", post(HOST, LENGTH, b"Connection: close, Content-Length\r\n"), LAST),
    Case("a length to be left out", post(HOST, LENGTH, b"Connection: keep-alive, Content-Length, Host\r\n"), BOTH),
    Case(
        "chunks of this connection only",
        post(HOST, TE, b"Connection: transfer-encoding\r\n", body=b"0\r\n\r\n"),
        (400, 200),
    ),
    Case("an end and no end", post(HOST, LENGTH, b"Connection: close, keep-alive\r\n"), LAST),
    Case("HTTP/1.0 that goes on", line(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n"), LAST),
    Case("Expect", post(HOST, LENGTH, b"Expect: 100-continue\r\n"), (100, 200, 200)),
    Case("Expect twice", post(HOST, LENGTH, b"Expect: 100-continue\r\n" * 2), (100, 200, 200)),
    Case("Expect of something else", post(HOST, LENGTH, b"Expect: 200-ok\r\n"), BOTH),
    Case("Expect in HTTP/1.0", line(b"1.1\r\n", b"1.0\r\nExpect: 100-continue\r\n"), LAST),
    Case("three requests", post(HOST, LENGTH) * 3, (200, 200, 200, 200)),
]

LINES = [
    Case("an empty line before the request", b"\r\n" + post(HOST, LENGTH), BOTH),
    Case("an empty line after the body", post(HOST, LENGTH) + b"\r\n", BOTH),
    Case("two spaces before the version", line(b" HTTP/", b"  HTTP/"), BOTH),
    Case("a space before the request", b" " + post(HOST, LENGTH)),
    Case("a space on a line before the request", b" \r\n" + post(HOST, LENGTH)),
    Case("a space after the version", line(b"1.1\r\n", b"1.1 \r\n")),
    Case("a tab after the method", line(b"POST ", b"POST\t")),
    Case("a tab before the version", line(b" HTTP/", b"\tHTTP/")),
    Case("a form feed after the method", line(b"POST ", b"POST\x0c")),
    Case("a method in small letters", line(b"POST", b"post")),
    Case("a method that nobody knows", line(b"POST", b"FROB")),
    Case("a method with a byte more", line(b"POST", b"POSTX")),
    Case("HTTP in small letters", line(b"HTTP/", b"http/")),
    *(
        Case(f"version {version}", line(b"HTTP/1.1", b"HTTP/" + version.encode()))
        for version in ("1.2", "0.9", "2.0", "01.1", "1.10", "1", "11", "1,1", "1.1x")
    ),
    Case("HTTP/0.9", b"GET /v1/x\r\n"),
    Case("HTTP/0.9 and an empty line", b"GET /v1/x\r\n\r\n"),
    Case("a carriage return for an end", line(b"1.1\r\n", b"1.1\r")),
    Case("a line feed for an end", line(b"1.1\r\n", b"1.1\n")),
    Case("two carriage returns at the end", line(b"1.1\r\n", b"1.1\r\r\n")),
    Case("a method alone", b"POST\r\n" + HOST + b"\r\n"),
    Case("a header for a first line", HOST + post(LENGTH)),
]


def known() -> Iterator[Case]:
    """Those that are refused or served for the proxy's own reasons."""
    for row in ROWS:
        is_old = b"HTTP/1.0" in row.sent
        yield Case(row.reason, row.sent, (row.status,) if row.message else LAST if is_old else BOTH)


CASES = unique([*known(), *CODINGS, *CHUNKS, *LENGTHS, *FIELDS, *TARGETS, *CONNECTIONS, *LINES])


anyio_backend = backends(TWO_WAYS)


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    server = {"header_timeout": "2s", "body_timeout": "2s"}
    script = always(answer(200, OK_BODY, JSON))
    async with proxied(tmp_path_factory.mktemp("framing"), script, server=server) as found:
        yield found


@pytest.fixture(scope="module", params=PROGRAMS)
async def front(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, both: tuple[str, Upstream]
) -> AsyncIterator[Front]:
    async with before(request.param, tmp_path_factory.mktemp(request.param), both[0]) as found:
        yield found


async def told(address: str, *parts: bytes) -> bytes:
    """All that is answered until the other side closes."""
    answered = bytearray()
    async with connected(address) as client, asyncio.timeout(30):
        sending = asyncio.create_task(_in_pieces(client.send, parts))
        try:
            while read := await client._reader.read(65_536):
                answered += read
        except ConnectionError:
            pass
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return bytes(answered)


async def _in_pieces(send: object, parts: tuple[bytes, ...]) -> None:
    for part in parts:
        await send(part)  # type: ignore[operator]
        for _ in range(4):  # the proxy runs in this loop, and reads each piece by itself
            await asyncio.sleep(0)


def pieces(sent: bytes, count: int) -> list[bytes]:
    size = -(-len(sent) // count)
    return [sent[at : at + size] for at in range(0, len(sent), size)]


def targets(behind: Upstream) -> list[str]:
    return [call.target for call in behind.calls]


def test_the_corpus_is_as_large_as_it_was_promised() -> None:
    assert len(CASES) >= 60
    assert sum(case.statuses == REFUSED for case in CASES) >= 60


@pytest.mark.parametrize("count", [1, 7], ids=["at once", "in pieces"])
async def test_what_is_ambiguous_is_refused_and_nothing_behind_it_is_served(
    both: tuple[str, Upstream], subtests: pytest.Subtests, count: int
) -> None:
    address, behind = both
    for case in CASES:
        with subtests.test(case.reason):
            behind.calls.clear()
            answered = await told(address, *pieces(case.sent, count), INNOCENT)
            assert tuple(map(int, _STATUS.findall(answered))) == case.statuses
            assert ("/v1/innocent" in targets(behind)) == (len(case.statuses) > 1)
            assert not any("smuggled" in target for target in targets(behind))
            if len(case.statuses) == 1 and case.statuses != LAST:
                assert behind.calls == []
                assert b"connection: close\r\n" in answered


async def test_front_end_and_proxy_count_the_same_requests(
    front: Front, both: tuple[str, Upstream], subtests: pytest.Subtests
) -> None:
    behind = both[1]
    for case in CASES:
        with subtests.test(case.reason):
            behind.calls.clear()
            await told(front.address, case.sent + INNOCENT)
            outcomes = await front.outcomes()
            assert front.relay.answers() == sum(outcome.is_owed for outcome in outcomes), outcomes
            assert len(behind.calls) <= sum(outcome.passed for outcome in outcomes), (targets(behind), outcomes)
            assert not any("smuggled" in target for target in targets(behind))
