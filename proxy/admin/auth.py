"""Who may see and do what on the pages for operators, and the admin token where it has no place."""

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from proxy.callers.admin_token import AdminToken
from proxy.dialects.table import CHAT
from proxy.errors import AuthenticationError, NotAllowedError, ProxyError
from proxy.server.headers import OUR_COOKIE

Page = Callable[[Request], Awaitable[Response]]

ADMIN_PATH = "/admin/"
_COOKIE_SECONDS = 12 * 3600
_READING = ("GET", "HEAD")
_PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
# What curl, wget, Prometheus, browsers and HTTP libraries send by themselves. A front end that passes on a stranger's
# request gives itself away by any header beside these, such as Forwarded, Via, X-Forwarded-For, X-Request-Id or CF-Ray.
_ORDINARY = frozenset(
    {
        *("host", "user-agent", "accept", "accept-encoding", "accept-language", "connection", "cache-control"),
        *("pragma", "cookie", "dnt", "if-modified-since", "if-none-match", "priority", "referer"),
        *("sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user", "sec-gpc"),
        *("upgrade-insecure-requests", "x-prometheus-scrape-timeout-seconds"),
    }
)
_NEEDED = (
    "This needs the admin token: open the link that `concertina serve` prints on a terminal, send"
    " `Authorization: Bearer` with the token from the file that it names, or set server.admin_token."
)


class Operators:
    """Lets requests with the admin token in; reading also with the cookie that the link at the start gives.

    Where no token is configured, this machine may read figures without it: no labels, and never write.
    """

    def __init__(self, token: Callable[[], AdminToken], clock: Callable[[], float] = time.time) -> None:
        """`clock` tells Unix seconds."""
        self._token = token
        self._clock = clock

    def only(self, page: Page, *, figures: bool = False) -> Page:
        """The page for those who may see it; `figures` tells whether it shows nothing else."""

        async def guarded(request: Request) -> Response:
            try:
                self._check(request, figures=figures)
                response = await page(request)
            except ProxyError as error:
                response = error_page(error)
            response.headers.update(_PRIVATE)
            return response

        return guarded

    def enter(self, given: str) -> Response:
        """Take a token that was made from the link that holds it, and lead on to the address without it."""
        token = self._token()
        if token.is_configured or not _same(given, token.value):
            response = error_page(AuthenticationError("This link is not, or no longer, valid. " + _NEEDED))
        else:
            response = RedirectResponse(ADMIN_PATH, 303)
            expires = f"{self._clock() + _COOKIE_SECONDS:.0f}"
            value = f"{expires}.{_mark(token, expires)}"
            response.set_cookie(
                OUR_COOKIE, value, max_age=_COOKIE_SECONDS, path=ADMIN_PATH[:-1], httponly=True, samesite="strict"
            )
        response.headers.update(_PRIVATE)
        return response

    def _check(self, request: Request, *, figures: bool) -> None:
        """Raise what a request is refused with."""
        token, reads = self._token(), request.method in _READING
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), token.value):
            return
        if reads and self._is_valid(request.cookies.get(OUR_COOKIE, ""), token):
            return
        if reads and figures and not token.is_configured and is_this_machine(request):
            return
        if token.is_configured:
            raise AuthenticationError("This needs `Authorization: Bearer <server.admin_token>`.")
        raise AuthenticationError(_NEEDED) if scheme else NotAllowedError(_NEEDED)

    def _is_valid(self, cookie: str, token: AdminToken) -> bool:
        expires, _, mark = cookie.partition(".")
        known = _same(mark, _mark(token, expires))
        return known and int(expires) > self._clock()


def is_this_machine(request: Request) -> bool:
    """Whether a request shows that a program of this machine sent it, and no front end passed it on.

    The Host must be a loopback name with our port: a page in a browser may resolve any other name to this machine.
    """
    scope = request.scope
    _, port = scope["server"]
    return (
        scope["http_version"] == "1.1"
        and _ORDINARY.issuperset(request.headers.keys())
        and request.client is not None
        and _is_loopback(request.client.host)
        and _is_ours(request.headers.get("host", ""), port)
    )


def _is_ours(host: str, port: int) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        named = parts.port or 80
    except ValueError:
        return False
    name = parts.hostname or ""
    return named == port and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _mark(token: AdminToken, expires: str) -> str:
    return hmac.digest(token.value.encode(), b"concertina admin cookie " + expires.encode(), "sha256").hex()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def error_page(error: ProxyError) -> Response:
    body = CHAT.answers.error_body(error.fields(), error.status)
    return Response(body, error.status, {name.decode(): value.decode() for name, value in error.headers()})
