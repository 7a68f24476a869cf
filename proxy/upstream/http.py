"""Requests to upstreams and their answers as raw bytes; the one module that knows aiohttp."""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from types import MappingProxyType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from proxy.config.settings import Upstream
from proxy.errors import ClientGoneError, OutOfFilesError, ProxyError, UpstreamConnectionError, UpstreamTimeoutError
from proxy.runtime.descriptors import are_used_up
from proxy.upstream.litellm.translator import Translator
from proxy.upstream.response import TruncatedError, UpstreamResponse

__all__ = ["TruncatedError", "UpstreamClient", "UpstreamResponse"]

_MAX_HEADER = 64 * 1024
_READ_BUFFER = 256 * 1024
_KEEPALIVE = 15.0
# More than this in one write would hold up the event loop, as aiohttp warns. Its own BytesIOPayload copies the whole.
_LARGE = 1024 * 1024
_PIECE = 128 * 1024
# What is not among these no server can pass on: 101 changes the protocol, beyond 599 nothing is defined.
_FINAL = range(200, 600)
_NOT_HTTP = "The upstream's answer is not valid HTTP."
_NO_AUTO_HEADERS = ("user-agent", "accept", "accept-encoding", "content-type")
Body = bytes | AsyncIterator[bytes] | None


class _RelayedBody:
    """The bytes of an answer as aiohttp receives them."""

    __slots__ = ("_response",)

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TruncatedError(type(error).__name__) from None

    @property
    def at_end(self) -> bool:
        return self._response.content.at_eof()

    def close(self) -> None:
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()


class UpstreamClient:
    """One pooled session an upstream; entered once at start, left at shutdown.

    No cookies, proxies from the environment, redirects, decompression or retries: what a client sent is sent once,
    and what an upstream answers is what the client gets. Where `provider: litellm` is configured, chat requests are
    translated on the way, and their answers on the way back.
    """

    def __init__(self, upstreams: Mapping[str, Upstream] = MappingProxyType({})) -> None:
        """`upstreams`, by name, are those that must be ready before anything is sent."""
        self._sessions: dict[Upstream, aiohttp.ClientSession] = {}
        self._upstreams = upstreams
        self._translator = Translator(self._relay)

    async def __aenter__(self) -> Self:
        await self._translator.load(self._upstreams)
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            await session.close()

    async def send(
        self, upstream: Upstream, method: str, url: str, headers: Iterable[tuple[bytes, bytes]], body: Body
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its answer; `url` is absolute and already encoded.

        Raises UpstreamConnectionError or UpstreamTimeoutError, and what reading `body` raises; for what cannot be
        translated, InvalidRequestError or UntranslatableError.
        """
        if upstream.provider == "litellm":
            return await self._translator.send(upstream, method, url, list(headers), body)
        return await self._relay(upstream, method, url, headers, body)

    async def _relay(
        self, upstream: Upstream, method: str, url: str, headers: Iterable[tuple[bytes, bytes]], body: Body
    ) -> UpstreamResponse:
        named = CIMultiDict([(key.decode("latin-1"), _text(value)) for key, value in headers])
        if isinstance(body, bytes) and len(body) > _LARGE:
            named["Content-Length"] = str(len(body))
            body = _pieces(body)
        try:
            response = await self._session(upstream).request(
                method, URL(url, encoded=True), headers=named, data=_payload(body), allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if isinstance(error.__cause__, ProxyError | ClientGoneError):  # from reading the client's body
                raise error.__cause__ from None
            raise _mapped(error, upstream) from None
        if response.status not in _FINAL:
            response.close()
            raise UpstreamConnectionError(_NOT_HTTP, "not_http")
        return UpstreamResponse(response.status, list(response.raw_headers), _RelayedBody(response))

    def _session(self, upstream: Upstream) -> aiohttp.ClientSession:
        session = self._sessions.get(upstream)
        if session is None:
            session = self._sessions[upstream] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=upstream.max_connections, keepalive_timeout=_KEEPALIVE),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=upstream.total_timeout,
                    # Waiting for a free connection counts as connecting.
                    connect=upstream.connect_timeout,
                    sock_connect=upstream.connect_timeout,
                    sock_read=upstream.idle_timeout,
                ),
                skip_auto_headers=_NO_AUTO_HEADERS,
                auto_decompress=False,
                trust_env=False,
                read_bufsize=_READ_BUFFER,
                max_line_size=_MAX_HEADER,
                max_field_size=_MAX_HEADER,
            )
        return session


def _text(value: bytes) -> str:
    """aiohttp writes headers as UTF-8; bytes that are none it would leave out, so they are read as latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _payload(body: Body) -> aiohttp.Payload | AsyncIterator[bytes] | None:
    """Bytes as a payload without a content type of its own; none at all for an empty body."""
    if not isinstance(body, bytes):
        return body
    return aiohttp.BytesPayload(body, headers={}) if body else None


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large body, with a turn of the loop for others between its pieces."""
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
        await asyncio.sleep(0)


def _mapped(error: Exception, upstream: Upstream) -> ProxyError:
    """What went wrong, in our words: the library's own may hold addresses and header values."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return UpstreamConnectionError(
                f"The upstream did not accept a connection in {upstream.connect_timeout:g} s.", "connect_timeout"
            )
        case aiohttp.SocketTimeoutError():
            return UpstreamTimeoutError(f"The upstream sent nothing for {upstream.idle_timeout:g} s.")
        case TimeoutError() if upstream.total_timeout is not None:
            return UpstreamTimeoutError(f"The upstream did not answer within {upstream.total_timeout:g} s.")
        case aiohttp.ClientConnectorError() if are_used_up(error.os_error):
            return OutOfFilesError()
        case aiohttp.ClientConnectorError() | aiohttp.ClientSSLError():
            return _unconnected(error)
        case aiohttp.ClientResponseError():
            return UpstreamConnectionError(_NOT_HTTP, "not_http")
        case OSError(errno=errno.ECONNRESET):
            return UpstreamConnectionError("The upstream reset the connection before it answered.", "reset")
        case _:
            return UpstreamConnectionError("The upstream closed the connection before it answered.", "closed")


def _unconnected(error: aiohttp.ClientConnectorError) -> UpstreamConnectionError:
    """Why there is no connection, and what to look at."""
    match error, error.os_error:
        case aiohttp.ClientConnectorDNSError(), _:
            why = "The name of the upstream cannot be resolved; is its base_url right, and does DNS work?", "dns"
        case aiohttp.ClientConnectorCertificateError(), _:
            text = "The upstream's TLS certificate is not valid for it; is its base_url right, and its issuer trusted?"
            why = text, "tls"
        case (aiohttp.ClientSSLError(), _) | (_, ssl.SSLError()):
            why = "The upstream does not speak TLS as we do; should its base_url begin with http://?", "tls"
        case _, ConnectionRefusedError():
            text = "The upstream refuses connections; is its server running, and the port in its base_url right?"
            why = text, "refused"
        case _:
            why = "The upstream cannot be reached; is its base_url right and the server running?", "unreachable"
    return UpstreamConnectionError(*why)
