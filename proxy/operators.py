"""Pages for operators: with their token where one is set, else for this machine alone."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from proxy.errors import AuthenticationError, NotAllowedError, ProxyError
from proxy.wire.headers import Headers

Page = Callable[[Request], Awaitable[Response]]

# Who sends these is not who connected.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def for_operators(token: Callable[[], str], page: Page) -> Page:
    """The page for requests with `Authorization: Bearer` and the token in force; without one, for this machine's."""

    async def guarded(request: Request) -> Response:
        refusal = _refusal(token(), request)
        if refusal is None:
            try:
                return await page(request)
            except ProxyError as error:
                refusal = error
        return error_page(refusal)

    return guarded


def error_page(error: ProxyError) -> Response:
    return Response(error.body(), error.status, {name.decode(): value.decode() for name, value in error.headers()})


def carries(token: bytes, headers: Headers, query: bytes) -> bool:
    """Whether the token stands where a credential may: in a header, a cookie or the query of a request."""
    candidates = (key for key in _candidates(headers, query, len(token)) if hmac.compare_digest(key, token))
    return bool(token) and any(candidates)


def _candidates(headers: Headers, query: bytes, least: int) -> Iterator[bytes]:
    """What may be a key of this length, encoded or not."""
    for name, value in headers:
        if len(value) < least:
            continue
        scheme, *rest = value.split(None, 1) or [b""]
        yield value
        yield from (key.strip() for key in rest)
        if scheme.lower() == b"basic":
            yield from _basic(b"".join(rest))
        if name == b"cookie":
            yield from (unquote_to_bytes(cookie.partition(b"=")[2].strip(b' "')) for cookie in value.split(b";"))
    for parameter in query.split(b"&"):
        yield from map(unquote_to_bytes, (parameter, parameter.partition(b"=")[2]))


def _basic(credentials: bytes) -> Iterator[bytes]:
    """User and password (RFC 7617), each of which may be a key."""
    try:
        decoded = base64.b64decode(credentials.rstrip(b"= ") + b"==")
    except ValueError:
        return
    user, _, password = decoded.partition(b":")
    yield from (decoded, user, password)


def _refusal(token: str, request: Request) -> ProxyError | None:
    if not token:
        if _is_local(request):
            return None
        return NotAllowedError("Only this machine may see this; set server.admin_token to see it from elsewhere.")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if hmac.compare_digest(given.encode(), token.encode()):
        return None
    return AuthenticationError("This needs `Authorization: Bearer <server.admin_token>`.")


def _is_local(request: Request) -> bool:
    """Whether client and name are this machine's: a page in its browser may resolve any other name to it."""
    client = request.client.host if request.client else ""
    name = request.url.hostname or ""
    if any(header in request.headers for header in _FORWARDED):
        return False
    return _is_loopback(client) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
