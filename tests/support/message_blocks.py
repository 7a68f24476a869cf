"""Messages of the Messages API, written by hand."""

from __future__ import annotations

from tests.support.conversations import Json

MARK: Json = {"cache_control": {"type": "ephemeral"}}
LONG_MARK: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def said(role: str, *content: object) -> Json:
    """Strings are blocks of text."""
    return {"role": role, "content": [text(part) if isinstance(part, str) else part for part in content]}


def text(words: str, **beside: object) -> Json:
    return {"type": "text", "text": words, **beside}


def call(name: str, tool: str = "bash", **arguments: object) -> Json:
    return {"type": "tool_use", "id": name, "name": tool, "input": arguments}


def result(name: str, content: object = "ok", **beside: object) -> Json:
    return {"type": "tool_result", "tool_use_id": name, "content": content, **beside}


def thought(words: str = "hm", signature: str = "s") -> Json:
    return {"type": "thinking", "thinking": words, "signature": signature}
