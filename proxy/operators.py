"""Pages for operators: with their token where one is set, else for this machine alone."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from proxy.errors import AuthenticationError, NotAllowedError, ProxyError

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
        headers = {name.decode(): value.decode() for name, value in refusal.headers()}
        return Response(refusal.body(), refusal.status, headers)

    return guarded


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
