"""The search tool in the Responses API."""

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

TOOL: Json = {"type": "function", "name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS, "strict": False}
# What begins without showing anything; any other item is the client's to see.
_QUIET = ("message", "reasoning")


def allows(asked: Asked) -> bool:
    """Only where the provider keeps nothing: a kept answer would lack what was found."""
    return (
        asked.tool_choice in (None, "auto") and asked.store is False and not (asked.background or asked.max_tool_calls)
    )


def said(event: Json) -> Said:
    match event.get("type"):
        case "response.output_item.added":
            item = as_json(event.get("item"))
            if item.get("type") == "function_call":
                return Said(calls=(str(item.get("name")),))
            return Said(other=item.get("type") not in _QUIET)
        case "response.output_text.delta":
            return Said(len(str(event.get("delta", ""))))
        case kind:
            return Said(other=kind == "error")


def turn(events: Sequence[Json]) -> Turn | None:
    done = [as_json(event.get("item")) for event in events if event.get("type") == "response.output_item.done"]
    return _turn(done)


def whole(answer: Json) -> Turn | None:
    return _turn(as_list(answer.get("output")))


def _turn(output: Sequence[Json]) -> Turn | None:
    """Calls of the client's tools are left out: the model makes them again when it knows more. Reasoning goes back
    where it can be read: nothing is kept by the provider."""
    ours = [item for item in output if _is_ours(item)]
    searches = tuple(Search(str(item.get("call_id")), query_of(item.get("arguments"))) for item in ours)
    kept = (item for item in output if _is_ours(item) or item.get("type") == "message" or item.get("encrypted_content"))
    return Turn(tuple(kept), searches) if searches else None


def results(turn: Turn, texts: Sequence[str]) -> list[Json]:
    found = zip(turn.searches, texts, strict=True)
    outputs: list[Json] = [
        {"type": "function_call_output", "call_id": search.id, "output": text} for search, text in found
    ]
    return [*turn.items, *outputs]


class _Hider:
    def __init__(self) -> None:
        self.is_hiding = False
        self._ours: set[object] = set()

    def shown(self, event: Json) -> Json | None:
        place = event.get("output_index")
        if event.get("type") == "response.output_item.added" and _is_ours(as_json(event.get("item"))):
            self.is_hiding = True
            self._ours.add(place)
        if "output_index" in event:
            if place in self._ours:
                return None
            event["output_index"] = int(str(place)) - len(self._ours)
        response = event.get("response")
        if isinstance(response, dict) and self.is_hiding:
            response["output"] = [item for item in as_list(response.get("output")) if not _is_ours(item)]
        return event


def hider() -> _Hider:
    return _Hider()


def _is_ours(item: Json) -> bool:
    return item.get("type") == "function_call" and item.get("name") == NAME
