"""Leaving old results of tools out, as Anthropic's edit `clear_tool_uses_20250919` does."""

from collections.abc import Collection

import msgspec

from proxy.dialects.block_lists import close_item, open_item, read_part
from proxy.dialects.messages.compaction import CLEAR
from proxy.dialects.messages.kinds import Json, is_call, is_result

_CLEARED = "[cleared: an older result, which is no longer shown]"
_decode = msgspec.json.Decoder().decode


def clear(raw: bytes, results: Collection[int], calls: Collection[str]) -> bytes:
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
    """What is told of results that were cleared."""
    return {"type": CLEAR, "cleared_tool_uses": uses, "cleared_input_tokens": tokens}


def with_original(counted: bytes, tokens: int) -> bytes:
    """As `context_management.original_input_tokens`."""
    try:
        told = _decode(counted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return counted
    if not isinstance(told, dict) or not isinstance(now := told.get("input_tokens"), int):
        return counted
    return msgspec.json.encode({**told, "context_management": {"original_input_tokens": now + tokens}})
