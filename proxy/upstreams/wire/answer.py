"""A parser for one response of an upstream: header block, framing, body. It uses no connection and no clock."""

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from proxy.server.headers import Headers

# The most bytes of a response's header blocks, including announcements (1xx), and of its body's framing.
_MAX_HEAD = 64 * 1024
_MAX_HEADERS = 128
# Framing bytes that each chunk may have without counting. All beyond adds up to at most _MAX_HEAD.
_CHUNK_FRAMING = 16
_SWITCHING = 101
# Statuses that can be relayed. Beyond 599 none is defined.
_FINAL = range(200, 600)
_NO_CONTENT = 204
_WITHOUT_BODY = (_NO_CONTENT, 304)


class NotHTTPError(Exception):
    """The bytes are not a response in HTTP/1.1."""


class AnswerReader:
    """Parses the bytes of a response in order.

    is_begun:     the header block is complete: `status` and `headers`, names in lower case.
    is_complete:  the body is complete too.
    may_continue: another response may follow on the connection, and no stray bytes have come.
    is_untouched: no bytes have come yet.
    """

    def __init__(self, *, has_no_body: bool) -> None:
        """Create a parser. has_no_body: True for a response to HEAD."""
        self.status = 0
        self.headers: Headers = []
        self.is_begun = self.is_complete = self.may_continue = False
        self.is_untouched = True
        self._has_no_body = has_no_body
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._is_announced = False
        self._overhead = 0
        # Remaining bytes of a body without chunks, after its header block; -1 if it ends with the connection.
        self._remaining: int | None = None
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    def take(self) -> bytes:
        """Return the bytes of the body received since the last call."""
        pieces = self._pieces
        if not pieces:
            return b""
        chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return chunk

    def untake(self, chunk: bytes) -> None:
        """Put bytes back that were taken."""
        self._pieces.insert(0, chunk)

    @property
    def bytes_to_come(self) -> int:
        """Return the remaining bytes of the body; 0 or less if unknown."""
        return self._remaining or 0

    def feed(self, data: bytes) -> int:
        """Parse bytes. Returns how many of them belong to the body. Raises NotHTTPError."""
        self.is_untouched = False
        if self._parser is None:
            return self._count_head(data)
        count_before = len(self._pieces)
        self._parse(self._parser, data)
        new_pieces = self._pieces[count_before:]
        size = sum(map(len, new_pieces))
        if not self.is_begun:
            self._spend(len(data))
        elif self._has_no_body:
            self._pieces.clear()
            size = 0
        elif self._remaining is None:
            self._spend(len(data) - size - _CHUNK_FRAMING * len(new_pieces))
        elif self._remaining > 0:
            self._remaining -= size
        if self._is_read:
            self._parser = None
        return size

    def end(self) -> None:
        """Note that the connection has ended in order, which ends a response without a stated length."""
        if self._remaining is not None and self._remaining < 0:
            self.is_complete = True

    # httptools' callbacks

    def on_message_begin(self) -> None:
        """Raise NotHTTPError for an unrequested response."""
        if self.is_complete:  # no request is open for it
            raise NotHTTPError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        if not self.is_begun:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the header block, and choose the framing of the body."""
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
        # Later it would return False for every response. A body after HEAD would be taken as the next response.
        self.may_continue = parser.should_keep_alive() and not self._has_no_body
        self._delimit(version)
        self.is_begun = True

    def on_message_complete(self) -> None:
        """Note the end of a response, or of an announcement."""
        if self._is_announced:
            self._is_announced = False
        else:
            self.is_complete = True

    def _delimit(self, version: str) -> None:
        """Choose how the body ends (RFC 9112, sections 6.1 and 6.3)."""
        codings: list[bytes] = []
        length = None
        for name, value in self.headers:
            if name == b"transfer-encoding":
                codings.append(value.lower())
            elif name == b"content-length" and length is None:
                length = value
        self._has_no_body = self._has_no_body or self.status in _WITHOUT_BODY
        if self.status == _NO_CONTENT and (codings or length not in (None, b"0")):
            self.may_continue = False  # a body would be taken as the next response
        if codings and codings != [b"chunked"]:
            raise NotHTTPError
        if codings and version == "1.0":
            self.may_continue = False
        if self._has_no_body:
            self.is_complete = True
        elif not codings:
            self._remaining = -1 if length is None else int(length)

    @property
    def _is_read(self) -> bool:
        """Return True if the parser is done and the rest is only counted."""
        return self.is_complete or self._remaining is not None

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
        if self._remaining is not None and self._remaining >= 0:
            if len(data) > self._remaining:
                data, self.may_continue = data[: self._remaining], False
            self._remaining -= len(data)
            self.is_complete = self._remaining == 0
        self._pieces.append(data)
        return len(data)

    def _spend(self, size: int) -> None:
        self._overhead = max(0, self._overhead + size)
        if self._overhead > _MAX_HEAD:
            raise NotHTTPError
