"""Messages of the Messages API as blocks, and their rewritten forms."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from policies.authorship.heard import heard_in, heard_in_results
from policies.conversation.message import Message, Role
from policies.conversation.transcript import CountTokens
from policies.decision.assemble import Injected
from proxy.dialects.block_lists import BlockListItems, close_item, mark_of, open_item
from proxy.dialects.blocks import Block, Facts, View
from proxy.dialects.json_array import members_of
from proxy.dialects.messages.canonical import instruction_digest, message_digest
from proxy.dialects.messages.kinds import (
    THINKING,
    Json,
    content_of,
    content_text,
    is_call,
    is_compaction,
    is_result,
    kind_of,
    script_of,
    text_of,
    text_of_block,
    tools_changed,
    tools_loaded,
)
from proxy.dialects.texts import cut, cut_values, id_of, with_heard, with_text_call
from proxy.models.media import sealed_tokens

# An unknown role counts as a user's, which is never dropped.
_ROLES: Mapping[object, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_MEDIA = frozenset({"image", "document"})

BLOCK_OVERHEAD = 4


class MessagesItems(BlockListItems):
    """Messages. Content is a list of blocks, or a text as a single block. Unchanged blocks keep their bytes."""

    ITEM_OVERHEAD = 0
    BLOCK_OVERHEAD = BLOCK_OVERHEAD

    def read(self, message: Json, /) -> View:
        """Return the role and the blocks of a message."""
        role = _ROLES.get(message.get("role"), "user")
        blocks = [*map(self.block, content_of(message))]
        if role == "assistant":
            return View(message, role, blocks)
        # In messages of users and operators, a transcript shows every block but texts and results by its kind.
        has_results = role == "user" and any(block.kind == "result" for block in blocks)
        for block in blocks:
            if block.kind != "text" and not (has_results and block.kind == "result"):
                block.kind = "medium"
        return View(message, "tool" if has_results else role, blocks, speaks=not has_results)

    def facts(self, view: View, /) -> Facts:
        """Return the facts of a message by its role."""
        if view.role == "assistant":
            return _facts_of_model(view.blocks)
        if view.role == "system":
            return _facts_of_operator(view.item, view.blocks)
        facts = Facts()
        results = [block.value for block in view.blocks if block.kind == "result"]
        for block in view.blocks:
            if block.kind == "medium":
                facts["media"] = not results
                if block.value.get("type") == "compaction":
                    facts["compacts"] = True
        if results:
            facts["media"] = any(text_of(part) is None for result in results for part in content_of(result))
            facts["loads"] = _names(tools_loaded, results)
        return facts

    def block(self, block: Json, /) -> Block:
        """Return the block of a part of the content."""
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            return Block("text", block, text)
        kind = kind_of(block)
        if is_call(block):
            name = str(block.get("name", ""))
            return Block("call", block, id=id_of(block.get("id", "")), name=name, given=block.get("input", {}))
        if is_result(block):
            # Results of the provider's own tools are counted by their JSON.
            parts = [*map(_part, content_of(block))] if kind == "tool_result" else None
            return Block("result", block, id=id_of(block.get("tool_use_id", "")), parts=parts, error=_error(block))
        if kind in THINKING:
            thought = block.get("thinking")
            shown = thought if isinstance(thought, str) and thought else None
            # The signature of hidden thinking holds all of it.
            sealed = sum(
                sealed_tokens(data) for key in ("data", "signature") if isinstance(data := block.get(key), str)
            )
            return Block("thought", block, shown, sealed=sealed)
        return Block("medium" if kind in _MEDIA else "other", block)

    def digest(self, view: View, /) -> bytes:
        """Return the digest of the message's canonical form."""
        return message_digest(view.item)

    def tokens(self, view: View, count: CountTokens, family: str, /) -> int:
        """Return the tokens of a message, at least those of an empty block."""
        return super().tokens(view, count, family) or BLOCK_OVERHEAD

    def hear(self, message: Message, view: View, count: CountTokens, /) -> Message:
        """Return the description with the authors of the message's texts."""
        if view.role == "assistant":
            return with_text_call(message, [block.text or "" for block in view.blocks[-1:] if block.kind == "text"])
        if view.role == "system":
            return message

        def weigh(text: str) -> int:
            return BLOCK_OVERHEAD + count(text) if text else 0

        heard = heard_in([block.text or "" for block in view.blocks if block.kind == "text"])
        message = with_heard(message, heard, weigh, has_media=view.role == "user" and message.media)
        if view.role == "user":
            return message
        typed = heard_in_results([self.shown(block) or "" for block in view.blocks if block.kind == "result"])
        # Media of a result belong to a page that a tool read, and not to the person.
        return msgspec.structs.replace(
            message,
            words=weigh(heard.words) + weigh(typed.words),
            speech=heard.speech if heard.words else typed.speech,
            is_typed=not heard.words,
        )

    def shown(self, block: Block, /) -> str | None:
        """Return the text of a block in a transcript; None if it is not shown."""
        if block.kind in ("text", "thought"):
            return block.text
        if block.kind != "result":
            return text_of_block(block.value)
        if block.parts is None:
            return content_text(block.value)
        return "\n".join([text_of_block(part.value) if part.text is None else part.text for part in block.parts])

    def inject(self, item: Injected, /) -> bytes:
        """Return an injected message."""
        return msgspec.json.encode({"role": item.role, "content": [self.text_part(item.text)]})

    def text_part(self, text: str, mark: object = None, /) -> dict[str, object]:
        """Return an injected text as a block, with its cache mark."""
        return {"type": "text", "text": text} | ({"cache_control": mark} if mark else {})

    def with_result(self, written: bytes, block: Block, text: str, /) -> bytes:
        """Return a result with another text. A result of a provider's tool stays unchanged."""
        if block.parts is None:  # of a provider's tool
            return written
        new_block = self.text_part(text, mark_of([part.value for part in block.parts]))
        return close_item(members_of(written), [msgspec.json.encode(new_block)])

    def without_thinking(self, raw: bytes | memoryview, /) -> bytes | None:
        """Return a message without its thinking, which is bound to the prompt before it; None if nothing is left."""
        members, blocks = open_item(raw)
        remaining = [block for block in blocks if self.read_block(block).kind != "thought"]
        if remaining == blocks:
            return bytes(raw)
        return close_item(members, remaining) if remaining else None

    def is_fixed(self, message: Json, /) -> bool:
        """Return True if a message has thinking: its signature covers the whole response."""
        return any(kind_of(block) in THINKING for block in content_of(message))

    def shorter(self, block: Json, share: float, /) -> Json:
        """Return a block with its texts shortened, or a note for a medium."""
        if (text := text_of(block)) is not None:
            return {**block, "text": cut(text, share)}
        match kind_of(block):
            case "tool_use":
                return {**block, "input": cut_values(block.get("input"), share)}
            case "tool_result":
                return {**block, "content": self.shorter_content(block.get("content"), share)}
            case _:
                return self.note_of(block)

    def shorten_fields(self, message: dict[str, object], _: float, /) -> None:
        """Add an empty content if a message has none, since it must have one."""
        message.setdefault("content", None)


