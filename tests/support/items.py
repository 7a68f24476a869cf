"""Conversations of agents for tests of compaction items, in both dialects that have them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

import msgspec

from proxy.compaction.provider.sealed_items import PREFIX
from proxy.sessions.stores.sealing import Sealer
from tests.support.scenarios import prose

if TYPE_CHECKING:
    from tests.support.conversations import Json

MODEL = "gpt-4o"
TASK = "Port the importer. Never touch legacy/."
HEAD: Json = {"type": "message", "role": "developer", "content": "You are a coding agent."}
TRIGGER: Json = {"type": "compaction_trigger"}


def said(text: str) -> Json:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def called(number: int, words: int = 200) -> list[Json]:
    """A round of Responses."""
    name = f"c{number}"
    arguments = json.dumps({"path": f"src/{number}.py"})
    call = {"type": "function_call", "call_id": name, "name": "read", "arguments": arguments}
    return [call, {"type": "function_call_output", "call_id": name, "output": prose(number, words)}]


def rounds(count: int, start: int = 0, words: int = 200) -> list[Json]:
    return [item for number in range(start, start + count) for item in called(number, words)]


def used(number: int, words: int = 200) -> list[Json]:
    """A round of Messages."""
    name = f"c{number}"
    call = {"type": "tool_use", "id": name, "name": "read", "input": {"path": f"src/{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": name, "content": prose(number, words)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def uses(count: int, start: int = 0, words: int = 200) -> list[Json]:
    return [message for number in range(start, start + count) for message in used(number, words)]


def asked(items: object, **more: object) -> bytes:
    """A request of Responses."""
    return json.dumps({"model": MODEL, "input": items, **more}).encode()


def told(messages: object, **more: object) -> bytes:
    """A request of Messages."""
    return json.dumps({"model": MODEL, "max_tokens": 100, "messages": messages, **more}).encode()


def forged(value: object, *, tenant: str = "default") -> str:
    """An item that anybody can make: with the checksum by which release 0.2.0 sealed if it had no key."""
    plain = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return PREFIX + urlsafe_b64encode(Sealer(None).seal(f"item:{tenant}", plain)).decode()
