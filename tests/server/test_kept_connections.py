"""Connections are kept between requests, and for no longer than they are of use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.upstreams import JSON, OK_BODY, TWO_WAYS, Call, answer, backends, connected, proxied, request

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio

# Long enough that a busy machine sends the next request before.
SECONDS = 0.3
SHORT = {"idle_timeout": SECONDS}


anyio_backend = backends(TWO_WAYS)


async def answers(call: Call) -> None:
    """Whatever comes, and before it is there."""
    await call.send(answer(200, OK_BODY, JSON))


def posted(body: bytes) -> bytes:
    return request("POST", "/v1/embeddings", [(b"Host", b"proxy"), JSON], body)


async def test_a_connection_that_nobody_uses_is_closed(tmp_path: Path) -> None:
    async with (
        proxied(tmp_path, answers, server=SHORT) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        for _ in range(3):  # one timer looks after them all
            assert (await client.ask("GET", "/v1/models")).status == 200
        await client.gone()


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_none_is_closed_in_a_body_whose_answer_came_early(tmp_path: Path, *, is_repeated: bool) -> None:
    async with (
        proxied(tmp_path, answers, server=SHORT) as (address, _),
        connected(address) as client,
        asyncio.timeout(30),
    ):
        client.method = "POST"
        if is_repeated:
            await client.send(posted(b"{}"))
            assert (await client.reply()).status == 200
        whole = posted(b"x" * 200_000)
        await client.send(whole[:-100_000])
        assert (await client.reply()).status == 200
        await asyncio.sleep(2 * SECONDS)
        await client.send(whole[-100_000:], posted(b"{}"))
        assert (await client.reply()).status == 200
        await client.gone()
