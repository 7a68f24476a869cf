"""Messages of the Messages API as blocks, and their other forms."""

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
    is_call,
    is_compaction,
    is_result,
    kind_of,
    script_of,
    shown_in,
    text_of,
    text_of_block,
    tools_changed,
    tools_loaded,
)
from proxy.dialects.texts import as_heard, cut, cut_values, id_of, with_text_call
from proxy.models.media import sealed_tokens

# An unknown role is treated as a user's, which is never dropped.
_ROLES: Mapping[object, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_MEDIA = frozenset({"image", "document"})

BLOCK_OVERHEAD = 4


class MessagesItems(BlockListItems):
    """A message is a list of blocks, or a text that stands for one. Blocks that do not change keep their bytes."""

    ITEM_OVERHEAD = 0
    BLOCK_OVERHEAD = BLOCK_OVERHEAD

    def read(self, message: Json, /) -> View:
        role = _ROLES.get(message.get("role"), "user")
        blocks = [*map(self.block, content_of(message))]
        if role == "assistant":
            return View(message, role, blocks)
        # Of others than a model all but texts and results is shown as what it is.
        has_results = role == "user" and any(block.kind == "result" for block in blocks)
        for block in blocks:
            if block.kind != "text" and not (has_results and block.kind == "result"):
                block.kind = "medium"
        return View(message, "tool" if has_results else role, blocks, speaks=not has_results)

    def facts(self, view: View, /) -> Facts:
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
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            return Block("text", block, text)
        kind = kind_of(block)
        if is_call(block):
            name = str(block.get("name", ""))
            return Block("call", block, id=id_of(block.get("id", "")), name=name, given=block.get("input", {}))
        if is_result(block):
            # Others than the client's are counted by their JSON.
            parts = [*map(_part, content_of(block))] if kind == "tool_result" else None
            return Block("result", block, id=id_of(block.get("tool_use_id", "")), parts=parts, error=_error(block))
        if kind in THINKING:
            thought = block.get("thinking")
            shown = thought if isinstance(thought, str) and thought else None
            # Of thinking that is not shown, its signature holds all.
            sealed = sum(
                sealed_tokens(data) for key in ("data", "signature") if isinstance(data := block.get(key), str)
            )
            return Block("thought", block, shown, sealed=sealed)
        return Block("medium" if kind in _MEDIA else "other", block)

    def digest(self, view: View, /) -> bytes:
        return message_digest(view.item)

    def tokens(self, view: View, count: CountTokens, family: str, /) -> int:
        return super().tokens(view, count, family) or BLOCK_OVERHEAD

    def hear(self, message: Message, view: View, count: CountTokens, /) -> Message:
        if view.role == "assistant":
            return with_text_call(message, [block.text or "" for block in view.blocks[-1:] if block.kind == "text"])
        if view.role == "system":
            return message

        def weigh(text: str) -> int:
            return BLOCK_OVERHEAD + count(text) if text else 0

        heard = heard_in([block.text or "" for block in view.blocks if block.kind == "text"])
        message = as_heard(message, heard, weigh, has_media=view.role == "user" and message.media)
        if view.role == "user":
            return message
        typed = heard_in_results([self.shown(block) or "" for block in view.blocks if block.kind == "result"])
        # Media alone go with a result: of a page that a tool has read.
        return msgspec.structs.replace(
            message,
            words=weigh(heard.words) + weigh(typed.words),
            speech=heard.speech if heard.words else typed.speech,
            is_typed=not heard.words,
        )

    def shown(self, block: Block, /) -> str | None:
        if block.kind in ("text", "thought"):
            return block.text
        if block.kind != "result":
            return text_of_block(block.value)
        if block.parts is None:
            return shown_in(block.value)
        return "\n".join([text_of_block(part.value) if part.text is None else part.text for part in block.parts])

    def inject(self, item: Injected, /) -> bytes:
        return msgspec.json.encode({"role": item.role, "content": [self.text_part(item.text)]})

    def text_part(self, text: str, mark: object = None, /) -> dict[str, object]:
        return {"type": "text", "text": text} | ({"cache_control": mark} if mark else {})

    def with_result(self, written: bytes, block: Block, text: str, /) -> bytes:
        if block.parts is None:  # of a tool of the provider's
            return written
        ours = self.text_part(text, mark_of([part.value for part in block.parts]))
        return close_item(members_of(written), [msgspec.json.encode(ours)])

    def without_thinking(self, raw: bytes | memoryview, /) -> bytes | None:
        """Return a message without its thinking, which is bound to the prompt before it; None if nothing is left."""
        members, blocks = open_item(raw)
        kept = [block for block in blocks if self.read_block(block).kind != "thought"]
        if kept == blocks:
            return bytes(raw)
        return close_item(members, kept) if kept else None

    def is_fixed(self, message: Json, /) -> bool:
        """Return True if a message has thinking: its signature covers the whole answer."""
        return any(kind_of(block) in THINKING for block in content_of(message))

    def shorter(self, block: Json, share: float, /) -> Json:
        if (text := text_of(block)) is not None:
            return {**block, "text": cut(text, share)}
        match kind_of(block):
            case "tool_use":
                return {**block, "input": cut_values(block.get("input"), share)}
            case "tool_result":
                return {**block, "content": self.shorter_content(block.get("content"), share)}
            case _:
                return self.note_of(block)

    def shorten_beside(self, message: dict[str, object], _: float, /) -> None:
        message.setdefault("content", None)  # a message always has one


def _part(part: Json) -> Block:
    text = text_of(part)
    return Block("medium" if text is None else "text", part, text)


def _facts_of_model(blocks: Sequence[Block]) -> Facts:
    """Return the facts of a model's message. It holds the results of tools that the provider runs."""
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
