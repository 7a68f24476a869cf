"""Requests written byte by byte, and what HTTP says of each."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.server.strictness import MAX_HEAD, MAX_HEADERS, MAX_LINE
from tests.support.upstreams import CHAT, chat

BODY = chat("a")
POST = b"POST " + CHAT.encode() + b" HTTP/1.1\r\n"
HOST = b"Host: proxy\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
TE = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: proxy\r\n\r\n"
INVALID = "The request is not valid HTTP/1.1."
ONE_HOST = "The request must have one Host header."
BAD_HOST = "The Host header is not a name or address with a port."
NOT_CHUNKED = "The Transfer-Encoding is not chunked, or not of HTTP/1.1."
TOO_LARGE = "The headers of the request are too many or too large."
TOO_LONG = "The address of the request is too long."


@dataclass(frozen=True)
class Row:
    """What is sent, and what is said of it; an empty message stands for a request that is served."""

    reason: str
    sent: bytes
    message: str = INVALID
    status: int = 400
    code: str = "invalid_request"


def post(*headers: bytes, body: bytes = BODY) -> bytes:
    return POST + b"".join(headers) + b"\r\n" + body


def large(size: int) -> bytes:
    return b"X-Large: " + b"x" * size + b"\r\n"


def hosted(value: bytes) -> bytes:
    return post(b"Host: " + value + b"\r\n", LENGTH)


ROWS = [
    Row("no Host", post(LENGTH), ONE_HOST),
    Row("two Hosts", post(HOST, HOST, LENGTH), ONE_HOST),
    Row("two different Hosts", post(HOST, b"hOST: other\r\n", LENGTH), ONE_HOST),
    Row("a Host with a path", hosted(b"localhost/echo?x="), BAD_HOST),
    Row("a Host with a user", hosted(b"a@b"), BAD_HOST),
    Row("a Host with a space", hosted(b"a b"), BAD_HOST),
    Row("a Host with a port that is none", hosted(b"a:b"), BAD_HOST),
    Row("a Host beyond ASCII", hosted(b"\xff"), BAD_HOST),
    Row("two lengths", post(HOST, LENGTH, b"Content-Length: 5\r\n")),
    Row("the same length twice", post(HOST, LENGTH, LENGTH)),
    Row("a list of lengths", post(HOST, b"Content-Length: 5, 5\r\n")),
    Row("a signed length", post(HOST, b"Content-Length: +5\r\n")),
    Row("a negative length", post(HOST, b"Content-Length: -1\r\n")),
    Row("a length beyond all bounds", post(HOST, b"Content-Length: " + b"9" * 40 + b"\r\n")),
    Row("length and chunks", post(HOST, LENGTH, TE, body=b"0\r\n\r\n" + SMUGGLED)),
    Row("chunks and length", post(HOST, TE, LENGTH, body=b"0\r\n\r\n" + SMUGGLED)),
    Row("an unknown coding", post(HOST, b"Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n"), NOT_CHUNKED),
    Row("chunked, and then not", post(HOST, b"Transfer-Encoding: chunked, identity\r\n", body=b"0\r\n\r\n")),
    Row("a folded header", post(HOST, b"X-A: b\r\n c\r\n", LENGTH)),
    Row("a folded length", post(HOST, b"Content-Length:\r\n 5\r\n")),
    Row("a space before the colon", post(HOST, b"Content-Length : 5\r\n")),
    Row("a header without a colon", post(HOST, b"nonsense\r\n")),
    Row("a NUL in a header", post(HOST, b"X-A: \0\r\n")),
    Row("a bare line feed", post(HOST, LENGTH).replace(b"\r\n", b"\n")),
    Row("a chunk size that is none", post(HOST, TE, body=b"zz\r\n")),
    Row("a chunk longer than it says", post(HOST, TE, body=b"1\r\nabc\r\n0\r\n\r\n")),
    Row("a chunk size with a sign", post(HOST, TE, body=b"+1\r\na\r\n0\r\n\r\n")),
    Row("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    Row("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
    Row("a future version", b"GET / HTTP/9.9\r\nHost: proxy\r\n\r\n"),
    Row("HTTP/2 without a word", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Row(
        "a line too long", b"GET /" + b"a" * MAX_LINE + b" HTTP/1.1\r\n" + HOST + b"\r\n", TOO_LONG, 414, "uri_too_long"
    ),
    Row("a line without an end", b"GET /" + b"a" * MAX_LINE, TOO_LONG, 414, "uri_too_long"),
    Row("a header too large", post(HOST, large(MAX_HEAD)), TOO_LARGE, 431, "headers_too_large"),
    Row("a header without an end", POST + b"X: " + b"x" * 4 * MAX_HEAD, TOO_LARGE, 431, "headers_too_large"),
    Row("a name without an end", POST + b"x" * 300_000, TOO_LARGE, 431, "headers_too_large"),
    Row("headers that are large together", post(HOST, large(3_000) * 11), TOO_LARGE, 431, "headers_too_large"),
    Row("too many headers", post(HOST, b"X-A: b\r\n" * MAX_HEADERS), TOO_LARGE, 431, "headers_too_large"),
    Row("an empty Host", hosted(b""), ""),
    Row("a Host with a port", hosted(b"proxy.example:8795"), ""),
    Row("an address of IPv6", hosted(b"[::1]:8795"), ""),
    Row("HTTP/1.0 without a Host", post(LENGTH).replace(b"1.1", b"1.0"), ""),
    Row("large headers", post(HOST, large(MAX_HEAD - 1_000), LENGTH), ""),
    Row("many headers", post(HOST, b"X-A: b\r\n" * (MAX_HEADERS - 3), LENGTH), ""),
    Row("chunks", post(HOST, TE, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)), ""),
]
