"""From the table of endpoints to routes: each row is handled by the one method that has its name."""

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
    """The method of one of the owners for each row. Raises LookupError for a row that has none or several."""
    known = [*owners]
    found: dict[_Row, Handler] = {}
    for row in rows:
        methods = [getattr(owner, row.name) for owner in known if hasattr(owner, row.name)]
        if len(methods) != 1:
            raise LookupError(f"{row.name} has {len(methods)} handlers")
        found[row] = methods[0]
    return found


def api_routes(guard: Guard, handlers: Mapping[Endpoint, Handler]) -> list[Route]:
    """The API, and for everybody what it is, since that tells nothing of this proxy."""

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
    """Every page at its path; the overview behind the entrance."""
    pages = {row.path: (row, guard.only(handler, row.roles)) for row, handler in handlers.items()}
    _, overview = pages.pop("")
    return [
        *Entrance(guard, overview).routes(),
        *(Route(ADMIN + path, page, methods=[*row.methods]) for path, (row, page) in pages.items()),
    ]


def _answer(endpoint: Endpoint, handler: Handler) -> Callable[[Request, Visitor], Awaitable[Response]]:
    """What a handler answers, as JSON."""

    async def answer(request: Request, visitor: Visitor) -> Response:
        value = await handler(request, visitor)
        if isinstance(value, Response):
            return value
        return Response(status_code=endpoint.status) if value is None else as_json(value, endpoint.status)

    return answer
