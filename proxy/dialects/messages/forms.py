"""A message taken apart into its blocks, which keep their bytes, and put together again."""

from collections.abc import Mapping, Sequence

from proxy.dialects.json_array import members_of, split_items


def text_block(text: str, mark: object = None) -> dict[str, object]:
    """A block of ours, with a mark for a cache if there is one."""
    return {"type": "text", "text": text} | ({"cache_control": mark} if mark else {})


def open_message(raw: bytes | memoryview) -> tuple[dict[str, bytes], list[bytes]]:
    """The members of a message, and its blocks as they were written."""
    members = members_of(bytes(raw))
    content = members.get("content", b"").partition(b":")[2].strip()
    if content.startswith(b"["):
        return members, split_items(content[1:-1])
    is_text = content.startswith(b'"') and content != b'""'
    return members, [b'{"type":"text","text":' + content + b"}"] if is_text else []


def close_message(members: Mapping[str, bytes], blocks: Sequence[bytes]) -> bytes:
    """The message with these members and blocks."""
    content = b'"content":[' + b",".join(blocks) + b"]"
    return b"{" + b",".join({**members, "content": content}.values()) + b"}"
