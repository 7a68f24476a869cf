"""Requests of every dialect are explained as what they are, and every one of their messages by what becomes of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from proxy.compaction.explain.explanation import Explanation
from proxy.compaction.prompt_view import Step
from proxy.dialects.table import CHAT, DIALECTS, MESSAGES, RESPONSES
from proxy.sessions.stores.memory import MemoryStore
from tests.support.plain_talk import path_of, turns, written
from tests.support.scenarios import MODEL, prose
from tests.support.stages import Stage, ours, outcome, stage

if TYPE_CHECKING:
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json
    from tests.support.upstreams import Header

pytestmark = pytest.mark.anyio

EXPLAIN = "/v1/compaction/explain"
VERSION = (b"anthropic-version", b"2023-06-01")
FORCE = (b"x-compaction", b"force")
LONG = turns(30)


async def explained(play: Stage, body: bytes, *headers: Header, query: str = "") -> Explanation:
    reply = await play.send(body, *headers, path=EXPLAIN + query)
    assert reply.status == 200, reply.body
    return msgspec.json.decode(reply.body, type=Explanation, strict=True)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_what_is_explained_of_a_dialect_is_what_its_next_request_gets(tmp_path: Path, dialect: Dialect) -> None:
    body = written(dialect, LONG)
    async with stage(tmp_path) as play:
        found = await explained(play, body, query=f"?dialect={dialect.name}")
        assert not play.model.received
        reply = await play.send(body, path=path_of(dialect))
    assert (found.outcome, found.reason) == outcome(reply) == ("applied", "proactive")
    assert found.dialect == dialect.name
    assert found.tokens_received == int(ours(reply)["tokens-received"])
    assert found.tokens_sent >= int(ours(reply)["tokens-sent"])
    assert [message.role for message in found.messages] == [item["role"] for item in LONG]


@pytest.mark.parametrize(
    ("body", "headers", "query", "expected"),
    [
        ({"messages": LONG}, (), "", CHAT),
        ({"messages": LONG, "max_tokens": 9}, (), "", CHAT),
        ({"input": LONG}, (), "", RESPONSES),
        ({"input": "hello"}, (), "", RESPONSES),
        ({"input": LONG}, (VERSION,), "", RESPONSES),
        ({"messages": LONG, "system": "Be brief."}, (), "", MESSAGES),
        ({"messages": LONG, "max_tokens": 9}, (VERSION,), "", MESSAGES),
        ({"messages": LONG}, (), "?dialect=messages", MESSAGES),
        ({"messages": LONG, "system": "Be brief."}, (VERSION,), "?a=b&dialect=chat", CHAT),
    ],
)
async def test_without_a_name_a_bodys_own_fields_tell_its_dialect(
    tmp_path: Path, body: Json, headers: tuple[Header, ...], query: str, expected: Dialect
) -> None:
    async with stage(tmp_path) as play:
        sent = json.dumps({"model": MODEL, **body}).encode()
        assert (await explained(play, sent, *headers, query=query)).dialect == expected.name


@pytest.mark.parametrize("query", ["?dialect=gemini", "?dialect=", "?dialect=Chat"])
async def test_a_dialect_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path, query: str) -> None:
    async with stage(tmp_path) as play:
        reply = await play.send(written(CHAT, LONG), path=EXPLAIN + query)
    assert reply.status == 400
    assert b'"dialect must be one of chat, responses, messages."' in reply.body


async def test_a_request_is_explained_by_what_its_own_upstream_knows(tmp_path: Path) -> None:
    """Claude's window is learned where messages go, which is elsewhere than chat."""
    upstreams = {
        "main": {"base_url": "http://127.0.0.1:9/v1", "speaks": ["chat"]},
        "other": {"base_url": "http://127.0.0.1:9/v2", "speaks": ["messages"]},
    }
    models = [{"match": "*", "upstream": "main", "context_window": 8_192}]
    async with stage(tmp_path, upstreams=upstreams, models=models) as play:
        assert (await explained(play, written(MESSAGES, LONG), query="?dialect=messages")).outcome == "applied"
        refused = await play.send(written(RESPONSES, LONG), path=EXPLAIN + "?dialect=responses")
    assert (refused.status, b"No upstream here speaks responses" in refused.body) == (404, True)


def call(number: int) -> Json:
    block = {"type": "tool_use", "id": f"c{number}", "name": "read", "input": {"path": f"{number}.py"}}
    return {"role": "assistant", "content": [block]}


def result(number: int, *beside: Json, words: int = 200) -> Json:
    block = {"type": "tool_result", "tool_use_id": f"c{number}", "content": prose(number, words)}
    return {"role": "user", "content": [block, *beside]}


def loads(number: int, name: str) -> Json:
    content = [{"type": "tool_reference", "tool_name": name}]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": content}]}


def text(content: str) -> Json:
    return {"type": "text", "text": content}


def told(content: str, **more: object) -> Json:
    return {"role": "system", "content": content, **more}


