"""What is remembered of a sender: requests that differ in one header, on one connection and on several."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.upstreams import JSON, always, answer, ask, connected, proxied

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstreams import Header, Upstream

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
KEY: Header = (b"Authorization", b"Bearer sk-client")
TOKEN = "an-admin-token-of-enough-characters"


def headers_of(behind: Upstream, name: str) -> list[list[str]]:
    """The values of a header in each request that the upstream got."""
    return [[value.decode() for key, value in call.headers if key.decode().lower() == name] for call in behind.calls]


@pytest.mark.parametrize("name", ["x-request-id", "traceparent", "idempotency-key"])
async def test_the_upstream_gets_the_header_that_is_new_in_each_request(tmp_path: Path, name: str) -> None:
    async with proxied(tmp_path, always(answer(200, b"{}", JSON))) as (address, behind), connected(address) as client:
        for number in range(4):
            new = (name.encode(), b"id-%d" % (number // 2))
            assert (await client.ask("POST", CHAT, [JSON, KEY, new, (b"x-own", b"a")], BODY)).status == 200
        assert (await client.ask("POST", CHAT, [JSON, KEY, (b"x-own", b"a")], BODY)).status == 200
    assert headers_of(behind, name) == [["id-0"], ["id-0"], ["id-1"], ["id-1"], []]
    assert headers_of(behind, "authorization") == [["Bearer sk-client"]] * 5
    named = [[key for key, _ in call.headers if key.lower() != b"content-length"] for call in behind.calls]
    assert named[0] == named[1] == named[2] == named[3]


@pytest.mark.parametrize("name", ["x-request-id", "baggage", "x-own"])
async def test_the_admin_token_is_refused_wherever_it_stands_in_a_later_request(tmp_path: Path, name: str) -> None:
    settings: dict[str, object] = {"server": {"admin_token": TOKEN}}
    async with proxied(tmp_path, always(answer(200, b"{}", JSON)), **settings) as (address, behind):
        async with connected(address) as client:
            for value in (b"1", b"2"):
                await client.ask("POST", CHAT, [JSON, KEY, (name.encode(), value)], BODY)
        reply = await ask(address, "POST", CHAT, [JSON, KEY, (name.encode(), TOKEN.encode())], BODY)
    assert reply.status == 401
    assert len(behind.calls) == 2


async def test_keys_that_take_turns_on_one_connection_stay_apart(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(answer(200, b"{}", JSON))) as (address, behind), connected(address) as client:
        for number in range(6):
            key = (b"Authorization", b"Bearer sk-%d" % (number % 2))
            await client.ask("POST", CHAT, [JSON, key, (b"x-request-id", b"%d" % number)], BODY)
    assert headers_of(behind, "authorization") == [["Bearer sk-0"], ["Bearer sk-1"]] * 3
    assert headers_of(behind, "x-request-id") == [[str(number)] for number in range(6)]


async def test_the_mode_of_a_request_is_its_own(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(answer(200, b"{}", JSON))) as (address, _), connected(address) as client:
        outcomes = []
        for mode in (b"off", b"on", b"off"):
            reply = await client.ask("POST", CHAT, [JSON, KEY, (b"x-compaction", mode)], BODY)
            outcomes.append(dict(reply.headers)[b"x-compaction-reason"])
    assert outcomes[0] == outcomes[2] != outcomes[1]
