"""What people see under /admin: pages that work without JavaScript."""

import re
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import rendering
from proxy.admin.access import EVERYBODY, Visitor, check_origin, cookie_of
from proxy.admin.cookie import LIFETIME, Role
from proxy.admin.guard import ADMIN, Guard, protected, sign_in
from proxy.admin.opened import Opened
from proxy.errors import AuthenticationError, InvalidRequestError, NotFoundError

# A form with a token, and where to go on.
_MOST_FORM_BYTES = 4_096
_MOST_FIELDS = 20
# An address below /admin/, of which nothing can lead elsewhere.
_PLACE = re.compile(r"(?:[a-z]+(?:/[a-z0-9-]+)*)?(?:\?[\w.%&=+-]*)?", re.ASCII)


class Link(NamedTuple):
    """A view in the navigation. path: below /admin/. key: goes there, after g."""

    path: str
    text: str
    key: str
    roles: frozenset[Role]


class About(NamedTuple):
    """What is at the foot of every page. started: Unix seconds."""

    version: str
    replica: str
    started: float


_NAVIGATION = ((Link("", "Overview", "o", EVERYBODY),),)


def navigation(visitor: Visitor) -> list[list[Link]]:
    """The views that this visitor may see, in groups."""
    groups = ([link for link in group if visitor.role in link.roles] for group in _NAVIGATION)
    return [group for group in groups if group]


class HtmlPages:
    """The pages, each with its template."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard

    def routes(self) -> list[Path]:
        around, only = self._guard.around, self._guard.only
        self._shown = only(self._overview, EVERYBODY)
        return [
            Path("/admin", self._entrance),
            Path(f"{ADMIN}assets/{{name}}", around(_asset)),
            Path(f"{ADMIN}sign-in", around(self._sign_in), methods=["GET", "POST"]),
            Path(f"{ADMIN}sign-out", around(_sign_out), methods=["POST"]),
        ]

    async def _entrance(self, request: Request) -> Response:
        """The overview; a link with a token that was made signs in on the way there."""
        if not request.scope["raw_path"].partition(b"?")[0].endswith(b"/"):
            query = request.url.query
            return protected(RedirectResponse("admin/" + (f"?{query}" if query else ""), 303))
        given = request.query_params.get("token")
        return await (self._shown if given is None else self._guard.around(self._linked))(request)

    async def _linked(self, request: Request) -> Response:
        return self._entered(request, self._guard.access.enter(request, request.query_params["token"], by_link=True))

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return await sign_in(request)
        check_origin(request)
        form = await _form(request)
        try:
            value = self._guard.access.enter(request, form.get("token", ""))
        except AuthenticationError as error:
            return await sign_in(request, error)
        return self._entered(request, value, form.get("next", ""))

    def _entered(self, request: Request, value: str, then: str = "") -> Response:
        """On to the page that was asked for, with the cookie. It has no path of its own: a prefix may be in front."""
        response = RedirectResponse("./" + (then if _PLACE.fullmatch(then) else ""), 303)
        is_secure = request.headers.get("origin", "").startswith("https:")
        response.set_cookie(
            cookie_of(request), value, LIFETIME, path=None, httponly=True, samesite="strict", secure=is_secure
        )
        return response

    async def _overview(self, request: Request, visitor: Visitor) -> Response:
        return await self._page("overview.html", request, visitor)

    async def _page(self, template: str, request: Request, visitor: Visitor, **values: object) -> Response:
        """A view in its frame: where one can go on to, and what this is of."""
        opened = self._find()
        about = About(version("concertina"), opened.name, opened.started)
        frame = {"visitor": visitor, "navigation": navigation(visitor), "about": about, "now": time.time()}
        return await rendering.page(template, request, 200, **frame, **values)


async def _sign_out(request: Request) -> Response:
    check_origin(request)
    response = RedirectResponse("./sign-in", 303)
    response.set_cookie(cookie_of(request), "", 0, path=None, httponly=True, samesite="strict")
    return response


async def _asset(request: Request) -> Response:
    """For everybody: the form for signing in needs them too."""
    found = await rendering.asset(request)
    if found is None:
        raise NotFoundError("There is no such file.")
    return found


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form that was posted; raises InvalidRequestError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise InvalidRequestError("This form is too large.")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    return {name: values[0] for name, values in fields.items()}