async def test_every_message_of_the_covered_part_is_explained_by_what_is_sent_of_it(tmp_path: Path) -> None:
    """Instructions, rounds that load tools, and a turn that begins beside a result."""
    talk: list[Json] = [{"role": "user", "content": "Never delete src/main.py."}, told("<total_tokens>900 left")]
    talk += [call(0), loads(0, "search"), told("<total_tokens>800 left"), call(1), result(1)]
    talk += [told("Answer in French.", clear_at="next_user_message"), call(2)]
    talk += [result(2, text("Now the docs, please."))]
    for number in range(3, 30):
        talk += [call(number), result(number)]
    async with stage(tmp_path) as play:
        found = await explained(play, written(MESSAGES, talk), FORCE, query="?dialect=messages")
        reply = await play.send(written(MESSAGES, talk), FORCE, path=path_of(MESSAGES))
        assert (found.outcome, found.reason) == outcome(reply)
        sent = json.loads(play.sent[-1].body)["messages"]
    fates = [(message.fate, message.why) for message in found.messages[:10]]
    gone = ("summarised", found.messages[5].why)
    loading = ("kept", "it defines tools in use")
    at_work = ("anchor", "the user's words for the task in progress at the cut")
    assert fates == [
        at_work,
        ("dropped", "a newer message repeats it"),
        loading,
        loading,
        ("kept", "system message: always sent"),
        gone,
        gone,
        ("dropped", "it has expired"),
        gone,
        at_work,
    ]
    assert found.record_tokens is not None
    assert sum(m.tokens_after for m in found.messages) + found.record_tokens + found.tokens_tools == found.tokens_sent
    # The same, seen by what the upstream got.
    assert [m for m in sent if m["role"] == "system"] == [told("<total_tokens>800 left")]
    assert sum(block == text("Now the docs, please.") for message in sent for block in message["content"]) == 1
    assert call(0) in sent
    assert loads(0, "search") in sent
    assert call(1) not in sent


def thinking(number: int) -> Json:
    """A model's turn with a block that is bound to what stood before it."""
    content = [{"type": "thinking", "thinking": prose(number, 20), "signature": f"s{number}"}, *call(number)["content"]]
    return {"role": "assistant", "content": content}


async def test_thinking_that_a_record_unbinds_is_told_as_what_it_is(tmp_path: Path) -> None:
    """What changes a message is the step that is named for it, not another one."""
    talk: list[Json] = [{"role": "user", "content": "Never delete src/main.py."}]
    for number in range(30):
        talk += [thinking(number), result(number)]
    model = "claude-opus-5-5"
    body = written(MESSAGES, talk, model=model)
    async with stage(tmp_path, models=[{"match": model, "context_window": 12_000}]) as play:
        assert outcome(await play.send(body, FORCE, path=path_of(MESSAGES)))[0] == "applied"
        found = await explained(play, body, query="?dialect=messages")
        sent = play.sent[-1].body
    assert found.checkpoint is not None
    behind = [message for message in found.messages if message.role == "assistant" and message.fate == "kept"]
    assert behind
    assert {message.why for message in behind} == {f"after the checkpoint, {Step.THINKING.value}"}
    assert all(message.tokens_after < message.tokens for message in behind)
    assert b'"thinking"' not in sent


async def test_a_content_that_no_window_takes_is_told_to_be_cut(tmp_path: Path) -> None:
    talk: list[Json] = [{"role": "user", "content": "Read it."}, call(0), result(0, words=9_000)]
    async with stage(tmp_path) as play:
        found = await explained(play, written(MESSAGES, talk), query="?dialect=messages")
        reply = await play.send(written(MESSAGES, talk), path=path_of(MESSAGES))
    assert (found.outcome, found.reason) == outcome(reply) == ("cooled", "too_large")
    assert [(message.fate, message.why) for message in found.messages[2:]] == [("cooled", Step.CUT.value)]


@pytest.mark.parametrize(
    ("dialect", "more", "why"),
    [
        (RESPONSES, {"previous_response_id": "r"}, "the upstream stores the history: relayed unchanged"),
        (RESPONSES, {"conversation": "c"}, "the upstream stores the history: relayed unchanged"),
        (MESSAGES, {"compaction": {"type": "x"}}, "the provider is asked to compact it: relayed unchanged"),
        (MESSAGES, {"fallback_credit_token": "t"}, "it depends on the bytes sent before: relayed unchanged"),
        (
            MESSAGES,
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "the provider shortens it: compacted only after an overflow",
        ),
    ],
)
async def test_what_goes_out_as_it_came_says_why(tmp_path: Path, dialect: Dialect, more: Json, why: str) -> None:
    async with stage(tmp_path, native="yes") as play:
        found = await explained(play, written(dialect, LONG, **more), query=f"?dialect={dialect.name}")
        reply = await play.send(written(dialect, LONG, **more), path=path_of(dialect))
    assert (found.outcome, found.reason) == outcome(reply)
    assert {(message.fate, message.why) for message in found.messages} == {("kept", why)}


@pytest.mark.parametrize("path", [f"{path_of(MESSAGES)}/count_tokens", f"{EXPLAIN}?dialect=messages"])
async def test_nothing_is_stored_of_a_request_whose_client_edits_are_only_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    talk: list[Json] = [{"role": "user", "content": "Never delete src/main.py."}]
    for number in range(30):
        talk += [call(number), result(number)]
    edits = [
        {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "tool_uses", "value": 5},
            "keep": {"type": "tool_uses", "value": 26},
        },
        {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}},
    ]
    body = written(MESSAGES, talk, context_management={"edits": edits})
    stored: list[str] = []
    put = MemoryStore.put

    async def put_noted(store: MemoryStore, key: str, value: bytes, ttl: float, *, only_new: bool = False) -> object:
        stored.append(key.partition(":")[0])
        return await put(store, key, value, ttl, only_new=only_new)

    monkeypatch.setattr(MemoryStore, "put", put_noted)
    async with stage(tmp_path) as play:
        assert (await play.send(body, path=path)).status == 200
        await play.settled()
        assert not {"epoch", "cool", "lineage", "cp"} & {*stored}
        await play.send(body, path=path_of(MESSAGES))
        await play.settled()
        assert "epoch" in stored
