"""What a strict server of the Responses API refuses in a request, as far as its documentation and its errors say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

Json = dict[str, object]

_ROLES = frozenset({"system", "developer", "user", "assistant"})
_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
_ANSWERS = frozenset(_CALLS.values())
_ALONE = frozenset(
    {
        *(
            "message",
            "reasoning",
            "web_search_call",
            "file_search_call",
            "code_interpreter_call",
            "mcp_call",
            "program",
        ),
        *("image_generation_call", "mcp_list_tools", "item_reference", "compaction", "compaction_trigger"),
        *("additional_tools", "program_output"),
    }
)
_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file", "input_audio", "refusal"})
_MOST_MARKS = 4


def defects(body: Json) -> list[str]:
    """Every reason to refuse this request; empty for one that is taken."""
    items = body.get("input")
    if isinstance(items, str):
        return [] if items else ["an empty input"]
    if not isinstance(items, list) or not items:
        return ["no input"]
    if not all(isinstance(item, dict) for item in items):
        return ["an item that is no object"]
    return [*_of_items(items), *_of_pairs(items), *_of_reasoning(items), *_of_marks(body)]


def _kind(item: Json) -> str:
    return str(item.get("type") or ("message" if "role" in item else "item_reference"))


def _of_items(items: Sequence[Json]) -> Iterator[str]:
    for at, item in enumerate(items):
        kind = _kind(item)
        if kind not in _ALONE and kind not in _CALLS and kind not in _ANSWERS:
            yield f"{at}: an unknown type, {kind}"
        if kind == "message":
            yield from _of_message(at, item)
        if kind == "function_call_output" and not isinstance(item.get("output"), str | list):
            yield f"{at}: no output"
        if kind == "function_call" and not isinstance(item.get("arguments"), str):
            yield f"{at}: arguments that are no text"


def _of_message(at: int, item: Json) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        yield f"{at}: an unknown role, {role}"
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        yield f"{at}: no content"
        return
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PARTS:
            yield f"{at}: an unknown part, {kind}"
        elif (kind in ("output_text", "refusal")) != (role == "assistant"):
            yield f"{at}: a part of the other side, {kind}"
        elif kind in ("input_text", "output_text") and not part.get("text"):
            yield f"{at}: an empty text"


def _of_pairs(items: Sequence[Json]) -> Iterator[str]:
    """A call and its result, once each and in this order, by the id of the call."""
    calls: dict[str, str] = {}
    answered: set[str] = set()
    referred = any(_kind(item) == "item_reference" for item in items)
    for at, item in enumerate(items):
        kind = _kind(item)
        name = _id(item, kind)
        if kind in _CALLS and name is not None:
            if name in calls:
                yield f"{at}: a call id twice, {name}"
            calls[name] = kind
        elif kind in _ANSWERS and name is not None:
            if name not in calls and not referred:
                yield f"{at}: No tool call found for function call output with call_id {name}."
            if name in answered:
                yield f"{at}: a second output for {name}"
            answered.add(name)
    yield from (f"No tool output found for function call {name}." for name in calls if name not in answered)


def _id(item: Json, kind: str) -> str | None:
    """None where the provider itself answers its call."""
    if kind in ("mcp_approval_request", "mcp_approval_response"):
        return str(item.get("approval_request_id") or item.get("id"))
    if kind in ("tool_search_call", "tool_search_output") and item.get("call_id") is None:
        return None
    return str(item.get("call_id") or item.get("id"))


def _of_reasoning(items: Sequence[Json]) -> Iterator[str]:
    """What was reasoned belongs to the item of the same answer that follows it."""
    for at, item in enumerate(items):
        if _kind(item) != "reasoning":
            continue
        following = next((other for other in items[at + 1 :] if _kind(other) != "reasoning"), None)
        is_models = following is not None and (
            following.get("role") == "assistant" if _kind(following) == "message" else _kind(following) not in _ANSWERS
        )
        if not is_models:
            yield f"{at}: reasoning was provided without its required following item"


def _of_marks(body: Json) -> Iterator[str]:
    if _marks(body) > _MOST_MARKS:
        yield f"more than {_MOST_MARKS} cache breakpoints"


def _marks(value: object) -> int:
    if isinstance(value, dict):
        return ("prompt_cache_breakpoint" in value) + sum(map(_marks, value.values()))
    return sum(map(_marks, value)) if isinstance(value, list) else 0


def repeated_ids(items: Sequence[Json]) -> list[str]:
    """Why OpenAI refuses items that share an id; a result may be told by that of its call."""
    names = Counter(str(item["id"]) for item in items if item.get("id") and _kind(item) not in _ANSWERS)
    return [f"Duplicate item found with id {name}." for name, count in names.items() if count > 1]


def parted(before: Sequence[Json], after: Sequence[Json]) -> list[str]:
    """Answers of a model, of which a request holds only a part of what an earlier one held."""
    kept = {_name(item) for item in after}
    found, group = [], list[Json]()
    for item in [*before, {"role": "user"}]:
        if _is_of_model(item):
            group.append(item)
            continue
        there = [_name(one) in kept for one in group]
        if any(there) and not all(there):
            found.append(f"an answer of {len(there)} items, of which {sum(there)} are there")
        group = []
    return found


def _is_of_model(item: Json) -> bool:
    kind = _kind(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in _ANSWERS


def _name(item: Json) -> str:
    return str(sorted(item.items()))
