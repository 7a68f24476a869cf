"""What kinds of blocks a message holds; versions of them follow, so most are known by how their names end."""

from collections.abc import Iterable, Iterator, Mapping

from proxy.dialects.block_lists import parts_of
from proxy.dialects.texts import id_of

Json = Mapping[str, object]

THINKING = frozenset({"thinking", "redacted_thinking"})
# What is told of a result that a provider's own tool came back with.
_TOLD = ("text", "title", "url", "stdout", "stderr", "error_code", "tool_name")
_CHANGES = {"tool_addition": "+", "tool_removal": "-"}


def kind_of(block: Json) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def text_of(block: Json) -> str | None:
    """None for a block that is no text."""
    text = block.get("text") if block.get("type") == "text" else None
    return text if isinstance(text, str) else None


def is_call(block: Json) -> bool:
    return kind_of(block).endswith("tool_use")


def is_result(block: Json) -> bool:
    return kind_of(block).endswith("tool_result")


def script_of(block: Json) -> str | None:
    """Return the id of the provider-run script that made a call, None for a call of the model."""
    caller = block.get("caller") if is_call(block) else None
    script = caller.get("tool_id") if isinstance(caller, dict) else None
    return id_of(script) if isinstance(script, str) else None


def is_compaction(block: Json) -> bool:
    """Without a content the provider could not make one, and takes no notice of it."""
    return block.get("type") == "compaction" and any(block.get(key) for key in ("content", "encrypted_content"))


def tools_loaded(block: Json) -> Iterator[str]:
    """Names of the tools that a result refers to."""
    content = block.get("content")
    found = content.get("tool_references") if isinstance(content, dict) else content
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_reference":
            yield str(part.get("tool_name", ""))


def tools_changed(block: Json) -> Iterator[str]:
    """What an instruction adds to the tools or takes from them, and its sign."""
    if (sign := _CHANGES.get(kind_of(block))) is not None:
        tool = block.get("tool")
        names = tool.get("definition", tool) if isinstance(tool, dict) else {}
        names = names if isinstance(names, dict) else {}
        yield f"{sign}{names.get('name', names.get('server_name', ''))}"


def content_of(block: Json) -> list[Json]:
    return parts_of(block.get("content"))


def shown_in(block: Json) -> str:
    """What a block holds, for a reader."""
    return join_blocks(content_of(block))


def join_blocks(blocks: Iterable[Json]) -> str:
    return "\n".join(map(text_of_block, blocks))


def text_of_block(block: Json) -> str:
    """A block for a reader: its text, or what it is and what it tells beside."""
    if (text := text_of(block)) is not None:
        return text
    told = [value for key in _TOLD if isinstance(value := block.get(key), str) and value]
    inner = [text_of_block(part) for part in content_of(block) if kind_of(part) == "text"]
    return "\n".join([*told, *inner]) or f"[{kind_of(block) or 'media'}]"
