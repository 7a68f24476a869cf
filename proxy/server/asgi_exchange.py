"""An exchange whose connection is an ASGI server's: its events in, ours out (ASGI 3.0, HTTP sub-specification)."""

import asyncio
import os
from collections import deque

from proxy.server.connections.pausable import Pausable
from proxy.server.error_shape import ErrorShape
from proxy.server.exchange import Exchange
from proxy.server.head import RequestHead
from proxy.server.headers import REQUEST_ID, Headers
from proxy.server.served import Event, Receive, Scope, Send, Served

# Bytes that wait for the server before a writer has to.
_MOST_WAITING = 64 * 1024
_NOT_MODIFIED = 304  # whose length is that of another answer, as servers do not know
# Of one connection, which is the server's (RFC 9113, section 8.2.2), and what servers add beside the upstream's.
_OF_SERVER = (b"connection", b"transfer-encoding", b"keep-alive", b"date", b"server")


class AsgiConnection:
    """Stands for the client's connection: what is read is paused by not asking for more, and a full queue is a client
    that reads slower than we write."""

    def __init__(self, errors: ErrorShape) -> None:
        self.error_shape = lambda _: errors
        self.loop = asyncio.get_running_loop()
        self.flow = Pausable()
        self.transport = self

    def next_id(self) -> str:
        return os.urandom(8).hex()

    def on_response_complete(self) -> None:
        """The server sees it by the last event."""

    # of a transport, for a request's body

    def is_closing(self) -> bool:
        return False

    def write(self, _: bytes) -> None:
        """100 Continue is the server's to send, once its body is asked for."""

    def close(self) -> None:
        """What is not completed is closed by the server."""


class AsgiExchange(Exchange):
    """Answers in events. `send_all` carries them, `receive_all` brings the body and notices that the client left."""

    def __init__(self, head: RequestHead, errors: ErrorShape) -> None:
        connection = AsgiConnection(errors)
        super().__init__(head, connection, keep_alive=True, expects=False)
        self._flow = connection.flow
        self._events: deque[Event] = deque()
        self._waiting = 0
        self._due = asyncio.Event()
        self._is_over = False

    def lose(self) -> None:
        super().lose()
        self._flow.resume_writing()

    # the answer

    def begin(self, status: int, headers: Headers) -> None:
        self._answer = headers
        self.response_started = True
        self.status = status
        left_out = _OF_SERVER if status != _NOT_MODIFIED else (*_OF_SERVER, b"content-length")
        named = [header for header in headers if header[0] not in left_out]
        named.append((REQUEST_ID, self.id.encode()))
        self._add({"type": "http.response.start", "status": status, "headers": named})

    def put(self, chunk: bytes, *, more: bool) -> bool:
        self.sent += len(chunk)
        if self.disconnected:
            return True
        body = b"" if self.head.method == "HEAD" else chunk
        self._waiting += len(body)
        if self._waiting > _MOST_WAITING:
            self._flow.pause_writing()
        self._add({"type": "http.response.body", "body": body, "more_body": more})
        if not more:
            self.response_complete = True
            self.request.lose()
        return not self._flow.write_paused

    def flush(self) -> None:
        """The head leaves as soon as there is a turn of the loop."""

    def _add(self, event: Event) -> None:
        self._events.append(event)
        self._due.set()

    # what carries it

    async def send_all(self, send: Send) -> None:
        """Until the answer is complete, or `finish` was called and all is sent."""
        while True:
            await self._due.wait()
            self._due.clear()
            while self._events:
                event = self._events.popleft()
                try:
                    await send(event)
                except OSError:  # as newer servers say that the client has left
                    self.lose()
                    return
                self._waiting -= len(event.get("body", b""))
                if self._flow.write_paused and self._waiting <= _MOST_WAITING // 2:
                    self._flow.resume_writing()
                    self.writable()
            if self.response_complete or self._is_over:
                return

    def finish(self) -> None:
        """Nothing comes behind what was put."""
        self._is_over = True
        self._due.set()

    async def receive_all(self, receive: Receive) -> None:
        """The body, as fast as it is read, and then the client's leaving."""
        while True:
            await self._flow.reading()
            event = await receive()
            if event["type"] == "http.disconnect":
                self.lose()
                return
            if piece := event.get("body", b""):
                self.request.receive(piece)
            if not event.get("more_body", False) and self.request.is_coming:
                self.request.end()


def head_of(app: Served, scope: Scope) -> RequestHead:
    """What a server says of a request; the path below where the application is mounted (`root_path`)."""
    path = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "").rstrip("/").encode()
    if root and (path == root or path.startswith(root + b"/")):
        path = path[len(root) :] or b"/"
    target = path + (b"?" + scope["query_string"] if scope.get("query_string") else b"")
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    return app.head(scope["method"], target.decode("latin-1"), headers)
