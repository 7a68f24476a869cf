"""Which paths are ours, however they are spelled, and that the admin token never goes upstream."""

from __future__ import annotations

import base64
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from proxy.callers.api_paths import is_ours, reading
from tests.support.upstreams import (
    CHAT,
    JSON,
    OK_BODY,
    TWO_WAYS,
    Header,
    Reply,
    Upstream,
    always,
    answer,
    ask,
    backends,
    chat,
    proxied,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio

TOKEN = "t-0123456789/=;,+%41"
BEARER = (b"Authorization", b"Bearer " + TOKEN.encode())
OK = always(answer(200, OK_BODY, JSON))
NAMES = ("admin", "metrics", "livez", "readyz", "openapi.json")
# What stands for a name of ours.
SPELLINGS = (
    "/{}", "/{}/", "//{}", "///{}//", "/./{}", "/{}/.", "/x/../{}", "/{}/../{}", "/%2e/{}", "/x/%2e%2e/{}",
    "/{}/x", "/{}/x/y", "/{};a=b", "/;a/{}", "/{};", "/{}?a=b", "/{}%3Fa", "/{}%23a", "/{}%00", "/{}%20", "/%09{}",
    "/%2f{}", "/{}%2f", "/{}%2fx", "/%252f{}", "/{}%252fx", "/{}%5cx", "/%5c{}", "/\\{}", "/{}\\x",
    "/v1/..%2f{}", "/v1/%2e%2e%2f{}", "/v1/%252e%252e/{}", "/v1\\..\\{}", "/v1/..;/{}", "/{}/../v1/chat/completions",
    "http://other.example/{}", "http://other.example//{}/x",
)  # fmt: skip
EXACT = (
    "/openapi.json",
    "/openapi.json/",
    "/admin/api/models",
    "/admin/api/sessions",
    "/admin/api/sessions/",
    "/metrics",
    "/metrics/",
    "/livez",
    "/livez/",
    "/readyz",
    "/readyz/",
)


def spelled(name: str) -> set[str]:
    """A name in upper case, percent-encoded once, twice and three times, in whole and in part, and in wide letters."""
    every = "".join(f"%{ord(letter):02x}" for letter in name)
    wide = "".join(quote(chr(ord(letter) + 0xFEE0)) if letter.isalpha() else letter for letter in name)
    return {
        name,
        name.upper(),
        name.title(),
        f"%{ord(name[0]):02X}{name[1:]}",
        every,
        every.replace("%", "%25"),
        every.replace("%", "%2525"),
        wide,
    }


def targets() -> list[str]:
    of_names = [spelling.replace("{}", name) for spelling, name in product(SPELLINGS, NAMES)]
    return sorted(
        {
            *of_names,
            *(f"/{name}" for one in NAMES for name in spelled(one)),
            "/",
            "//",
            "/.",
            "/favicon.ico",
            "http://a.example/",
        }
    )


anyio_backend = backends(TWO_WAYS)


@pytest.fixture(scope="module")
async def both(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Upstream]]:
    async with proxied(tmp_path_factory.mktemp("proxy"), OK, server={"admin_token": TOKEN}) as (address, behind):
        yield address, behind


def is_error_of_ours(reply: Reply) -> bool:
    error = reply.json()["error"]
    return isinstance(error, dict) and error.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
async def test_no_spelling_of_a_path_of_ours_reaches_the_upstream(address: str, behind: Upstream, method: str) -> None:
    assert len(targets()) > 200
    for target in targets():
        reply = await ask(address, method, target, [BEARER, (b"Cookie", b"a=b")], b"{}" if method == "POST" else None)
        if reply.status >= 400:
            assert is_error_of_ours(reply), target
            assert reply.status in (404, 405), target
        assert (reply.status == 405) == (reply.header(b"allow") is not None), target
    assert behind.calls == []


@pytest.mark.parametrize(
    "target", ["/ADMIN/api/models", "/%61dmin/api/models", "//metrics", "/%6detrics", "/x/../metrics"]
)
async def test_a_page_is_served_under_its_own_name_alone(address: str, target: str) -> None:
    """A front end that shuts a name off need not know how else it could be written."""
    assert (await ask(address, "GET", target, [BEARER])).status == 404


