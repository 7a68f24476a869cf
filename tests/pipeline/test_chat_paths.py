"""However the chat path is spelled, what is asked there is counted; and what a WebSocket is told."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import pytest

from proxy.callers.api_paths import reading, resource
from tests.support.scenarios import MODEL
from tests.support.stages import SMALL
from tests.support.upstreams import JSON, OK_BODY, always, answer, ask, config_for, proxied, serving, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

OK = always(answer(200, OK_BODY, JSON))
SPELLINGS = (
    *("{}/", "{}//", "/{}", "//{}//", "{}?", "{}/?a=b", "{};", "{};a=b", "{}%3Fa=b", "{}%23a", "{}%20", "{}%00"),
    *("/%2f{}", "{}%2f", "{}%5c", "/%5c{}", "http://other.example{}", "http://other.example/{}/"),
)
PATHS = (
    *("/v1/chat/completions", "/chat/completions", "/V1/Chat/Completions", "/v1/CHAT/completions"),
    *("/v1//chat/completions", "/v1/chat//completions", "/v1/chat%2Fcompletions", "/v1/chat%252Fcompletions"),
    *("/v1/%63hat/completions", "/%76%31/chat/complet%69ons", "/v1\\chat\\completions", "/v1/chat;a/completions"),
    *("/v1/%EF%BD%83hat/completions", "/v1/ch%c1%a1t/completions"),
)
WEBSOCKET: list[Header] = [
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]


async def test_every_spelling_of_the_chat_path_is_counted_and_reaches_the_upstream_under_its_own(
    tmp_path: Path,
) -> None:
    async with proxied(tmp_path, OK) as (address, behind):
        for path, spelling in product(PATHS, SPELLINGS):
            target = spelling.replace("{}", path)
            reply = await ask(address, "POST", target, [JSON], SMALL)
            assert reply.header(b"x-compaction-tokens-received"), target
            assert behind.calls[-1].target.partition("?")[0] == "/v1/chat/completions", target
            assert behind.calls[-1].body == SMALL


@pytest.mark.parametrize("status", [200, 400])
async def test_a_text_in_the_place_of_items_is_counted_and_goes_out_as_it_came(tmp_path: Path, status: int) -> None:
    body = json.dumps({"model": MODEL, "input": "Sum it up. " * 3_000, "store": False}).encode()
    said = OK_BODY if status == 200 else b'{"error":{"message":"no","code":"context_length_exceeded"}}'
    async with proxied(tmp_path, always(answer(status, said, JSON))) as (address, behind):
        reply = await ask(address, "POST", "/v1/responses", [JSON], body)
    assert (reply.status, reply.body, [call.body for call in behind.calls]) == (status, said, [body])
    assert (reply.header(b"x-compaction"), reply.header(b"x-compaction-reason")) == (b"bypass", b"unknown_shape")
    assert int(reply.header(b"x-compaction-tokens-received") or 0) > 9_000


@pytest.mark.parametrize("path", ["/v1/v1/chat/completions", "/V1//v1/%761/chat/completions"])
async def test_chat_is_counted_however_often_v1_stands_before_it(tmp_path: Path, path: str) -> None:
    async with upstream(OK) as behind:
        for base_url in (behind.address, f"{behind.address}/v1"):
            async with serving(config_for(tmp_path, behind.address, main={"base_url": base_url})) as address:
                reply = await ask(address, "POST", path, [JSON], SMALL)
            assert reply.header(b"x-compaction-tokens-received")
            assert behind.calls[-1].target == f"{base_url.removeprefix(behind.address)}/chat/completions"


async def test_the_query_of_a_chat_request_reaches_the_upstream_as_it_came(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK) as (address, behind):
        for path in ("/v1/chat/completions", "//chat/completions/"):
            await ask(address, "POST", f"{path}?a=%2F&b", [JSON], SMALL)
            assert behind.calls[-1].target == "/v1/chat/completions?a=%2F&b"


async def test_a_page_that_explains_is_found_under_every_spelling_too(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK) as (address, behind):
        for path in ("/v1/compaction/explain", "/compaction/explain/", "//v1/Compaction/explain"):
            reply = await ask(address, "POST", path, [JSON], SMALL)
            assert (reply.status, reply.json()["model"]) == (200, MODEL)
        assert behind.calls == []


@pytest.mark.parametrize(
    "path",
    [
        *(
            b"/v1/chat/completions/c1",
            b"/v1/chat",
            b"/v1/chat/completionsx",
            b"/v1/completions",
            b"/v2/completions",
        ),
        *(b"/x/v1/completions", b"/openai/deployments/m/completions", b"/v1/chat/../chat/completions"),
    ],
)
def test_another_path_is_no_chat(path: bytes) -> None:
    assert resource(reading(path)) != ("chat", "completions")


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/responses/", "/v1/responses?model=m"])
async def test_a_websocket_for_responses_is_refused_so_that_the_client_goes_on_without(
    tmp_path: Path, path: str
) -> None:
    """codex tries seven times after any other answer than 426."""
    async with proxied(tmp_path, OK) as (address, behind):
        reply = await ask(address, "GET", path, WEBSOCKET)
        assert reply.status == 426
        assert reply.header(b"upgrade") == b"HTTP/1.1"
        assert reply.json() == {
            "error": {
                "message": "WebSockets are not supported; send the request by POST over HTTP.",
                "type": "invalid_request_error",
                "param": None,
                "code": "websocket_not_supported",
            }
        }
        assert behind.calls == []
        for headers in ([], WEBSOCKET[:2]):
            assert (await ask(address, "GET", path, headers)).status == 200, "no handshake (RFC 6455, section 4.1)"


async def test_a_stranger_with_a_websocket_is_a_stranger_first_and_a_shared_key_needs_no_right_to_it(
    tmp_path: Path,
) -> None:
    closed_folder, shared_folder = tmp_path / "closed", tmp_path / "shared"
    closed_folder.mkdir()
    shared_folder.mkdir()
    async with upstream(OK) as behind:
        closed = config_for(closed_folder, behind.address, closed=True, tenants={"default": {}})
        async with serving(closed) as address:
            assert (await ask(address, "GET", "/v1/responses", WEBSOCKET)).status == 401
        shared = config_for(shared_folder, behind.address, main={"api_key": "sk-shared"})
        async with serving(shared) as address:
            assert (await ask(address, "GET", "/v1/responses", WEBSOCKET)).status == 426
        assert behind.calls == []
