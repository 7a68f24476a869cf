"""The proxy's cache breakpoints after head and record. Without any, Anthropic's cache stores nothing."""

from proxy.dialects.block_lists import close_item, open_item, parts_of
from proxy.dialects.cache_marks import MARK
from proxy.dialects.json_array import decode, members_of, split_items, with_fields
from proxy.dialects.messages.kinds import Json, text_of
from proxy.dialects.surrogates import readable


def mark_record(raw: bytes) -> bytes:
    """Return a message that begins with an injected text, with a breakpoint on that text."""
    members, (injected, *later_blocks) = open_item(raw)
    return close_item(members, [with_fields(injected, MARK, without=()), *later_blocks])


def mark_head(body: bytes) -> bytes:
    """Return a body with a mark on its last instruction, else on its last tool. All other bytes stay."""
    members = members_of(body)
    for key in ("system", "tools"):
        value = members.get(key, b"").partition(b":")[2].strip()
        if (marked := _mark_last(value)) is not None:
            members[key] = b'"%b":%b' % (key.encode(), marked)
            return b"{" + b",".join(members.values()) + b"}"
    return body


def _mark_last(value: bytes) -> bytes | None:
    """Return blocks or tools with a mark on the last one that accepts it; None if none does. A text becomes a block."""
    if value.startswith(b'"'):
        value = b'[{"type":"text","text":%b}]' % value
    if not value.startswith(b"["):
        return None
    blocks = split_items(value[1:-1])
    parsed = [next(iter(parts_of(decode(readable(b"[%b]" % block)))), None) for block in blocks]
    position = next((at for at in reversed(range(len(blocks))) if _takes_mark(parsed[at])), None)
    if position is None:
        return None
    blocks[position] = with_fields(blocks[position], MARK, without=())
    return b"[" + b",".join(blocks) + b"]"


def _takes_mark(block: Json | None) -> bool:
    """Return True if a block may have a mark. Empty texts and deferred tools may not."""
    if block is None or block.get("defer_loading") is True:
        return False
    text = text_of(block)
    return text is None or bool(text.strip())
