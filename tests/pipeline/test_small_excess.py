"""After an overflow no more is cut than the stated limit asks for, and the user's own words last."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.base import Usage
from proxy.models.tokenizer import Tokenizer
from tests.support.dialects import (
    PLAIN,
    WRITERS,
    Called,
    Entry,
    Writer,
    key_of,
    model,
    path_of,
    request_body,
    results,
    user,
)
from tests.support.scenarios import chinese, prose
from tests.support.upstreams import JSON, Call, Script, answer, ask, proxied

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

WITHOUT_MODEL = {"default": {"extends": "default", "summarizer": {"model": "none"}}}
TASK = prose("task", 2_500) + "\nNow fix exactly this, and nothing else."
REMINDER = f"<system-reminder>\n{prose('rules', 3_000)}\n</system-reminder>\n"
AGENTS_MD = f"# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>\n{prose('agents', 3_000)}\n</INSTRUCTIONS>\n"
READ = Called("c1", "read_file")

# What is asked, and what of it must go whole.
SHAPES = {
    "a task behind a harness's words": ([user(REMINDER + TASK)], TASK),
    "a task behind a file of instructions": ([user(AGENTS_MD), user(TASK)], TASK),
    "a task between two of them": ([user(REMINDER + TASK + AGENTS_MD)], TASK),
    "a task and a large result": ([user(TASK), model("", READ), results(c1=prose("result", 5_000))], TASK),
    "a task in Chinese and a large result": (
        [user(chinese("task", 2_000)), model("", READ), results(c1=prose("result", 5_000))],
        chinese("task", 2_000),
    ),
    "a task in Chinese behind a harness's words": ([user(REMINDER + chinese("task", 2_000))], chinese("task", 2_000)),
    "a task and a large answer": ([user(TASK), model(prose("answer", 5_000)), user("Go on.")], "Go on."),
}


def body_of(writer: Writer, history: list[Entry]) -> bytes:
    items = [item for entry in history for item in writer.items(entry, PLAIN)]
    return json.dumps(request_body(writer.dialect, "You code.", items, writer.fields()), ensure_ascii=False).encode()


def counted(body: bytes) -> int:
    """By another tokenizer than the proxy's."""
    return Tokenizer().count(body.decode(), "cl100k_base")


def stating(writer: Writer, limit: int) -> Script:
    """An upstream that says what it counted and what it takes."""

    async def script(call: Call) -> None:
        tokens = counted(await call.read())
        if tokens <= limit:
            await call.send(answer(200, writer.answer("Fine.", Usage(tokens, 10)), JSON))
            return
        words = f"prompt is too long: {tokens} tokens > {limit} maximum"
        await call.send(answer(400, json.dumps({"error": {"message": words, "type": "invalid"}}).encode(), JSON))

    return script


def texts(writer: Writer, body: bytes) -> str:
    return json.dumps(json.loads(body)[key_of(writer.dialect)], ensure_ascii=False).replace("\\n", "\n")


@pytest.mark.parametrize("excess", [1, 300, 1_500])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_a_users_task_goes_whole_and_little_is_cut_of_the_rest(
    tmp_path: Path, writer: Writer, shape: str, excess: int
) -> None:
    history, whole = SHAPES[shape]
    body = body_of(writer, history)
    limit = counted(body) - excess
    async with proxied(tmp_path, stating(writer, limit), policies=WITHOUT_MODEL) as (address, behind):
        reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body)
    assert reply.status == 200
    assert len(behind.calls) == 2
    sent = behind.calls[-1].body
    assert whole in texts(writer, sent)
    if shape != "a task and a large answer":  # of which a history can be cut
        assert counted(sent) >= 0.93 * limit - 0.5 * excess


@pytest.mark.parametrize("paste", [prose("paste", 9_000), chinese("paste", 9_000)], ids=["English", "Chinese"])
@pytest.mark.parametrize("excess", [1, 1_000, 5_000])
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.dialect.name)
async def test_where_only_words_are_left_they_are_cut_in_the_middle_as_little_as_the_limit_allows(
    tmp_path: Path, writer: Writer, excess: int, paste: str
) -> None:
    body = body_of(writer, [user(f"Find the fault.\n{paste}\nThat is all.")])
    limit = counted(body) - min(excess, counted(body) // 2)
    async with proxied(tmp_path, stating(writer, limit), policies=WITHOUT_MODEL) as (address, behind):
        reply = await ask(address, "POST", path_of(writer.dialect), [JSON], body)
    assert (reply.status, len(behind.calls)) == (200, 2)
    sent = behind.calls[-1].body
    assert "characters left out" in texts(writer, sent)
    assert "Find the fault." in texts(writer, sent)
    assert "That is all." in texts(writer, sent)
    assert counted(sent) >= 0.75 * limit
    assert excess > 1 or counted(sent) >= 0.95 * limit
