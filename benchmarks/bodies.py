"""Request bodies as agents send them, of about 1 kB, 40 kB, 400 kB and 4 MB; always the same."""

from __future__ import annotations

import json
import pydoc_data.topics
import random

SIZES = {"1 kB": 800, "40 kB": 40_000, "400 kB": 400_000, "4 MB": 4_000_000}
SEQUENCE = "SEQ00000000"

_PROSE = sorted(text for text in pydoc_data.topics.topics.values() if len(text) > 2_000)
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the workspace and return what came of it.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": keys[:1],
            },
        },
    }
    for name, keys in (("read_file", ["path", "offset"]), ("write_file", ["path", "text"]), ("bash", ["command"]))
]


def body(size: int, *, stream: bool) -> bytes:
    """A conversation of about `size` bytes; its last message holds SEQUENCE, to be replaced by every request."""
    rng = random.Random(7)
    fields: dict[str, object] = {"model": "gpt-4o", "temperature": 0.2}
    if stream:
        fields["stream"] = True
    if size > 10_000:
        fields["tools"] = _TOOLS
    messages = _messages(rng, size)
    return json.dumps({**fields, "messages": messages}, ensure_ascii=False, separators=(",", ":")).encode()


def _messages(rng: random.Random, size: int) -> list[dict[str, object]]:
    last = {"role": "user", "content": f"{SEQUENCE} please go on. {_piece(rng, 200)}"}
    messages: list[dict[str, object]] = [{"role": "system", "content": f"You are a coding agent. {_piece(rng, 300)}"}]
    total = 700
    number = 0
    while total < size - 900:
        number += 1
        call = {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{number}.py"})}
        turn: list[dict[str, object]] = [
            {"role": "user", "content": _piece(rng, rng.randint(100, 600))},
            {
                "role": "assistant",
                "content": _piece(rng, rng.randint(50, 300)),
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{number}", "content": _piece(rng, rng.randint(500, 2_000))},
        ]
        messages += turn
        total += sum(len(json.dumps(message)) for message in turn)
    return [*messages, last]


def _piece(rng: random.Random, length: int) -> str:
    text = rng.choice(_PROSE)
    start = rng.randrange(max(1, len(text) - length))
    return text[start : start + length]