@pytest.mark.parametrize("target", EXACT)
async def test_a_page_is_served_with_a_slash_behind_it_too(address: str, target: str) -> None:
    assert (await ask(address, "GET", target, [BEARER])).status == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/admin", "/v1/metrics", "/administrator", "/admin-x", "/metricsx", "/v1/models", "/v1/files/a%2Fb", "/health"],
)
async def test_what_only_looks_like_ours_is_relayed(address: str, behind: Upstream, path: str) -> None:
    assert (await ask(address, "GET", path)).body == OK_BODY
    assert [call.target for call in behind.calls] == [path]


async def test_the_root_says_what_this_is_and_where_to_point_a_client(address: str, behind: Upstream) -> None:
    reply = await ask(address, "GET", "/")
    assert (reply.status, reply.header(b"content-type")) == (200, b"application/json")
    assert "/v1" in str(reply.json()["base_url"])
    assert (await ask(address, "GET", "/favicon.ico")).status == 204
    assert behind.calls == []


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


PLAIN = TOKEN.encode()
ESCAPED = "".join(f"%{letter:02X}" for letter in PLAIN)


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", [BEARER]),
        ("", [(b"authorization", b"bearer  " + PLAIN + b" ")]),
        ("", [(b"AUTHORIZATION", b"Token " + PLAIN)]),
        ("", [(b"Authorization", PLAIN)]),
        ("", [(b"Authorization", basic(f"user:{TOKEN}"))]),
        ("", [(b"Authorization", basic(f"{TOKEN}:"))]),
        ("", [(b"Authorization", basic(TOKEN).removesuffix(b"="))]),
        ("", [(b"X-Api-Key", PLAIN)]),
        ("", [(b"Api-Key", PLAIN)]),
        ("", [(b"X-Goog-Api-Key", PLAIN)]),
        ("", [(b"Ocp-Apim-Subscription-Key", PLAIN)]),
        ("", [(b"X-Auth-Token", b"Bearer " + PLAIN)]),
        ("", [(b"Cookie", b"a=b; token=" + ESCAPED.encode())]),
        ("", [(b"Cookie", b"a=b"), (b"Cookie", b'session="' + ESCAPED.encode() + b'"; c=d')]),
        (f"?key={ESCAPED}", []),
        (f"?a=b&token={ESCAPED}&c=d", []),
        (f"?access_token={ESCAPED}", []),
        (f"?{ESCAPED}", []),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/files"])
async def test_the_admin_token_is_refused_as_a_key_for_the_upstream(
    address: str, behind: Upstream, path: str, query: str, headers: list[Header]
) -> None:
    method, body = ("POST", chat("a")) if path == CHAT else ("GET", None)
    reply = await ask(address, method, path + query, [JSON, *headers], body)
    assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")  # type: ignore[index]
    assert "admin token, not an API key" in reply.body.decode()
    assert behind.calls == []


@pytest.mark.parametrize(
    "header",
    [
        (b"Authorization", b"Bearer " + PLAIN + b"x"),
        (b"Authorization", b"Bearer " + PLAIN[:-1]),
        (b"Authorization", b"Basic \xff\xfe"),
        (b"Authorization", b""),
        (b"X-Api-Key", b"\xff" + PLAIN),
        (b"Cookie", b";;=; =x; a"),
    ],
)
async def test_any_other_key_passes(address: str, behind: Upstream, header: Header) -> None:
    assert (await ask(address, "POST", CHAT, [JSON, header], chat("a"))).status == 200
    assert len(behind.calls) == 1


@pytest.mark.parametrize(
    ("path", "ours", "dots"),
    [
        (b"/v1/chat/completions", False, False),
        (b"/v1/files/a..b", False, False),
        (b"/v1/.../x", False, False),
        (b"/v1/caf%C3%A9/%zz/%", False, False),
        (b"/v1/caf%E9", False, False),
        (b"/v1/../x", False, True),
        (b"/v1/%c0%ae%c0%ae/x", False, True),
        (b"/v1/%ef%bc%8e%ef%bc%8e/x", False, True),
        (b"/%c0%afadmin", True, False),
        (b"/%" + b"25" * 5000 + b"41", False, True),
    ],
)
def test_a_path_is_read_as_the_most_lenient_server_would(path: bytes, ours: bool, dots: bool) -> None:
    found = reading(path)
    assert (is_ours(found), found.has_dots) == (ours, dots)
