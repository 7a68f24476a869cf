"""Build routes from the table of endpoints. Each row is handled by the method with its name."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.admin.access import Visitor
from proxy.admin.endpoints import ADMIN, API, OPENAPI, AdminPage, Endpoint
from proxy.admin.guard import Entrance, Guard, as_json
from proxy.admin.openapi import Handler, document

_Row = TypeVar("_Row", Endpoint, AdminPage)


def handlers_of(rows: Iterable[_Row], owners: Iterable[object]) -> dict[_Row, Handler]:
    """Return the method of one of the owners for each row. Raises LookupError if a row has none or several."""
    candidates = [*owners]
    handlers: dict[_Row, Handler] = {}
    for row in rows:
        methods = [getattr(owner, row.name) for owner in candidates if hasattr(owner, row.name)]
        if len(methods) != 1:
            raise LookupError(f"{row.name} has {len(methods)} handlers")
        handlers[row] = methods[0]
    return handlers


def api_routes(guard: Guard, handlers: Mapping[Endpoint, Handler]) -> list[Route]:
    """Return the routes of the API and of its description, which needs no sign-in."""

    async def describe(_: Request) -> Response:
        return as_json(document(handlers))

    return [
        Route(OPENAPI, guard.around(describe)),
        *(
            Route(API + row.path, guard.only(_answer(row, handler), row.roles), methods=[row.method])
            for row, handler in handlers.items()
        ),
    ]


def page_routes(guard: Guard, handlers: Mapping[AdminPage, Handler]) -> list[Route]:
    """Return the route of every page. The overview is part of the entrance."""
    pages = {row.path: (row, guard.only(handler, row.roles)) for row, handler in handlers.items()}
    _, overview = pages.pop("")
    return [
        *Entrance(guard, overview).routes(),
        *(Route(ADMIN + path, page, methods=[*row.methods]) for path, (row, page) in pages.items()),
    ]


def _answer(endpoint: Endpoint, handler: Handler) -> Callable[[Request, Visitor], Awaitable[Response]]:
    """Return an endpoint that sends a handler's value as JSON."""

    async def answer(request: Request, visitor: Visitor) -> Response:
        value = await handler(request, visitor)
        if isinstance(value, Response):
            return value
        return Response(status_code=endpoint.status) if value is None else as_json(value, endpoint.status)

    return answer
