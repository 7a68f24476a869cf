"""Who may see and do what on the pages for operators: with a token, with the link's cookie, from this machine, behind
front ends."""

from __future__ import annotations

import asyncio
import io
import re
import time
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import aiohttp
import httpx
import pytest

from proxy.admin.access import sign_link
from proxy.app import App
from proxy.config.reloading import source
from proxy.telemetry.log import open_log
from tests.support.admin import BROWSER, CONFIGURED, CURL, PROMETHEUS, SESSIONS, WGET, Played, played
from tests.support.clock import Clock
from tests.support.long_conversations import bearer
from tests.support.operating import Running, settings, write
from tests.support.servers import configured, serve
from tests.support.upstreams import (
    CHAT,
    JSON,
    OK_BODY,
    Header,
    Upstream,
    always,
    answer,
    chat,
    connected,
    proxied,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OK = always(answer(200, OK_BODY, JSON))
FIGURES = ("/metrics", "/admin/api/models")
UNUSED = 3600.0


# What front ends add, each of which ends the trust in this machine.
FORWARDING = (
    *("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port"),
    *("X-Forwarded-Server", "X-Forwarded-Prefix", "X-Forwarded-Ssl", "X-Real-IP", "X-Client-IP", "Client-IP"),
    *(
        "X-Cluster-Client-IP",
        "True-Client-IP",
        "CF-Connecting-IP",
        "CF-Ray",
        "CF-Visitor",
        "CDN-Loop",
        "Fastly-Client-IP",
    ),
    *("X-Original-URL", "X-Original-For", "X-Original-Host", "X-Original-Forwarded-For", "X-Rewrite-URL", "X-Scheme"),
    *(
        "X-Envoy-External-Address",
        "X-Envoy-Expected-Rq-Timeout-Ms",
        "X-Request-Id",
        "X-Amzn-Trace-Id",
        "X-Cloud-Trace-Context",
    ),
    *(
        "X-Azure-ClientIP",
        "X-ARR-LOG-ID",
        "X-ProxyUser-Ip",
        "Front-End-Https",
        "Proxy-Connection",
        "Max-Forwards",
        "traceparent",
    ),
    *("X-Varnish", "X-Appengine-User-Ip", "Fly-Client-IP", "Tailscale-User-Login", "X-Anything", "X_Forwarded_For"),
)


@pytest.mark.parametrize(
    ("token", "given", "status"),
    [
        ("", "made", 200),
        ("", "wrong", 401),
        ("", None, 403),
        (CONFIGURED, CONFIGURED, 200),
        (CONFIGURED, "wrong", 401),
        (CONFIGURED, "", 401),
        (CONFIGURED, "\xff", 401),
        (CONFIGURED, None, 401),
    ],
)
async def test_a_front_end_opens_nothing_without_the_token(
    tmp_path: Path, token: str, given: str | None, status: int
) -> None:
    async with played(tmp_path, token) as play:
        if given == "made":
            given = play.token
        headers = [(b"X-Forwarded-For", b"10.0.0.5"), *([] if given is None else [bearer(given)])]
        for target in (*FIGURES, SESSIONS, "/admin/"):
            reply = await play.send("GET", target, *headers)
            assert (reply.status, reply.header(b"cache-control")) == (status, b"no-store"), target
        deleted = await play.send("DELETE", f"{SESSIONS}/x", *headers)
        assert deleted.status == (404 if status == 200 else status), "404: there is no such session"


@pytest.mark.parametrize(
    "headers", [[], CURL, PROMETHEUS, WGET, BROWSER], ids=["bare", "curl", "prometheus", "wget", "browser"]
)
async def test_ordinary_programs_of_this_machine_read_figures_and_nothing_else(
    tmp_path: Path, headers: list[Header]
) -> None:
    async with played(tmp_path) as play:
        for name in ("127.0.0.1", "localhost", "LocalHost", "127.1.2.3", "[::1]"):
            for target in FIGURES:
                assert (await play.send("GET", target, *headers, host=f"{name}:{play.port}")).status == 200, name
        assert (await play.send("HEAD", "/metrics", *headers)).status == 200
        for method, target in (("GET", SESSIONS), ("DELETE", f"{SESSIONS}/x")):
            assert (await play.send(method, target, *headers)).status == 403, target
        assert (await play.send("GET", "/admin/", *headers)).status == 200
    async with played(tmp_path, CONFIGURED) as play:
        for target in FIGURES:
            assert (await play.send("GET", target, *headers)).status == 401, target


@pytest.mark.parametrize("name", FORWARDING)
async def test_whatever_a_front_end_adds_ends_the_trust(tmp_path: Path, name: str) -> None:
    async with played(tmp_path) as play:
        for value in (b"127.0.0.1", b""):
            assert (await play.send("GET", "/metrics", *CURL, (name.encode(), value))).status == 403


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "localhost",
            "127.0.0.1:1",
            "rebound.example:{}",
            "127.0.0.1.example:{}",
            "10.0.0.5:{}",
            "0.0.0.0:{}",
        ),
        *("localhost.:{}", "[::]:{}", "[::2]:{}", "2130706433:{}", "127.0.0.1:{}0", ":{}", "127.0.0.1@x:{}"),
    ],
)
async def test_only_a_loopback_name_with_our_port_is_this_machine(tmp_path: Path, host: str) -> None:
    async with played(tmp_path) as play:
        assert (await play.send("GET", "/metrics", *CURL, host=host.format(play.port))).status in (400, 403)


