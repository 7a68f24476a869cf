"""Around every page of ours: who is let in, by what form or link, what others are told, and headers of all answers."""

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
_HEADINGS = {404: "There is no such page", 410: "It is gone", 403: "This is not shown", 405: "This cannot be done"}
_HEADERS = {
    "content-security-policy": rendering.POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Lets those in who may see a page."""

    def __init__(self, access: Access, is_open: Callable[[], bool]) -> None:
        """`is_open`: whether there are pages at all."""
        self.access = access
        self._is_open = is_open
        self._under_way = 0

    def only(self, page: Page, roles: frozenset[Role]) -> Endpoint:
        """The page for these roles."""
        return self.around(lambda request: self._answer_by_role(page, request, roles))

    def around(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint under /admin that decides by itself who may see it."""

        async def guarded(request: Request) -> Response:
            try:
                if not self._is_open():
                    raise NotFoundError("There are no pages here: server.admin is false.")
                await self.access.slow_down(request)  # before it takes a place among the pages under way
                response = await self._answer_within_limit(endpoint, request)
            except ProxyError as error:
                response = await error_response(request, error)
            return with_protection(response)

        return guarded

    async def _answer_within_limit(self, endpoint: Endpoint, request: Request) -> Response:
        """Return the page, or raise OverloadedError: pages must not take what requests of models need."""
        if self._under_way >= _MOST_AT_ONCE:
            raise OverloadedError("Too many pages are being made; try again in a moment.")
        self._under_way += 1
        try:
            with for_page():
                return await endpoint(request)
        finally:
            self._under_way -= 1

    async def _answer_by_role(self, page: Page, request: Request, roles: frozenset[Role]) -> Response:
        return await page(request, self.access.visitor(request, roles))


def with_protection(response: Response) -> Response:
    """The answer with the headers that keep it where it belongs: in our own pages, and in no cache."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("cache-control", "no-store")
    return response


async def error_response(request: Request, error: ProxyError) -> Response:
    """An error as a page for people, and in OpenAI's shape for programs."""
    if not rendering.wants_html(request) or request.url.path.startswith(API) or "/admin" not in request.url.path:
        return error_page(error)
    if isinstance(error, AuthenticationError | NotAllowedError) and request.method == "GET":
        return await sign_in(request, error)
    heading = _HEADINGS.get(error.status, "This did not work")
    page = await rendering.page("error.html", request, {"error": error, "heading": heading}, error.status)
    return _with_headers(page, error)


async def sign_in(request: Request, error: ProxyError | None = None) -> Response:
    """The form that takes a token or a viewer's key, with what was wrong about the last one."""
    here: str = request.scope["raw_path"].decode("latin-1").partition(ADMIN)[2]
    then = "" if here == SIGN_IN else f"{here}?{request.url.query}".rstrip("?")
    values = {"error": error, "then": then, "has_failed": has_credential(request)}
    page = await rendering.page("sign_in.html", request, values, error.status if error else 200)
    return page if error is None else _with_headers(page, error)


def _with_headers(page: Response, error: ProxyError) -> Response:
    """The page with what the error says in headers, such as when to try again."""
    for name, value in error.headers():
        page.headers.setdefault(name.decode(), value.decode())
    return page


def error_page(error: ProxyError) -> Response:
    """An error in OpenAI's shape."""
    body = DEFAULT_DIALECT.answers.error_body(error.fields(), error.status)
    return Response(body, error.status, {name.decode(): value.decode() for name, value in error.headers()})


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


_MOST_FORM_BYTES = 4_096
_MOST_FIELDS = 20
MOST_ROWS, _MOST_DIGITS = 200, 3
# An address below /admin/, of which nothing can lead elsewhere.
_PLACE = re.compile(r"(?:[a-z]+(?:/[a-z0-9-]+)*)?(?:\?[\w.%&=+-]*)?", re.ASCII)


class Entrance:
    """Signs in and out, and leads on to the overview."""

    def __init__(self, guard: Guard, overview: Endpoint) -> None:
        self._guard = guard
        self._overview = overview

    def routes(self) -> list[Path]:
        around = self._guard.around
        return [
            Path("/admin", self._show_overview),
            Path(f"{ADMIN}assets/{{name}}", around(_asset)),
            Path(f"{ADMIN}{SIGN_IN}", around(self._sign_in), methods=["GET", "POST"]),
            Path(f"{ADMIN}sign-out", around(_sign_out), methods=["POST"]),
        ]

    async def _show_overview(self, request: Request) -> Response:
        """The overview; a link with a token that was made signs in on the way there."""
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
    """On to the page that was asked for, with the cookie. It has no path of its own: a prefix may be in front."""
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
    """For everybody: the form for signing in needs them too."""
    found = await rendering.asset(request)
    if found is None:
        raise NotFoundError("There is no such file.")
    return found


async def form_of(request: Request, most: int = _MOST_FORM_BYTES) -> dict[str, str]:
    """The fields of a form of at most so many bytes; raises InvalidRequestError."""
    body = await body_of(request, most)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidRequestError("This form has too many fields.") from None
    return {name: values[0] for name, values in fields.items()}


def limit_of(request: Request, usual: int) -> int:
    """How many rows `?limit=` asks for. Raises InvalidRequestError."""
    asked = request.query_params.get("limit") or str(usual)
    if not (asked.isascii() and asked.isdigit() and len(asked) <= _MOST_DIGITS and 0 < int(asked) <= MOST_ROWS):
        raise InvalidRequestError(f"limit is a number from 1 to {MOST_ROWS}.", param="limit")
    return int(asked)


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request, of at most so many bytes; raises InvalidRequestError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise InvalidRequestError(f"This is larger than {most:,} bytes.")
    return bytes(body)
