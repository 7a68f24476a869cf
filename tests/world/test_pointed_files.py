"""A client that sends no file twice, over real sockets: behind a summary its pointer still leads to the text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.dialects import WRITERS
from tests.support.model_server import Fault
from tests.support.shaped_sessions import CLIENTS, ClaudeCode, Session, prose
from tests.support.worlds import world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.conversations import Json
    from tests.support.worlds import World

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NO_MODEL = {"summarizer": {"model": "none"}}
PATH = {"file_path": "/repo/src/parser.py"}
LINES = [f"{number}\tline {number}: {prose(str(number), 8)}" for number in range(1, 60)]
FILE = "\n".join(LINES)
# The words of Claude Code 2.1, hermes and qwen-code.
STUBS = {
    "Read": "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead.",
    "read_file": json.dumps(
        {
            "status": "unchanged",
            "message": "File unchanged since last read.",
            "path": PATH["file_path"],
            "dedup": True,
            "content_returned": False,
        }
    ),
    "ReadFile": "[File src/parser.py unchanged since last read in this session — the content was provided earlier.]",
}


def works_past_the_window(make: Callable[[], Session], tool: str = "Read", rounds: int = 30) -> Session:
    """A file is read, much is done, and it is read again."""
    session = make()
    session.opens("Move the totals to cents.")
    session.works(FILE, tool, PATH)
    for number in range(rounds):
        session.works(prose(f"work {number}", 300), "Bash", {"command": f"make part{number}"})
    session.works(STUBS[tool], tool, PATH)
    return session


async def asked(play: World, session: Session, *, replica: int = 0) -> Json:
    reply = await play.post(play.body(session.items), replica=replica)
    assert reply.status == 200
    assert play.provider.invalid == []
    return play.sent[-1].items[-1]


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("tool", STUBS)
async def test_the_prompt_has_the_text_of_the_file(tmp_path: Path, make: Callable[[], Session], tool: str) -> None:
    session = works_past_the_window(make, tool)
    writer = next(writer for writer in WRITERS if writer.dialect is session.dialect)
    async with world(tmp_path, writer, policies={"default": NO_MODEL}, replicas=2) as play:
        result = await asked(play, session)
        assert LINES[30] in json.dumps(result, ensure_ascii=False).replace("\\t", "\t")
        assert STUBS[tool] not in str(result)
        assert play.replies[-1].headers["x-compaction-restored"] == "1"
        await asked(play, session, replica=1)
        assert play.sent[-1].items == play.sent[-2].items
        session.works("1 passed", "Bash", {"command": "pytest"})
        session.works(STUBS[tool], tool, PATH)
        again = await asked(play, session)
        assert play.sent[-1].items[: len(play.sent[-2].items)] == play.sent[-2].items
        assert "line 31" not in str(again)
        body = json.dumps(play.body(session.items)).encode()
        reply = await play.post(body, path=("compaction", "explain"))
        (restored,) = json.loads(reply.body)["restored"]
        assert restored["tokens"] > 500
        assert restored["from"] < restored["index"]


async def test_below_the_floor_the_bytes_are_the_clients(tmp_path: Path) -> None:
    session = works_past_the_window(ClaudeCode, rounds=3)
    async with world(tmp_path, WRITERS[2], policies={"default": NO_MODEL}) as play:
        body = json.dumps(play.body(session.items)).encode()
        await play.post(body)
        assert play.sent[-1].received.body == body
        assert "x-compaction-restored" not in play.replies[-1].headers


async def test_a_retry_after_an_overflow_puts_back_what_it_has_room_for(tmp_path: Path) -> None:
    session = works_past_the_window(ClaudeCode)
    async with world(tmp_path, WRITERS[2], policies={"default": NO_MODEL}) as play:
        sent: list[int] = []

        def refuse_first(_: int, body: bytes) -> Fault | None:
            sent.append(len(body))
            return Fault(play.provider.api.too_long(8_192, 9_000, 99)) if len(sent) == 1 else None

        play.provider.more = refuse_first
        result = await asked(play, session)
        assert len(sent) == 2
        assert LINES[30] in json.dumps(result, ensure_ascii=False).replace("\\t", "\t")


async def test_a_reading_beside_it_in_one_message_is_what_a_pointer_points_to(tmp_path: Path) -> None:
    session = works_past_the_window(ClaudeCode)
    session.items = session.items[:-2]
    calls: list[Json] = [{"type": "tool_use", "id": f"both{at}", "name": "Read", "input": PATH} for at in (1, 2)]
    results = [
        {"type": "tool_result", "tool_use_id": "both1", "content": FILE},
        {"type": "tool_result", "tool_use_id": "both2", "content": STUBS["Read"]},
    ]
    session.items += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    async with world(tmp_path, WRITERS[2], policies={"default": NO_MODEL}) as play:
        result = await asked(play, session)
        assert result["content"] == results
        assert "x-compaction-restored" not in play.replies[-1].headers
        reply = await play.post(json.dumps(play.body(session.items)).encode(), path=("compaction", "explain"))
        told = json.loads(reply.body)
        assert (told["restored"], told["unresolved"]) == ([], 0)


async def test_a_file_is_put_back_beside_a_result_that_had_to_be_cut(tmp_path: Path) -> None:
    session = works_past_the_window(ClaudeCode)
    session.items = session.items[:-2]
    calls: list[Json] = [
        {"type": "tool_use", "id": "big", "name": "Bash", "input": {"command": "make all"}},
        {"type": "tool_use", "id": "again", "name": "Read", "input": PATH},
    ]
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": "big", "content": prose("a long log", 9_000)},
        {"type": "tool_result", "tool_use_id": "again", "content": STUBS["Read"]},
    ]
    session.items += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    async with world(tmp_path, WRITERS[2], policies={"default": NO_MODEL}) as play:
        log, again = map(str, (await asked(play, session))["content"])  # type: ignore[call-overload]
        assert len(log) < 30_000
        assert "line 31" in again
        assert play.replies[-1].headers["x-compaction-restored"] == "1"
