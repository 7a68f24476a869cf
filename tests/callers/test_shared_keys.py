"""A key of the operator's goes where its tenants may ask, under its own account, and never where dots lead."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from proxy.callers.api_paths import MODEL_PATHS, allows, reading
from proxy.config.loading import ConfigError, load_text
from tests.support.upstreams import CHAT, JSON, OK_BODY, Header, always, answer, ask, chat, proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

OK = always(answer(200, OK_BODY, JSON))
KEYED = {"main": {"api_key": "operators-key"}}
ACCOUNT: list[Header] = [
    (b"OpenAI-Organization", b"org-1"),
    (b"OpenAI-Project", b"p-1"),
    (b"ChatGPT-Account-Id", b"a-1"),
    (b"X-Goog-User-Project", b"g-1"),
]
OWN: list[Header] = [
    (b"X-Api-Key", b"k"),
    (b"Api-Key", b"k"),
    (b"X-Goog-Api-Key", b"k"),
    (b"Ocp-Apim-Subscription-Key", b"k"),
    (b"Cookie", b"session=1"),
]
DOTS = (
    "/v1/../../beta/v1/files", "/v1/..", "/v1/./models", "/v1/%2e%2e/x", "/v1/%2E%2E/x", "/v1/.%2e/x", "/v1/%2e./x",
    "/v1/%2e/x", "/v1/..%2fx", "/v1/x%2f..%2fy", "/v1/..\\x", "/v1\\..\\x", "/v1/..%5cx", "/v1/%5c..%5c..",
    "/v1/%252e%252e/x", "/v1/%25252e%25252e/x", "/v1/..;/x", "/v1/..;a=b/x", "/v1/..%3b/x", "/v1/..%00/x",
    "/v1/..%09/x", "/v1/..%20/x", "/v1/%c0%ae%c0%ae/x", "/v1/%e0%80%ae%e0%80%ae/x", "/v1/%u002e%u002e/x",
    "/v1/%ef%bc%8e%ef%bc%8e/x", "/v1/..%23/x", "/v1/chat/completions/..",
    "/v1/%25252525252525252525252525252525252525252525252525252525252525252525252525252525252525252525252525252e/x",
    "/v1/..%252f..%252fbeta",
)  # fmt: skip
MODEL = (
    ("POST", "/v1/completions"), ("POST", "/v1/responses"), ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/embeddings"), ("GET", "/v1/models"),
    ("GET", "/v1/models/gpt-4o"), ("GET", "/v1/models/org%2Fname"), ("POST", "/v1/moderations"),
    ("POST", "/v1/audio/speech"), ("POST", "/v1/audio/transcriptions"), ("POST", "/v1/images/generations"),
    ("POST", "/v1/rerank"), ("POST", "/embeddings"), ("GET", "/models"), ("OPTIONS", "/v1/chat/completions"),
    ("POST", "/v1/embeddings?user=a"), ("POST", "/v1//embeddings"),
)  # fmt: skip
OPENED = (
    ("GET", "/v1/files"), ("GET", "/v1/files/f/content"), ("POST", "/v1/files"), ("DELETE", "/v1/files/f"),
    ("GET", "/files"), ("GET", "/v1/responses/r"), ("DELETE", "/v1/responses/r"), ("GET", "/v1/responses"),
    ("GET", "/v1/chat/completions"), ("GET", "/v1/chat/completions/c"), ("POST", "/v1/batches"),
    ("GET", "/v1/assistants"), ("POST", "/v1/threads"), ("GET", "/v1/fine_tuning/jobs"),
    ("GET", "/v1/organization/users"), ("GET", "/v1/organization/admin_api_keys"), ("POST", "/v1/vector_stores"),
    ("DELETE", "/v1/models/m"), ("POST", "/v1/messages/batches"), ("GET", "/v1/conversations/c"),
    ("GET", "/beta/v1/x"), ("GET", "/v1%2ffiles"), ("GET", "/%76%31/files"), ("POST", "/V1/Files"),
    ("PUT", "/v1/embeddings"), ("POST", "/v1/embeddings;x"), ("POST", "/v1/embeddings%3fx"),
)  # fmt: skip


@pytest.mark.parametrize("keyed", [True, False])
async def test_dot_segments_are_refused_in_any_encoding(tmp_path: Path, keyed: bool) -> None:
    async with proxied(tmp_path, OK, **({"main": KEYED["main"]} if keyed else {})) as (address, behind):
        for target in DOTS:
            for method in ("GET", "POST"):
                reply = await ask(address, method, target, [JSON], b"{}" if method == "POST" else None)
                assert reply.status in (400, 404), target  # 404: they lead to a name of ours
                assert isinstance(reply.json()["error"], dict), target
        assert behind.calls == []


async def test_an_account_is_chosen_only_with_the_clients_own_key(tmp_path: Path) -> None:
    sent = [*ACCOUNT, *OWN]
    tenants = {"acme": {"keys": ["sha256:" + hashlib.sha256(b"acme").hexdigest()], "api_key": "acmes-key"}}
    async with proxied(tmp_path, OK, tenants=tenants) as (address, behind):
        for key in (b"their-own", b"acme"):
            headers = [JSON, (b"Authorization", b"Bearer " + key), *sent, (b"OpenAI-Beta", b"flag")]
            assert (await ask(address, "POST", CHAT, headers, chat("a"))).status == 200
            assert (await ask(address, "GET", "/v1/models", headers)).status == 200
    own, own_models, shared, shared_models = behind.calls
    for call in (own, own_models):
        assert [(name, call.header(name.lower())) for name, _ in sent] == [(name, value) for name, value in sent]
    for call in (shared, shared_models):
        assert call.header(b"authorization") == b"Bearer acmes-key"
        assert [call.header(name.lower()) for name, _ in sent] == [None] * len(sent)
        assert call.header(b"openai-beta") == b"flag"


async def test_a_shared_key_opens_the_models_and_nothing_that_is_stored(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK, main=KEYED["main"]) as (address, behind):
        for method, target in MODEL:
            assert (await ask(address, method, target, body=b"{}" if method == "POST" else None)).status == 200, target
        assert [call.target for call in behind.calls] == ["/v1" + target.removeprefix("/v1") for _, target in MODEL]
        assert (await ask(address, "POST", CHAT, [JSON], chat("a"))).status == 200
        behind.play(OK)
        for method, target in OPENED:
            reply = await ask(address, method, target)
            error: dict[str, str] = reply.json()["error"]  # type: ignore[assignment, index]
            assert (reply.status, error.get("code", error["type"])) in ((403, "not_allowed"), (403, "permission_error"))
            assert "tenants.default.paths" in reply.body.decode()
        assert behind.calls == []


@pytest.mark.parametrize(
    ("method", "allowed"), [("GET", True), ("HEAD", True), ("OPTIONS", True), ("POST", False), ("DELETE", False)]
)
def test_who_may_get_a_page_may_ask_for_its_head_too(method: str, allowed: bool) -> None:
    assert allows(MODEL_PATHS, method, reading(b"/v1/models")) == allowed


async def test_the_clients_own_key_opens_everything(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK) as (address, behind):
        for method, target in (*MODEL, *OPENED):
            assert (await ask(address, method, target, body=b"{}" if method == "POST" else None)).status == 200, target
        assert len(behind.calls) == len(MODEL) + len(OPENED)


@pytest.mark.parametrize("main", [{}, KEYED["main"]])
async def test_a_tenants_paths_hold_whoever_has_the_key(tmp_path: Path, main: dict[str, str]) -> None:
    paths = ["/v1/files/*", "GET /v1/models", "/v1/batch??"]
    async with proxied(tmp_path, OK, main=main, tenants={"default": {"paths": paths}}) as (address, behind):
        for method, target, status in (
            ("GET", "/v1/files/a/b", 200),
            ("DELETE", "/files/a", 200),
            ("GET", "/v1/models", 200),
            ("POST", "/v1/models", 403),
            ("POST", "/v1/batches", 200),
            ("POST", CHAT, 403),
            ("POST", "/chat/completions", 403),
            ("GET", "/v1/files", 403),
        ):
            assert (await ask(address, method, target, [JSON], chat("a"))).status == status, target
        assert len(behind.calls) == 4


async def test_explaining_asks_nobody_and_needs_no_path(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK, tenants={"default": {"paths": []}}) as (address, _):
        assert (await ask(address, "POST", "/v1/compaction/explain", [JSON], chat("a"))).status == 200


@pytest.mark.parametrize(
    "rule", ["v1/models", "post /v1/x", "POST  /v1/x", "/v1/a b", "/v1/x?y=1 z", "", "https://h/v1"]
)
def test_a_path_that_can_match_nothing_is_told(rule: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text("c.yaml", f"tenants: {{default: {{paths: ['{rule}']}}}}", {})
    assert "tenants.default.paths[0]: must be a path" in str(refused.value)


LOCAL = (
    ("POST", "/completion"), ("POST", "/infill"), ("POST", "/score"), ("POST", "/api/chat"), ("GET", "/api/tags"),
    ("GET", "/health"), ("GET", "/version"), ("POST", "/openai/deployments/gpt/chat/completions?api-version=1"),
    ("POST", "/v1beta/models/gemini:generateContent"), ("POST", "/v1/responses/compact"),
)  # fmt: skip


async def test_a_key_for_a_server_of_ones_own_opens_what_such_servers_have(tmp_path: Path) -> None:
    async with proxied(tmp_path, OK, main=KEYED["main"] | {"native_compaction": "yes"}) as (address, behind):
        for method, target in LOCAL:
            body = b'{"previous_response_id": "r"}' if method == "POST" else None
            assert (await ask(address, method, target, body=body)).status == 200, target
        assert len(behind.calls) == len(LOCAL)
        refused = await ask(address, "DELETE", "/api/delete")
        assert "DELETE /api/delete is not allowed" in refused.body.decode()
