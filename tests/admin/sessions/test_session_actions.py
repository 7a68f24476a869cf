"""What is done with a session from its page: compacted with the next request, on whichever replica."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from proxy.cli.main import app
from tests.support.scenarios import MODEL, user
from tests.support.stages import CONTENT, COUNTED, DUE, SMALL, WINDOW, Stage, body, history, outcome, stage
from tests.support.upstreams import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.upstreams import Header, Reply

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOKEN: Header = (b"authorization", b"Bearer " + b"t" * 16)
HTML: Header = (b"accept", b"text/html")
LABEL: Header = (b"x-session-id", b"work")
SESSIONS = "/admin/api/sessions"
# Of which something may be stored, and no summary is made ahead of need.
LISTED = body(history(0.65))


async def asked(play: Stage, method: str, path: str, *headers: Header) -> Reply:
    return await ask(play.address, method, path, [TOKEN, *headers], b"" if method == "POST" else None)


async def listed(play: Stage) -> str:
    """The id of the only session that is stored."""
    await play.settled()
    (found,) = (await asked(play, "GET", SESSIONS)).json()["sessions"]  # type: ignore[misc]
    return str(found["id"])[:16]  # type: ignore[index]


def settings(directory: Path) -> dict[str, object]:
    return {
        "store": {"url": f"sqlite:///{directory}/s.db", "secret": "s"},
        "server": {"admin_token": "t" * 16},
        "models": [{"match": MODEL, "context_window": WINDOW}],
        "tenants": {"default": {"inspect": True}},
    }


async def learned(play: Stage) -> None:
    """What a replica learns twice a second."""
    assert play._app._opened is not None
    await play._app._opened.engine.sessions.manual.look()


@pytest.mark.parametrize("then", [LISTED, COUNTED, SMALL], ids=["large", "below the floor", "small"])
async def test_a_session_is_compacted_once_with_its_next_request_on_whichever_replica(
    tmp_path: Path, then: bytes
) -> None:
    async with AsyncExitStack() as opened:
        one, two = [await opened.enter_async_context(stage(tmp_path, **settings(tmp_path))) for _ in range(2)]
        assert outcome(await one.send(LISTED, LABEL))[0] == "none"
        session = await listed(one)
        reply = await asked(one, "POST", f"{SESSIONS}/{session}/compact?label=work")
        assert (reply.status, reply.json()) == (202, {"asked": session})
        await learned(two)
        assert outcome(await two.send(then))[0] == "none", "another session is left alone"
        expected = ("none", "nothing_to_compact") if then is SMALL else ("applied", "manual")
        assert outcome(await two.send(then, LABEL)) == expected
        for play in (one, two):
            await learned(play)
            assert outcome(await play.send(then, LABEL))[0] != "applied"
        made = [line for play in (one, two) for line in play.logged("compaction") if line["trigger"] == "manual"]
        assert len(made) == (then is not SMALL)
        assert [(line["what"], line["session"]) for line in one.logged("admin")] == [("compaction_asked", session)]


async def test_it_is_asked_for_on_the_page_which_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        await play.send(LISTED, LABEL)
        session = await listed(play)
        page = (await asked(play, "GET", f"/admin/sessions/{session}?label=work", HTML)).body.decode()
        (action,) = re.findall(r'action="\.\./(sessions/[^"]+/compact[^"]*)"', page)
        reply = await asked(play, "POST", "/admin/" + action.replace("&amp;", "&"), HTML)
        assert reply.status == 303
        assert (reply.header(b"location") or b"").startswith(f"../{session}?".encode())
        page = (await asked(play, "GET", f"/admin/sessions/{session}?label=work", HTML)).body.decode()
        assert "It is compacted with its next request" in page
        assert "/compact" not in page
        assert outcome(await play.send(LISTED, LABEL)) == ("applied", "manual")
        page = (await asked(play, "GET", f"/admin/sessions/{session}?label=work", HTML)).body.decode()
        assert "a compaction was requested at " in page


async def test_of_what_is_not_stored_no_compaction_can_be_asked_for(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        await play.send(SMALL, LABEL)
        reply = await asked(play, "POST", f"{SESSIONS}/{'0' * 16}/compact?label=work")
        assert reply.status == 404


async def test_stored_sessions_are_listed_by_label_and_id_page_by_page(tmp_path: Path) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        others = [body([*history(0.65), user("Another.")]), body([user("Another."), *history(0.65)])]
        for content, label in ((LISTED, b"work"), (others[0], b"other"), (others[1], b"work")):
            await play.send(content, (b"x-session-id", label))
        await play.settled()
        first = str((await named(play, "other"))[0][0]["id"])
        everywhere = {(first, "work"), (first, "other")}
        for name, expected in (
            (first, everywhere),
            (first[:8], everywhere),
            (f"{first[:8]}:work", {(first, "work")}),
            (first[:7], set()),
            ("nobody", set()),
        ):
            assert {(each["id"], each["label"]) for each in (await named(play, name))[0]} == expected, name
        page, cursor = await named(play, "work", "&limit=1")
        rest, last = await named(play, "work", f"&limit=1&cursor={cursor}")
        assert (len(page), len(rest), last) == (1, 1, None)
        assert len({each["id"] for each in (*page, *rest)}) == 2


async def named(play: Stage, name: str, more: str = "") -> tuple[list[dict[str, object]], str | None]:
    """The stored sessions of a name, and the cursor of the next page."""
    found = (await asked(play, "GET", f"{SESSIONS}?name={name}{more}")).json()
    return found["sessions"], found["cursor"]  # type: ignore[return-value]


async def test_all_that_is_stored_of_a_session_is_exported_as_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stage(tmp_path, **settings(tmp_path)) as play:
        await play.send(DUE, LABEL)
        session = await listed(play)
        reply = await asked(play, "GET", f"{SESSIONS}/{session}/export?label=work")
        assert reply.header(b"content-disposition") == f'attachment; filename="session-{session}.json"'.encode()
        assert CONTENT in reply.body.decode()
        assert [line["what"] for line in play.logged("admin")] == ["session_exported"]
        words = ("sessions", "export", "work", "--config", str(tmp_path / "config.yaml"))
        with pytest.raises(SystemExit):
            await asyncio.to_thread(app, words)
        assert json.loads(capsys.readouterr().out) == reply.json()
        assert (await asked(play, "GET", f"{SESSIONS}/{'0' * 16}/export")).status == 404


async def test_what_may_not_be_read_is_not_exported(tmp_path: Path) -> None:
    hidden = {**settings(tmp_path), "tenants": {"default": {"inspect": False}}}
    async with stage(tmp_path, **hidden) as play:
        await play.send(DUE, LABEL)
        session = await listed(play)
        reply = await asked(play, "GET", f"{SESSIONS}/{session}/export?label=work")
        found = reply.json()
        assert (len(found["records"]), "tenants.default.inspect" in found["hidden"]) == (1, True)  # type: ignore[arg-type,operator]
        for word in (CONTENT, "conversation_record", "module"):
            assert word not in reply.body.decode()
        assert play.logged("admin") == []
