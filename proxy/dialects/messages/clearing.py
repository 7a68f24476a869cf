"""Clearing of old tool results, as Anthropic's edit `clear_tool_uses_20250919` does it."""

from collections.abc import Collection

import msgspec

from proxy.dialects.block_lists import close_item, open_item, read_part
from proxy.dialects.messages.compaction import CLEAR
from proxy.dialects.messages.kinds import Json, is_call, is_result

_CLEARED = "[cleared: an older result, which is no longer shown]"
_decode = msgspec.json.Decoder().decode


def clear(raw: bytes, results: Collection[int], calls: Collection[str]) -> bytes:
    """Return a message without the contents of these results and the inputs of these calls."""
    members, blocks = open_item(raw)
    number = -1
    for at, written in enumerate(blocks):
        block = read_part(written)
        if is_result(block):
            number += 1
            if number in results:
                blocks[at] = msgspec.json.encode({**block, "content": _CLEARED})
        elif is_call(block) and block.get("id") in calls:
            blocks[at] = msgspec.json.encode({**block, "input": {}})
    return close_item(members, blocks)


def applied_edits(uses: int, tokens: int) -> Json:
    """Return the entry that reports cleared results."""
    return {"type": CLEAR, "cleared_tool_uses": uses, "cleared_input_tokens": tokens}


def with_original(counted: bytes, tokens: int) -> bytes:
    """Return the count with `context_management.original_input_tokens` added."""
    try:
        count = _decode(counted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return counted
    if not isinstance(count, dict) or not isinstance(tokens_now := count.get("input_tokens"), int):
        return counted
    return msgspec.json.encode({**count, "context_management": {"original_input_tokens": tokens_now + tokens}})
