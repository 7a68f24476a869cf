"""Requests that go by an HTTP proxy: tunnels to upstreams that speak TLS, whole URLs for those that do not."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.config.settings import Upstream as Settings
from proxy.errors import ProxyError, UpstreamConnectionError, UpstreamTimeoutError
from proxy.upstreams.http import UpstreamClient
from tests.support.scenarios import WINDOW
from tests.support.stages import DUE
from tests.support.upstreams import (
    CHAT,
    JSON,
    OK_BODY,
    Call,
    Script,
    Upstream,
    always,
    answer,
    ask,
    backends,
    chat,
    config_for,
    delta,
    in_step,
    in_turn,
    serving,
    upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.redis_servers import Certificates

pytestmark = pytest.mark.anyio

anyio_backend = backends(("asyncio", "uvloop"))
OK = answer(200, OK_BODY, JSON)
CREDENTIALS = "user:p4ssw0rd"
BASIC = b"Basic " + base64.b64encode(CREDENTIALS.encode())
OPENED = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 p\r\n\r\n"


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while read := await reader.read(65_536):
        writer.write(read)
        await writer.drain()
    writer.close()


async def tunnelling(call: Call) -> None:
    """A proxy that connects whom it is asked to."""
    assert call.method == "CONNECT"
    host, _, port = call.target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await call.send(OPENED)
    async with asyncio.TaskGroup() as both:
        both.create_task(_copied(call._reader, writer))
        both.create_task(_copied(reader, call._writer))


@asynccontextmanager
async def tunnelled(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, script: Script, proxy: Script = tunnelling
) -> AsyncIterator[tuple[Upstream, Upstream]]:
    """An upstream that speaks TLS, and a proxy before it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with upstream(script, certificates.context(clients=False)) as behind, upstream(proxy) as before:
        async with asyncio.timeout(30):
            yield behind, before


def by(before: Upstream, credentials: str = "") -> str:
    return before.address.replace("//", f"//{credentials}@") if credentials else before.address


