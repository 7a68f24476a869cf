"""A proxy as those see it who look at its pages: with a token, a viewer's key, a cookie, or from this machine."""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy.app import App
from proxy.telemetry.log import open_log
from tests.support.servers import configured, serve
from tests.support.upstreams import JSON, OK_BODY, Header, Reply, Upstream, always, answer, connected, request, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.conversations import Json

OK = always(answer(200, OK_BODY, JSON))
SESSIONS = "/admin/api/sessions"
CONFIGURED = "configured-token"


def hashed(key: str) -> str:
    """A key as the config knows it."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@dataclass
class Played:
    """A proxy whose token was made or configured; requests to it carry exactly the headers they are given."""

    app: App
    address: str
    log: io.BytesIO
    behind: Upstream

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    @property
    def token(self) -> str:
        assert self.app.admin_token is not None
        return self.app.admin_token.value

    async def send(
        self,
        method: str,
        target: str,
        *headers: Header,
        host: str = "",
        version: str = "1.1",
        body: bytes | None = None,
    ) -> Reply:
        host = host or f"127.0.0.1:{self.port}"
        raw = request(method, target, [(b"Host", host.encode()), *headers], body).replace(
            b"HTTP/1.1", f"HTTP/{version}".encode()
        )
        async with connected(self.address) as client, asyncio.timeout(30):
            client.method = method
            await client.send(raw)
            return await client.reply()

    async def entered(self) -> Header:
        """The cookie that the link gives."""
        reply = await self.send("GET", f"/admin/?token={self.token}")
        return (b"Cookie", (reply.header(b"set-cookie") or b"").partition(b";")[0])


@asynccontextmanager
async def played(
    directory: Path,
    token: str = "",
    store: str | Json = "memory://",
    server: Json | None = None,
    upstream_key: str = "",
    upstream_proxy: str = "",
    upstream_headers: Json | None = None,
    **more: object,
) -> AsyncIterator[Played]:
    """`server` and `more`: settings beside these."""
    async with upstream(OK) as behind:
        config = configured(
            directory,
            {
                "server": {"admin_token": token, **(server or {})},
                "store": {"url": store} if isinstance(store, str) else store,
                "upstreams": {
                    "main": {
                        "base_url": f"{behind.address}/v1",
                        "api_key": upstream_key,
                        "proxy": upstream_proxy,
                        "headers": upstream_headers or {},
                    }
                },
                **more,
            },
        )
        log = io.BytesIO()
        app = App(config, open_log("debug", time.time, log))
        async with serve(app, lifespan="on") as address:
            yield Played(app, address, log, behind)


# What ordinary programs of this machine send besides the Host.
CURL = [(b"User-Agent", b"curl/7.88.1"), (b"Accept", b"*/*")]
PROMETHEUS = [
    (b"User-Agent", b"Prometheus/3.5.0"),
    (
        b"Accept",
        b"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2",
    ),
    (b"Accept-Encoding", b"gzip"),
    (b"X-Prometheus-Scrape-Timeout-Seconds", b"10"),
]
WGET = [
    (b"User-Agent", b"Wget/1.21"),
    (b"Accept", b"*/*"),
    (b"Accept-Encoding", b"identity"),
    (b"Connection", b"Keep-Alive"),
]
BROWSER = [
    (b"Connection", b"keep-alive"),
    (b"sec-ch-ua", b'"Chromium";v="156"'),
    (b"sec-ch-ua-mobile", b"?0"),
    (b"sec-ch-ua-platform", b'"Linux"'),
    (b"Upgrade-Insecure-Requests", b"1"),
    (b"User-Agent", b"Mozilla/5.0"),
    (b"Accept", b"text/html"),
    (b"Sec-Fetch-Site", b"none"),
    (b"Sec-Fetch-Mode", b"navigate"),
    (b"Sec-Fetch-User", b"?1"),
    (b"Sec-Fetch-Dest", b"document"),
    (b"Accept-Encoding", b"gzip, deflate, br, zstd"),
    (b"Accept-Language", b"en"),
    (b"Cookie", b"other=1"),
    (b"Priority", b"u=0, i"),
    (b"DNT", b"1"),
    (b"Referer", b"http://127.0.0.1/"),
]
