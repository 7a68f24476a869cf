"""What programs read and do under /admin/api."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from proxy.admin.access import FIGURES, SIGNED_IN, Visitor
from proxy.admin.guard import API, Guard
from proxy.admin.opened import Opened
from proxy.callers.tenants import Caller
from proxy.config.settings import DEFAULT
from proxy.errors import InvalidRequestError, NotAllowedError, NotFoundError, StoreUnavailableError
from proxy.records.index import Target
from proxy.stores import StoreError

_T = TypeVar("_T")
SESSIONS_PATH = f"{API}sessions"


class Api:
    """The endpoints; every answer is JSON."""

    def __init__(self, opened: Callable[[], Opened], guard: Guard) -> None:
        self._find = opened
        self._guard = guard

    def routes(self) -> list[Path]:
        only = self._guard.only
        return [
            Path(f"{API}models", only(self._models, FIGURES)),
            Path(SESSIONS_PATH, only(self._sessions, SIGNED_IN), methods=["GET", "DELETE"]),
            Path(f"{SESSIONS_PATH}/{{name:path}}", only(self._erase, SIGNED_IN), methods=["DELETE"]),
        ]

    @property
    def _opened(self) -> Opened:
        return self._find()

    async def _models(self, _: Request, __: Visitor) -> Response:
        router, windows = self._opened.active().router, self._opened.engine.windows
        known = [windows.sources(place, router.configured_window(place.model)) for place in windows.places()]
        return as_json({"models": known})

    async def _sessions(self, request: Request, visitor: Visitor) -> Response:
        """A tenant's conversations of which something is stored: listed, or erased."""
        caller, sessions = tenant_of(request, visitor, self._opened), self._opened.engine.sessions
        if request.method == "DELETE":
            if request.query_params.get("all") != "true":
                raise InvalidRequestError("Name the session in the path, or say ?all=true to erase all.", param="all")
            return await self._erased(caller, await answered(sessions.every(caller)))
        return as_json({"sessions": await answered(sessions.of(caller))})

    async def _erase(self, request: Request, visitor: Visitor) -> Response:
        """Erase the conversations of a tenant that this names: all with the label, or the one with the id."""
        caller = tenant_of(request, visitor, self._opened)
        found = await answered(self._opened.engine.sessions.named(caller, request.path_params["name"]))
        if not found:
            raise NotFoundError("No session of this tenant has this label or id; GET /admin/api/sessions lists them.")
        return await self._erased(caller, found)

    async def _erased(self, caller: Caller, found: Sequence[Target]) -> Response:
        erased = await self._opened.engine.sessions.erase(caller, found)
        if erased < len(found):
            raise StoreUnavailableError("The store could not erase it; nothing is promised. Try again.")
        return JSONResponse({"erased": [target.id for target in found]})


def tenant_of(request: Request, visitor: Visitor, opened: Opened) -> Caller:
    """The tenant that `?tenant=` names; unsaid, a viewer's own, else the default one."""
    name = request.query_params.get("tenant", visitor.tenant or DEFAULT)
    caller = opened.active().tenants.named(name)
    if not visitor.sees(name):
        raise NotAllowedError("Your key opens another tenant's pages.", param="tenant")
    if caller is None:
        raise NotFoundError("No tenant has this name; say which by ?tenant=NAME.", param="tenant")
    return caller


async def answered(look: Awaitable[_T]) -> _T:
    """What the store says of its sessions; raises StoreUnavailableError where it says nothing."""
    try:
        return await look
    except StoreError:
        raise StoreUnavailableError(
            "The store could not say which sessions there are; none was erased. Try again."
        ) from None


def as_json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
