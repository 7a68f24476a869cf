"""The proxy that a module's tests share, and the upstream behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.upstreams import JSON, OK_BODY, Upstream, always, answer, proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OK = always(answer(200, OK_BODY, JSON))


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    """One proxy for all tests that need no config of their own; each gives the upstream its script.

    A module that uses it has a fixture `anyio_backend` of its own, of its scope; asked for by name here, since else the
    first loop would serve all of them.
    """
    async with proxied(tmp_path_factory.mktemp("proxy"), OK) as (address, behind):
        yield address, behind


@pytest.fixture
def address(both: tuple[str, Upstream]) -> str:
    return both[0]


@pytest.fixture
def behind(both: tuple[str, Upstream]) -> Upstream:
    return both[1].play(OK)
