"""Breakpoints of Anthropic's prompt cache. A lookup checks the 20 blocks before a breakpoint."""

import re

import msgspec

MARK = {"cache_control": {"type": "ephemeral"}}
_MOST = 4

marks_in = re.compile(rb'"cache_control"\s*:\s*\{').findall


def may_be_cached(body: bytes, model: str) -> bool:
    """Return True if a provider may have cached a prompt.

    Claude caches only marked prompts (platform.claude.com, "Prompt caching"). Other models cache any recent prompt.
    """
    return "claude" not in model.lower() or bool(marks_in(body))


def has_room_for_mark(body: bytes) -> bool:
    """Return True if the client sets cache marks and one more is allowed."""
    return 0 < len(marks_in(body)) < _MOST


def with_cache_mark(message: bytes) -> bytes:
    """Return an injected message with a cache mark on its last text."""
    decoded = msgspec.json.decode(message)
    content = decoded["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return msgspec.json.encode({**decoded, "content": [*parts[:-1], {**parts[-1], **MARK}]})