async def test_requests_share_a_tunnel_and_the_proxy_alone_sees_its_credentials(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tunnelled(certificates, monkeypatch, always(OK)) as (behind, before):
        main = {"proxy": by(before, CREDENTIALS)}
        async with serving(config_for(tmp_path, behind.address, main=main)) as address:
            for path in (CHAT, "/v1/models", CHAT):
                headers = [JSON, (b"Proxy-Authorization", b"a client's")]
                assert (await ask(address, "POST", path, headers, chat("hi"))).body == OK_BODY
        assert (before.connections, behind.connections, len(behind.calls)) == (1, 1, 3)
        (opened,) = before.calls
        where = behind.address.removeprefix("https://")
        assert (opened.target, opened.header(b"host")) == (where, where.encode())
        assert opened.header(b"proxy-authorization") == BASIC
        assert {call.target for call in behind.calls} == {CHAT, "/v1/models"}
        assert not [call for call in behind.calls if call.header(b"proxy-authorization")]


async def test_a_stream_comes_through_a_tunnel_piece_by_piece(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [delta(str(number)) for number in range(5)]
    script, received = in_step(pieces)
    async with (
        tunnelled(certificates, monkeypatch, script) as (behind, before),
        serving(config_for(tmp_path, behind.address, main={"proxy": by(before)})) as address,
    ):
        assert await received(address) == pieces


async def test_an_upstream_without_tls_is_asked_for_by_its_whole_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstream(always(OK)) as before:
        monkeypatch.setenv("http_proxy", by(before, CREDENTIALS))
        main = {"base_url": "http://models.example:81/v1"}
        async with serving(config_for(tmp_path, "", main=main)) as address:
            for path in (CHAT, "/v1/models?a=b", CHAT, "/props"):
                headers = [JSON, (b"Proxy-Authorization", b"a client's")]
                assert (await ask(address, "POST", path, headers, chat("hi"))).body == OK_BODY
        assert before.connections == 1
    assert [call.target for call in before.calls] == [
        f"http://models.example:81{path}" for path in (CHAT, "/v1/models?a=b", CHAT, "/props")
    ]
    for call in before.calls:
        assert call.header(b"host") == b"models.example:81"
        assert [value for name, value in call.headers if name.lower() == b"proxy-authorization"] == [BASIC]


async def test_summaries_and_questions_for_windows_go_by_the_proxy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstream(always(OK)) as before:
        monkeypatch.setenv("HTTP_PROXY", by(before))
        rules: dict[str, object] = {"models": [{"match": "gpt-4o", "context_window": WINDOW}]}
        main = {"base_url": "http://models.example/v1"}
        async with serving(config_for(tmp_path, "", main=main, **rules)) as address:
            await ask(address, "POST", CHAT, [JSON], DUE)
            large = json.dumps({"model": "local", "messages": [{"role": "user", "content": "word " * 3_000}]})
            await ask(address, "POST", CHAT, [JSON], large.encode())
            while not before.questions:  # noqa: ASYNC110 - asked behind the answer
                await asyncio.sleep(0)
    assert {call.target for call in before.calls} == {f"http://models.example{CHAT}"}
    assert len(before.calls) >= 3, "a summary among them"
    assert {call.target for call in before.questions} == {"http://models.example/v1/models"}


async def _closes(call: Call) -> None:
    call.close()


async def _is_silent(call: Call) -> None:
    await call.gone()


REFUSALS: dict[str, tuple[Script, str, str]] = {
    "it wants credentials": (
        always(answer(407, b"who?", (b"Proxy-Authenticate", b"Basic"))),
        "proxy_credentials",
        "407",
    ),
    "it forbids the host": (always(answer(403, b"no")), "proxy_refused", "403"),
    "it does not reach the host": (always(answer(502, b"")), "proxy_refused", "502"),
    "it closes": (_closes, "proxy", "does it run"),
    "it is none": (always(b"220 mail.example.com ESMTP\r\n\r\n"), "proxy", "does it run"),
    "it says more than that the tunnel is there": (always(OPENED + b"x"), "proxy", "does it run"),
    "its head has no end": (always(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000), "proxy", "does it run"),
    "it is silent": (_is_silent, "connect_timeout", "or the proxy before it"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_tunnel_that_is_not_opened_is_an_error_with_a_cause_and_a_way_out(case: str) -> None:
    script, cause, said = REFUSALS[case]
    async with upstream(script) as before, UpstreamClient() as client, asyncio.timeout(30):
        timeout = 0.2 if case == "it is silent" else 10
        settings = Settings(
            base_url="https://secret.example/v1",
            proxy=by(before, CREDENTIALS),
            connect_timeout=timeout,  # type: ignore[arg-type]
        )
        with pytest.raises(UpstreamConnectionError) as raised:
            await client.send(settings, "POST", "https://secret.example/v1/x", [], b"{}")
        assert sum(pool.in_use for pool in client._pools.values()) == 0
    assert raised.value.cause == cause
    assert said in raised.value.message
    for word in ("secret.example", "p4ssw0rd", before.address.rpartition(":")[2]):
        assert word not in raised.value.message


@pytest.mark.parametrize("base_url", ["http://models.example/v1", "https://models.example/v1"])
@pytest.mark.parametrize("where", ["http://127.0.0.1:9", "http://no-such-proxy.invalid:1"])
async def test_a_proxy_that_is_not_there_is_told_apart_from_the_upstream(base_url: str, where: str) -> None:
    env = {"HTTP_PROXY": where, "HTTPS_PROXY": where}
    async with UpstreamClient(env=env) as client, asyncio.timeout(30):
        with pytest.raises(UpstreamConnectionError) as raised:
            await client.send(Settings(base_url=base_url), "GET", f"{base_url}/models", [], None)
    assert raised.value.cause == "proxy"
    assert ("HTTPS_PROXY" if base_url.startswith("https") else "HTTP_PROXY") in raised.value.message


async def test_credentials_that_a_proxy_refuses_are_no_answer_of_the_upstream(tmp_path: Path) -> None:
    refusal = answer(407, b"who are you?", (b"Proxy-Authenticate", b"Basic"))
    async with upstream(in_turn(OK, refusal)) as before:
        main = {"base_url": "http://models.example/v1", "proxy": by(before)}
        async with serving(config_for(tmp_path, "", main=main)) as address:
            assert (await ask(address, "POST", CHAT, [JSON], chat("hi"))).status == 200
            for path, method in ((CHAT, "POST"), ("/v1/models", "GET")):
                reply = await ask(address, method, path, [JSON], chat("hi") if method == "POST" else None)
                assert (reply.status, reply.json()["error"]["code"]) == (502, "upstream_unreachable")  # type: ignore[index]
                assert "upstreams.*.proxy" in reply.body.decode()
                assert reply.header(b"proxy-authenticate") is None
    assert len(before.calls) == 3


async def test_the_whole_time_of_a_request_holds_for_the_tunnel_too() -> None:
    async with upstream(_is_silent) as before, UpstreamClient() as client, asyncio.timeout(30):
        settings = Settings(base_url="https://x.example/v1", proxy=by(before), total_timeout=0.2)  # type: ignore[arg-type]
        with pytest.raises(UpstreamTimeoutError) as raised:
            await client.send(settings, "POST", "https://x.example/v1/x", [], b"{}")
    assert raised.value.cause == "total_timeout"


async def test_a_certificate_is_the_upstreams_also_behind_a_tunnel(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tunnelled(certificates, monkeypatch, always(OK)) as (behind, before), UpstreamClient() as client:
        monkeypatch.delenv("SSL_CERT_FILE")
        settings = Settings(base_url=f"{behind.address}/v1", proxy=by(before))  # type: ignore[arg-type]
        with pytest.raises(ProxyError) as raised:
            await client.send(settings, "POST", f"{behind.address}/v1/x", [], b"{}")
    assert raised.value.cause == "tls"


async def test_a_client_cannot_name_a_proxy_and_the_config_may_go_without_one(tmp_path: Path) -> None:
    async with upstream(always(OK)) as behind, upstream(always(OK)) as other:
        env = {"HTTP_PROXY": by(other)}
        async with serving(config_for(tmp_path, behind.address)) as address:
            for name in (b"Proxy", b"X-Proxy", b"Http-Proxy", b"Proxy-Connection"):
                headers = [JSON, (name, other.address.encode())]
                assert (await ask(address, "POST", CHAT, headers, chat("hi"))).status == 200
        async with UpstreamClient(env=env) as client:
            for settings in ({}, {"proxy": "none"}):
                upstream_settings = Settings(base_url=f"{behind.address}/v1", **settings)  # type: ignore[arg-type]
                (await client.send(upstream_settings, "GET", f"{behind.address}/v1/x", [], None)).close()
        assert (len(behind.calls), other.connections) == (6, 0)