def _part(part: Json) -> Block:
    text = text_of(part)
    return Block("medium" if text is None else "text", part, text)


def _facts_of_model(blocks: Sequence[Block]) -> Facts:
    """Return the facts of a model's message. It also holds results of the provider's tools."""
    facts = Facts(continues=True)
    thoughts = 0
    for block in blocks:
        match block.kind:
            case "thought":
                thoughts += 1
            case "medium":
                facts["media"] = True
            case "call" if (script := script_of(block.value)) is not None:
                facts["scripts"] = (*facts.get("scripts", ()), script)
            case "result":
                facts["loads"] = (*facts.get("loads", ()), *tools_loaded(block.value))
            case "other" if block.value.get("type") == "compaction":
                facts["compacts"] = True
                facts["barrier"] = facts.get("barrier", False) or is_compaction(block.value)
            case _:
                pass
    if thoughts:
        facts["signed"] = "bound"
        facts["silent"] = thoughts == len(blocks)
    return facts


def _facts_of_operator(message: Json, blocks: Sequence[Block]) -> Facts:
    changes = _names(tools_changed, [block.value for block in blocks])
    is_special = bool(changes) or message.get("output_config") is not None
    return Facts(
        joins=True,
        loose=None if is_special else instruction_digest(message),
        lapses=message.get("clear_at") == "next_user_message",
        loads=changes,
    )


def _names(of_block: Callable[[Json], Iterator[str]], blocks: Sequence[Json]) -> tuple[str, ...]:
    return tuple(name for block in blocks for name in of_block(block))


def _error(block: Json) -> bool | None:
    """Return True if a result reports an error, by its own field or by the code or kind of its content."""
    if isinstance(is_error := block.get("is_error"), bool):
        return is_error
    content = block.get("content")
    if not isinstance(content, dict):
        return None
    if isinstance(code := content.get("return_code"), int):
        return code != 0
    return True if kind_of(content).endswith("_error") or content.get("error_code") else None


ITEMS = MessagesItems()
