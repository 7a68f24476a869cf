"""Whose credential goes where: one a request, a login with its client's requests alone, none into log or store."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from proxy.config.loading import load
from proxy.dialects.table import DIALECTS, MESSAGES
from tests.support.model_server import ModelServer
from tests.support.plain_talk import path_of, turns, written
from tests.support.scenarios import WINDOW
from tests.support.servers import serve
from tests.support.stages import ours, stage
from tests.support.upstreams import JSON, always, answer, ask, proxied, upstream

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

LOGIN = (b"authorization", b"Bearer sk-ant-oat01-x")
LONG = turns(30)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("headers", "is_login"),
    [
        ([LOGIN], True),
        ([(b"authorization", b"Bearer sk-x"), (b"chatgpt-account-id", b"a-1")], True),
        ([(b"authorization", b"Bearer sk-x")], False),
        ([(b"x-api-key", b"sk-ant-api03-x")], False),
    ],
)
async def test_a_conversation_is_compacted_under_a_login_without_a_call_of_ours(
    tmp_path: Path, dialect: Dialect, headers: list[Header], is_login: bool
) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(written(dialect, LONG), *headers, path=path_of(dialect))
        await play.settled()
        assert (reply.status, ours(reply)[""]) == (200, "applied")
        assert (play.model.summary_calls == 0) == is_login
        assert len(play.model.received) == 1 + play.model.summary_calls
        (line,) = play.logged("compaction")
    assert line.get("refused") == (["login"] if is_login else None)
    assert (line["result"] == "deterministic") == is_login


async def test_a_policy_without_a_model_blames_no_login(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with stage(tmp_path, policies=policies) as play:
        await play.send(written(MESSAGES, LONG), LOGIN, path=path_of(MESSAGES))
        (line,) = play.logged("compaction")
    assert "refused" not in line


KEY = (b"x-api-key", b"sk-ant-api03-client")
BEARER = (b"authorization", b"Bearer sk-client")
OURS = (b"authorization", b"Bearer tenant-key")
OURS_TOO = (b"x-api-key", b"tenant-key")
TENANTS: dict[str, object] = {
    "default": {},
    "acme": {"keys": ["sha256:" + hashlib.sha256(b"tenant-key").hexdigest()]},
}
SECRETS = (b"sk-ant-api03-client", b"sk-client", b"tenant-key", b"sk-ant-oat01-x", b"sk-configured")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("sent", "configured", "expected"),
    [
        ([KEY], {}, KEY),
        ([BEARER], {}, BEARER),
        ([LOGIN], {}, LOGIN),
        ([OURS, KEY], {}, KEY),
        ([OURS_TOO, BEARER], {}, BEARER),
        ([OURS_TOO, LOGIN], {}, LOGIN),
        ([OURS], {"api_key": "sk-configured"}, (b"authorization", b"Bearer sk-configured")),
        ([OURS], {"api_key": "sk-configured", "auth": "x-api-key"}, (b"x-api-key", b"sk-configured")),
        ([OURS_TOO], {"api_key": "sk-configured", "auth": "api-key"}, (b"api-key", b"sk-configured")),
        ([KEY, BEARER], {"api_key": "sk-configured", "auth": "x-api-key"}, (b"x-api-key", b"sk-configured")),
    ],
)
async def test_an_upstream_gets_exactly_one_credential_and_log_and_store_none(
    tmp_path: Path, dialect: Dialect, sent: list[Header], configured: dict[str, object], expected: Header
) -> None:
    model = ModelServer(window=WINDOW)
    async with serve(model) as behind:
        settings = {
            "upstreams": {"main": {"base_url": f"{behind}/v1", **configured}},
            "store": {"url": f"sqlite:///{tmp_path}/store.db"},
            "tenants": TENANTS,
        }
        async with stage(tmp_path, model, **settings) as play:
            reply = await play.send(written(dialect, LONG), *sent, path=path_of(dialect))
            await play.settled()
            assert (reply.status, ours(reply)[""]) == (200, "applied")
            logged = json.dumps(play.log).encode()
    assert len(model.received) == 1 if expected == LOGIN else len(model.received) > 1
    names = (b"authorization", b"x-api-key", b"api-key")
    for received in model.received:
        assert [header for header in received.headers if header[0] in names] == [expected]
    kept = stored(tmp_path)
    assert kept
    assert not any(secret in text for secret in SECRETS for text in (logged, kept))


def stored(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("store.db*"))


MODELS = b'{"object": "list", "data": []}'
VERSION = (b"anthropic-version", b"2023-06-01")


@pytest.mark.parametrize(
    ("method", "path", "headers", "expected"),
    [
        ("POST", "/v1/chat/completions", (), "main"),
        ("POST", "/v1/responses", (), "main"),
        ("POST", "/v1/responses/input_tokens", (), "main"),
        ("GET", "/v1/responses/resp_1", (), "main"),
        ("POST", "/v1/messages", (), "anthropic"),
        ("POST", "/v1/messages?beta=true", (VERSION,), "anthropic"),
        ("POST", "/v1/messages/count_tokens", (), "anthropic"),
        ("POST", "/v1/messages/batches", (), "anthropic"),
        ("GET", "/v1/models", (), "main"),
        ("GET", "/v1/models", (VERSION,), "anthropic"),
        ("POST", "/v1/embeddings", (), "main"),
    ],
)
async def test_a_request_goes_where_its_dialect_is_spoken(
    tmp_path: Path, method: str, path: str, headers: tuple[Header, ...], expected: str
) -> None:
    """As the default config has it: its two upstreams, with addresses of ours in the place of theirs."""
    default = load(None, {}).upstreams
    assert list(default) == ["main", "anthropic"]
    speaks = {name: {"speaks": [*upstream.spoken], "auth": upstream.auth} for name, upstream in default.items()}
    async with upstream(always(answer(200, MODELS, JSON))) as other:
        others = {"anthropic": {"base_url": f"{other.address}/v1", **speaks["anthropic"]}}
        settings = {"main": speaks["main"], "others": others}
        async with proxied(tmp_path, always(answer(200, MODELS, JSON)), **settings) as (address, main):
            body = b'{"model":"m"}' if method == "POST" else None
            assert (await ask(address, method, path, [JSON, *headers], body)).status == 200
            calls = {"main": main.calls, "anthropic": other.calls}
    assert {name: [call.target for call in got] for name, got in calls.items()} == {
        "main": [],
        "anthropic": [],
        expected: [path],
    }


async def test_what_nobody_speaks_is_refused_with_the_way_out(tmp_path: Path) -> None:
    main = {"speaks": ["chat", "responses"]}
    async with proxied(tmp_path, always(b""), main=main) as (address, behind):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            reply = await ask(address, "POST", path, [JSON], b"{}")
            assert reply.status == 404
            assert b"No upstream here speaks messages; configure one that does (upstreams.*.speaks)" in reply.body
        assert behind.calls == []


@pytest.mark.parametrize(("sessions_of", "second"), [("key", "applied"), ("tenant", "reused")])
async def test_a_tenant_of_one_user_finds_its_session_again_behind_a_new_token(
    tmp_path: Path, sessions_of: str, second: str
) -> None:
    tenants = {"default": {"sessions_of": sessions_of}}
    found = []
    async with stage(tmp_path, tenants=tenants) as play:
        for token in (b"Bearer sk-ant-oat01-x", b"Bearer sk-ant-oat01-y"):
            headers = [(b"authorization", token)]
            reply = await play.send(written(MESSAGES, LONG), *headers, path=path_of(MESSAGES))
            await play.settled()
            found.append(ours(reply)[""])
    assert found == ["applied", second]


async def test_the_wider_window_is_a_place_of_its_own(tmp_path: Path) -> None:
    """What the one taught of its window does not hold for the other."""
    wide = (b"anthropic-beta", b"context-1m-2025-08-07")
    async with stage(tmp_path, models=[]) as play:
        request = written(MESSAGES, turns(20, words=440), model="nobody-knows-me")
        for _ in range(2):
            narrow = await play.send(request, KEY, path=path_of(MESSAGES))
            await play.settled()
            assert narrow.status == 200
        assert ours(narrow)["window"] == str(WINDOW), "learned from the refusal of the first"
        play.model.received.clear()
        request = written(MESSAGES, turns(20, words=450), model="nobody-knows-me")
        reply = await play.send(request, KEY, wide, path=path_of(MESSAGES))
        assert play.model.received[0].body == request, "as it came: nothing is known of this window"
        assert (reply.status, "window" in ours(reply)) == (200, False)
