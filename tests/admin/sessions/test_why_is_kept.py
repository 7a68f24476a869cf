"""Why a conversation was compacted, as the store keeps it: the same after a restart and everywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from proxy.admin import why
from proxy.sessions.stored_histories import StoredHistories
from proxy.telemetry.compactions import ended_by
from tests.support.admin import BROWSER, CONFIGURED, Played, played
from tests.support.long_conversations import LONG, SMALL_WINDOW, bearer
from tests.support.records import generation, made
from tests.support.upstreams import CHAT, JSON, ask

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LABEL = "the deploy"
# Unlike what the request says of itself, the record was made because the client asked for it.
MANUAL = (b"X-Compaction", b"force")


async def get(play: Played, path: str) -> Any:
    await play.app._opened.engine.background.drain(5)  # type: ignore[union-attr]
    return (await play.send("GET", f"/admin/api/{path}", bearer(CONFIGURED))).json()


async def nothing(*_: object) -> None:
    return


async def whys(play: Played, session: str) -> dict[str, str]:
    """What is told of the newest compaction, by the place that tells it."""
    shown = await get(play, f"sessions/{session}")
    trail = await get(play, f"sessions/{session}/trail")
    (mark,) = [mark["text"] for mark in trail["marks"] if mark["kind"] == "checkpoint"]
    overview = (await play.send("GET", "/admin/", *BROWSER, bearer(CONFIGURED))).body.decode()
    (noted,) = [each["why"] for each in (await get(play, "overview"))["compactions"]]
    assert noted.partition(".")[0] in overview
    return {
        "session": shown["compactions"][0]["why"],
        "used by": str(shown["compactions"][0]["used_by"]),
        "mark": mark,
        "overview": noted,
    }


async def test_why_a_record_was_made_is_told_the_same_after_a_restart_and_everywhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    policies = {"default": {"summarizer": {"model": "none"}}}
    async with played(tmp_path, CONFIGURED, store, policies=policies, **SMALL_WINDOW) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON, MANUAL, (b"X-Session-Id", LABEL.encode())], LONG)
        assert reply.status == 200
        request = (reply.header(b"x-concertina-request-id") or b"").decode()
        session = (await get(play, "sessions"))["sessions"][0]["id"][:16]
        before = await whys(play, session)
        assert "a compaction was requested at" in before["session"]
        assert before["session"] == before["overview"] == (await get(play, f"requests/{request}"))["record"]
        assert before["mark"].endswith(before["session"])
    async with played(tmp_path, CONFIGURED, store, policies=policies, **SMALL_WINDOW) as play:
        assert await whys(play, session) == before
        reply = await ask(play.address, "POST", CHAT, [JSON, (b"X-Session-Id", LABEL.encode())], LONG)
        request = (reply.header(b"x-concertina-request-id") or b"").decode()
        assert (await get(play, f"requests/{request}"))["record"] == before["session"]
        assert (await whys(play, session))["session"] == before["session"]


async def test_a_session_is_told_from_the_store_alone_without_its_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its records: the process that served it was killed before it stored the session's requests."""
    monkeypatch.setattr(StoredHistories, "write", nothing)
    store = f"sqlite:///{tmp_path}/s.db"
    more: dict[str, Any] = {"policies": {"default": {"summarizer": {"model": "none"}}}, **SMALL_WINDOW}
    async with played(tmp_path, CONFIGURED, store, **more) as play:
        reply = await ask(play.address, "POST", CHAT, [JSON, (b"X-Session-Id", LABEL.encode())], LONG)
        assert reply.status == 200
        session = (await get(play, "sessions"))["sessions"][0]["id"][:16]
        made = (await get(play, f"sessions/{session}/records"))["records"]
        seen = (await get(play, f"sessions/{session}"))["compactions"]
        assert len(made) == 1
    async with played(tmp_path, CONFIGURED, store, **more) as play:
        assert (await get(play, f"sessions/{session}/records"))["records"] == made
        told = await get(play, f"sessions/{session}")
        assert told["row"]["label"] == LABEL
        assert [each["why"] for each in told["compactions"]] == [each["why"] for each in seen]
        exported = await get(play, f"sessions/{session}/export")
        assert [each["digest"] for each in exported["records"]] == [each["digest"] for each in made]
        asked = await play.send("POST", f"/admin/api/sessions/{session}/compact", bearer(CONFIGURED), body=b"")
        assert asked.status == 202


async def test_the_newest_compactions_are_those_of_the_store_until_they_are_erased(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    more: dict[str, Any] = {"policies": {"default": {"summarizer": {"model": "none"}}}, **SMALL_WINDOW}
    bodies = []
    for number in range(3):
        body = json.loads(LONG)
        body["messages"][0]["content"] = f"{number} {body['messages'][0]['content']}"
        bodies.append(json.dumps(body).encode())
    async with played(tmp_path, CONFIGURED, store, **more) as play:
        for body in bodies:
            assert (await ask(play.address, "POST", CHAT, [JSON], body)).status == 200
    async with played(tmp_path, CONFIGURED, store, **more) as play:
        told = (await get(play, "overview"))["compactions"]
        assert len({each["event"]["session"] for each in told}) == 3
        assert [each["event"]["at"] for each in told] == sorted((each["event"]["at"] for each in told), reverse=True)
        gone = told[1]["event"]["session"]
        erased = await play.send("DELETE", f"/admin/api/sessions/{gone}", bearer(CONFIGURED))
        assert erased.status == 200
        left = [each["event"]["session"] for each in (await get(play, "overview"))["compactions"]]
        assert left == [told[0]["event"]["session"], told[2]["event"]["session"]]


def test_a_record_of_an_earlier_version_is_told_without_what_it_does_not_say() -> None:
    event = ended_by(made(generation(1)), tenant="default", session="0" * 16, label=None)
    assert event.used is None
    assert "–" not in why.compaction(event)
    assert "it was compacted (" in why.compaction(event)
