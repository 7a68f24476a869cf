"""What an upstream sends is read in one way: no byte of another answer, nothing without bound, however it is split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstreams.wire.answer import AnswerReader, NotHTTPError

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = b"hello"
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: 5\r\n"
TE = b"Transfer-Encoding: chunked\r\n"
SECOND = OK + b"Content-Length: 6\r\n\r\nstolen"
LIMIT = 64 * 1024
PIECE = 1_000


@dataclass
class Read:
    """What a reader made of an answer; `body` of one that is not HTTP is what had come until then."""

    status: int
    body: bytes
    is_complete: bool
    may_continue: bool
    is_http: bool = True


def read(*pieces: bytes, has_no_body: bool = False, ends: bool = False) -> Read:
    reader, body, is_http = AnswerReader(has_no_body=has_no_body), b"", True
    for piece in pieces:
        try:
            size = reader.feed(piece)
        except NotHTTPError:
            is_http = False
            break
        taken = reader.take()
        body += taken
        assert has_no_body or len(taken) == size
    if ends and is_http:
        reader.end()
    return Read(reader.status if reader.is_begun else 0, body, reader.is_complete, reader.may_continue, is_http)


def chunked(*contents: bytes, end: bytes = b"0\r\n\r\n", size: bytes = b"%x") -> bytes:
    return b"".join(size % len(content) + b"\r\n" + content + b"\r\n" for content in contents) + end


def bytewise(content: bytes) -> list[bytes]:
    return [content[at : at + 1] for at in range(len(content))]


COMPLETE = {
    "a length": (OK + LENGTH + b"\r\n" + BODY, BODY, True),
    "no content": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "chunks": (OK + TE + b"\r\n" + chunked(b"hel", b"lo"), BODY, True),
    "chunks with extensions and a trailer": (
        OK + TE + b"\r\n" + chunked(BODY, end=b"0;x\r\nX: y\r\n\r\n", size=b"%x;a=b"),
        BODY,
        True,
    ),
    "a coding in capitals": (OK + b"transfer-encoding:CHUNKED\r\n\r\n" + chunked(BODY), BODY, True),
    "no body by its status": (b"HTTP/1.1 204 No\r\n" + b"\r\n", b"", True),
    "no body though it has a length": (b"HTTP/1.1 304 No\r\n" + LENGTH + b"\r\n", b"", True),
    "none though it says so": (b"HTTP/1.1 204 No\r\n" + LENGTH + b"\r\n", b"", False),
    "none though it says chunks": (b"HTTP/1.1 204 No\r\n" + TE + b"\r\n", b"", False),
    "none, and says so": (b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n", b"", True),
    "announced": (b"HTTP/1.1 100 Go on\r\n\r\n" * 3 + OK + LENGTH + b"\r\n" + BODY, BODY, True),
    "the last one": (OK + LENGTH + b"Connection: close\r\n\r\n" + BODY, BODY, False),
    "of HTTP/1.0": (b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n" + BODY, BODY, False),
    "chunks of HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + TE + b"\r\n" + chunked(BODY),
        BODY,
        False,
    ),
}


@pytest.mark.parametrize("case", COMPLETE)
@pytest.mark.parametrize("split", [lambda content: [content], bytewise], ids=["whole", "bytewise"])
def test_an_answer_is_read_to_its_end(case: str, split: Callable[[bytes], list[bytes]]) -> None:
    content, body, may_continue = COMPLETE[case]
    found = read(*split(content))
    assert (found.body, found.is_http, found.is_complete, found.may_continue) == (body, True, True, may_continue)


@pytest.mark.parametrize("case", COMPLETE)
@pytest.mark.parametrize("behind", [SECOND, b"x", b"0\r\n\r\n", b"HTTP/1.1 100 Go on\r\n\r\n", b"\0"])
def test_what_stands_behind_an_answer_is_no_part_of_it_and_ends_the_connection(case: str, behind: bytes) -> None:
    content, body, _ = COMPLETE[case]
    for pieces in ([content + behind], [content, behind], [*bytewise(content), behind]):
        found = read(*pieces)
        assert (found.body, found.is_complete, found.may_continue) == (body, True, False)


@pytest.mark.parametrize("headers", [LENGTH, TE, b"Content-Length: 1234\r\n", b""])
@pytest.mark.parametrize("behind", [b"", BODY, b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5", SECOND])
def test_the_answer_to_a_head_ends_with_its_head_and_the_connection_with_it(headers: bytes, behind: bytes) -> None:
    found = read(OK + headers + b"\r\n" + behind, has_no_body=True)
    assert (found.status, found.body, found.is_complete, found.may_continue) == (200, b"", True, False)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_without_a_length_ends_with_its_connection(version: bytes) -> None:
    content = b"HTTP/%b 200 OK\r\nX: y\r\n\r\n" % version
    assert not read(content, BODY, SECOND).is_complete
    assert read(content, BODY, SECOND, ends=True) == Read(200, BODY + SECOND, is_complete=True, may_continue=False)


@pytest.mark.parametrize(
    "content",
    [OK, OK + b"X: ", OK + LENGTH + b"\r\nhell", OK + TE + b"\r\n5\r\nhello\r\n", OK + TE + b"\r\n5\r\nhello\r\n0\r\n"],
)
def test_the_end_of_the_connection_completes_nothing_else(content: bytes) -> None:
    assert not read(content, ends=True).is_complete


REFUSED = {
    "two lengths": LENGTH + b"Content-Length: 6\r\n",
    "the same length twice": LENGTH + LENGTH,
    "a list of lengths": b"Content-Length: 5, 5\r\n",
    "a length and chunks": LENGTH + TE,
    "chunks and a length": TE + LENGTH,
    "a length below nothing": b"Content-Length: -5\r\n",
    "a length with a sign": b"Content-Length: +5\r\n",
    "a length in hex": b"Content-Length: 0x5\r\n",
    "a length beyond counting": b"Content-Length: 99999999999999999999\r\n",
    "another coding": b"Transfer-Encoding: gzip\r\n",
    "another coding before chunks": b"Transfer-Encoding: gzip, chunked\r\n",
    "chunks before another coding": b"Transfer-Encoding: chunked, identity\r\n",
    "chunks twice": TE + TE,
    "a coding that looks like chunks": b"Transfer-Encoding: xchunked\r\n",
    "a space before the colon": b"Content-Length : 5\r\n",
    "a name that is none": b"X(y): z\r\n",
    "a NUL in a value": b"X: a\0b\r\n",
    "a line feed alone": b"X: a\nContent-Length: 5\r\n",
    "a carriage return alone": b"X: a\rContent-Length: 5\r\n",
    "too many headers": b"X: y\r\n" * 200,
    "a header that is too long": b"X: " + b"y" * LIMIT + b"\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_head_that_could_be_read_in_two_ways_is_no_answer(case: str) -> None:
    content = OK + REFUSED[case] + b"\r\n" + BODY + SECOND
    for pieces in ([content], bytewise(content)):
        found = read(*pieces)
        assert (found.status, found.body, found.is_complete, found.is_http) == (0, b"", False, False)


@pytest.mark.parametrize(
    "line",
    [
        *(b"HTTP/1.1 99 No", b"HTTP/1.1 099 No", b"HTTP/1.1 101 Switch", b"HTTP/1.1 600 No", b"HTTP/1.1 999 No"),
        *(b"HTTP/2.0 200 OK", b"HTTP/0.9 200 OK", b"HTTP/1.2 200 OK", b"HTTP/1.1 200OK", b"HTTP/1.1 OK", b"SSH-2.0-x"),
        *(b"ICY 200 OK", b"GET / HTTP/1.1", b"http/1.1 200 OK", b"HTTP/1.1  200 OK"),
    ],
)
def test_another_first_line_begins_no_answer(line: bytes) -> None:
    assert not read(line + b"\r\nUpgrade: x\r\nConnection: upgrade\r\n" + LENGTH + b"\r\n" + BODY).is_http


@pytest.mark.parametrize(
    "framed",
    [
        *(b"0x5\r\nhello\r\n", b"-1\r\n", b"5 \r\nhello\r\n", b" 5\r\nhello\r\n", b"\r\n5\r\nhello\r\n", b"g\r\n"),
        *(b"5\nhello\r\n", b"5\rhello\r\n", b"5\r\nhello\n", b"5\r\nhello0\r\n\r\n", b"5\r\nhelloX\r\n"),
        *(b"f" * 17 + b"\r\n", b"5;a\0\r\nhello\r\n", b"5;a\nhello\r\n"),
    ],
)
def test_chunks_that_could_be_read_in_two_ways_end_the_answer(framed: bytes) -> None:
    content = OK + TE + b"\r\n" + framed + b"0\r\n\r\n" + SECOND
    for pieces in ([content], bytewise(content)):
        found = read(*pieces)
        assert (found.is_http, found.is_complete, b"stolen" in found.body) == (False, False, False)


ENDLESS = {
    "a header": (OK + b"X: ", b"y" * PIECE),
    "headers": (OK, b"X: " + b"y" * PIECE + b"\r\n"),
    "a first line": (b"HTTP/1.1 200 ", b"O" * PIECE),
    "announcements": (b"", b"HTTP/1.1 102 Wait\r\n\r\n" * 40),
    "a trailer": (OK + TE + b"\r\n0\r\nX: ", b"y" * PIECE),
    "trailers": (OK + TE + b"\r\n0\r\n", b"X: " + b"y" * PIECE + b"\r\n"),
    "an extension": (OK + TE + b"\r\n5;a=", b"y" * PIECE),
    "zeros before a size": (OK + TE + b"\r\n", b"0" * PIECE),
    "extensions": (OK + TE + b"\r\n", (b"1;" + b"y" * 200 + b"\r\nz\r\n") * 5),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_frames_an_answer_is_bounded(case: str) -> None:
    begins, goes_on = ENDLESS[case]
    found = read(begins, *[goes_on] * (3 * LIMIT // len(goes_on)))
    assert (found.is_http, found.is_complete) == (False, False)


def test_chunks_of_one_byte_are_not_too_much_framing() -> None:
    content = b"x" * 100_000
    found = read(OK + TE + b"\r\n", *[chunked(*bytewise(content[:1_000]), end=b"")] * 100, b"0\r\n\r\n")
    assert (found.body, found.is_complete, found.may_continue) == (content, True, True)


@given(st.data(), st.sampled_from(sorted(COMPLETE)), st.sampled_from([b"", SECOND, b"x"]))
def test_how_the_bytes_are_split_changes_nothing(data: st.DataObject, case: str, behind: bytes) -> None:
    content, body, may_continue = COMPLETE[case]
    sent = content + behind
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b]
    found = read(*pieces)
    assert (found.body, found.is_complete) == (body, True)
    assert found.may_continue == (may_continue and not behind)


FRAGMENTS = st.sampled_from(
    [
        *(OK, LENGTH, TE, b"\r\n", b"\n", b"\r", b"hello", b"5\r\n", b"0\r\n", b"0", b";a=b", b"Content-Length: 0\r\n"),
        *(b"HTTP/1.1 100 Go\r\n\r\n", b"HTTP/1.1 204 No\r\n", b"X: y\r\n", b"Connection: close\r\n", b"\0", SECOND),
        *(b"Connection: keep-alive\r\n", b"HTTP/1.0 200 OK\r\n", b"Content-Length: 5", b" ", b"\t", b"chunked", b","),
    ]
)


@given(st.lists(FRAGMENTS | st.binary(max_size=8), max_size=14), st.booleans(), st.booleans())
def test_whatever_comes_is_read_alike_in_any_split_and_no_further_than_its_end(
    fragments: list[bytes], has_no_body: bool, ends: bool
) -> None:
    whole = b"".join(fragments)
    one = read(*([whole] if whole else []), has_no_body=has_no_body, ends=ends)
    many = read(*bytewise(whole), has_no_body=has_no_body, ends=ends)
    # Of what is wrong further on, less has been read when it comes in pieces; nothing of it is ever passed on twice.
    assert (one.status, one.is_complete, one.is_http) == (
        many.status,
        many.is_complete,
        many.is_http,
    ) or not one.is_http
    if one.is_complete:
        assert (one.body, one.status) == (many.body, many.status)
        assert one.may_continue == many.may_continue
    assert one.body in whole or TE in whole
