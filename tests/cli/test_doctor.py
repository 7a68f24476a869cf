"""`concertina doctor`: what is told of a config, and of what it names."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from email.utils import formatdate
from time import time
from typing import TYPE_CHECKING

import pytest
import yaml

from proxy.callers.issued_keys import KeyShelf, new_key
from proxy.cli.doctor.command import check_proxy, examine_config
from proxy.cli.doctor.finding import Finding
from proxy.cli.main import app
from proxy.sessions.stores import open_store
from tests.support import redis_servers
from tests.support.admin import played
from tests.support.servers import configured, proxy, reserve_port
from tests.support.upstreams import CHAT, JSON, Script, always, answer, ask, chat, in_turn, upstream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.anyio

LISTED = answer(200, json.dumps({"data": [{"id": "small"}, {"id": "large"}]}).encode())


async def found(
    directory: Path, scripts: Mapping[str, Script], settings: Mapping[str, object], spend: str | None = None
) -> dict[str, Finding]:
    """What is found of a config with these upstreams, by what it is about."""
    async with AsyncExitStack() as servers:
        given: dict[str, dict[str, object]] = yaml.safe_load(json.dumps(settings.get("upstreams", {})))
        for name, script in scripts.items():
            server = await servers.enter_async_context(upstream(script))
            given.setdefault(name, {})["base_url"] = f"{server.address}/v1"
        base = {"server": {"port": reserve_port()}, "store": {"url": f"sqlite:///{directory}/kept/s.db"}}
        config = configured(directory, {**base, **settings, "upstreams": given})
        return {each.about: each for each in await examine_config(config, "a config", spend)}


@pytest.mark.parametrize(
    ("content", "key", "more", "state", "said"),
    [
        (LISTED, "", {}, "ok", "and lists 2 models"),
        (answer(401, b""), "", {}, "ok", "requires a key, which clients must send"),
        (answer(401, b""), "sk-wrong", {}, "wrong", "refuses its key (401)"),
        (answer(404, b""), "", {}, "warning", "lists no models (404)"),
        (answer(200, b"[]"), "", {}, "warning", "lists no models (200)"),
        (answer(501, b""), "", {}, "warning", "lists no models (501)"),
        (answer(503, b""), "", {}, "wrong", "with 503"),
        (b"220 mail.example.com ESMTP\r\n\r\n", "", {}, "wrong", "upstream"),
        (answer(404, b""), "", {"provider": "litellm", "litellm_provider": "gemini"}, "ok", "litellm"),
    ],
)
async def test_an_upstream_is_asked_for_its_models(
    tmp_path: Path, content: bytes, key: str, more: dict[str, object], state: str, said: str
) -> None:
    settings = {"upstreams": {"main": {"api_key": key, **more}}}
    told = (await found(tmp_path, {"main": always(content)}, settings))["upstreams.main"]
    assert (told.state, said in told.found) == (state, True), told
    assert (told.way_out is None) == (state == "ok")
    assert "sk-" not in str(told)


async def test_an_upstream_that_is_not_there_is_wrong_and_so_is_one_that_leads_back(tmp_path: Path) -> None:
    port = reserve_port()
    urls = {"gone": f"http://127.0.0.1:{reserve_port()}/v1", "back": f"http://localhost:{port}/v1"}
    settings = {"server": {"port": port}, "upstreams": {name: {"base_url": url} for name, url in urls.items()}}
    told = await found(tmp_path, {}, settings)
    assert (told["upstreams.gone"].state, "refuses connections" in told["upstreams.gone"].found) == ("wrong", True)
    assert told["upstreams.back.base_url"].state == "wrong"
    assert told["upstreams.back.base_url"].way_out is not None
    assert "OPENAI_BASE_URL" in told["upstreams.back.base_url"].way_out


@pytest.mark.parametrize(("off", "state"), [(0, "ok"), (-7200, "warning")])
async def test_our_clock_is_compared_with_that_of_an_upstream(tmp_path: Path, off: float, state: str) -> None:
    told = answer(200, b"{}", (b"Date", formatdate(time() + off, usegmt=True).encode()))
    assert (await found(tmp_path, {"main": always(told)}, {}))["clock"].state == state


@pytest.mark.parametrize(
    ("summarizer", "state"),
    [
        ({}, "ok"),
        ({"model": "small"}, "ok"),
        ({"model": "small", "upstream": "main"}, "ok"),
        ({"model": "smal", "upstream": "main"}, "warning"),
        ({"model": "small", "upstream": "other"}, "wrong"),
    ],
)
async def test_a_summarizer_has_to_be_one_that_its_upstream_knows(
    tmp_path: Path, summarizer: dict[str, object], state: str
) -> None:
    settings = {"policies": {"default": {"summarizer": summarizer}}}
    told = await found(tmp_path, {"main": always(LISTED), "other": always(answer(500, b""))}, settings)
    assert told["policies.default.summarizer"].state == state


async def test_the_windows_of_named_models_are_told_with_their_source(tmp_path: Path) -> None:
    models = [{"match": "large", "context_window": 9_000}, {"match": "nobody-knows"}, {"match": "gpt-*"}]
    told = await found(tmp_path, {"main": always(LISTED)}, {"models": models})
    assert told["models.large"] == Finding("models.large", "ok", "9,000 tokens (policy)")
    assert told["models.nobody-knows"].state == "warning"
    assert "models.gpt-*" not in told


async def test_a_store_that_is_not_there_yet_is_not_made_and_one_that_is_keeps_nothing(tmp_path: Path) -> None:
    told = await found(tmp_path, {"main": always(LISTED)}, {})
    assert (told["store"].state, "is created at the first start" in told["store"].found) == ("ok", True)
    assert not (tmp_path / "kept").exists()
    await open_store(f"sqlite:///{tmp_path}/kept/s.db").close()
    told = await found(tmp_path, {"main": always(LISTED)}, {})
    assert (told["store"].state, "an operation takes" in told["store"].found) == ("ok", True)
    assert told["store.disk"].state in ("ok", "warning")
    (tmp_path / "kept" / "s.db").write_bytes(b"no database at all" * 1_000)
    told = await found(tmp_path, {"main": always(LISTED)}, {"models": [{"match": "gpt-4o", "context_window": 9_000}]})
    assert (told["store"].state, told["store"].way_out) == ("wrong", "move this file away or choose another path")
    assert told["models.gpt-4o"].found == "9,000 tokens (policy)"


async def test_a_shared_server_tells_what_it_does_once_it_is_full(tmp_path: Path, valkey_url: str) -> None:
    told = await found(tmp_path, {"main": always(LISTED)}, {"store": {"url": valkey_url, "secret": "s"}})
    assert told["store"].state == "ok"
    kept = told["store.maxmemory-policy"]
    assert (kept.state, kept.found.startswith("noeviction"), "volatile-lru" in str(told)) == ("ok", True, False)


async def test_issued_keys_are_told_that_a_store_may_lose_or_cannot_read(tmp_path: Path) -> None:
    with redis_servers.standalone(tmp_path) as server:
        settings = {"url": f"redis://{server.address}/3", "secret": "s"}
        config = configured(tmp_path, {"store": settings})
        store = open_store(config.store.url)
        await KeyShelf(config.store.seal(store)).put(new_key("acme", 0)[1])
        await store.close()
        told = await found(tmp_path, {"main": always(LISTED)}, {"store": settings})
        assert (told["store.maxmemory-policy"].state, "store.keys" in told) == ("ok", False)
        server.do("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        told = await found(tmp_path, {"main": always(LISTED)}, {"store": settings})
        assert "may evict issued keys" in told["store.maxmemory-policy"].found
        other = {**settings, "encryption_key": "a1" * 32}
        told = await found(tmp_path, {"main": always(LISTED)}, {"store": other})
        assert (told["store.keys"].state, told["store.keys"].found[:13]) == ("wrong", "1 issued keys")


async def test_a_replica_with_another_store_secret_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept/s.db"
    async with played(tmp_path, store={"url": url, "secret": "one"}, server={"port": 7007}):
        for secret, is_another in (("one", False), ("two", True)):
            told = await found(tmp_path, {"main": always(LISTED)}, {"store": {"url": url, "secret": secret}})
            assert ("store.secret" in told) == is_another
    assert (told["store.secret"].state, f"{socket.gethostname()}:7007 serves" in told["store.secret"].found) == (
        "wrong",
        True,
    )


@pytest.mark.parametrize("denied", ["+hincrby", "+rpush", "+zadd", "+sadd", None])
async def test_all_that_is_asked_of_a_server_is_tried(tmp_path: Path, denied: str | None) -> None:
    with redis_servers.standalone(tmp_path) as server:
        server.do(*(word for word in redis_servers.documented_user("password") if word != denied))
        store = {"url": f"redis://concertina:password@{server.address}/3", "secret": "s"}
        told = (await found(tmp_path, {"main": always(LISTED)}, {"store": store}))["store"]
    assert told.state == ("ok" if denied is None else "wrong")
    assert denied is None or "permission" in told.found


async def test_a_collector_of_traces_is_looked_for(tmp_path: Path) -> None:
    async with upstream(always(LISTED)) as collector:
        for address, state in ((collector.address, "ok"), (f"http://127.0.0.1:{reserve_port()}", "wrong")):
            settings = {"telemetry": {"traces": {"endpoint": f"{address}/v1/traces"}}}
            told = await found(tmp_path, {"main": always(LISTED)}, settings)
            assert told["telemetry.traces.endpoint"].state == state


async def test_a_store_that_does_not_answer_is_wrong(tmp_path: Path) -> None:
    store = {"url": f"redis://127.0.0.1:{reserve_port()}/0", "secret": "s"}
    told = (await found(tmp_path, {"main": always(LISTED)}, {"store": store}))["store"]
    assert (told.state, told.way_out) == ("wrong", "check that it runs, and store.url")


@pytest.mark.parametrize(
    ("content", "key", "state", "said"),
    [
        (answer(200, b"{}"), "sk-ours", "ok", "answered in"),
        (answer(429, b"{}"), "sk-ours", "wrong", "answers 429"),
        (answer(200, b"{}"), "", "wrong", "has no key in this config"),
    ],
)
async def test_one_token_is_asked_for_where_that_is_wished(
    tmp_path: Path, content: bytes, key: str, state: str, said: str
) -> None:
    settings = {"upstreams": {"main": {"api_key": key}}}
    told = (await found(tmp_path, {"main": in_turn(LISTED, content)}, settings, spend="small"))["spend"]
    assert (told.state, said in told.found) == (state, True), told


async def test_the_health_of_the_running_proxy_is_reported_with_what_to_do(tmp_path: Path) -> None:
    port = reserve_port()
    upstreams = {"main": {"base_url": f"http://127.0.0.1:{reserve_port()}/v1"}}
    config = configured(tmp_path, {"server": {"port": port}, "store": {"url": "memory://"}, "upstreams": upstreams})
    async with proxy(config, port=port) as address:
        for _ in range(3):
            assert (await ask(address, "POST", CHAT, [JSON], chat("a"))).status == 502
        _, *parts = await asyncio.to_thread(lambda: [*check_proxy(config)])
    found = {each.found: each for each in parts}
    assert found["its health: requests bad"].state == "wrong"
    assert "docs/runbooks.md: ConcertinaUpstreamUnreachable" in found["its health: upstreams bad"].way_out


async def test_the_port_is_free_taken_or_a_proxys_with_this_config_or_another(tmp_path: Path) -> None:
    port = reserve_port()
    settings = {"server": {"port": port}, "store": {"url": "memory://"}}
    config = configured(tmp_path, settings)
    assert [(each.about, each.state) for each in check_proxy(config)] == [("server.port", "ok")]
    async with proxy(config, port=port):
        (same,) = await asyncio.to_thread(lambda: [*check_proxy(config)])
        other = configured(tmp_path, {**settings, "closed": True})
        (changed,) = await asyncio.to_thread(lambda: [*check_proxy(other)])
    assert (same.about, same.state) == ("proxy", "ok")
    assert (changed.state, "with another config" in changed.found) == ("warning", True)
    async with proxy(configured(tmp_path, {**settings, "server": {"port": port, "admin_token": "x" * 16}}), port=port):
        (strange,) = await asyncio.to_thread(lambda: [*check_proxy(config)])
    assert (strange.about, strange.state) == ("proxy", "warning")
    assert "refuses to show its version" in strange.found
    async with upstream(always(answer(404, b""))) as stranger:
        taken = configured(tmp_path, {"server": {"port": int(stranger.address.rpartition(":")[2])}})
        (told,) = await asyncio.to_thread(lambda: [*check_proxy(taken)])
    assert (told.about, told.state) == ("server.port", "wrong")


def test_a_config_that_is_not_there_has_one_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        app(["doctor", "nofile.yaml"])
    assert capsys.readouterr().out.count("; ") == 1


def test_a_broken_config_is_all_that_is_told_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("closed: maybe", "utf-8")
    for words in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            app(["doctor", *words])
        assert ended.value.code == 1
        out = capsys.readouterr().out
        assert "config.yaml:1: closed: must be true or false" in out
    assert [each["state"] for each in json.loads(out)] == ["wrong"]


PASSWORD = "p4ssw0rd"


@pytest.mark.parametrize(
    ("content", "state", "said"),
    [
        (LISTED, "ok", "answers"),
        (answer(407, b""), "wrong", "407"),
        (None, "wrong", "does it run"),
    ],
)
async def test_the_proxy_before_an_upstream_is_told_of_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, state: str, said: str
) -> None:
    async with upstream(always(content or b"")) as before:
        url = before.address if content else f"http://127.0.0.1:{reserve_port()}"
        monkeypatch.setenv("HTTP_PROXY", url.replace("//", f"//user:{PASSWORD}@"))
        settings = {"upstreams": {"main": {"base_url": "http://models.example/v1"}}}
        told = await found(tmp_path, {}, settings)
    about = told["upstreams.main.proxy"]
    assert about.state == state
    assert about.found.startswith(url.replace("//", "//***@") + " (HTTP_PROXY)")
    assert said in f"{about.found}; {about.way_out}"
    assert told["upstreams.main"].state == state
    assert PASSWORD not in str(told)


async def test_it_is_told_that_no_proxy_is_used_where_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    told = await found(
        tmp_path, {"main": always(LISTED), "other": always(LISTED)}, {"upstreams": {"other": {"proxy": "off"}}}
    )
    assert (told["upstreams.main.proxy"].state, told["upstreams.main.proxy"].found) == ("ok", "none (loopback)")
    assert told["upstreams.other.proxy"].found == "none (upstreams.*.proxy)"
    assert told["upstreams.main"].state == "ok"
