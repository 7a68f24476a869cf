"""What is tried against the pages from outside, over every route that there is: forged writes, other names, other
tenants, markup in whatever a client chooses, and secrets wherever they might show."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, get_args
from urllib.parse import quote, urlencode

import pytest
from pydantic import BaseModel, SecretStr
from starlette.routing import Route

from proxy.admin.endpoints import ENDPOINTS
from proxy.config.settings import Config
from tests.support.admin import CONFIGURED, Played, hashed, played
from tests.support.long_conversations import SMALL_WINDOW, TURNS, bearer
from tests.support.servers import reserve_port
from tests.support.upstreams import CHAT, JSON, Header, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
FORM: Header = (b"Content-Type", b"application/x-www-form-urlencoded")
VIEWER = "ck-viewer-of-acme"
# For everybody: what signs in, and what tells nothing of this proxy.
OPEN = {
    "/",
    "/api/hello",
    "/favicon.ico",
    "/livez",
    "/readyz",
    "/openapi.json",
    "/admin/assets/{name}",
    "/admin/sign-in",
}
FILLED = {"id": "a" * 16, "digest": "b" * 64, "name": "x", "name:path": "x", "tenant": "default", "request": "c" * 16}


def targets(play: Played) -> Iterator[tuple[str, str]]:
    """Method and path of everything that is served, its parameters filled in; nothing of what is for everybody."""
    for route in play.app._pages._app.routes:
        assert isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}:
            if route.path not in OPEN:
                path = re.sub(r"\{([\w:]+)\}", lambda found: FILLED[found[1]], route.path)
                yield method, path if path != "/admin" else "/admin/"


async def test_no_write_is_taken_from_another_page_whatever_cookie_its_browser_sends(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        cookie = await play.entered()
        writes = [(method, target) for method, target in targets(play) if method != "GET"]
        assert len(writes) > 10
        for origin in (b"http://evil.example", b"http://127.0.0.1:1", b"null", b"http://localhost:%d" % play.port):
            for method, target in [*writes, ("POST", "/admin/sign-in")]:
                reply = await play.send(method, target, cookie, FORM, (b"Origin", origin), body=b"token=x")
                assert reply.status == 403, (method, target, origin)
        assert b'"event":"admin"' not in play.log.getvalue(), "nothing was done"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1.evil.example:{}", "[::1].evil:{}"])
async def test_another_name_for_this_machine_opens_nothing(tmp_path: Path, host: str) -> None:
    async with played(tmp_path) as play:
        for method, target in targets(play):
            reply = await play.send(method, target, host=host.format(play.port), body=None if method == "GET" else b"")
            assert reply.status in (400, 401, 403), (method, target)


async def test_no_token_in_an_address_or_with_another_scheme_opens_anything(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        for method, target in targets(play):
            body = None if method == "GET" else b""
            for headers, query in (
                ([], f"?token={CONFIGURED}"),
                ([(b"Authorization", b"Basic " + CONFIGURED.encode())], ""),
                ([(b"X-Api-Key", CONFIGURED.encode())], ""),
                ([(b"Cookie", b"concertina=" + CONFIGURED.encode())], ""),
            ):
                reply = await play.send(method, target + query, *headers, body=body)
                assert reply.status in (401, 403), (method, target, headers)


async def test_a_viewer_is_told_nothing_of_another_tenant(tmp_path: Path) -> None:
    tenants = {"default": {"inspect": True}, "acme": {"viewer_keys": [hashed(VIEWER)]}}
    async with played(tmp_path, CONFIGURED, tenants=tenants, **SMALL_WINDOW) as play:
        session = await talked(play, b"theirs", {"role": "user", "content": "Never tell acme of heron."})
        said = await records_of(play, session)
        request = next(play.app._opened.histories.newest()).last.id  # type: ignore[union-attr]
        names = {
            "{id}": session,
            "{digest}": said[0],
            "{name}": "default",
            "{name:path}": session,
            "{request}": request,
        }
        for each in ENDPOINTS:
            if each.path == "live":
                continue
            path = each.path
            for name, value in names.items():
                path = path.replace(name, value)
            body = None if each.method == "GET" else b'{"body": {}, "tenant": "default", "session": "theirs"}'
            for query in ("", "?tenant=default", f"?session={session}&id={session}&label=theirs&all=true"):
                reply = await play.send(each.method, f"/admin/api/{path}{query}", bearer(VIEWER), body=body)
                assert (reply.status, b"heron" in reply.body) != (200, True), path
                assert b"theirs" not in reply.body, path
                assert session.encode() not in reply.body, path
        assert (await records_of(play, session)) == said, "nothing was erased"


# Of each the first characters must be shown as text wherever they stand.
MARKUP = ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "</pre><b onclick=a()>", '"><svg onload=a()>')


async def test_no_markup_of_a_client_is_any_of_ours(tmp_path: Path) -> None:
    policies = {"default": {"summarizer": {"model": "none"}}}
    tenants = {"default": {"inspect": True}}
    async with played(tmp_path, CONFIGURED, policies=policies, tenants=tenants, **SMALL_WINDOW) as play:
        script, image, bold, svg = MARKUP
        said = {"role": "user", "content": f"Never write {script} into {bold} files, and always keep {svg}."}
        session = await talked(play, script.encode(), said, model=image, tool=bold)
        (digest, *_) = await records_of(play, session)
        request = next(play.app._opened.histories.newest()).last.id  # type: ignore[union-attr]
        assert (await ask(play.address, "GET", f"/v1/{quote(script)}", [])).status == 200
        which = urlencode({"label": script})
        pages = [
            *("", "live", "sessions", f"sessions?{urlencode({'q': svg})}", f"sessions/{session}?{which}"),
            *(f"requests/{request}", f"requests/{quote(svg)}"),
            *(f"sessions/{session}/records/{digest}?{which}", "status", "tenants/default"),
            *(f"explain?{urlencode({'session': svg})}", quote(script)),
            *(f"live?{urlencode({'session': svg, 'status': svg})}", f"sign-in?{quote(svg)}"),
        ]
        shown = [await play.send("GET", f"/admin/{page}", HTML, bearer(CONFIGURED)) for page in pages]
        body = json.dumps({"model": image, "messages": [{**said, "name": script}]})
        for fields in ({"body": body, "session": script, "policy": "default"}, {"body": svg}):
            form = urlencode(fields).encode()
            shown.append(await play.send("POST", "/admin/explain", HTML, FORM, bearer(CONFIGURED), body=form))
        texts = [reply.body.decode() for reply in shown]
        for text in texts:
            assert text.startswith("<!doctype html>")
            for markup in MARKUP:
                assert markup not in text
            page = Tags()
            page.feed(text)
            assert page.scripted == []
        told = "".join(texts)
        for begin in (
            "&lt;script&gt;alert(1)",
            "&lt;img src=x onerror",
            "&lt;/pre&gt;&lt;b onclick",
            "&gt;&lt;svg onload",
        ):
            assert begin in told, "it was shown"


class Tags(HTMLParser):
    """What of a page's tags is, or may be, a script that is not our own file."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_foreign = tag == "script" and "/assets/app." not in (given.get("src") or "")
        if is_foreign or any(name.startswith("on") for name in given):
            self.scripted.append(self.get_starttag_text() or tag)


