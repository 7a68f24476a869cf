"""How a browser comes in and leaves: the link that is printed at the start, the form, and the files of all pages."""

import re
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route as Path

from proxy.admin import rendering
from proxy.admin.access import check_origin, cookie_of
from proxy.admin.cookie import LIFETIME
from proxy.admin.guard import ADMIN, SIGN_IN, Endpoint, Guard, protected, sign_in
from proxy.errors import AuthenticationError, InvalidRequestError, NotFoundError

_MOST_FORM_BYTES = 4_096
_MOST_FIELDS = 20
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
            Path("/admin", self._arrived),
            Path(f"{ADMIN}assets/{{name}}", around(_asset)),
            Path(f"{ADMIN}{SIGN_IN}", around(self._sign_in), methods=["GET", "POST"]),
            Path(f"{ADMIN}sign-out", around(_sign_out), methods=["POST"]),
        ]

    async def _arrived(self, request: Request) -> Response:
        """The overview; a link with a token that was made signs in on the way there."""
        if not request.scope["raw_path"].partition(b"?")[0].endswith(b"/"):
            query = request.url.query
            return protected(RedirectResponse("admin/" + (f"?{query}" if query else ""), 303))
        is_link = "token" in request.query_params
        return await (self._guard.around(self._linked) if is_link else self._overview)(request)

    async def _linked(self, request: Request) -> Response:
        value = self._guard.access.enter(request, request.query_params["token"], by_link=True)
        return _entered(request, value)

    async def _sign_in(self, request: Request) -> Response:
        if request.method == "GET":
            return await sign_in(request)
        check_origin(request)
        form = await form_of(request)
        try:
            value = self._guard.access.enter(request, form.get("token", ""))
        except AuthenticationError as error:
            return await sign_in(request, error)
        return _entered(request, value, form.get("next", ""))


def _entered(request: Request, value: str, then: str = "") -> Response:
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


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request, of at most so many bytes; raises InvalidRequestError."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise InvalidRequestError(f"This is larger than {most:,} bytes.")
    return bytes(body)