async def test_http_1_0_which_front_ends_speak_by_default_is_not_trusted(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        assert (await play.send("GET", "/metrics", *CURL, version="1.0")).status == 403


async def test_http_libraries_read_figures(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        url = f"{play.address}/metrics"
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).status_code == 200
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            assert reply.status == 200
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert (await asyncio.to_thread(opener.open, url, timeout=30)).status == 200


async def test_the_link_gives_a_cookie_for_reading(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        reply = await play.send("GET", f"/admin/?token={play.token}", *BROWSER)
        assert (reply.status, reply.header(b"location")) == (303, b"./")
        assert (reply.header(b"cache-control"), reply.header(b"referrer-policy")) == (b"no-store", b"no-referrer")
        given = (reply.header(b"set-cookie") or b"").decode()
        assert play.token not in given
        name, _, attributes = given.partition("; ")
        assert set(attributes.split("; ")) == {"HttpOnly", "Max-Age=43200", "SameSite=strict"}, (
            "no path: a prefix may be before ours"
        )
        cookie = (b"Cookie", name.encode())
        forwarded = (b"X-Forwarded-For", b"10.0.0.5")
        for target in ("/admin/", SESSIONS, *FIGURES):
            assert (await play.send("GET", target, cookie, forwarded)).status == 200, target
        for target in (f"{SESSIONS}/x", f"{SESSIONS}?all=true"):
            assert (await play.send("DELETE", target, cookie)).status in (403, 405), target
        spoilt = name[:-1] + ("0" if name[-1] != "0" else "1")
        later = re.sub(r"\.(\d{10})\.", lambda found: f".{int(found[1]) + 1}.", name)
        other = name.replace(f"-{play.port}=", "-1=")
        ours = f"concertina-{play.port}="
        for wrong in (spoilt, later, other, ours, f"{ours}9.9", f"{ours}a.b.c.d.e.f", f"{ours}x.\xff"):
            assert (await play.send("GET", SESSIONS, (b"Cookie", wrong.encode()))).status == 403, wrong
        assert (await play.send("GET", "/admin/?token=wrong")).status == 401
        assert (await play.send("POST", f"/admin/?token={play.token}")).status == 405


@pytest.mark.parametrize(
    ("page", "leads"),
    [
        ("sessions/ab12?tenant=default&label=x", "./sessions/ab12?tenant=default&label=x"),
        ("//elsewhere.example", "./"),
        ("https://elsewhere.example", "./"),
        ("../v1/models", "./"),
    ],
)
async def test_a_link_that_signs_in_leads_to_a_page_of_ours_alone(tmp_path: Path, page: str, leads: str) -> None:
    async with played(tmp_path) as play:
        reply = await play.send("GET", f"/admin/?{urlencode({'token': play.token, 'next': page})}")
        assert (reply.status, dict(reply.headers)[b"location"]) == (303, leads.encode())


async def test_a_link_for_once_signs_in_once_and_soon(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        links = [f"/admin/?token={sign_link(token, time.time())}" for token in (play.token, play.token, "another")]
        assert [(await play.send("GET", links[at])).status for at in (0, 0, 2)] == [303, 401, 401]
        bearing = bearer(links[1].partition("=")[2])
        assert (await play.send("GET", SESSIONS, bearing)).status == 401
        play.app._pages.access.clock = clock = Clock()
        clock.now = time.time() + 61
        assert (await play.send("GET", links[1])).status == 401
        clock.now -= 10
        assert (await play.send("GET", links[1])).status == 303
    async with played(tmp_path, CONFIGURED) as play:
        assert (await play.send("GET", f"/admin/?token={sign_link(CONFIGURED, time.time())}")).status == 401


async def test_a_cookie_lapses_and_dies_with_its_token(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        cookie = await play.entered()
        assert (await play.send("GET", SESSIONS, cookie)).status == 200
        play.app._pages.access.clock = clock = Clock()
        clock.now = time.time() + 11.9 * 3600
        assert (await play.send("GET", SESSIONS, cookie)).status == 200
        clock.now = time.time() + 12.1 * 3600
        assert (await play.send("GET", SESSIONS, cookie)).status == 403
    async with played(tmp_path) as another:
        assert (await another.send("GET", SESSIONS, cookie)).status == 403


async def test_a_configured_token_is_never_taken_from_an_address(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reply = await play.send("GET", f"/admin/?token={CONFIGURED}")
        assert (reply.status, reply.header(b"set-cookie")) == (401, None)
        assert (await play.send("GET", f"{SESSIONS}?token={CONFIGURED}")).status == 401


async def test_the_made_token_is_kept_and_is_no_api_key_either(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    async with played(tmp_path, store=store) as play:
        first = play.token
        reply = await play.send("GET", "/v1/models", bearer(first))
        assert (reply.status, "admin token" in reply.body.decode()) == (401, True)
        assert play.behind.calls == []
    async with played(tmp_path, store=store) as play:
        assert play.token == first
        assert (tmp_path / "store.db.admin-token").read_text().strip() == first
        await play.send("GET", f"/admin/?token={first}")
        assert first not in play.log.getvalue().decode()
    (tmp_path / "store.db.admin-token").chmod(0o644)
    async with played(tmp_path, store=store) as play:
        assert play.token != first
        assert b'"event":"admin_token"' in play.log.getvalue()
        assert play.token not in play.log.getvalue().decode()


@pytest.mark.parametrize(
    ("cookie", "relayed"),
    [
        (b"concertina-8795=1.2", None),
        (b"a=b; concertina-8795=1.2; c=d", b"a=b; c=d"),
        (b"concertina-8795=1.2; c=d", b"c=d"),
        (b"a=concertina-8795", b"a=concertina-8795"),
        (b"concertina-x=1; concertina-1=a", b"concertina-x=1"),
    ],
)
async def test_our_cookie_is_not_relayed(tmp_path: Path, cookie: bytes, relayed: bytes | None) -> None:
    async with proxied(tmp_path, OK) as (address, behind), connected(address) as client:
        assert (await client.ask("POST", CHAT, [JSON, (b"Cookie", cookie)], chat("a"))).status == 200
        assert behind.calls[0].header(b"cookie") == relayed


async def test_a_token_that_is_configured_later_replaces_the_made_one_and_back(tmp_path: Path) -> None:
    write(file := tmp_path / "config.yaml", settings("http://127.0.0.1:9", server={}))
    config = configured(tmp_path, settings("http://127.0.0.1:9", server={}))
    log = io.BytesIO()
    app = App(config, open_log("info", time.time, log), source(file, {}), UNUSED)
    async with serve(app, lifespan="on") as address:
        run, play = Running(app, address, file, log), Played(app, address, log, Upstream(OK))
        made, cookie = play.token, await play.entered()
        for server, works, fails in (
            ({"admin_token": CONFIGURED}, bearer(CONFIGURED), (bearer(made), cookie)),
            ({}, bearer(made), (bearer(CONFIGURED),)),
        ):
            write(file, settings("http://127.0.0.1:9", server=server))
            await run.reloader.reload()
            assert (await play.send("GET", SESSIONS, works)).status == 200
            for header in fails:
                assert (await play.send("GET", SESSIONS, header)).status == 401
            assert (await play.send("GET", "/metrics")).status == (401 if server else 200)
