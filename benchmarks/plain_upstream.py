"""An upstream that costs next to nothing: a fixed answer of 900 bytes, or a stream of 64 events in 64 chunks."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

from proxy.server.process import listen

CHUNKS = 64

_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Done. " * 110}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 120, "completion_tokens": 60, "total_tokens": 180},
    }
).encode()
_EVENT = (
    b"data: "
    + json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "gpt-4o",
            "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": None}],
        }
    ).encode()
    + b"\n\n"
)
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + _CHUNK * (CHUNKS - 1)
    + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class _Connection(asyncio.Protocol):
    """Reads requests with a length, and nothing in them but whether a stream is asked for."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._head = b""
        self._left = 0
        self._is_stream = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, separator, body = (self._head + data).partition(b"\r\n\r\n")
            if not separator:
                self._head = head
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._head, self._is_stream, self._left, data = b"", False, int(length or 0), body
        self._is_stream = self._is_stream or b'"stream":true' in data
        self._left -= len(data)
        if self._left <= 0:
            self._left = 0
            self._transport.write(_STREAM if self._is_stream else _WHOLE)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, sock=listen("127.0.0.1", port))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
