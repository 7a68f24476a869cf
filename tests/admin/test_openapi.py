"""The API as it is described, and that what it answers is so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from proxy.admin.endpoints import API, ENDPOINTS
from proxy.admin.openapi import answer_type, body_type
from tests.support.admin import BROWSER, CONFIGURED, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.upstreams import CHAT, JSON, ask

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def references(value: object) -> set[str]:
    """Names of schemas that are referred to anywhere."""
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


async def test_what_is_described_is_what_is_answered(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    tenants = {"default": {"inspect": True}}
    async with played(tmp_path, CONFIGURED, policies=policies, tenants=tenants, **SMALL_WINDOW) as play:
        assert (await ask(play.address, "POST", CHAT, [JSON], LONG)).status == 200
        opened = play.app._opened
        assert opened is not None
        await opened.engine.background.drain(5)
        history = next(opened.histories.newest())
        session = history.key.id
        token = bearer(CONFIGURED)
        listed = (await play.send("GET", f"{API}sessions/{session}/records", token)).json()["records"]
        names = {"{id}": session, "{digest}": listed[0]["digest"], "{name}": "default", "{request}": history.last.id}  # type: ignore[index]
        bodies = {"explain": {"body": json.loads(LONG)}}
        for each, handler in play.app._pages.handlers.items():
            # There is no file to read again here.
            if answer_type(handler) in (str, None) or each.method == "DELETE" or each.path == "config/reload":
                continue
            path = each.path
            for name, value in names.items():
                path = path.replace(name, str(value))
            body = json.dumps(bodies[path]).encode() if body_type(handler) else b"" if each.method == "POST" else None
            reply = await play.send(each.method, API + path, token, body=body)
            assert reply.status == each.status, path
            msgspec.json.decode(reply.body, type=answer_type(handler))


async def test_it_is_an_openapi_document_for_everybody_that_is_whole(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reply = await play.send("GET", "/openapi.json", *BROWSER)
        assert reply.status == 200
        document = reply.json()
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}  # type: ignore[union-attr]
        assert described == {(each.method, API + each.path.replace(":path", "")) for each in ENDPOINTS}
        assert references(document) <= document["components"]["schemas"].keys()  # type: ignore[index,union-attr]
    async with played(tmp_path, CONFIGURED, server={"admin": False}) as play:
        assert (await play.send("GET", "/openapi.json")).status == 404
