"""What each role may see and do, and what is tried against the pages from outside."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from proxy.admin.access import LIFETIME, Ticket, _address_of, read_cookie, sign_cookie
from tests.support.admin import BROWSER, CONFIGURED, SESSIONS, Played, hashed, played
from tests.support.clock import Clock
from tests.support.long_conversations import bearer
from tests.support.upstreams import CHAT, JSON, Header, Reply, ask, chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

VIEWER = "ck-viewer-of-acme"
AGENT = "ck-agent-of-acme"
FORM: Header = (b"Content-Type", b"application/x-www-form-urlencoded")
HTML: Header = (b"Accept", b"text/html")
OUR_PAGE: Header = (b"Sec-Fetch-Site", b"same-origin")


def sleep_never(slept: list[float]) -> Callable[[float], Awaitable[None]]:
    """Return a sleep that only notes for how long."""

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return sleep


@asynccontextmanager
async def shared(directory: Path, token: str = CONFIGURED) -> AsyncIterator[Played]:
    """A proxy with two tenants beside the default one; acme has a viewer."""
    acme = {"keys": [hashed(AGENT)], "viewer_keys": [hashed(VIEWER)]}
    async with played(directory, token, tenants={"default": {}, "acme": acme, "other": {}}) as play:
        yield play


async def signed_in(play: Played, token: str, *headers: Header, **fields: str) -> Reply:
    body = urlencode({"token": token, **fields}).encode()
    return await play.send("POST", "/admin/sign-in", FORM, HTML, *(headers or [OUR_PAGE]), body=body)


def cookie_in(reply: Reply) -> Header:
    return (b"Cookie", (reply.header(b"set-cookie") or b"").partition(b";")[0])


async def test_a_configured_token_signs_in_by_the_form_and_goes_on_where_one_wanted_to(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        asked = await play.send("GET", "/admin/sign-in?x=1", *BROWSER)
        assert asked.status == 200
        refused = await play.send("GET", "/admin/?tenant=acme", *BROWSER)
        assert refused.status == 401
        assert 'name="next" value="?tenant=acme"' in refused.body.decode()
        reply = await signed_in(play, CONFIGURED, next="sessions/ab12?tenant=acme")
        assert (reply.status, reply.header(b"location")) == (303, b"./sessions/ab12?tenant=acme")
        given = cookie_in(reply)
        assert (await play.send("GET", "/admin/", HTML, given)).status == 200
        assert (await play.send("GET", SESSIONS, given)).status == 200
        out = await play.send("POST", "/admin/sign-out", given, OUR_PAGE, body=b"")
        assert (out.status, b"Max-Age=0" in (out.header(b"set-cookie") or b"")) == (303, True)


@pytest.mark.parametrize(
    "then",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "..//evil.example",
        "a\r\nb",
        "javascript:a",
        "a/../b",
    ],
)
async def test_signing_in_leads_nowhere_else(tmp_path: Path, then: str) -> None:
    async with shared(tmp_path) as play:
        reply = await signed_in(play, CONFIGURED, next=then)
        assert (reply.status, reply.header(b"location")) == (303, b"./")


async def test_a_cookie_is_marked_secure_where_the_browser_came_by_tls(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        origin = (b"Origin", f"https://127.0.0.1:{play.port}".encode())
        reply = await signed_in(play, CONFIGURED, origin)
        assert b"Secure" in (reply.header(b"set-cookie") or b"")


async def test_a_viewer_sees_its_tenant_and_no_other(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        for credential in (bearer(VIEWER), cookie_in(await signed_in(play, VIEWER))):
            for target, status in (
                (SESSIONS, 200),
                (f"{SESSIONS}?tenant=acme", 200),
                (f"{SESSIONS}?tenant=other", 403),
                (f"{SESSIONS}?tenant=default", 403),
                ("/metrics", 403),
                ("/admin/api/models", 403),
                ("/admin/", 200),
            ):
                assert (await play.send("GET", target, credential)).status == status, target
        for target, status in ((f"{SESSIONS}/x?tenant=other", 403), (f"{SESSIONS}?all=true&tenant=acme", 200)):
            assert (await play.send("DELETE", target, bearer(VIEWER), body=b"")).status == status, target


async def test_a_viewers_cookie_dies_with_its_key_and_an_agents_key_opens_nothing(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        assert (await play.send("GET", SESSIONS, bearer(AGENT))).status == 401
        given = cookie_in(await signed_in(play, VIEWER))
        config = play.app._pages._context.config
        without = config.model_copy(update={"tenants": {**config.tenants, "acme": config.tenants["other"]}})
        play.app._pages.access._config = lambda: without
        assert (await play.send("GET", SESSIONS, given)).status == 401


async def test_a_viewers_key_is_no_api_key(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON, bearer(VIEWER)], chat("a"))
        assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")  # type: ignore[index]
        assert not play.behind.calls


# Who may have made a browser write with our cookie, and what comes of it.
@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ([OUR_PAGE], True),
        ([(b"Origin", b"http://127.0.0.1:{}")], True),
        ([OUR_PAGE, (b"Origin", b"https://behind.example")], True),
        ([], False),
        ([(b"Origin", b"http://evil.example")], False),
        ([(b"Origin", b"http://127.0.0.1:1")], False),
        ([(b"Origin", b"null")], False),
        ([(b"Origin", b"")], False),
        ([(b"Sec-Fetch-Site", b"same-site")], False),
        ([(b"Sec-Fetch-Site", b"cross-site"), (b"Origin", b"http://127.0.0.1:{}")], False),
        ([(b"Sec-Fetch-Site", b"none")], False),
    ],
)
async def test_only_a_page_of_ours_writes_with_the_cookie(
    tmp_path: Path, headers: list[Header], is_let_in: bool
) -> None:
    async with shared(tmp_path) as play:
        given = cookie_in(await signed_in(play, CONFIGURED))
        filled = [(name, value.replace(b"{}", b"%d" % play.port)) for name, value in headers]
        erased = await play.send("DELETE", f"{SESSIONS}?all=true", given, *filled, body=b"")
        assert erased.status == (200 if is_let_in else 403)
        signed = await play.send("POST", "/admin/sign-in", FORM, HTML, *filled, body=b"token=" + CONFIGURED.encode())
        assert signed.status == (303 if is_let_in else 403)
        assert (await play.send("GET", SESSIONS, given, *filled)).status == 200, "reading is no write"


async def test_nobody_writes_from_this_machine_even_without_a_token(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        for target in (f"{SESSIONS}?all=true", f"{SESSIONS}/x"):
            assert (await play.send("DELETE", target, OUR_PAGE)).status == 403


async def test_five_wrong_tokens_a_minute_are_refused_otherwise_and_never_the_right_one(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        access, slept = play.app._pages.access, list[float]()
        access.clock = clock = Clock()
        access._sleep = sleep_never(slept)
        clock.now = time.time()
        for _ in range(10):
            assert (await play.send("GET", SESSIONS, bearer("stale"))).status == 401
        for number in range(4):
            assert (await signed_in(play, f"guess-{number}")).status == 401
        for reply in (await signed_in(play, "another"), await play.send("GET", SESSIONS, bearer("another"))):
            assert (reply.status, reply.header(b"retry-after")) == (429, b"60")
        cookie = cookie_in(await signed_in(play, CONFIGURED))
        assert (await play.send("GET", SESSIONS, bearer(CONFIGURED))).status == 200
        assert (await play.send("GET", "/metrics", bearer(CONFIGURED))).status == 200
        assert slept == [1.0] * 5, "wrong or right: who guesses cannot tell by the time"
        assert (await play.send("GET", SESSIONS, cookie)).status == 200
        assert len(slept) == 5, "a session that is signed in goes on"
        clock.now += 61
        assert (await play.send("GET", SESSIONS, bearer("another"))).status == 401


async def test_the_form_greets_those_who_have_tried_nothing_in_no_red(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        for target in ("/admin/", "/admin/sign-in", "/admin/sessions"):
            page = (await play.send("GET", target, HTML)).body
            assert (b"Sign in" in page, b'class="notice wrong"' in page) == (True, False), target
        assert b'class="notice wrong"' in (await signed_in(play, "a wrong one", OUR_PAGE, HTML)).body
        assert b'class="notice wrong"' in (await play.send("GET", "/admin/", HTML, bearer("a wrong one"))).body


async def test_guesses_that_wait_take_no_place_of_a_page(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        access, are_waiting, may_go_on = play.app._pages.access, asyncio.Event(), asyncio.Event()

        async def wait(_: float) -> None:
            if access._delayed == 40:
                are_waiting.set()
            await may_go_on.wait()

        access._sleep = wait
        cookie = cookie_in(await signed_in(play, CONFIGURED))
        for number in range(5):
            assert (await play.send("GET", SESSIONS, bearer(f"guess-{number}"))).status == 401
        guesses = [asyncio.create_task(play.send("GET", SESSIONS, bearer(f"more-{each}"))) for each in range(40)]
        await are_waiting.wait()
        assert (await play.send("GET", SESSIONS, cookie)).status == 200
        may_go_on.set()
        assert {(await guess).status for guess in guesses} <= {429, 503}
        assert access._delayed == 0


@pytest.mark.parametrize(
    ("host", "other", "are_one"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db9::1", False),
    ],
)
def test_an_address_is_an_ipv6_networks(host: str, other: str, are_one: bool) -> None:
    def sent_from(host: str) -> Request:
        return Request({"type": "http", "headers": [], "client": (host, 1)})

    assert (_address_of(sent_from(host)) == _address_of(sent_from(other))) is are_one


async def test_a_form_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        assert (await signed_in(play, "x" * 10_000)).status == 400


async def test_every_answer_carries_what_keeps_it_in_our_own_pages(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        for target in ("/admin/", "/admin/nothing", "/admin/api/nothing", SESSIONS, "/metrics", "/admin"):
            for headers in ([HTML, bearer(CONFIGURED)], [bearer(CONFIGURED)], [HTML], []):
                reply = await play.send("GET", target, *headers)
                policy = (reply.header(b"content-security-policy") or b"").decode()
                assert policy.startswith("default-src 'none'; script-src 'self';"), target
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert reply.header(b"cache-control") == b"no-store"
                assert reply.header(b"x-content-type-options") == b"nosniff"
                assert reply.header(b"referrer-policy") == b"no-referrer"
                assert reply.header(b"cross-origin-opener-policy") == b"same-origin"
                assert reply.header(b"cross-origin-resource-policy") == b"same-origin"
                assert reply.header(b"access-control-allow-origin") is None


async def test_what_is_not_there_is_a_page_for_people_and_json_for_programs(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        page = await play.send("GET", "/admin/nothing", HTML)
        assert (page.status, page.header(b"content-type")) == (404, b"text/html; charset=utf-8")
        for target, headers in (("/admin/nothing", []), ("/admin/api/nothing", [HTML])):
            reply = await play.send("GET", target, *headers)
            assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found")  # type: ignore[index]
        assert not play.behind.calls


async def test_people_at_the_root_are_led_to_the_pages_and_programs_are_told_what_this_is(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        reply = await play.send("GET", "/", HTML)
        assert (reply.status, reply.header(b"location")) == (303, b"./admin/")
        assert (await play.send("GET", "/")).json()["name"] == "concertina"
        led = await play.send("GET", "/admin?tenant=acme", HTML)
        assert (led.status, led.header(b"location")) == (303, b"admin/?tenant=acme")


async def test_without_pages_metrics_stay(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, server={"admin": False}) as play:
        for target in ("/admin/", SESSIONS, "/admin/sign-in", "/admin/assets/app.css"):
            reply = await play.send("GET", target, HTML, bearer(CONFIGURED))
            assert reply.status == 404, target
        assert (await play.send("GET", "/metrics", bearer(CONFIGURED))).status == 200


async def test_a_page_refers_to_nothing_but_our_own_files_whose_names_hold_their_hash(tmp_path: Path) -> None:
    async with shared(tmp_path) as play:
        page = (await play.send("GET", "/admin/", HTML, bearer(CONFIGURED))).body.decode()
        assert not re.search(r"<style| style=| on[a-z]+=|=\"(?:[a-z]+:)?//", page)
        named = re.findall(r'(?:src|href)="\./assets/([^"]+)"', page)
        assert {name.rpartition(".")[2] for name in named} == {"css", "js", "svg"}
        for name in named:
            reply = await play.send("GET", f"/admin/assets/{name}")
            assert reply.header(b"cache-control") == b"public, max-age=31536000, immutable"
            assert len(reply.body) < {"css": 16_000, "js": 8_000, "svg": 1_000}[name.rpartition(".")[2]]
            other = re.sub(r"\.\w{12}\.", ".000000000000.", name)
            assert (await play.send("GET", f"/admin/assets/{other}")).status == 404


NOW = 1_800_000_000.0
WRITTEN = sign_cookie(Ticket("tenant", "acme", "0123456789abcdef"), "token", NOW)


@pytest.mark.parametrize(
    ("value", "token", "now", "ticket"),
    [
        (WRITTEN, "token", NOW, Ticket("tenant", "acme", "0123456789abcdef")),
        (WRITTEN, "token", NOW + LIFETIME - 1, Ticket("tenant", "acme", "0123456789abcdef")),
        (WRITTEN, "token", NOW + LIFETIME, None),
        (WRITTEN, "another", NOW, None),
        (WRITTEN.replace("tenant", "owner"), "token", NOW, None),
        (WRITTEN.replace(b"acme".hex(), b"other".hex()), "token", NOW, None),
        (WRITTEN + "0", "token", NOW, None),
        ("", "token", NOW, None),
        ("\u20ac.\udc80", "token", NOW, None),
    ],
)
def test_a_cookie_says_what_was_signed_until_it_is_too_old(
    value: str, token: str, now: float, ticket: Ticket | None
) -> None:
    assert read_cookie(value, token, now) == ticket


def test_two_cookies_of_one_moment_differ() -> None:
    assert sign_cookie(Ticket("owner"), "token", NOW) != sign_cookie(Ticket("owner"), "token", NOW)


EMPTY: list[object] = [{"records": [], "lineage": None}, {"points": [], "marks": []}]
# Every endpoint that names a session: its method, and its path behind the id.
ACTS = [
    ("GET", ""),
    ("GET", "/trail"),
    ("GET", "/fates"),
    ("GET", "/records"),
    ("GET", f"/records/{'0' * 64}"),
    ("POST", "/compact"),
    ("GET", "/export"),
    ("DELETE", ""),
]


@pytest.mark.parametrize(("method", "behind"), ACTS, ids=map("".join, ACTS))
async def test_a_viewer_does_nothing_to_a_session_of_another_tenant(tmp_path: Path, method: str, behind: str) -> None:
    async with shared(tmp_path) as play:
        for name in ("ab" * 32, "ab" * 8, "a label"):
            target = f"{SESSIONS}/{name.replace(' ', '%20')}{behind}"
            own = await play.send(method, target, bearer(VIEWER), body=b"")
            # Its own list has no such session; only what is read of it here is empty.
            assert own.status in (403, 404) or own.json() in EMPTY, own.body
            for tenant in ("other", "default"):
                assert (await play.send(method, f"{target}?tenant={tenant}", bearer(VIEWER), body=b"")).status == 403
