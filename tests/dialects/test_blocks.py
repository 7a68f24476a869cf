"""Compare digests, tokens and bytes of 4,500 odd items with a frozen table.

Digests are keys in stores. A change on purpose raises their version, and prints this table anew with
`python -m tests.dialects.test_blocks`.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from policies.decision.assemble import Injected
from proxy.dialects.json_array import decode
from proxy.dialects.surrogates import readable
from proxy.dialects.table import CHAT, MESSAGES, RESPONSES
from tests.support.conversations import Json, assistant, count, tool, user
from tests.support.message_blocks import MARK, call, result, said, text, thought

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxy.dialects.base import Dialect

ITEMS = 1_500
LONG = "The parser keeps an offset for every record, as of 2024-05-06 12:13:14. " * 6
URL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
ARGUMENTS = json.dumps({"path": "a.py", "text": LONG, "id": None})
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": URL[22:]}}
BASES: dict[str, list[Json]] = {
    "chat": [
        user(LONG),
        {
            "role": "user",
            "content": [text("See", **MARK), {"type": "image_url", "image_url": {"url": URL}}],
            "name": "n",
        },
        assistant("Done."),
        assistant("I look.", "c1", "c2", arguments=ARGUMENTS),
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "edit", "input": LONG}}]},
        {"role": "assistant", "content": [thought(), text("So.")], "reasoning_content": LONG, "refusal": "No."},
        {"role": "assistant", "content": None, "function_call": {"name": "bash", "arguments": ARGUMENTS}},
        tool("c1", LONG),
        {"role": "tool", "tool_call_id": "c2", "content": [text("ok at 12:13:14"), text("")], "is_error": True},
        {"role": "function", "name": "bash", "content": "ok"},
    ],
    "responses": [
        {"role": "user", "content": LONG},
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": URL}, {"text": LONG}]},
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": LONG}], "encrypted_content": URL},
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "bash", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "c1", "output": LONG, "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "at 12:13:14"}]},
        {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": LONG, "outcome": {"exit_code": 1}}]},
        {"type": "apply_patch_call", "call_id": "c1", "operation": {"path": "a.py", "diff": LONG}},
        {"type": "computer_call_output", "call_id": "c1", "output": {"type": "computer_screenshot", "image_url": URL}},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "x"}},
        {"type": "image_generation_call", "id": "i", "result": URL[22:]},
        {"type": "mcp_call", "id": "x", "name": "n", "arguments": "{}", "output": LONG, "error": None},
        {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": [{"name": "grep"}]},
        {"type": "compaction", "id": "c", "encrypted_content": URL},
        {"type": "item_reference", "id": "m"},
    ],
    "messages": [
        user(LONG),
        said("user", "See", IMAGE, text(LONG, **MARK)),
        said("assistant", "Done."),
        said("assistant", thought(), "I look.", call("c1", path="a.py", text=LONG), call("c2")),
        said("assistant", {"type": "redacted_thinking", "data": URL}),
        said(
            "user", result("c1", LONG, **MARK), result("c2", [text("at 12:13:14", **MARK), IMAGE], is_error=True), "and"
        ),
        said("user", result("c1"), {"type": "mcp_tool_result", "tool_use_id": "c2", "content": [text("ok")]}),
        said("assistant", {"type": "server_tool_use", "id": "s", "name": "web", "input": {"q": None}}, "So."),
        said("assistant", {"type": "x_tool_result", "tool_use_id": "s", "content": {"stdout": LONG, "return_code": 1}}),
        said("assistant", {"type": "compaction", "content": "All.", "encrypted_content": URL}),
        said("system", "9 left", {"type": "tool_addition", "tool": {"name": "grep"}})
        | {"clear_at": "next_user_message"},
    ],
}
ODD: list[object] = [
    *(None, True, -1, 1.5, "", "\ud83d", "x" * 300, [], {}, [None], "assistant", "user", "tool", "system", "c1"),
    *("text", "thinking", "tool_use", "tool_result", "reasoning", "function_call_output", "odd_call", "refusal"),
    *({"type": "text", "text": "t"}, {"type": "refusal", "refusal": "no"}, {"text": "bare"}, {"type": "odd"}, IMAGE),
]
KEYS = ("role", "content", "type", "text", "id", "call_id", "tool_use_id", "name", "output", "input", "cache_control")
FROZEN: dict[str, dict[str, str]] = {
    "chat": {
        "digest": "abf0683426332fc6",
        "tokens": "486712c385b292b9",
        "links": "07c012cd978ae34a",
        "merge": "5461e5e496e50e65",
        "with_texts": "cd2891927e2a40c6",
        "shorten": "c0f38bef9e6a58f7",
        "without_thinking": "91bbdd3fe332b44c",
        "inject": "7d56807cc76e03ea",
    },
    "responses": {
        "digest": "f21ceb7015085638",
        "tokens": "224872802469661b",
        "links": "0bfa6ae8e827628a",
        "merge": "8758bb5a467cc037",
        "with_texts": "fd3e8e48dca5390a",
        "shorten": "6ed113506bfc5182",
        "without_thinking": "262f244bbdacd9dc",
        "inject": "b00632fc50b35caa",
    },
    "messages": {
        "digest": "e7264a6121ec2796",
        "tokens": "9904394c183224f5",
        "links": "c4ee7a2a80356e38",
        "merge": "fa370a67675af935",
        "with_texts": "ca3d7b6c781bbba7",
        "shorten": "7dc41cdd89492e13",
        "without_thinking": "b9f7b03340bb5dc5",
        "inject": "e07fb5a939e9bd79",
    },
}


def places(value: object) -> list[tuple[Json, str]]:
    """Return the place of every value inside of another: its container and its key there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(value, key), *places(item)]]  # type: ignore[misc]


