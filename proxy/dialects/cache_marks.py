"""Marks up to which Anthropic's prompt cache is written, and from which it is looked for: 20 blocks back."""

import re

import msgspec

MARK = {"cache_control": {"type": "ephemeral"}}
_MOST = 4

marks_in = re.compile(rb'"cache_control"\s*:\s*\{').findall


def may_be_cached(body: bytes, model: str) -> bool:
    """Whether a provider may have kept a prompt: of Claude only what is marked (platform.claude.com, "Prompt caching"),
    of other models whatever came lately."""
    return "claude" not in model.lower() or bool(marks_in(body))


def takes_another(body: bytes) -> bool:
    """Whether its client sets marks, and there is room for one more."""
    return 0 < len(marks_in(body)) < _MOST


def with_cache_mark(message: bytes) -> bytes:
    """A message of ours with a mark on its last text."""
    decoded = msgspec.json.decode(message)
    content = decoded["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return msgspec.json.encode({**decoded, "content": [*parts[:-1], {**parts[-1], **MARK}]})
