"""Upstreams scripted byte by byte over raw sockets, a client just as raw, and the proxy between them."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import pytest
import uvicorn

from proxy.app import App
from proxy.server.process import listen, settings
from tests.support.servers import configured

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from proxy.config.loading import Config
    from proxy.telemetry.log import Log
    from tests.support.redis_servers import Certificates

Header = tuple[bytes, bytes]

CHAT = "/v1/chat/completions"
HOST: Header = (b"Host", b"proxy")
JSON: Header = (b"Content-Type", b"application/json")
EVENTS: Header = (b"Content-Type", b"text/event-stream")
CHUNKED: Header = (b"Transfer-Encoding", b"chunked")
GZIP: Header = (b"Content-Encoding", b"gzip")
OK_BODY = (
    b'{"id":"c1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
)

_LIMIT = 64 * 1024 * 1024


def head(status: int, *headers: Header) -> bytes:
    """The head of an answer; the reason phrase is ours to choose."""
    return b"HTTP/1.1 %d Scripted\r\n" % status + _lines(headers) + b"\r\n"


def answer(status: int, body: bytes, *headers: Header) -> bytes:
    """A whole answer with its length."""
    return head(status, *headers, (b"Content-Length", b"%d" % len(body))) + body


def request(method: str, target: str, headers: Iterable[Header] = (), body: bytes | None = None) -> bytes:
    """A whole request; its length is stated if it has a body."""
    length = [] if body is None else [(b"Content-Length", b"%d" % len(body))]
    return f"{method} {target} HTTP/1.1\r\n".encode() + _lines([*headers, *length]) + b"\r\n" + (body or b"")


def chunk(content: bytes) -> bytes:
    """One chunk of a chunked body; an empty one is the last."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str) -> bytes:
    """One event of a chat stream."""
    return event({"id": "c1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def chat(*contents: str, **more: object) -> bytes:
    """A chat request whose messages are all a user's."""
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def _lines(headers: Iterable[Header]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in headers)


class _Wire:
    """One end of a connection: HTTP heads and bodies read as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # Every `send` waits until the kernel took the bytes; with 0 asyncio's TLS would wait for ever.
        writer.transport.set_write_buffer_limits(0 if writer.get_extra_info("sslcontext") is None else 1)

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    async def gone(self) -> None:
        """Return when the other side has closed; what it still sends is thrown away."""
        with suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass

    def close(self) -> None:
        self._writer.close()

    def pause(self) -> None:
        """Read nothing more, not even into buffers of ours."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def reset(self) -> None:
        """Close with a RST instead of an orderly end."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _read_head(self) -> tuple[bytes, list[Header]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        pairs = (line.partition(b":") for line in lines[1:])
        return lines[0], [(name, value.strip()) for name, _, value in pairs]

    async def _read_body(self, headers: list[Header], *, until_close: bool) -> AsyncIterator[bytes]:
        """The body as it arrives; raises IncompleteReadError or ConnectionError where it ends too early."""
        if (value(headers, b"transfer-encoding") or b"").lower() == b"chunked":
            while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readuntil(b"\r\n")
            return
        length = value(headers, b"content-length")
        left = int(length) if length is not None else _LIMIT if until_close else 0
        while left > 0 and (read := await self._reader.read(min(left, 65_536))):
            left -= len(read)
            yield read
        if left > 0 and length is not None:
            raise asyncio.IncompleteReadError(b"", left)


def value(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value of a header, whatever the case of its name."""
    return next((v for key, v in headers if key.lower() == name), None)


class Call(_Wire):
    """One request as an upstream got it: the head as it came, the body when it is read."""

    method = ""
    target = ""
    headers: list[Header]
    body = b""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        # Set when its connection has ended.
        self.closed = asyncio.Event()

    @classmethod
    async def accept(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Self:
        call = cls(reader, writer)
        line, call.headers = await call._read_head()
        method, target, _ = line.split(b" ")
        call.method, call.target = method.decode(), target.decode("latin-1")
        return call

    def header(self, name: bytes) -> bytes | None:
        return value(self.headers, name)

    def chunks(self) -> AsyncIterator[bytes]:
        return self._read_body(self.headers, until_close=False)

    async def read(self) -> bytes:
        self.body = b"".join([read async for read in self.chunks()])
        return self.body


Script = Callable[[Call], Awaitable[object]]


@dataclass(slots=True)
class Upstream:
    """Plays a script for every request; `calls` are those it got.

    What the proxy asks of its own accord it answers by `facts`, a body for each target, and keeps in `questions`.
    """

    script: Script
    address: str = ""
    calls: list[Call] = field(default_factory=list)
    questions: list[Call] = field(default_factory=list)
    facts: dict[str, bytes] = field(default_factory=dict)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        here: list[Call] = []
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                call = await Call.accept(reader, writer)
                here.append(call)
                if call.header(b"user-agent") == b"concertina":
                    await self._tell(call)
                    continue
                self.calls.append(call)
                await self.script(call)
        for call in here:
            call.closed.set()

    async def _tell(self, question: Call) -> None:
        await question.read()
        self.questions.append(question)
        fact = self.facts.get(question.target)
        await question.send(answer(404, b"") if fact is None else answer(200, fact, JSON))

    def play(self, script: Script) -> Self:
        """Forget what was, and play another script."""
        self.script = script
        self.calls.clear()
        return self


# The proxy runs on uvloop, which fails in ways of its own, as does TLS.
WAYS = ("asyncio", "uvloop", "uvloop, TLS")
# For tables of a thousand rows.
TWO_WAYS = ("asyncio", "uvloop, TLS")
# What every upstream speaks that is given no other; None for plain TCP.
_spoken: ssl.SSLContext | None = None


@contextmanager
def _way(name: str, certificates: Certificates) -> Iterator[tuple[str, dict[str, object]]]:
    """The backend of anyio for one of the ways; while it lasts, upstreams speak TLS where it is to be so."""
    global _spoken
    with pytest.MonkeyPatch.context() as patch:
        if name.endswith("TLS"):
            patch.setenv("SSL_CERT_FILE", str(certificates.authority))
            _spoken = certificates.context(clients=False)
        try:
            yield "asyncio", {"use_uvloop": name.startswith("uvloop")}
        finally:
            _spoken = None


def backends(names: tuple[str, ...]) -> Callable[..., Iterator[tuple[str, dict[str, object]]]]:
    """A module's fixture `anyio_backend`, by which its tests go all of these ways."""

    # Over TLS all is as without it, and goes on other Pythons too.
    ways = [pytest.param(name, marks=pytest.mark.slow) if name == "uvloop" else name for name in names]

    @pytest.fixture(scope="module", params=ways)
    def anyio_backend(
        request: pytest.FixtureRequest, certificates: Certificates
    ) -> Iterator[tuple[str, dict[str, object]]]:
        with _way(request.param, certificates) as backend:
            yield backend

    return anyio_backend


@asynccontextmanager
async def upstream(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """A server that plays the script, on a port of its own."""
    tls = tls or _spoken
    served = Upstream(script)
    running: list[asyncio.Task[None]] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.append(asyncio.ensure_future(served.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=_LIMIT, ssl=tls)
    served.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
    # What a script found wrong.
    for error in (error for error in ended if isinstance(error, Exception)):
        raise error


def always(content: bytes) -> Script:
    """Reads a request and answers it with these bytes."""

    async def script(call: Call) -> None:
        await call.read()
        await call.send(content)

    return script


def in_turn(*contents: bytes) -> Script:
    """The first request gets the first of these answers, and so on; the last one is repeated."""
    left = list(contents)

    async def script(call: Call) -> None:
        await call.read()
        await call.send(left.pop(0) if len(left) > 1 else left[0])

    return script


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as a client got it; `complete` tells whether it came to the end it promised."""

    status: int
    headers: list[Header]
    body: bytes
    complete: bool = True

    def header(self, name: bytes) -> bytes | None:
        return value(self.headers, name)

    def json(self) -> dict[str, object]:
        decoded: dict[str, object] = json.loads(self.body)
        return decoded


class Client(_Wire):
    """A client that sees and sends every byte."""

    status = 0
    headers: list[Header]
    method = "GET"

    async def ask(self, method: str, target: str, headers: Iterable[Header] = (), body: bytes | None = None) -> Reply:
        self.method = method
        await self.send(request(method, target, [(b"Host", b"proxy"), *headers], body))
        return await self.reply()

    async def head(self) -> int:
        """The status of the next answer, whose headers are kept."""
        line, self.headers = await self._read_head()
        self.status = int(line.split(b" ")[1])
        return self.status

    def chunks(self) -> AsyncIterator[bytes]:
        if self.method == "HEAD" or self.status in (204, 304):
            return _nothing()
        return self._read_body(self.headers, until_close=True)

    async def reply(self) -> Reply:
        """The next answer as a whole, or as much of it as came."""
        await self.head()
        parts: list[bytes] = []
        complete = True
        try:
            async for part in self.chunks():
                parts.append(part)  # noqa: PERF401 - what came before an early end counts
        except (asyncio.IncompleteReadError, ConnectionError):
            complete = False
        return Reply(self.status, self.headers, b"".join(parts), complete)


async def _nothing() -> AsyncIterator[bytes]:
    for part in ():
        yield part


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    """A client with a connection of its own."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=_LIMIT)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(
    address: str, method: str, target: str, headers: Iterable[Header] = (), body: bytes | None = None
) -> Reply:
    """One request on a connection of its own."""
    async with connected(address) as client:
        return await client.ask(method, target, headers, body)


@asynccontextmanager
async def serving(config: Config, log: Log | None = None) -> AsyncIterator[str]:
    """Yield the address of the whole proxy, served as `concertina serve` does it."""
    served = settings(App(config, log))
    served.load()
    server = uvicorn.Server(served)
    server.lifespan = served.lifespan_class(served)
    listener = listen("127.0.0.1", 0)
    await server.startup([listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.shutdown([listener])


@asynccontextmanager
async def proxied(
    directory: Path, script: Script, tls: ssl.SSLContext | None = None, **more: object
) -> AsyncIterator[tuple[str, Upstream]]:
    """The proxy's address and the scripted upstream behind it; `more` are further parts of the config."""
    async with upstream(script, tls) as behind, serving(config_for(directory, behind.address, **more)) as address:
        yield address, behind


def config_for(directory: Path, address: str, **more: object) -> Config:
    """A config with one upstream at this address; its settings can be added to as `main`, and further ones beside it
    as `others`."""
    main, others = more.pop("main", {}), more.pop("others", {})
    assert isinstance(main, Mapping)
    assert isinstance(others, Mapping)
    upstreams = {"main": {"base_url": f"{address}/v1", **main}, **others}
    rest = {"store": {"url": "memory://"}, "logging": {"level": "error"}, **more}
    return configured(directory, {"upstreams": upstreams, **rest})


def in_step(pieces: Sequence[bytes]) -> tuple[Script, Callable[[str], Awaitable[list[bytes]]]]:
    """A script that streams each piece once the one before was seen, and what a client at an address receives of it."""
    seen: asyncio.Queue[None] = asyncio.Queue()

    async def script(call: Call) -> None:
        await call.read()
        await call.send(head(200, EVENTS, CHUNKED))
        for piece in pieces:
            await call.send(chunk(piece))
            await seen.get()
        await call.send(chunk(b""))

    async def received(address: str) -> list[bytes]:
        async with connected(address) as client:
            await client.send(request("POST", CHAT, [(b"Host", b"proxy"), JSON], chat("hi", stream=True)))
            await client.head()
            found = []
            async for piece in client.chunks():
                found.append(piece)
                seen.put_nowait(None)
        return found

    return script, received