def mutated(chance: random.Random, name: str) -> bytes:
    """Return an item as some client may write it, more or less right."""
    item = deepcopy(chance.choice(BASES[name]))
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        if not (found := places(item)):
            break
        place, key = chance.choice(found)
        match chance.randrange(4):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[chance.choice(KEYS)] = deepcopy(chance.choice(ODD))
            case 2 if isinstance(place[key], str):
                place[key] = [{"type": "text", "text": place[key]}]
            case _:
                place[key] = deepcopy(chance.choice(ODD))
    return json.dumps(item, indent=chance.choice((None, None, 1))).encode()


def results(dialect: Dialect) -> Iterator[tuple[str, object]]:
    """Yield each result for each item, by the name of the method."""
    chance, items = random.Random(20), dialect.items
    for _ in range(ITEMS):
        raw = mutated(chance, dialect.name)
        message = items.describe(decode(readable(raw)), count)
        yield "digest", message and message.digest
        yield "tokens", message and message.tokens
        yield "links", message and (message.role, message.calls, message.results, message.joins, message.signed)
        if message is not None:
            texts = ["short"] * max(1, len(message.results))
            yield "merge", _bytes(lambda raw=raw: items.merge("RECORD", raw))
            yield "with_texts", _bytes(lambda raw=raw, texts=texts: items.with_texts(raw, texts))
            yield "shorten", _bytes(lambda raw=raw: items.shorten(raw, share=0.2))
            yield "without_thinking", _bytes(lambda raw=raw: items.without_thinking(raw))
    yield "inject", (items.inject(Injected("RECORD")), items.inject(Injected("OK.", "assistant")))


def _bytes(made: Callable[[], bytes | None]) -> object:
    try:
        return made()
    except Exception as error:  # noqa: BLE001 - of an item that no server takes
        return type(error).__name__


def table(dialect: Dialect) -> dict[str, str]:
    hashes: dict[str, hashlib.blake2b] = {}
    for name, made in results(dialect):
        hashes.setdefault(name, hashlib.blake2b(digest_size=8)).update(repr(made).encode())
    return {name: hashed.hexdigest() for name, hashed in hashes.items()}


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda each: each.name)
def test_nothing_that_is_stored_or_sent_has_changed(dialect: Dialect) -> None:
    assert table(dialect) == FROZEN[dialect.name]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({each.name: table(each) for each in (CHAT, RESPONSES, MESSAGES)}, indent=4))
