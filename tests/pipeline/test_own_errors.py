"""Our own errors come in the envelope of the dialect that was asked for, wherever a request is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.table import CHAT, DIALECTS, MESSAGES
from proxy.server.strictness import MAX_HEAD, MAX_LINE
from tests.support.upstreams import CHUNKED, HOST, JSON, always, connected, proxied, request

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.upstreams import Call, Header

pytestmark = pytest.mark.anyio

WEBSOCKET = (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ==")
# Messages knows fewer kinds than there are statuses.
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    414: "invalid_request_error",
    426: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    502: "api_error",
    503: "overloaded_error",
}


@dataclass(frozen=True)
class Row:
    """A request that is refused: its parts, the config that refuses it, and how; `is_second` behind one under way."""

    status: int
    code: str
    method: str = "POST"
    path: str = "{}"
    headers: tuple[Header, ...] = (HOST, JSON)
    body: bytes | None = b"{}"
    config: dict[str, object] = field(default_factory=dict)
    is_second: bool = False


ROWS = {
    "no JSON": Row(400, "invalid_json", body=b"{"),
    "an unknown word": Row(400, "invalid_request", headers=(HOST, (b"x-compaction", b"perhaps"))),
    "dots": Row(400, "invalid_request", path="{}/..;/x"),
    "a stranger": Row(401, "invalid_api_key", config={"closed": True, "tenants": {"default": {}}}),
    "not allowed": Row(403, "not_allowed", config={"tenants": {"default": {"paths": ["GET /v1/models"]}}}),
    "not spoken": Row(404, "not_found"),
    "too large": Row(413, "request_too_large", body=b"x" * 2_000, config={"server": {"max_body_bytes": 1_024}}),
    "too many": Row(429, "rate_limit_exceeded", config={"tenants": {"default": {"max_requests": 1}}}, is_second=True),
    "overloaded": Row(503, "server_overloaded", config={"server": {"max_requests": 1}}, is_second=True),
    "unreachable": Row(502, "upstream_unreachable", config={"main": {"base_url": "http://127.0.0.1:9/v1"}}),
    "a WebSocket": Row(426, "websocket_not_supported", "GET", headers=(HOST, WEBSOCKET), body=None),
    # Refused before they are requests.
    "a long address": Row(414, "uri_too_long", path="{}?" + "x" * MAX_LINE),
    "a large head": Row(431, "headers_too_large", headers=(HOST, (b"x", b"y" * MAX_HEAD))),
    "two hosts": Row(400, "invalid_request", headers=(HOST, HOST)),
    "a late body": Row(408, "request_timeout", headers=(HOST, CHUNKED), config={"server": {"body_timeout": "50ms"}}),
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", ROWS)
async def test_every_refusal_is_in_the_words_of_its_dialect(tmp_path: Path, name: str, dialect: Dialect) -> None:
    row, config = ROWS[name], dict(ROWS[name].config)
    path = "/v1/" + "/".join(dialect.path)
    if name == "a WebSocket" and path != "/v1/responses":
        pytest.skip("there are no WebSockets on this path anywhere")
    if name == "not spoken":
        config["main"] = {"speaks": [other.name for other in DIALECTS if other is not dialect]}
    # What has no length never ends.
    body = None if CHUNKED in row.headers else row.body
    arrived = asyncio.Event()

    async def silent(call: Call) -> None:
        arrived.set()
        await call.gone()

    async with proxied(tmp_path, silent, **config) as (address, behind):
        async with connected(address) as first, connected(address) as client, asyncio.timeout(30):
            if row.is_second:
                await first.send(request("POST", path, (HOST, JSON), b"{}"))
                await arrived.wait()
            await client.send(request(row.method, row.path.format(path), row.headers, body))
            client.method = row.method
            reply = await client.reply()
        assert len(behind.calls) == row.is_second
    assert (reply.status, reply.complete) == (row.status, True)
    said = json.loads(reply.body)
    if dialect is MESSAGES:
        assert said == {
            "type": "error",
            "error": {"type": KINDS[row.status], "message": said["error"]["message"]},
            "request_id": None,
        }
    else:
        assert (said.keys(), said["error"].keys()) == ({"error"}, {"message", "type", "param", "code"})
        assert said["error"]["code"] == row.code
    assert said["error"]["message"]
    assert reply.header(b"x-should-retry") in (b"true", b"false")
    assert (reply.header(b"retry-after") or b"0").isdigit()


async def test_what_is_no_request_at_all_is_answered_as_chat_is(tmp_path: Path) -> None:
    async with proxied(tmp_path, always(b"")) as (address, _), connected(address) as client:
        await client.send(b"nonsense\r\n\r\n")
        said = (await client.reply()).json()
    assert said == json.loads(CHAT.answers.error_body(said["error"], 400))
