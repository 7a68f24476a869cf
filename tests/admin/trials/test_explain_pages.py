"""A request is explained on a page and for programs, under one policy or two; nothing is sent, nothing stored."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from policies.decision.overflow_retries import StatedLimit
from proxy.admin.trials.explaining import example
from proxy.admin.trials.turn import Turn
from proxy.callers.api_head import ApiHead
from proxy.errors import OverloadedError
from tests.support.admin import BROWSER, CONFIGURED, Played, hashed, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer, summaries, summarizing
from tests.support.upstreams import CHAT, JSON, Header, Reply, ask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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
        assert page.count("The record: By estimate every later request is ") == 2
        assert not play.behind.calls
        assert play.app._opened is not None
        assert not [*play.app._opened.histories.newest()]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"body": "{"}, 400, "JSON"),
        ({"body": '{"model": "m"}'}, 400, "This is not a request of"),
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
        half = await play.send(
            "POST", URL, bearer(CONFIGURED), body=content.replace(b'"content": "', rb'"content": "\ud83d ')
        )
        assert half.json()["explanations"][0]["outcome"] == "applied", "clients cut emojis in two"  # type: ignore[index]
        for wrong in (b"", b"[]", b'{"body": 1}', b'{"policies": []}'):
            refused = await play.send("POST", URL, bearer(CONFIGURED), body=wrong)
            assert refused.status == 400, wrong
            assert refused.json()["error"]["message"]  # type: ignore[index]


@asynccontextmanager
async def conversing(directory: Path, *, inspect: bool = True) -> AsyncIterator[Played]:
    """A proxy that has summarized the long conversation, under two labels."""
    tenants = {"default": {"inspect": inspect, "viewer_keys": [hashed("viewer")]}}
    async with played(directory, CONFIGURED, tenants=tenants, **SMALL_WINDOW) as play:
        play.behind.play(summarizing)
        for label in (b"mine", b"other"):
            assert (await ask(play.address, "POST", CHAT, [JSON, (b"X-Session-Id", label)], LONG)).status == 200
        assert play.app._opened is not None
        await play.app._opened.engine.background.drain(5)
        yield play


async def explained(play: Played, key: str = CONFIGURED, **fields: object) -> Reply:
    content = json.dumps({"body": json.loads(LONG), **fields}).encode()
    return await play.send("POST", URL, bearer(key), body=content)


async def test_the_store_is_looked_at_for_a_session_that_is_named_and_for_no_other(tmp_path: Path) -> None:
    async with conversing(tmp_path) as play:
        without = (await explained(play)).json()
        assert (without["session"], without["explanations"][0]["outcome"]) == (None, "applied")  # type: ignore[index]
        found = (await explained(play, session="mine")).json()
        assert found["explanations"][0]["outcome"] == "reused"  # type: ignore[index]
        name = str(found["session"])
        assert len(name) == 16
        assert (await explained(play, session=f"{name}:mine")).json()["session"] == name
        session = await play.send("GET", f"/admin/sessions/{name}?label=mine", HTML, bearer(CONFIGURED))
        (link,) = re.findall(r'href="\.\./(explain\?[^"]*)"', session.body.decode())
        blank = await play.send("GET", f"/admin/{link.replace('&amp;', '&')}", HTML, bearer(CONFIGURED))
        assert f'value="{name}:mine"' in blank.body.decode()
        assert b"session_explained" in play.log.getvalue()
        page = (await asked(play, body=LONG.decode(), session="mine")).body.decode()
        assert f"With the stored records of session <code>{name}</code>" in page
        assert "Without stored records" in (await asked(play, body=LONG.decode())).body.decode()


async def test_a_pasted_request_is_explained_by_what_was_learned_of_its_model(tmp_path: Path) -> None:
    async with conversing(tmp_path) as play:
        told = (await explained(play)).json()["explanations"][0]["window"]  # type: ignore[index]
        engine, router = play.app._opened.engine, play.app._pipeline.active.router  # type: ignore[union-attr]
        caller = play.app._pipeline.active.tenants.operator_of("default")
        assert caller is not None
        place = router.conversation(ApiHead("POST", CHAT, []), caller, json.loads(LONG)["model"]).place
        engine.windows.saw_overflow(place, StatedLimit(told["tokens"] - 1_000), told["tokens"], b"a session")
        learned = (await explained(play)).json()["explanations"][0]["window"]  # type: ignore[index]
    assert learned == {"tokens": told["tokens"] - 1_000, "source": "learned"}


@pytest.mark.parametrize("body", [b"{", b'{"body": {}, "tenant": "\xff"}', b"[" * 100_000, b"[]"], ids=range(4))
async def test_what_is_no_question_is_refused(tmp_path: Path, body: bytes) -> None:
    async with conversing(tmp_path) as play:
        reply = await play.send("POST", "/admin/api/explain", JSON, bearer(CONFIGURED), body=body)
        assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")  # type: ignore[index]


@pytest.mark.parametrize(
    ("key", "inspect", "fields", "status", "code"),
    [
        (CONFIGURED, True, {"session": "nobody's"}, 404, "not_found"),
        (CONFIGURED, False, {"session": "mine"}, 403, "content_hidden"),
        (CONFIGURED, False, {"ask": True}, 403, "content_hidden"),
        ("viewer", True, {"ask": True}, 403, "not_allowed"),
        ("viewer", True, {"session": "mine"}, 200, None),
        ("viewer", False, {"session": "mine"}, 403, "content_hidden"),
        ("viewer", False, {}, 200, None),
    ],
)
async def test_what_a_session_holds_is_content_and_a_summarizer_is_asked_for_operators_alone(
    tmp_path: Path, key: str, inspect: bool, fields: dict[str, object], status: int, code: str | None
) -> None:
    async with conversing(tmp_path, inspect=inspect) as play:
        asked_before = summaries(play.behind)
        reply = await explained(play, key, **fields)
        told = reply.json().get("error", {"code": None})
        assert (reply.status, told["code"]) == (status, code)  # type: ignore[index,call-overload]
        assert summaries(play.behind) == asked_before


async def test_a_name_that_several_sessions_have_is_not_guessed(tmp_path: Path) -> None:
    async with conversing(tmp_path) as play:
        name = str((await explained(play, session="mine")).json()["session"])
        reply = await explained(play, session=name)
        assert (reply.status, "ID:LABEL" in reply.body.decode()) == (400, True)


async def test_the_summarizer_is_asked_and_what_it_writes_is_kept_nowhere(tmp_path: Path) -> None:
    async with played(tmp_path, CONFIGURED, **SMALL_WINDOW) as play:
        play.behind.play(summarizing)
        for times in (1, 2):
            made = (await explained(play, ask=True)).json()["made"]
            assert "Something was said about it" in made["record"]["text"]  # type: ignore[index,call-overload]
            assert summaries(play.behind) == times
        page = (await asked(play, body=LONG.decode(), ask="on")).body.decode()
        assert "The summarizer's record under policy default" in page
        assert "Something was said about it" in page
        operations = (await play.send("GET", "/admin/api/store", bearer(CONFIGURED))).json()["operations"]
        assert "put_new" not in [row["name"] for row in operations]  # type: ignore[index,union-attr]
        figures = (await play.send("GET", "/admin/api/overview", bearer(CONFIGURED))).json()
        assert figures["compactions"] == []
        assert figures["figures"]["summaries"] > 0, "it was paid for"  # type: ignore[index,call-overload]
        small = json.dumps({"body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "ask": True})
        reply = await play.send("POST", URL, bearer(CONFIGURED), body=small.encode())
        assert reply.json()["made"]["why"] == "No summary is due, so the summarizer was not called."  # type: ignore[index,call-overload]


def test_a_second_one_is_sent_away_while_one_has_its_turn() -> None:
    turn = Turn("Somebody else is first.")
    with turn.take(), pytest.raises(OverloadedError, match="Somebody else is first"), turn.take():
        pass
    with turn.take():
        pass


async def test_it_is_for_those_who_are_signed_in(tmp_path: Path) -> None:
    async with played(tmp_path) as play:
        assert (await play.send("GET", "/admin/explain", *BROWSER)).status == 403
        assert (await play.send("POST", URL, *BROWSER, body=b"{}")).status == 403
