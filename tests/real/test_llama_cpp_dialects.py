"""The real llama.cpp server behind all three of its own paths: conversations outlive its window in every dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.dialects.table import DIALECTS, MESSAGES
from tests.real.llama import MISSING, Llama, llama, model_file
from tests.support.plain_talk import path_of
from tests.support.servers import configured, proxy
from tests.support.upstreams import JSON, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from proxy.dialects.base import Dialect
    from tests.support.conversations import Json
    from tests.support.upstreams import Reply

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(model_file() is None, reason=MISSING)]

WINDOW = 2048
TURNS = 14
TURN = "Please note part number {0} for the order of the workshop in the north, and say only that you did. " * 8
VERSION = (b"anthropic-version", b"2023-06-01")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[Llama]:
    with llama(WINDOW) as running:
        yield running


def body(dialect: Dialect, items: list[Json], **more: object) -> bytes:
    limit = "max_output_tokens" if dialect.name == "responses" else "max_tokens"
    return json.dumps({"model": "smollm2", dialect.array.name: items, limit: 16, "temperature": 0, **more}).encode()


def history(dialect: Dialect, turns: int) -> list[Json]:
    answer: Json = {"role": "assistant", "content": "Noted."}
    if dialect.name == "responses":  # what it has said itself it takes as an item of its own alone
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}
    items: list[Json] = []
    for number in range(turns):
        items += [{"role": "user", "content": TURN.format(number)}, answer]
    return [*items, {"role": "user", "content": "And now?"}]


def said(dialect: Dialect, reply: Reply) -> str:
    """What the server answered as a whole, or in a stream."""
    if not reply.body.lstrip().startswith(b"{"):
        return reply.body.decode()
    answer = json.loads(reply.body)
    found = {
        "chat": lambda: answer["choices"][0]["message"]["content"],
        "responses": lambda: answer["output"][-1]["content"][0]["text"],
        "messages": lambda: answer["content"][0]["text"],
    }[dialect.name]()
    return str(found)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_growing_conversation_outlives_a_window_that_nobody_has_told(
    tmp_path: Path, server: Llama, dialect: Dialect, stream: bool
) -> None:
    """The config promises a window fifty times as large, so the first to say otherwise is a refusal."""
    settings = {
        "store": {"url": "memory://"},
        "upstreams": {"main": {"base_url": f"{server.address}/v1"}},
        "models": [{"match": "*", "context_window": 50 * WINDOW}],
        "policies": {"default": {"summarizer": {"model": "none"}}},
    }
    async with proxy(configured(tmp_path, settings)) as address:
        direct = await ask(
            server.address, "POST", path_of(dialect), [JSON, VERSION], body(dialect, history(dialect, TURNS))
        )
        assert direct.status == 400
        outcomes = []
        for turns in range(TURNS - 3, TURNS + 3):
            sent = body(dialect, history(dialect, turns), stream=stream)
            reply = await ask(address, "POST", path_of(dialect), [JSON, VERSION], sent)
            assert (reply.status, reply.complete) == (200, True), reply.body
            assert said(dialect, reply)
            outcomes.append(reply.header(b"x-compaction"))
    assert {b"applied", b"reused"} <= set(outcomes)
    assert reply.header(b"x-compaction-window") == b"%d" % WINDOW


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_its_count_endpoints_count_what_would_be_sent(tmp_path: Path, server: Llama, dialect: Dialect) -> None:
    """Where it has none, its own refusal passes."""
    if dialect.count_path is None:
        pytest.skip("this dialect has no count endpoint")
    settings = {
        "store": {"url": "memory://"},
        "upstreams": {"main": {"base_url": f"{server.address}/v1"}},
        "models": [{"match": "*", "context_window": WINDOW}],
        "policies": {"default": {"summarizer": {"model": "none"}}},
    }
    path, sent = "/v1/" + "/".join(dialect.count_path), body(dialect, history(dialect, TURNS))
    direct = await ask(server.address, "POST", path, [JSON, VERSION], sent)
    async with proxy(configured(tmp_path, settings)) as address:
        before = await ask(address, "POST", path, [JSON, VERSION], sent)
        assert (before.status, before.body) == (direct.status, direct.body)
        if direct.status == 200:
            assert json.loads(before.body)["input_tokens"] > WINDOW
            assert (await ask(address, "POST", path_of(dialect), [JSON, VERSION], sent)).status == 200
            after = await ask(address, "POST", path, [JSON, VERSION], sent)
            assert json.loads(after.body)["input_tokens"] < WINDOW
        else:
            assert direct.status == 404
            assert dialect is not MESSAGES