def secrets_in(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Where a config may hold a secret; names that an operator chooses are stars."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *_inner(field.annotation)]
        if SecretStr in kinds:
            yield f"{path}{name}"
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                star = "" if kind is field.annotation else "*."
                yield from secrets_in(kind, f"{path}{name}.{star}")


def _inner(annotation: object) -> list[object]:
    return [found for each in get_args(annotation) for found in (each, *_inner(each))]


CANARY = "canary-0123456789"
KEYS = ("00" * 31 + "ca", "11" * 31 + "fe")


async def test_no_page_no_answer_and_no_line_tells_a_secret(tmp_path: Path) -> None:
    store = {
        "url": f"redis://user:{CANARY}-1@127.0.0.1:{reserve_port()}/0",
        "secret": f"{CANARY}-2",
        "encryption_key": KEYS[0],
        "retired_keys": [KEYS[1]],
    }
    known = hashed("an agent's"), hashed("a viewer's")
    config = {
        "tenants": {
            "default": {"api_key": f"{CANARY}-3", "inspect": True},
            "acme": {"keys": [known[0]], "viewer_keys": [known[1]]},
        },
        "policies": {"careful": "chat"},
        "telemetry": {"traces": {"headers": {"x-key": f"{CANARY}-6"}}},
    }
    assert {*secrets_in(Config)} == {
        *("server.admin_token", "store.secret", "store.encryption_key", "store.retired_keys"),
        *("upstreams.*.api_key", "upstreams.*.proxy", "upstreams.*.headers", "tenants.*.api_key"),
        "telemetry.traces.headers",
    }, "a secret setting that this test does not set"
    token, told = f"{CANARY}-4", list[bytes]()
    upstream: dict[str, object] = {
        "upstream_headers": {"x-gateway-key": f"{CANARY}-8"},
        "upstream_key": f"{CANARY}-5",
        "upstream_proxy": f"http://user:{CANARY}-7@127.0.0.1:{reserve_port()}",
    }
    async with played(tmp_path, token, store, **upstream, **config) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON], b'{"model": "m", "messages": []}')
        assert reply.status == 502
        told.append(reply.body)
        for method, target in [*targets(play), *(("GET", path.format(name="x")) for path in OPEN)]:
            if target.endswith("/live") and "api" in target:
                continue
            body = None if method == "GET" else b'{"body": {"model": "m", "messages": []}, "files": {"a": "{"}}'
            for headers in ([HTML, bearer(token)], [bearer(token)], [bearer(f"wrong-{CANARY}")], []):
                reply = await play.send(method, target, *headers, body=body)
                told.append(reply.body + b"".join(name + value for name, value in reply.headers))
        whole = b"".join([*told, play.log.getvalue()]).decode("utf-8", "replace")
        for secret in (CANARY, *(key[:40] for key in KEYS), *(key[7:40] for key in known), "user:"):
            assert secret not in whole
        assert "careful" in whole


async def talked(play: Played, label: bytes, said: dict[str, object], *, model: str = "m", tool: str = "read") -> str:
    """The id of a session that was compacted, in which this was said, and a file of the tool's name was written."""
    call = {"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": json.dumps({"path": tool})}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": f"wrote {tool}"}
    messages = [said, called, result, *TURNS, {"role": "user", "content": "and now?"}]
    body = json.dumps({"model": model, "messages": messages}).encode()
    assert (await ask(play.address, "POST", CHAT, [JSON, (b"X-Session-Id", label)], body)).status == 200
    opened = play.app._opened
    assert opened is not None
    await opened.engine.background.drain(5)
    return next(opened.histories.newest()).key.id


async def records_of(play: Played, session: str) -> list[str]:
    """Digests of its records."""
    opened = play.app._opened
    assert opened is not None
    label = urlencode({"label": next(opened.histories.newest()).key.label})
    found = await play.send("GET", f"/admin/api/sessions/{session}/records?{label}", bearer(CONFIGURED))
    return [str(row["digest"]) for row in found.json()["records"]]  # type: ignore[index,union-attr]
