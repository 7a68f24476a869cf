"""Heads that come again: a client's next request on a connection nearly always has the last one's head, byte for byte,
but for the length of its body. So it is read once."""

import re
from dataclasses import dataclass

from proxy.server.head import RequestHead

_END = b"\r\n\r\n"
# Fifteen digits are more than any limit allows.
_length = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})\r\n", re.IGNORECASE).search


@dataclass(frozen=True, slots=True)
class Repeat:
    """A head that was read and found fit to be served: what stands before the length of the body, and behind it."""

    head: RequestHead
    before: bytes
    behind: bytes

    def read(self, data: bytes) -> tuple[RequestHead, bytes | memoryview, int] | None:
        """Of a request that begins with these bytes, where it has this head: head, body as far as it has come, and how
        much of it is to come. None for anything else, and for what holds more than one request."""
        start = len(self.before)
        if not data.startswith(self.before):
            return None
        end = data.find(b"\r", start, start + 16)
        length, body = data[start:end], end + len(self.behind)
        # Digits alone: what is written in another way is for the parser.
        if not (length.isdigit() and data.startswith(self.behind, end)):
            return None
        left = int(length) - len(data) + body
        if left < 0:
            return None
        # What waits for the rest is copied when it is joined with that.
        return self.head.with_length(length), memoryview(data)[body:] if left else data[body:], left


def repeat_of(head: RequestHead, data: bytes) -> Repeat | None:
    """What may come again of a request that was served; None where these are not its head and of its body a part."""
    end = data.find(_END) + len(_END)
    found = _length(data, 0, end)
    # A line for each header, one before them and an empty one behind them: so nothing was folded or left out.
    if found is None or int(found[1]) < len(data) - end or data.count(b"\r\n", 0, end) != len(head.headers) + 2:
        return None
    if head.header(b"transfer-encoding") is not None or head.header(b"expect") is not None:
        return None
    return Repeat(head, data[: found.start(1)], data[found.end(1) : end])
