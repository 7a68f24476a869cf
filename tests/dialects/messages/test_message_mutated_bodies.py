"""Bodies that no client should send: read, or left to the upstream, and never the end of a request."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import pytest

from policies.decision.assemble import assemble
from policies.decision.legal_cuts import legal_cuts
from proxy.dialects.reader import RequestReader
from proxy.dialects.table import MESSAGES
from proxy.errors import InvalidJSONError
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.runtime.workers import Workers
from tests.support.conversations import Json
from tests.support.message_blocks import MARK, call, result, said, text, thought

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BODIES = 6_000
user, model = partial(said, "user"), partial(said, "assistant")
DEEP: object = "x"
for _ in range(120):
    DEEP = [DEEP]
ODD: list[object] = [
    *(None, True, 0, -1, 1.5, 10**30, "", "\ud83d", "x" * 5_000, [], {}, [[]], [None], {"type": "text"}, DEEP),
    *("assistant", "system", "tool_use", "tool_result", "thinking", "compaction", "odd_tool_result", "a", "b"),
    *({"type": "image", "source": 7}, {"type": ["x"]}, {"type": "tool_use"}, {"type": "tool_result", "content": 7}),
]
BODY: Json = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 32_000,
    "stream": True,
    "system": [text("You code.", **MARK)],
    "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1_024, "block_binding": {"prefix_mismatch_behavior": "error"}},
    "metadata": {"user_id": '{"session_id": "s"}'},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "output_config": {"task_budget": {"total": 9}},
    "messages": [
        user("<system-reminder>x</system-reminder>", "Fix it."),
        model(thought(), "I look.", call("a", path="x"), call("b")),
        user(result("b", [text("ok"), {"type": "tool_reference", "tool_name": "grep"}]), result("a", is_error=True)),
        {"role": "system", "content": "9 left", "clear_at": "next_user_message"},
        model({"type": "server_tool_use", "id": "s", "name": "x", "input": {}}),
        model({"type": "x_tool_result", "tool_use_id": "s", "content": {"stdout": "y"}}, "Done."),
        user("Next.", {"type": "image", "source": {"type": "base64", "data": "aaaa"}}),
        model({"type": "compaction", "content": "All."}, call("c")),
        user(result("c"), "and stop"),
        model("So."),
        user(text("Thanks.", **MARK)),
    ],
}

WRITTEN = json.dumps(BODY)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of every value inside of another."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(*path, key), *places(item, (*path, key))]]


def mutated(chance: random.Random) -> bytes:
    body = json.loads(WRITTEN)
    for _ in range(chance.randint(1, 4)):
        *way, last = chance.choice(places(body))
        place: Json = body
        for step in way:
            place = place[step]  # type: ignore[assignment, index]
        match chance.randint(0, 3):
            case 0:
                del place[last]  # type: ignore[arg-type]
            case 1 if isinstance(place, list):
                place.insert(0, deepcopy(chance.choice(place)))
            case _:
                place[last] = deepcopy(chance.choice(ODD))  # type: ignore[index]
    raw = json.dumps(body).encode()
    match chance.randint(0, 9):
        case 0:
            at = chance.randrange(len(raw))
            return raw[:at] + chance.randbytes(chance.randint(0, 3)) + raw[at + 1 :]
        case 1:
            return raw.replace(b'"text":', b'"text":"twice","text":', 1)
        case _:
            return raw


async def test_no_body_is_more_than_the_reader_can_take() -> None:
    chance = random.Random(14)
    read = left = 0
    with ThreadPoolExecutor(1) as pool:
        reader = RequestReader(Tokenizer(), Workers(pool))
        for number in range(BODIES):
            body = mutated(chance)
            try:
                request = await reader.read(body, b"scope", lambda _: DEFAULT_ENCODING, MESSAGES)
            except InvalidJSONError:
                left += 1
                continue
            if request is None:
                left += 1
                continue
            read += 1
            view = request.conversation
            assert request.utterances(0, len(view.body)) or not view.body, number
            items = MESSAGES.items
            for cut in legal_cuts(view)[:2]:
                rebuilt = MESSAGES.rebuild(request.body, request.parsed, assemble(view, cut, "RECORD", "merge"), {})
                assert b"RECORD" in rebuilt
            for index in range(len(request.messages)):
                raw = request.message_bytes(view.indexes[index])
                for change in (items.without_thinking, items.words, partial(items.shorten, share=0.1)):
                    MESSAGES.rewrite_items(raw, change)
    assert read > BODIES / 3
    assert left > BODIES / 20
