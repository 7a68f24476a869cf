"""Items whose content is a list of blocks: a block that does not change keeps its bytes."""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from policies.authorship.parts import Part, parts_by_block, typed_in_result
from policies.authorship.wrappers import Voice
from proxy.dialects.blocks import Block, Items, Json
from proxy.dialects.json_array import decode, members_of, split_items
from proxy.dialects.surrogates import readable

_MARK = "cache_control"
_OF_A_USER: tuple[Voice, ...] = ("person", "summary")
_OF_RULES: tuple[Voice, ...] = ("instructions",)


def open_item(raw: bytes | memoryview, key: str = "content") -> tuple[dict[str, bytes], list[bytes]]:
    """Return the members of an item, and its blocks as written. A text becomes a single block."""
    members = members_of(bytes(raw))
    content = members.get(key, b"").partition(b":")[2].strip()
    if content.startswith(b"["):
        return members, split_items(content[1:-1])
    is_text = content.startswith(b'"') and content != b'""'
    return members, [b'{"type":"text","text":' + content + b"}"] if is_text else []


def close_item(members: Mapping[str, bytes], blocks: Sequence[bytes], key: str = "content") -> bytes:
    """Return the item with these members and blocks."""
    content = b'"%b":[%b]' % (key.encode(), b",".join(blocks))
    return b"{" + b",".join({**members, key: content}.values()) + b"}"


def parts_of(content: object) -> list[Json]:
    """Return the parts of a content that are objects or texts. A text becomes a part with it."""
    listed = content if isinstance(content, list) else [content]
    return [
        part if isinstance(part, dict) else {"type": "text", "text": part}
        for part in listed
        if isinstance(part, dict | str)
    ]


def read_part(written: bytes) -> Json:
    """Return a part of a list as written; empty if it is neither an object nor a text."""
    return next(iter(parts_of(decode(readable(written)))), {})


class BlockListItems(Items):
    """Items of a dialect whose blocks are under the first key of LISTS."""

    def block(self, part: Json, /) -> Block:
        """Return the block of a part of the list, whatever the role of its item."""
        raise NotImplementedError

    def with_result(self, written: bytes, block: Block, text: str, /) -> bytes:
        """Return a result with another text. Its other fields keep their bytes."""
        raise NotImplementedError

    def merge(self, text: str, raw: bytes | memoryview, /) -> bytes:
        """Return an item that begins with an injected text."""
        members, written = self._open(raw)
        return self._close(members, [self._encode_text(text), *written])

    def words(self, raw: bytes | memoryview, /) -> bytes:
        """Return the item with only a person's words and the client's own summary; empty if it has neither."""
        return self._with_voices(raw, _OF_A_USER)

    def rules(self, raw: bytes | memoryview, /) -> bytes:
        """Return the item with only its files of rules; empty if it has none."""
        return self._with_voices(raw, _OF_RULES)

    def with_texts(self, raw: bytes | memoryview, texts: Sequence[str | None], /) -> bytes:
        """Return an item with one block for each text. Calls, media and cache marks stay."""
        members, written = self._open(raw)
        blocks = [*map(self.read_block, written)]
        results = [at for at, block in enumerate(blocks) if block.kind == "result"]
        if results:
            for at, text in zip(results, texts, strict=True):
                written[at] = written[at] if text is None else self.with_result(written[at], blocks[at], text)
            return self._close(members, written)
        (text,) = texts
        if text is None:
            return bytes(raw)
        replaced = [at for at, block in enumerate(blocks) if block.kind == "text"]
        remaining = [raw_block for at, raw_block in enumerate(written) if at not in replaced]
        new_block = self._encode_text(text, mark_of([blocks[at].value for at in replaced]))
        remaining.insert(replaced[0] if replaced else 0, new_block)
        return self._close(members, remaining)

    def read_block(self, written: bytes) -> Block:
        """Return the block of a part as written."""
        return self.block(read_part(written))

    def _open(self, raw: bytes | memoryview) -> tuple[dict[str, bytes], list[bytes]]:
        return open_item(raw, self.LISTS[0])

    def _close(self, members: Mapping[str, bytes], blocks: Sequence[bytes]) -> bytes:
        return close_item(members, blocks, self.LISTS[0])

    def _encode_text(self, text: str, mark: object = None) -> bytes:
        return msgspec.json.encode(self.text_part(text, mark))

    def _with_voices(self, raw: bytes | memoryview, voices: Collection[Voice]) -> bytes:
        """Return the item with only these voices; empty if it has none of them.

        A block with no other voice keeps its bytes. A block without text, such as a picture, is a person's.
        """
        members, written = self._open(raw)
        blocks = [*map(self.read_block, written)]
        parts = iter(parts_by_block([block.text or "" for block in blocks if block.kind == "text"]))
        chosen: list[bytes] = []
        for block, raw_block in zip(blocks, written, strict=True):
            if block.kind == "text":
                chosen += self._choose_voices(next(parts), voices, raw_block)
            elif block.kind == "result":
                typed = typed_in_result(self.shown(block) or "", "") if "person" in voices else []
                chosen += [self._encode_text(part.text) for part in typed if part.voice in voices]
            elif "person" in voices:
                chosen.append(raw_block)
        return self._close(members, chosen) if chosen else b""

    def _choose_voices(self, parts: Sequence[Part], voices: Collection[Voice], written: bytes) -> list[bytes]:
        chosen = [part for part in parts if part.voice in voices]
        if len(chosen) == len(parts):
            return [written] if parts else []
        return [self._encode_text(part.text) for part in chosen]


def mark_of(parts: Sequence[Json]) -> object:
    """Return the cache mark that is on the last marked part in this request; None without one."""
    return next((mark for part in reversed(parts) if (mark := part.get(_MARK))), None)
