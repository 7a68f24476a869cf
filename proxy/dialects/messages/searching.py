"""The search tool in Anthropic's Messages."""

from collections.abc import Sequence

from proxy.dialects.searching import (
    DESCRIPTION,
    NAME,
    PARAMETERS,
    Asked,
    Json,
    Said,
    Search,
    Turn,
    as_json,
    as_list,
    query_of,
)

TOOL: Json = {"name": NAME, "description": DESCRIPTION, "input_schema": PARAMETERS}
_PLAIN = ("text", "tool_use")


def allows(asked: Asked) -> bool:
    """Not beside thinking: what is sent back of it is bound to a prompt that the client does not have."""
    is_free = asked.tool_choice is None or as_json(asked.tool_choice).get("type") == "auto"
    return is_free and as_json(asked.thinking).get("type", "disabled") == "disabled"


def said(event: Json) -> Said:
    match event.get("type"):
        case "content_block_start":
            block = as_json(event.get("content_block"))
            if block.get("type") not in _PLAIN:
                return Said(other=True)
            return Said(calls=(str(block.get("name")),) if block["type"] == "tool_use" else ())
        case "content_block_delta":
            return Said(len(str(as_json(event.get("delta")).get("text", ""))))
        case kind:
            return Said(other=kind == "error")


def turn(events: Sequence[Json]) -> Turn | None:
    blocks: dict[object, Json] = {}
    for event in events:
        place = event.get("index")
        if event.get("type") == "content_block_start":
            block = as_json(event.get("content_block"))
            blocks[place] = {**block, "input": ""} if block.get("type") == "tool_use" else {**block}
        elif event.get("type") == "content_block_delta" and place in blocks:
            delta = as_json(event.get("delta"))
            key = "input" if "partial_json" in delta else "text"
            blocks[place][key] = str(blocks[place].get(key, "")) + str(delta.get("partial_json", delta.get("text", "")))
    return _turn(list(blocks.values()))


def whole(answer: Json) -> Turn | None:
    return _turn(as_list(answer.get("content")))


def _turn(blocks: Sequence[Json]) -> Turn | None:
    """Calls of the client's tools are left out: the model makes them again when it knows more."""
    texts = [
        {"type": "text", "text": block["text"]} for block in blocks if block.get("type") == "text" and block["text"]
    ]
    ours = [block for block in blocks if _is_ours(block)]
    searches = tuple(Search(str(block.get("id")), query_of(block.get("input"))) for block in ours)
    made = [
        {"type": "tool_use", "id": search.id, "name": NAME, "input": {"query": search.query}} for search in searches
    ]
    return Turn(({"role": "assistant", "content": [*texts, *made]},), searches) if searches else None


def results(turn: Turn, texts: Sequence[str]) -> list[Json]:
    found = [
        {"type": "tool_result", "tool_use_id": search.id, "content": text}
        for search, text in zip(turn.searches, texts, strict=True)
    ]
    return [*turn.items, {"role": "user", "content": found}]


class _Hider:
    def __init__(self) -> None:
        self.is_hiding = False
        self._ours: set[object] = set()
        self._calls = False

    def shown(self, event: Json) -> Json | None:
        place = event.get("index")
        if event.get("type") == "content_block_start":
            block = as_json(event.get("content_block"))
            if _is_ours(block):
                self.is_hiding = True
                self._ours.add(place)
            elif block.get("type") == "tool_use":
                self._calls = True
        if "index" in event:
            if place in self._ours:
                return None
            event["index"] = int(str(place)) - len(self._ours)
        delta = as_json(event.get("delta"))
        if self.is_hiding and delta.get("stop_reason") == "tool_use" and not self._calls:
            delta["stop_reason"] = "end_turn"
        return event


def hider() -> _Hider:
    return _Hider()


def _is_ours(block: Json) -> bool:
    return block.get("type") == "tool_use" and block.get("name") == NAME
