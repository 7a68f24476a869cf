"""Other forms of a message: items of ours, and the client's own with some blocks changed or left out."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from policies.assembly import Injected
from policies.voices.parts import Part, parts_by_block, typed_in_result
from policies.voices.tables import Voice
from proxy.dialects.json_array import decode, members_of, split_items
from proxy.dialects.messages.kinds import THINKING, Json, blocks_of, is_result, kind_of, shown_in, text_of
from proxy.dialects.surrogates import readable
from proxy.dialects.texts import cut, cut_values
from proxy.models.media import KINDS

_MARK = "cache_control"
_OF_A_USER: tuple[Voice, ...] = ("person", "summary")
_OF_RULES: tuple[Voice, ...] = ("instructions",)


def inject(item: Injected) -> bytes:
    return msgspec.json.encode({"role": item.role, "content": [_text(item.text)]})


def _text(text: str, mark: object = None) -> dict[str, object]:
    return {"type": "text", "text": text} | ({_MARK: mark} if mark else {})


def merge(text: str, raw: bytes | memoryview) -> bytes:
    """A block of ours, and the client's own behind it."""
    members, blocks = open_message(raw)
    return close_message(members, [msgspec.json.encode(_text(text)), *blocks])


def words(raw: bytes | memoryview) -> bytes:
    """Return the message with what a person says and the client's own summary; nothing if it has neither."""
    return _with_voices(raw, _OF_A_USER)


def rules(raw: bytes | memoryview) -> bytes:
    return _with_voices(raw, _OF_RULES)


def _with_voices(raw: bytes | memoryview, voices: Collection[Voice]) -> bytes:
    """Return the message with these voices alone, nothing if it has none of them.

    Blocks of which all is said in them keep their bytes. Blocks that say nothing, such as pictures, are a person's.
    """
    members, blocks = open_message(raw)
    read = [_read(block) for block in blocks]
    apart = iter(parts_by_block([text for block in read if (text := text_of(block)) is not None]))
    kept: list[bytes] = []
    for block, content in zip(read, blocks, strict=True):
        if text_of(block) is not None:
            kept += _of_voices(next(apart), voices, content)
        elif is_result(block):
            typed = typed_in_result(shown_in(block), "") if "person" in voices else []
            kept += [msgspec.json.encode(_text(part.text)) for part in typed if part.voice in voices]
        elif "person" in voices:
            kept.append(content)
    return close_message(members, kept) if kept else b""


def _of_voices(parts: Sequence[Part], voices: Collection[Voice], block: bytes) -> list[bytes]:
    theirs = [part for part in parts if part.voice in voices]
    if len(theirs) == len(parts):
        return [block] if parts else []
    return [msgspec.json.encode(_text(part.text)) for part in theirs]


def without_thinking(raw: bytes | memoryview) -> bytes | None:
    members, blocks = open_message(raw)
    kept = [block for block in blocks if kind_of(_read(block)) not in THINKING]
    if kept == blocks:
        return bytes(raw)
    return close_message(members, kept) if kept else None


def with_texts(raw: bytes | memoryview, texts: Sequence[str | None]) -> bytes:
    """Each text is one block. Without results, calls and media stay where they are; marks stay in any case."""
    members, blocks = open_message(raw)
    read = [_read(block) for block in blocks]
    results = [at for at, block in enumerate(read) if is_result(block)]
    if not results:
        (text,) = texts
        return bytes(raw) if text is None else close_message(members, _with_text(blocks, read, text))
    for at, text in zip(results, texts, strict=True):
        if text is not None and kind_of(read[at]) == "tool_result":
            ours = _text(text, _mark(blocks_of(read[at].get("content"))))
            blocks[at] = close_message(members_of(blocks[at]), [msgspec.json.encode(ours)])
    return close_message(members, blocks)


def shorten(raw: bytes | memoryview, share: float) -> bytes:
    """Ids, names and order stay, and an answer with thinking does as a whole; media become a note."""
    message = msgspec.json.decode(readable(bytes(raw)))
    content = message.get("content")
    if any(kind_of(block) in THINKING for block in blocks_of(content)):
        return bytes(raw)
    message["content"] = _shorter_content(content, share)
    return msgspec.json.encode(message)


def _shorter_content(content: object, share: float) -> object:
    if isinstance(content, str):
        return cut(content, share)
    return [_shorter(block, share) for block in content] if isinstance(content, list) else content


def _shorter(block: object, share: float) -> object:
    if not isinstance(block, dict):
        return cut(block, share) if isinstance(block, str) else block
    kind = kind_of(block)
    if (text := text_of(block)) is not None:
        return {**block, "text": cut(text, share)}
    if kind == "tool_use":
        return {**block, "input": cut_values(block.get("input"), share)}
    if kind == "tool_result":
        return {**block, "content": _shorter_content(block.get("content"), share)}
    return _text(f"[{kind} left out]", block.get(_MARK)) if kind in KINDS else block


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


def _read(block: bytes) -> Json:
    return next(iter(blocks_of(decode(readable(block)))), {})


def _with_text(blocks: Sequence[bytes], read: Sequence[Json], text: str) -> list[bytes]:
    """One text in the place of all."""
    said = [at for at, block in enumerate(read) if text_of(block) is not None]
    ours = msgspec.json.encode(_text(text, _mark([read[at] for at in said])))
    first = said[0] if said else 0
    kept = [(at, block) for at, block in enumerate(blocks) if at not in said]
    return [*(block for at, block in kept if at < first), ours, *(block for at, block in kept if at >= first)]


def _mark(blocks: Sequence[Json]) -> object:
    """A cache's mark that stands in this request where a text of ours goes."""
    return next((mark for block in reversed(blocks) if (mark := block.get(_MARK))), None)
