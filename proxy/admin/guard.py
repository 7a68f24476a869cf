"""The frame of every page: access, sign-in, error responses and security headers."""

import re
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import rendering
from proxy.admin.access import LIFETIME, Access, Visitor, check_origin, cookie_of, has_credential
from proxy.admin.endpoints import ADMIN, API
from proxy.admin.roles import Role
from proxy.dialects.table import DEFAULT_DIALECT
from proxy.errors import (
    AuthenticationError,
    InvalidRequestError,
    NotAllowedError,
    NotFoundError,
    OverloadedError,
    ProxyError,
)
from proxy.sessions.stores.breaker import for_page

Page = Callable[[Request, Visitor], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

SIGN_IN = "sign-in"
_MOST_AT_ONCE = 32
_HEADINGS = {404: "Page not found", 410: "Erased", 403: "Not allowed", 405: "Not supported"}
_HEADERS = {
    "content-security-policy": rendering.POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Allow visitors with the right role to see a page."""

    def __init__(self, access: Access, is_open: Callable[[], bool]) -> None:
        """Create a guard. `is_open` returns True if the pages are enabled."""
        self.access = access
        self._is_open = is_open
        self._in_flight = 0

    def only(self, page: Page, roles: frozenset[Role]) -> Endpoint:
        """Return the page for these roles."""
        return self.around(lambda request: self._answer_by_role(page, request, roles))

    def around(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint under /admin that decides itself who may see it."""

        async def guarded(request: Request) -> Response:
            try:
                if not self._is_open():
                    raise NotFoundError("The pages are off: server.admin is false.")
                await self.access.slow_down(request)  # before the request counts as a page in flight
                response = await self._answer_within_limit(endpoint, request)
            except ProxyError as error:
                response = await error_response(request, error)
            return with_protection(response)

        return guarded

    async def _answer_within_limit(self, endpoint: Endpoint, request: Request) -> Response:
        """Return the page. Raises OverloadedError: pages must not take resources of model requests."""
        if self._in_flight >= _MOST_AT_ONCE:
            raise OverloadedError("Too many pages are requested at once; try again in a moment.")
        self._in_flight += 1
        try:
            with for_page():
                return await endpoint(request)
        finally:
            self._in_flight -= 1

    async def _answer_by_role(self, page: Page, request: Request, roles: frozenset[Role]) -> Response:
        return await page(request, self.access.visitor(request, roles))


def with_protection(response: Response) -> Response:
    """Add the headers that keep a response in the proxy's own pages and out of caches."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("cache-control", "no-store")
    return response


async def error_response(request: Request, error: ProxyError) -> Response:
    """Return an error as a page for people, or in OpenAI's format for programs."""
    if not rendering.wants_html(request) or request.url.path.startswith(API) or "/admin" not in request.url.path:
        return error_page(error)
    if isinstance(error, AuthenticationError | NotAllowedError) and request.method == "GET":
        return await sign_in(request, error)
    heading = _HEADINGS.get(error.status, "Something failed")
    page = await rendering.page("error.html", request, {"error": error, "heading": heading}, error.status)
    return _with_headers(page, error)


async def sign_in(request: Request, error: ProxyError | None = None) -> Response:
    """Return the form for a token or a viewer's key, with the error of the last attempt."""
    path: str = request.scope["raw_path"].decode("latin-1").partition(ADMIN)[2]
    then = "" if path == SIGN_IN else f"{path}?{request.url.query}".rstrip("?")
    values = {"error": error, "then": then, "has_failed": has_credential(request)}
    page = await rendering.page("sign_in.html", request, values, error.status if error else 200)
    return page if error is None else _with_headers(page, error)


def _with_headers(page: Response, error: ProxyError) -> Response:
    """Add the error's headers to a page, such as Retry-After."""
    for name, value in error.headers():
        page.headers.setdefault(name.decode(), value.decode())
    return page


def error_page(error: ProxyError) -> Response:
    """Return an error in OpenAI's format."""
    body = DEFAULT_DIALECT.answers.error_body(error.fields(), error.status)
    return Response(body, error.status, {name.decode(): value.decode() for name, value in error.headers()})


def as_json(value: object, status: int = 200) -> Response:
    """Return a value as a JSON response."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


_MOST_FORM_BYTES = 4_096
_MOST_FIELDS = 20
MOST_ROWS, _MOST_DIGITS = 200, 3
# A path below /admin/. It cannot lead to another site.
_PLACE = re.compile(r"(?:[a-z]+(?:/[a-z0-9-]+)*)?(?:\?[\w.%&=+-]*)?", re.ASCII)


class Entrance:
    """The pages for signing in and out, and the way to the overview."""

    def __init__(self, guard: Guard, overview: Endpoint) -> None:
        """Create the entrance to this overview."""
        self._guard = guard
        self._overview = overview

    def routes(self) -> list[Path]:
        """Return the routes."""
        around = self._guard.around
        return [
            Path("/admin", self._show_overview),
            Path(f"{ADMIN}assets/{{name}}", around(_asset)),
            Path(f"{ADMIN}{SIGN_IN}", around(self._sign_in), methods=["GET", "POST"]),
            Path(f"{ADMIN}sign-out", around(_sign_out), methods=["POST"]),
        ]

    async def _show_overview(self, request: Request) -> Response:
        """Return the overview. A link with a generated token signs in first."""
        if not request.scope["raw_path"].partition(b"?")[0].endswith(b"/"):
            query = request.url.query
            return with_protection(RedirectResponse("admin/" + (f"?{query}" if query else ""), 303))
        is_link = "token" in request.query_params
        return await (self._guard.around(self._sign_in_by_link) if is_link else self._overview)(request)

    async def _sign_in_by_link(self, request: Request) -> Response:
        value = self._guard.access.enter(request, request.query_params["token"], by_link=True)
        return _enter_with_cookie(request, value, request.query_params.get("next", ""))

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return await sign_in(request)
        check_origin(request)
        form = await form_of(request)
        try:
            value = self._guard.access.enter(request, form.get("token", ""))
        except AuthenticationError as error:
            return await sign_in(request, error)
        return _enter_with_cookie(request, value, form.get("next", ""))


def _enter_with_cookie(request: Request, value: str, then: str = "") -> Response:
    """Redirect to the requested page, and set the cookie. It has no path, since there may be a prefix."""
    response = RedirectResponse("./" + (then if _PLACE.fullmatch(then) else ""), 303)
    is_secure = request.headers.get("origin", "").startswith("https:")
    response.set_cookie(
        cookie_of(request), value, LIFETIME, path=None, httponly=True, samesite="strict", secure=is_secure
    )
    return response


async def _sign_out(request: Request) -> Response:
    check_origin(request)
    response = RedirectResponse(f"./{SIGN_IN}", 303)
    response.set_cookie(cookie_of(request), "", 0, path=None, httponly=True, samesite="strict")
    return response


async def _asset(request: Request) -> Response:
    """Return an asset. The sign-in form needs them too, so they need no role."""
    response = await rendering.asset(request)
    if response is None:
        raise NotFoundError("This file does not exist.")
    return response


async def form_of(request: Request, limit: int = _MOST_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form with at most `limit` bytes. Raises InvalidRequestError."""
    body = await body_of(request, limit)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidRequestError("This form has too many fields.") from None
    return {name: values[0] for name, values in fields.items()}


def limit_of(request: Request, default: int) -> int:
    """Return the number of rows in `?limit=`, or else `default`. Raises InvalidRequestError."""
    text = request.query_params.get("limit") or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and 0 < int(text) <= MOST_ROWS):
        raise InvalidRequestError(f"limit must be a number from 1 to {MOST_ROWS}.", param="limit")
    return int(text)


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body of a request with at most `limit` bytes. Raises InvalidRequestError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise InvalidRequestError(f"The body must have at most {limit:,} bytes.")
    return bytes(body)
