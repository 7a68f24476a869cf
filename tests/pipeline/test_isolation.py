"""Tenants and keys end to end: what one caller made no other meets, and no credential goes where it does not belong."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer, is_summary, sent, summaries, summarizing
from tests.support.upstreams import (
    CHAT,
    JSON,
    Call,
    Header,
    ask,
    config_for,
    proxied,
    serving,
    upstream,
)

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.anyio


def key(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([bearer("one")], [bearer("two")], "two keys of nobody in particular"),
        ([bearer("one")], [], "a key and none"),
        ([], [bearer("acme-1")], "nobody and a tenant"),
        ([bearer("acme-1")], [bearer("beta-1")], "two tenants"),
        ([bearer("acme-1")], [bearer("acme-2")], "two keys of one tenant"),
        ([(b"X-Api-Key", b"one")], [(b"X-Api-Key", b"two")], "keys in the other header"),
    ],
)
async def test_the_same_conversation_under_two_keys_is_two_conversations(
    tmp_path: Path, first: list[Header], second: list[Header], reason: str
) -> None:
    tenants = {"default": {}, "acme": {"keys": [key("acme-1"), key("acme-2")]}, "beta": {"keys": [key("beta-1")]}}
    async with proxied(tmp_path, summarizing, tenants=tenants, **SMALL_WINDOW) as (address, behind):
        outcomes = []
        for headers in (first, first, second, second, first):
            reply = await sent(address, *headers)
            outcomes.append((reply.header(b"x-compaction"), summaries(behind)))
    assert outcomes == [(b"applied", 1), (b"reused", 1), (b"applied", 2), (b"reused", 2), (b"reused", 2)], reason


async def test_one_key_finds_its_own_again_after_a_restart_and_another_does_not(tmp_path: Path) -> None:
    store = {"store": {"url": f"sqlite:///{tmp_path}/store.db"}}
    async with upstream(summarizing) as behind:
        for headers, expected in (
            ([bearer("one")], b"applied"),
            ([bearer("one")], b"reused"),
            ([bearer("two")], b"applied"),
        ):
            async with serving(config_for(tmp_path, behind.address, **store, **SMALL_WINDOW)) as address:
                assert (await sent(address, *headers)).header(b"x-compaction") == expected


async def test_a_tenant_whose_epoch_was_raised_finds_nothing_from_before_and_others_do(tmp_path: Path) -> None:
    store = {"store": {"url": f"sqlite:///{tmp_path}/store.db"}}
    acme, beta = [bearer("acme-1")], [bearer("beta-1")]
    async with upstream(summarizing) as behind:
        for epoch, headers, expected in (
            (0, acme, b"applied"),
            (0, beta, b"applied"),
            (0, acme, b"reused"),
            (1, acme, b"applied"),
            (1, acme, b"reused"),
            (2, acme, b"applied"),
            (2, beta, b"reused"),
        ):
            tenants = {"acme": {"keys": [key("acme-1")], "epoch": epoch}, "beta": {"keys": [key("beta-1")]}}
            settings = {**store, **SMALL_WINDOW, "tenants": tenants}
            async with serving(config_for(tmp_path, behind.address, **settings)) as address:
                assert (await sent(address, *headers)).header(b"x-compaction") == expected


async def test_keys_are_rotated_without_a_summary_made_again_until_the_old_one_is_dropped(tmp_path: Path) -> None:
    old, new = "00" * 32, "11" * 32
    async with upstream(summarizing) as behind:
        for current, retired, session, expected in (
            (old, [], "one", b"applied"),
            (old, [new], "one", b"reused"),
            (new, [old], "one", b"reused"),
            (new, [old], "two", b"applied"),
            (old, [new], "two", b"reused"),  # a replica that was not told yet
            (new, [], "two", b"reused"),
            (new, [], "one", b"applied"),
        ):
            store = {"url": f"sqlite:///{tmp_path}/store.db", "encryption_key": current, "retired_keys": retired}
            settings = {"store": store, "server": {"admin_token": "t-1" * 8}, **SMALL_WINDOW}
            async with serving(config_for(tmp_path, behind.address, **settings)) as address:
                assert (await sent(address, bearer(session))).header(b"x-compaction") == expected
                metrics = (await ask(address, "GET", "/metrics", [bearer("t-1" * 8)], b"")).body
        assert b"concertina_store_unreadable_total 0.0" not in metrics
        assert b"concertina_store_up 1.0" in metrics


SECRETS = (b"sk-client", b"k-client", b"a-client", b"sk-tenant", b"sk-main")


def credentials(call: Call) -> list[Header]:
    names = (b"authorization", b"x-api-key", b"api-key")
    return [(name.lower(), value) for name, value in call.headers if name.lower() in names]


CLIENTS = [bearer("sk-client"), (b"X-Api-Key", b"k-client"), (b"Api-Key", b"a-client")]


@pytest.mark.parametrize(
    ("tenant_key", "upstream_key", "expected"),
    [
        ("", "", [(name.lower(), value) for name, value in CLIENTS]),
        ("", "sk-main", [(b"authorization", b"Bearer sk-main")]),
        ("sk-tenant", "", [(b"authorization", b"Bearer sk-tenant")]),
        ("sk-tenant", "sk-main", [(b"authorization", b"Bearer sk-tenant")]),
    ],
)
async def test_the_tenants_key_or_the_upstreams_replaces_the_clients_on_every_call(
    tmp_path: Path, tenant_key: str, upstream_key: str, expected: list[Header]
) -> None:
    tenants = {"default": {"api_key": tenant_key}}
    main = {"api_key": upstream_key}
    async with proxied(tmp_path, summarizing, tenants=tenants, main=main, **SMALL_WINDOW) as (address, behind):
        await sent(address, *CLIENTS)
        await ask(address, "GET", "/v1/models", CLIENTS)
    assert summaries(behind) == 1
    assert len(behind.calls) == 3
    assert [credentials(call) for call in behind.calls] == [expected] * 3


@pytest.mark.requirement("R1 4.1 model")
@pytest.mark.parametrize(("own", "expected"), [("", []), ("sk-other", [(b"authorization", b"Bearer sk-other")])])
async def test_a_summarizer_elsewhere_gets_its_own_key_or_none_and_nobody_elses(
    tmp_path: Path, own: str, expected: list[Header]
) -> None:
    async with upstream(summarizing) as elsewhere, upstream(summarizing) as behind:
        config = config_for(
            tmp_path,
            behind.address,
            main={"api_key": "sk-main"},
            others={"other": {"base_url": f"{elsewhere.address}/v1", "api_key": own}},
            policies={"default": {"extends": "default", "summarizer": {"model": "small", "upstream": "other"}}},
            tenants={"default": {}, "acme": {"keys": [key("sk-client")], "api_key": "sk-tenant"}},
            **SMALL_WINDOW,
        )
        async with serving(config) as address:
            await sent(address, *CLIENTS)
    [call] = elsewhere.calls
    assert is_summary(call)
    assert credentials(call) == expected
    assert not any(secret in value for _, value in call.headers for secret in SECRETS)
    assert summaries(behind) == 0


async def test_a_tenants_upstream_is_the_only_one_that_hears_of_it(tmp_path: Path) -> None:
    async with upstream(summarizing) as elsewhere, upstream(summarizing) as behind:
        config = config_for(
            tmp_path,
            behind.address,
            others={"other": {"base_url": f"{elsewhere.address}/v1"}},
            tenants={"default": {}, "acme": {"keys": [key("acme-1")], "upstream": "other"}},
            **SMALL_WINDOW,
        )
        async with serving(config) as address:
            await sent(address, bearer("acme-1"))
            await ask(address, "GET", "/v1/models", [bearer("acme-1")])
    assert (len(elsewhere.calls), len(behind.calls)) == (3, 0)


async def test_nothing_a_client_sends_names_an_upstream(tmp_path: Path) -> None:
    async with upstream(summarizing) as canary:
        other = canary.address
        body = {
            "model": f"{other}/m",
            "base_url": other,
            "api_base": other,
            "user_config": {"api_base": other},
            "messages": [{"role": "user", "content": "hi"}],
        }
        headers = [
            (b"X-Upstream", other.encode()),
            (b"X-Portkey-Custom-Host", other.encode()),
            (b"X-Forwarded-Host", other.removeprefix("http://").encode()),
            (b"X-Compaction-Upstream", other.encode()),
        ]
        async with proxied(tmp_path, summarizing) as (address, behind):
            for target in (CHAT, f"{other}{CHAT}", f"/@{other.removeprefix('http://')}/v1/models"):
                assert (await ask(address, "POST", target, headers, json.dumps(body).encode())).status == 200
            assert len(behind.calls) == 3
    assert canary.connections == 0


async def test_neither_keys_nor_words_are_logged_or_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tenants = {"default": {}, "acme": {"keys": [key("sk-client")], "api_key": "sk-tenant"}}
    more = {"logging": {"level": "debug"}, "tenants": tenants, "main": {"api_key": "sk-main"}, **SMALL_WINDOW}
    told = b""
    async with proxied(tmp_path, summarizing, **more) as (address, behind):
        for body in (LONG, LONG[:-9], b'{"messages":[{"role":["words of a long"]}]}', LONG.replace(b"[", b"[" * 200)):
            reply = await ask(address, "POST", CHAT, [JSON, *CLIENTS, (b"X-Compaction-Policy", b"default")], body)
            told += reply.body + b"".join(value for _, value in reply.headers)
    logged = "".join(capfd.readouterr())
    assert '"event":"request"' in logged
    for secret in (*SECRETS, b"words of a long", key("sk-client")[7:].encode()):
        assert secret.decode() not in logged
        assert secret not in told
    assert behind.calls
