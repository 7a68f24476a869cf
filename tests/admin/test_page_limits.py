"""Pages take no more than their share: so many at once, and so many rows."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import Response

from proxy.admin.access import Access
from proxy.admin.guard import Guard, limit_of
from proxy.errors import InvalidRequestError

pytestmark = pytest.mark.anyio


def asked(query: str = "") -> Request:
    path = "/admin/api/requests"
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    return Request(scope)


def nothing() -> object:
    raise AssertionError


async def test_the_thirty_third_at_once_is_sent_away_and_the_next_one_is_not() -> None:
    guard, may_end = Guard(Access(nothing, nothing), lambda: True), asyncio.Event()  # type: ignore[arg-type]

    async def endpoint(_: Request) -> Response:
        await may_end.wait()
        return Response()

    page = guard.around(endpoint)
    first = [asyncio.create_task(page(asked())) for _ in range(32)]
    await asyncio.sleep(0)
    refused = await page(asked())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    may_end.set()
    assert {(await each).status_code for each in first} == {200}
    assert (await page(asked())).status_code == 200


@pytest.mark.parametrize(("query", "limit"), [("", 7), ("limit=", 7), ("limit=1", 1), ("limit=200", 200)])
def test_a_limit_is_obeyed(query: str, limit: int) -> None:
    assert limit_of(asked(query), 7) == limit


@pytest.mark.parametrize("given", ["0", "201", "-1", "1.5", "x", "²", "9" * 5_000])
def test_another_limit_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequestError, match="from 1 to 200"):
        limit_of(asked(f"limit={given}"), 7)
