"""Around every page of ours: who may see it, what others are told, and the headers that all answers carry."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from proxy.admin import rendering
from proxy.admin.access import Access, Visitor
from proxy.admin.cookie import Role
from proxy.dialects.table import CHAT
from proxy.errors import AuthenticationError, NotAllowedError, NotFoundError, ProxyError

Page = Callable[[Request, Visitor], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

ADMIN = "/admin/"
API = f"{ADMIN}api/"
SIGN_IN = "sign-in"
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

    def only(self, page: Page, roles: frozenset[Role]) -> Endpoint:
        """The page for these roles."""
        return self.around(lambda request: self._entered(page, request, roles))

    def around(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint under /admin that decides by itself who may see it."""

        async def guarded(request: Request) -> Response:
            try:
                if not self._is_open():
                    raise NotFoundError("There are no pages here: server.admin is false.")
                response = await endpoint(request)
            except ProxyError as error:
                response = await told(request, error)
            return protected(response)

        return guarded

    async def _entered(self, page: Page, request: Request, roles: frozenset[Role]) -> Response:
        return await page(request, self.access.visitor(request, roles))


def protected(response: Response) -> Response:
    """The answer with the headers that keep it where it belongs: in our own pages, and in no cache."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("cache-control", "no-store")
    return response


async def told(request: Request, error: ProxyError) -> Response:
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
    page = await rendering.page("sign_in.html", request, {"error": error, "then": then}, error.status if error else 200)
    return page if error is None else _with_headers(page, error)


def _with_headers(page: Response, error: ProxyError) -> Response:
    """The page with what the error says in headers, such as when to try again."""
    for name, value in error.headers():
        page.headers.setdefault(name.decode(), value.decode())
    return page


def error_page(error: ProxyError) -> Response:
    """An error in OpenAI's shape."""
    body = CHAT.answers.error_body(error.fields(), error.status)
    return Response(body, error.status, {name.decode(): value.decode() for name, value in error.headers()})


def as_json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
