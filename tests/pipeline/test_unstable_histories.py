"""Clients that write their history anew with every request: times in it, or its newest part only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from policies.conversation.timestamps import without_stamps
from proxy.dialects.chat.canonical import message_digest
from tests.support.conversations import tool
from tests.support.model_server import ModelServer
from tests.support.scenarios import (
    FIRST,
    Agent,
    Change,
    Message,
    in_first,
    newest,
    one_user,
    session,
    sliding,
    sliding_behind_the_task,
    stage,
    stamped_first,
    stamped_results,
    user,
)
from tests.support.stages import body
from tests.support.stages import stage as logged_stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


def polled(messages: Sequence[Message], number: int) -> list[Message]:
    return [m | {"content": f"{number} polls ago\n{m['content']}"} if m["role"] == "tool" else m for m in messages]


def whole(kind: str, words: int) -> list[list[Message]]:
    """Every request of a session."""
    agent = Agent(words=words)
    requests = session(agent, requests=41) if kind == "turns" else one_user(agent, rounds=40)
    return [list(messages) for messages in requests]


def unchanged(messages: Sequence[Message], number: int) -> list[Message]:
    return [*messages]


def numbered(messages: Sequence[Message], number: int) -> list[Message]:
    return in_first(f"This is request {number}.", messages)


def listed(messages: Sequence[Message], number: int) -> list[Message]:
    return in_first(f"<system-reminder>{number} of 40 todos are done.</system-reminder>", messages)


def dated(messages: Sequence[Message], number: int) -> list[Message]:
    """A date in the first message, which changes twice."""
    return in_first(f"Today is 2026-11-{20 + number // 15}.", messages)


def newest_20(messages: Sequence[Message], number: int) -> list[Message]:
    return newest(messages, 1, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words", "turns", "task"),
    [
        (unchanged, 200, 3, 2),
        (stamped_first, 200, 8, 3),
        (listed, 200, 8, 3),
        (numbered, 200, 8, 3),
        (polled, 200, 8, 3),
        (dated, 200, 7, 3),
        (stamped_results, 200, 3, 2),
        (sliding, 270, 7, 0),
        (newest_20, 270, 3, 2),
        (sliding_behind_the_task, 270, 6, 6),
    ],
)
@pytest.mark.parametrize("kind", ["turns", "one task"])
async def test_a_history_that_changes_costs_few_calls(
    tmp_path: Path, change: Change, words: int, turns: int, task: int, kind: str
) -> None:
    """The calls of 41 requests in a window of 8,192 tokens, at most (architecture.md, section 5, row 6)."""
    async with stage(tmp_path, ModelServer(), store={"url": "memory://"}) as play:
        for number, messages in enumerate(whole(kind, words)):
            sent = change(messages, number)
            reply = await play.post(sent)
            assert reply.status == 200, reply.body[:300]
            assert play.sent[-1].messages[-1] == sent[-1]
            await play.settled()
        assert play.calls <= (turns if kind == "turns" else task)
        assert play.model.defects == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "calls"), [("turns", 3), ("one task", 2)])
@pytest.mark.parametrize("often", [1, 20], ids=["with each request", "once"])
async def test_a_label_that_changes_costs_no_calls(tmp_path: Path, kind: str, calls: int, often: int) -> None:
    async with stage(tmp_path, ModelServer(), store={"url": "memory://"}) as play:
        for number, messages in enumerate(whole(kind, 200)):
            reply = await play.post(messages, prompt_cache_key=f"label {number // often}")
            assert reply.status == 200, reply.body[:300]
            await play.settled()
        assert play.calls <= calls


async def test_an_unstable_history_is_told_once(tmp_path: Path) -> None:
    async with logged_stage(tmp_path) as play:
        warned = 0
        for number, messages in enumerate(whole("turns", 200)):
            reply = await play.send(body(polled(messages, number)))
            warned += reply.header(b"x-compaction-warning") == b"unstable_history"
        assert warned >= 10
        (line,) = play.logged("unstable_history")
        assert {"root", "tenant", "session"} <= line.keys()


async def test_an_edited_time_is_sent_and_the_old_one_is_gone(tmp_path: Path) -> None:
    agent = dated_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(agent.messages))
        position = next(at for at, m in enumerate(agent.messages) if "2026-11-20" in str(m["content"]))
        agent.messages[position] = user("The release is on 2026-11-27 at noon.")
        for _ in range(8):
            assert (await play.send(body(agent.works()))).status == 200
            assert b"2026-11-27 at noon" in play.sent[-1].body
            assert b"2026-11-20" not in play.sent[-1].body


def long_history(opening: str = FIRST, rounds: int = 30) -> Agent:
    """What has to be compacted."""
    agent = Agent(words=200)
    agent.says(opening)
    for _ in range(rounds):
        agent.works()
    return agent


def dated_history() -> Agent:
    """The same, with a date in words of the user that are covered."""
    agent = long_history(rounds=4)
    agent.says("The release is on 2026-11-20 at noon.")
    for _ in range(30):
        agent.works()
    agent.says("Go on, please.")
    return agent


async def test_a_changed_number_in_the_words_of_the_user_is_another_history(tmp_path: Path) -> None:
    agent = long_history()
    async with logged_stage(tmp_path) as play:
        await play.send(body(agent.messages))
        calls = play.model.summary_calls
        agent.messages[1] = user(FIRST.replace("0.25 percent", "0.75 percent"))
        await play.send(body(agent.works()))
        assert play.model.summary_calls > calls
        assert b"0.75 percent" in play.sent[-1].body
        assert b"0.25 percent" not in play.sent[-1].body


async def test_conversations_that_end_alike_do_not_mix(tmp_path: Path) -> None:
    one, other = long_history(), long_history("Translate the handbook.", rounds=34)
    common = one.messages[-40:]
    async with logged_stage(tmp_path) as play:
        await play.send(body(one.messages))
        calls = play.model.summary_calls
        await play.send(body([*other.messages[:-40], *common]))
        assert play.model.summary_calls > calls
        assert b"Translate the handbook." in play.sent[-1].body
        assert b"ingest service" not in play.sent[-1].body


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22",
        "2026-11-22T16:56:13Z",
        "2026/11/22 16:56:13,123 +0100",
        "2026-11-22 16:56",
        "Sun Nov 22 16:56:13 UTC 2026",
        "Nov 22 16:56",
        "Nov 22, 2026, 4:35:02 PM",
        "10/12/2025, 4:35:02 PM",
        "22 November 2026",
        "22.11.2026",
        "16:56:13",
        "16:56 UTC",
        "9:05 a.m.",
        "2026年11月22日",
        "10时5分",
    ],
)
def test_a_date_or_a_clock_time_is_a_stamp(text: str) -> None:
    assert without_stamps(f"at {text}. Go") in ("at \N{WATCH}. Go", "at \N{WATCH} Go")
    assert without_stamps(f"[{text}] INFO") == "[\N{WATCH}] INFO"


@pytest.mark.parametrize("text", ["[10:42] INFO", "Current time: 10:42"])
def test_a_time_without_seconds_is_one_where_logs_have_it(text: str) -> None:
    assert without_stamps(text) == text.replace("10:42", "\N{WATCH}")


@pytest.mark.parametrize(
    "text",
    [
        "src/a.py:12:30: error",
        "version 1.2.3",
        "/var/log/2026/11/22/a",
        "2024-13-45",
        "12:75",
        "ttl=12:30:99",
        "port 8080:80",
        "1763829373",
        "0.25 percent of 2026",
        "an ip 10.0.0.12:30",
        "scale 1:50",
        "ratio 16:10",
        "odds 3:10 now",
        "version 10.12.2020",
        *("Decision 12", "Market 15", "Mark 4", "Decimals 12", "Separator 5", "Junction 3", "12 Marbles", "Maybe 10"),
        "never exceed 75 Decibels",
        "May 10 items",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert without_stamps(text) == text


def test_stamps_count_in_the_words_of_the_user_and_nowhere_in_results() -> None:
    early, late = "at 10:42:07 it was done", "at 10:43:11 it was done"
    assert message_digest(user(early)) != message_digest(user(late))
    assert message_digest(tool("c", early)) == message_digest(tool("c", late))
