"""Recorded sessions are played on a page and for programs: bounded, one after the other, and no model is asked."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from proxy.admin.trials import replaying
from proxy.admin.trials.explaining import example
from tests.support.admin import BROWSER, CONFIGURED, Played, played
from tests.support.forms import multipart
from tests.support.long_conversations import SMALL_WINDOW, TURNS, bearer
from tests.support.upstreams import Header, Reply

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HTML: Header = (b"Accept", b"text/html")
URL = "/admin/api/replay"
ONE_MESSAGE = json.dumps([{"role": "user", "content": "hello"}])


async def uploaded(play: Played, files: dict[str, bytes], **fields: str) -> Reply:
    kind, body = multipart({name: [value] for name, value in fields.items()}, files)
    headers = [HTML, bearer(CONFIGURED), (b"Content-Type", kind.encode())]
    return await play.send("POST", "/admin/replay", *headers, body=body)


async def asked(play: Played, token: str = CONFIGURED, **wanted: object) -> Reply:
    return await play.send("POST", URL, bearer(token), body=json.dumps(wanted).encode())


async def test_sessions_are_played_under_each_policy_and_nobody_is_asked(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        told = (await asked(play, files={"a.json": json.dumps(TURNS * 2)}, policies=["default", "cost"])).json()
        (session,) = told["replayed"]["sessions"]  # type: ignore[index,call-overload]
        assert [*session["policies"]] == ["no proxy", "default", "cost"]
        without, default, cost = session["policies"].values()
        assert without["over_window"] > 0
        assert cost["tokens_sent"] <= default["tokens_sent"] < without["tokens_sent"]
        assert default["summarizer_calls"] > 0
        wider = (await asked(play, files={"a.json": json.dumps(TURNS * 2)}, policies=["default"], window=10**6)).json()
        assert wider["replayed"]["sessions"][0]["policies"]["default"]["summarizer_calls"] == 0  # type: ignore[index,call-overload]
        assert play.behind.calls == []
        stored = (await play.send("GET", "/admin/api/sessions", bearer(CONFIGURED))).json()
        assert stored["sessions"] == []


async def test_half_an_emoji_in_a_recording_or_its_name_is_no_trouble(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        halves = json.dumps([{"role": "user", "content": "\ud83d hello"}])
        reply = await asked(play, files={"\ud83d.json": halves, "a.json": ONE_MESSAGE}, policies=["default"])
        names = [session["name"] for session in reply.json()["replayed"]["sessions"]]  # type: ignore[index,call-overload]
        assert names == ["\ufffd.json", "a.json"]


async def test_the_page_shows_a_table_a_session_and_what_was_left_out(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        blank = (await play.send("GET", "/admin/replay", HTML, bearer(CONFIGURED))).body.decode()
        assert "Play an example" in blank
        assert blank.count(" checked") == 5
        files = {"<b>x</b>.json": example().encode(), "two.json": ONE_MESSAGE.encode(), "bad.json": b"{"}
        page = (await uploaded(play, files, policy="chat")).body.decode()
        assert page.count("<table>") == 3, "all together, and each"
        assert "&lt;b&gt;x&lt;/b&gt;.json" in page
        assert "Left out: bad.json: is neither JSON nor JSON lines" in page
        assert '<th scope="row">chat</th>' in page
        assert '<th scope="row">cost</th>' not in page
        assert "example.json" in (await uploaded(play, {}, example="1", policy="chat")).body.decode()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"files": {}}, "There is nothing to play"),
        ({"files": {"a": "{"}}, "a: is neither JSON nor JSON lines"),
        ({"files": {"a": ONE_MESSAGE}, "policies": ["nothing"]}, "No policy is called nothing"),
        ({"files": {"a": ONE_MESSAGE}, "window": 255}, "Send "),
        ({"files": ["a"]}, "Send "),
        ({"files": {"a": "\n".join([json.dumps({"messages": [*TURNS[:2]]})] * 21)}}, "21 sessions, of 21 requests"),
        ({"files": {"a": json.dumps(TURNS[:2] * 1_000)}}, "of 1,000 requests to be played 6 times"),
    ],
)
async def test_what_is_nothing_and_what_is_too_much_is_refused(
    tmp_path: Path, wanted: dict[str, object], words: str
) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reply = await asked(play, **wanted)
        assert reply.status == 400
        assert words in reply.json()["error"]["message"]  # type: ignore[index,operator,call-overload]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"window": "12"}, "256 at least"), ({"window": "²"}, "256 at least"), ({}, "nothing to play")],
)
async def test_the_page_says_what_is_wrong_beside_what_was_chosen(
    tmp_path: Path, fields: dict[str, str], words: str
) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        reply = await uploaded(play, {}, policy="cost", **fields)
        page = reply.body.decode()
        assert (reply.status, 'role="alert"' in page, page.count(" checked")) == (400, True, 1)
        assert words in page


async def test_one_is_played_at_a_time_while_others_are_served(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        files = {"a.json": json.dumps(TURNS)}
        first, second = await asyncio.gather(asked(play, files=files), asked(play, files=files))
        assert sorted((first.status, second.status)) == [200, 503]
        assert (await asked(play, files=files, policies=["chat"])).status == 200


async def test_it_ends_when_its_time_is_over_or_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with played(tmp_path, CONFIGURED) as play:
        with monkeypatch.context() as patched:
            patched.setattr(replaying, "_SECONDS", -1.0)
            reply = await asked(play, files={"a.json": ONE_MESSAGE})
            assert (reply.status, "not done within" in reply.body.decode()) == (400, True)
        play.app.is_draining = True
        assert (await asked(play, files={"a.json": ONE_MESSAGE})).status == 503


async def test_more_than_is_taken_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pages", "endpoints"):
        monkeypatch.setattr(f"proxy.admin.trials.{module}.MOST_REPLAYED", 1_000)
    async with played(tmp_path, CONFIGURED) as play:
        assert (await asked(play, files={"a.json": "x" * 2_000})).status == 400
        assert "larger than 1,000 bytes" in (await uploaded(play, {"a.json": b"x" * 2_000})).body.decode()


async def test_it_is_for_those_with_the_admin_token(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        assert (await play.send("GET", "/admin/replay", *BROWSER)).status == 403
        assert (await play.send("POST", URL, *BROWSER, body=b"{}")).status == 403
