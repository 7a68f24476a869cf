"""Kinds of blocks in a message. Types have versions, so most are recognized by a suffix."""

from collections.abc import Iterable, Iterator, Mapping

from proxy.dialects.block_lists import parts_of
from proxy.dialects.texts import id_of

Json = Mapping[str, object]

THINKING = frozenset({"thinking", "redacted_thinking"})
# Fields of a provider's tool result that a transcript shows.
_SHOWN_KEYS = ("text", "title", "url", "stdout", "stderr", "error_code", "tool_name")
_CHANGES = {"tool_addition": "+", "tool_removal": "-"}


def kind_of(block: Json) -> str:
    """Return the type of a block; empty without one."""
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def text_of(block: Json) -> str | None:
    """Return the text of a text block; None for any other block."""
    text = block.get("text") if block.get("type") == "text" else None
    return text if isinstance(text, str) else None


def is_call(block: Json) -> bool:
    """Return True if a block is a tool call."""
    return kind_of(block).endswith("tool_use")


def is_result(block: Json) -> bool:
    """Return True if a block is a tool result."""
    return kind_of(block).endswith("tool_result")


def script_of(block: Json) -> str | None:
    """Return the id of the provider-run script that made a call; None for a call of the model."""
    caller = block.get("caller") if is_call(block) else None
    script = caller.get("tool_id") if isinstance(caller, dict) else None
    return id_of(script) if isinstance(script, str) else None


def is_compaction(block: Json) -> bool:
    """Return True if a block is a compaction. The provider ignores one without a content."""
    return block.get("type") == "compaction" and any(block.get(key) for key in ("content", "encrypted_content"))


def tools_loaded(block: Json) -> Iterator[str]:
    """Yield the names of the tools that a result refers to."""
    content = block.get("content")
    parts = content.get("tool_references") if isinstance(content, dict) else content
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_reference":
            yield str(part.get("tool_name", ""))


def tools_changed(block: Json) -> Iterator[str]:
    """Yield the tools that an instruction adds or removes, each with its sign."""
    if (sign := _CHANGES.get(kind_of(block))) is not None:
        tool = block.get("tool")
        names = tool.get("definition", tool) if isinstance(tool, dict) else {}
        names = names if isinstance(names, dict) else {}
        yield f"{sign}{names.get('name', names.get('server_name', ''))}"


def content_of(block: Json) -> list[Json]:
    """Return the parts of a block's content."""
    return parts_of(block.get("content"))


def content_text(block: Json) -> str:
    """Return the content of a block as text for a transcript."""
    return join_blocks(content_of(block))


def join_blocks(blocks: Iterable[Json]) -> str:
    """Return the texts of these blocks, a line each."""
    return "\n".join(map(text_of_block, blocks))


def text_of_block(block: Json) -> str:
    """Return the text of a block for a transcript, or its other fields, or its kind."""
    if (text := text_of(block)) is not None:
        return text
    fields = [value for key in _SHOWN_KEYS if isinstance(value := block.get(key), str) and value]
    inner = [text_of_block(part) for part in content_of(block) if kind_of(part) == "text"]
    return "\n".join([*fields, *inner]) or f"[{kind_of(block) or 'media'}]"
