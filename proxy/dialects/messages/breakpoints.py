"""Marks of ours behind head and record: of a prompt without any, Anthropic's cache holds nothing."""

from proxy.dialects.block_lists import close_item, open_item, parts_of
from proxy.dialects.cache_marks import MARK
from proxy.dialects.json_array import decode, members_of, split_items, with_fields
from proxy.dialects.messages.kinds import Json, text_of
from proxy.dialects.surrogates import readable


def behind_record(raw: bytes) -> bytes:
    """A message that begins with a text of ours, with a mark on that."""
    members, (ours, *rest) = open_item(raw)
    return close_item(members, [with_fields(ours, MARK, without=()), *rest])


def behind_head(body: bytes) -> bytes:
    """A body with a mark on its last instruction, else on its last tool; all else keeps its bytes."""
    members = members_of(body)
    for key in ("system", "tools"):
        value = members.get(key, b"").partition(b":")[2].strip()
        if (marked := _mark_last(value)) is not None:
            members[key] = b'"%b":%b' % (key.encode(), marked)
            return b"{" + b",".join(members.values()) + b"}"
    return body


def _mark_last(value: bytes) -> bytes | None:
    """Blocks or tools with a mark on the last one that takes it, None where none does; a text becomes a block."""
    if value.startswith(b'"'):
        value = b'[{"type":"text","text":%b}]' % value
    if not value.startswith(b"["):
        return None
    blocks = split_items(value[1:-1])
    read = [next(iter(parts_of(decode(readable(b"[%b]" % block)))), None) for block in blocks]
    last = next((at for at in reversed(range(len(blocks))) if _takes_mark(read[at])), None)
    if last is None:
        return None
    blocks[last] = with_fields(blocks[last], MARK, without=())
    return b"[" + b",".join(blocks) + b"]"


def _takes_mark(block: Json | None) -> bool:
    """Empty texts and tools that are loaded later may have none."""
    if block is None or block.get("defer_loading") is True:
        return False
    text = text_of(block)
    return text is None or bool(text.strip())
