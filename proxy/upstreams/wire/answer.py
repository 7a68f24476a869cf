"""One answer of an upstream, read from its bytes: head, framing, body. It knows no connection and no clock."""

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from proxy.server.headers import Headers

# For the heads of an answer, with those that only announce it (1xx), and for what frames its body.
_MAX_HEAD = 64 * 1024
_MAX_HEADERS = 128
# What a chunk may cost besides its content; what goes beyond adds up to _MAX_HEAD at most.
_CHUNK_FRAMING = 16
_SWITCHING = 101
# What is not among these no server can pass on: beyond 599 nothing is defined.
_FINAL = range(200, 600)
_NO_CONTENT = 204
_WITHOUT_BODY = (_NO_CONTENT, 304)


class NotHTTPError(Exception):
    """The bytes are no response in HTTP/1.1."""


class AnswerReader:
    """Fed with bytes in order, it says what they were.

    is_begun:     the head is there: `status` and `headers`, names in lower case.
    is_complete:  the body is there as well.
    may_continue: another answer may follow on the connection; nothing has come that belongs to none.
    is_untouched: nothing has come yet.
    """

    def __init__(self, *, has_no_body: bool) -> None:
        """`has_no_body`: it answers a HEAD."""
        self.status = 0
        self.headers: Headers = []
        self.is_begun = self.is_complete = self.may_continue = False
        self.is_untouched = True
        self._has_no_body = has_no_body
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._is_announced = False
        self._overhead = 0
        # Of a body without chunks, once its head is there; -1: it ends with the connection.
        self._left: int | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    def take(self) -> bytes:
        """Return the bytes of the body that have come since the last call."""
        pieces = self._pieces
        if not pieces:
            return b""
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return taken

    def untake(self, taken: bytes) -> None:
        self._pieces.insert(0, taken)

    @property
    def bytes_to_come(self) -> int:
        """Return the bytes of the body that are to come, 0 or less if that is not stated."""
        return self._left or 0

    def feed(self, data: bytes) -> int:
        """Parse bytes. Return how many of them belong to the body. Raises NotHTTPError."""
        self.is_untouched = False
        if self._parser is None:
            return self._count_head(data)
        before = len(self._pieces)
        self._parse(self._parser, data)
        new = self._pieces[before:]
        size = sum(map(len, new))
        if not self.is_begun:
            self._spend(len(data))
        elif self._has_no_body:
            self._pieces.clear()
            size = 0
        elif self._left is None:
            self._spend(len(data) - size - _CHUNK_FRAMING * len(new))
        elif self._left > 0:
            self._left -= size
        if self._is_read:
            self._parser = None
        return size

    def end(self) -> None:
        """Note that the connection has ended in order, and with it a response that does not state its length."""
        if self._left is not None and self._left < 0:
            self.is_complete = True

    # httptools' callbacks

    def on_message_begin(self) -> None:
        if self.is_complete:  # nobody has asked for what begins here
            raise NotHTTPError

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_begun:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None:
            return
        status, version = parser.get_status_code(), parser.get_http_version()
        self._is_announced = 100 <= status < 200 and status != _SWITCHING
        if self._is_announced:
            self.headers = []
            return
        size = 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
        is_odd = status not in _FINAL or version not in ("1.1", "1.0")
        if is_odd or size > _MAX_HEAD or len(self.headers) > _MAX_HEADERS:
            raise NotHTTPError
        self.status = status
        # Asked later, it says no of every answer. What the answer to a HEAD carries nevertheless would begin the next.
        self.may_continue = parser.should_keep_alive() and not self._has_no_body
        self._delimit(version)
        self.is_begun = True

    def on_message_complete(self) -> None:
        if self._is_announced:
            self._is_announced = False
        else:
            self.is_complete = True

    def _delimit(self, version: str) -> None:
        """Find out how the body ends (RFC 9112, sections 6.1 and 6.3)."""
        codings: list[bytes] = []
        length = None
        for name, value in self.headers:
            if name == b"transfer-encoding":
                codings.append(value.lower())
            elif name == b"content-length" and length is None:
                length = value
        self._has_no_body = self._has_no_body or self.status in _WITHOUT_BODY
        if self.status == _NO_CONTENT and (codings or length not in (None, b"0")):
            self.may_continue = False  # what it may send nevertheless would begin the next answer
        if codings and codings != [b"chunked"]:
            raise NotHTTPError
        if codings and version == "1.0":
            self.may_continue = False
        if self._has_no_body:
            self.is_complete = True
        elif not codings:
            self._left = -1 if length is None else int(length)

    @property
    def _is_read(self) -> bool:
        """Return True if nothing is left for the parser: the rest is only counted."""
        return self.is_complete or self._left is not None

    def _parse(self, parser: HttpResponseParser, data: bytes) -> None:
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self.is_complete:
                raise NotHTTPError from None
            self.may_continue = False

    def _count_head(self, data: bytes) -> int:
        if self.is_complete:
            self.may_continue = False
            return 0
        if self._left is not None and self._left >= 0:
            if len(data) > self._left:
                data, self.may_continue = data[: self._left], False
            self._left -= len(data)
            self.is_complete = self._left == 0
        self._pieces.append(data)
        return len(data)

    def _spend(self, size: int) -> None:
        self._overhead = max(0, self._overhead + size)
        if self._overhead > _MAX_HEAD:
            raise NotHTTPError
