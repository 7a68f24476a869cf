"""Texts that stay, over real sockets: through compactions, an overflow, a restart, and a client's own compaction."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.dialects import WRITERS
from tests.support.model_server import Fault, ModelServer
from tests.support.scenarios import WINDOW
from tests.support.shaped_sessions import CLIENTS, ClaudeCode, Codex, Session, prose
from tests.support.worlds import world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tests.support.scenarios import Reply
    from tests.support.worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SPEC = f"spec of the totals\n{prose('spec', 120)}"
PLAN = f"# Plan\r\n\n- step `one`\n{prose('plan', 120)}"
RULE = "Never store a total as a float"
LARGE = f"a large spec\n{prose('large', 2_000)}"
HEADER = {"x-compaction-pin": "file:docs/*.md, file:NOTES"}
POLICY = {"summarizer": {"model": "none"}, "pins": ["tool:get_spec"]}


def pinned(make: Callable[[], Session], spec: str = SPEC) -> Session:
    session = make()
    session.opens(f"Move the totals to cents. <pin>{RULE}</pin>")
    session.works(spec, "get_spec", {"id": 7})
    session.works(PLAN, "Read", {"file_path": "/repo/docs/plan.md"})
    return session


def works(session: Session, name: object, rounds: int = 1) -> None:
    for number in range(rounds):
        session.works(prose(f"{name} {number}", 250), "Bash", {"command": f"make {name}_{number}"})


def strings_in(value: object) -> str:
    if isinstance(value, str):
        return value
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(map(strings_in, values))


@asynccontextmanager
async def played(
    directory: Path, make: Callable[[], Session], server: ModelServer | None = None, **policy: object
) -> AsyncIterator[World]:
    writer = next(writer for writer in WRITERS if writer.dialect is make().dialect)
    async with world(directory, writer, server, policies={"default": {**POLICY, **policy}}) as play:
        yield play


async def asked(play: World, session: Session, headers: Mapping[str, str] = HEADER) -> Reply:
    reply = await play.post(session.body(), headers=headers)
    assert play.provider.invalid == []
    return reply


def check(play: World, reply: Reply) -> None:
    """Every pin is in the prompt, and no header of ours is."""
    assert reply.status == 200, reply.body[:300]
    sent = play.sent[-1]
    said = strings_in(sent.body)
    assert [text for text in (SPEC, PLAN, RULE) if text not in said] == []
    assert reply.headers.get("x-compaction-pins", "3/3") == "3/3"
    assert ("x-compaction-pins" in reply.headers) is ("conversation_record" in said)
    assert "x-compaction-warning" not in reply.headers
    assert not any(name.lower().startswith(b"x-compaction") for name, _ in sent.received.headers)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
async def test_pins_stay_through_compactions_an_overflow_and_a_restart(
    tmp_path: Path, make: Callable[[], Session]
) -> None:
    session = pinned(make)
    records: list[str] = []
    async with played(tmp_path, make) as play:
        while len({*records}) < 5:
            works(session, len(session.items))
            reply = await asked(play, session)
            check(play, reply)
            records += [name for name in [reply.headers.get("x-compaction-checkpoint")] if name]
        refused: list[int] = []

        def refuse_first(_: int, body: bytes) -> Fault | None:
            refused.append(len(body))
            return Fault(play.provider.api.too_long(WINDOW, WINDOW + 900, 99)) if len(refused) == 1 else None

        play.provider.more = refuse_first
        works(session, "overflow", 2)
        check(play, await asked(play, session))
        assert len(refused) == 2
        play.provider.more = None
    async with played(tmp_path, make, play.model) as again:
        check(again, await asked(again, session))
        works(session, "again", 25)
        check(again, await asked(again, session))
        assert "x-compaction-pins" in again.replies[-1].headers


async def test_pins_come_back_with_a_compaction_item(tmp_path: Path) -> None:
    """The client has removed the messages in which they stood."""
    session = pinned(Codex)
    works(session, "first", 14)
    async with played(tmp_path, Codex) as play:
        for generation in range(3):
            reply = await play.post(session.body(), path=("responses", "compact"), headers=HEADER)
            assert reply.status == 200, reply.body[:300]
            session.items = json.loads(reply.body)["output"]
            assert SPEC not in strings_in(session.items)
            session.says("Go on.")
            check(play, await asked(play, session))
            works(session, generation, 30)
            check(play, await asked(play, session))
        session.works("the newest spec", "get_spec", {"id": 7})
        works(session, "last", 30)
        reply = await asked(play, session)
        said = strings_in(play.sent[-1].body)
        assert reply.headers["x-compaction-pins"] == "3/3"
        assert "the newest spec" in said
        assert SPEC not in said


async def test_pins_stay_behind_an_item_that_a_client_of_claude_has_at_a_threshold(tmp_path: Path) -> None:
    session = pinned(ClaudeCode)
    works(session, "first", 12)
    edit = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]}
    async with played(tmp_path, ClaudeCode) as play:
        body = json.loads(session.body()) | {"context_management": edit}
        works(session, "second", 8)
        body["messages"] = session.items
        reply = await play.post(body, headers={**HEADER, "anthropic-beta": "compact-2026-01-12"})
        assert reply.headers["x-compaction-item"] == "made"
        check(play, reply)
        answer = json.loads(reply.body)["content"]
        assert answer[0]["type"] == "compaction"
        session.items = [{"role": "assistant", "content": answer}]
        session.says("Go on.")
        body["messages"] = session.items
        reply = await play.post(body, headers={**HEADER, "anthropic-beta": "compact-2026-01-12"})
        assert reply.headers["x-compaction-item"] == "read"
        check(play, reply)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
async def test_what_does_not_fit_is_told(tmp_path: Path, make: Callable[[], Session]) -> None:
    session = pinned(make, LARGE)
    works(session, "more", 25)
    async with played(tmp_path, make) as play:
        reply = await asked(play, session)
        said = strings_in(play.sent[-1].body)
        assert (reply.status, reply.headers["x-compaction-pins"]) == (200, "2/3")
        assert reply.headers["x-compaction-warning"] == "pin_left_out"
        assert 'Pinned text of get_spec {"id":7} did not fit' in said
        assert PLAN in said
        assert RULE in said
        explained = await play.post(session.body(), path=("compaction", "explain"), headers=HEADER)
        pins = json.loads(explained.body)["pins"]
        assert [(pin["source"], pin["is_kept"]) for pin in pins] == [
            ("user", True),
            ('get_spec {"id":7}', False),
            ("/repo/docs/plan.md", True),
        ]


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
async def test_a_closed_policy_refuses_what_has_no_room_for_a_pin(tmp_path: Path, make: Callable[[], Session]) -> None:
    session = pinned(make, LARGE)
    works(session, "more", 25)
    async with played(tmp_path, make, fail="closed") as play:
        reply = await asked(play, session)
        assert reply.status == 503
        message = json.dumps(json.loads(reply.body)["error"])
        assert "Pinned text is not in the prompt (get_spec" in message
        assert "pin less or raise pins.budget_ratio" in message
        assert play.sent == []
        works(fits := pinned(make), "more", 25)
        check(play, await asked(play, fits))


async def test_a_closed_policy_refuses_a_retry_that_leaves_a_pin_out(tmp_path: Path) -> None:
    session = pinned(ClaudeCode)
    works(session, "more", 25)
    async with played(tmp_path, ClaudeCode, fail="closed") as play:
        check(play, await asked(play, session))
        sent = len(play.model.received)
        play.provider.more = lambda *_: Fault(play.provider.api.too_long(1_500, 9_000, 99))
        reply = await asked(play, session)
        assert reply.status == 503
        assert "Pinned text is not in the prompt" in reply.body.decode()
        assert len(play.model.received) == sent + 1
