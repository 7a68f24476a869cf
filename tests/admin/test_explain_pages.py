"""A request is explained on a page and for programs, under one policy or two; nothing is sent, nothing stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from proxy.admin.explaining import example
from tests.support.admin import BROWSER, CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.upstreams import Header, Reply

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
URL = "/admin/api/explain"


async def asked(play: Played, **fields: str) -> Reply:
    body = urlencode(fields).encode()
    return await play.send("POST", "/admin/explain", HTML, bearer(CONFIGURED), body=body)


async def test_the_example_is_explained_under_two_policies_side_by_side(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        shown = await play.send("GET", "/admin/explain?example=1", HTML, bearer(CONFIGURED))
        assert "You are a careful operations agent." in shown.body.decode()
        page = (await asked(play, body=example(), policy="default", other="chat")).body.decode()
        assert page.count('class="strip"') == 2
        assert "Policy default" in page
        assert "Policy chat" in page
        assert "older than the rounds that fit the target" in page
        assert not play.behind.calls
        assert play.app._opened is not None
        assert not [*play.app._opened.trails.newest()]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"body": "{"}, 400, "JSON"),
        ({"body": '{"model": "m"}'}, 400, "This is no request of"),
        ({"body": example(), "policy": "nothing"}, 400, "No policy is called nothing"),
        ({"body": example(), "tenant": "nobody"}, 404, "No tenant has this name"),
    ],
)
async def test_what_cannot_be_explained_is_told_beside_what_was_pasted(
    tmp_path: Path, fields: dict[str, str], status: int, words: str
) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reply = await asked(play, **fields)
        page = reply.body.decode()
        assert (reply.status, 'role="alert"' in page) == (status, True)
        assert words in page
        assert fields["body"].partition("\n")[0].replace('"', "&#34;") in page


async def test_programs_get_explanations_and_words_for_what_is_wrong(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        content = json.dumps({"body": json.loads(LONG), "policies": ["default", "cost", "chat"]}).encode()
        reply = await play.send("POST", URL, bearer(CONFIGURED), body=content)
        explained = reply.json()["explanations"]
        assert [each["policy"] for each in explained] == ["default", "cost"], "two at most"  # type: ignore[union-attr,index]
        assert explained[0]["outcome"] == "applied"  # type: ignore[index]
        for wrong in (b"", b"[]", b'{"body": 1}', b'{"policies": []}'):
            refused = await play.send("POST", URL, bearer(CONFIGURED), body=wrong)
            assert refused.status == 400, wrong
            assert refused.json()["error"]["message"]  # type: ignore[index]


async def test_it_is_for_those_who_are_signed_in(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        assert (await play.send("GET", "/admin/explain", *BROWSER)).status == 403
        assert (await play.send("POST", URL, *BROWSER, body=b"{}")).status == 403
