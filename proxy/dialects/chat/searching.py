"""The search tool in chat completions."""

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

TOOL: Json = {"type": "function", "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}}
_THOUGHT = "reasoning_content"


def allows(asked: Asked) -> bool:
    return asked.tool_choice in (None, "auto") and not asked.functions


def said(event: Json) -> Said:
    delta = _delta(event)
    names = (as_json(call.get("function")).get("name") for call in as_list(delta.get("tool_calls")))
    text = delta.get("content")
    return Said(len(text) if isinstance(text, str) else 0, tuple(name for name in names if isinstance(name, str)))


def turn(events: Sequence[Json]) -> Turn | None:
    calls: dict[object, Json] = {}
    texts: dict[str, str] = {"content": "", _THOUGHT: ""}
    for event in events:
        delta = _delta(event)
        for key in texts:
            more = delta.get(key)
            texts[key] += more if isinstance(more, str) else ""
        for piece in as_list(delta.get("tool_calls")):
            call = calls.setdefault(piece.get("index"), {"name": "", "arguments": ""})
            call |= {"id": piece["id"]} if piece.get("id") else {}
            for key, value in as_json(piece.get("function")).items():
                call[key] = str(call.get(key, "")) + str(value or "")
    made = [
        {"id": call.get("id", ""), "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
        for call in calls.values()
    ]
    thought = {_THOUGHT: texts[_THOUGHT]} if texts[_THOUGHT] else {}
    return _turn({"role": "assistant", "content": texts["content"] or None, **thought, "tool_calls": made})


def whole(answer: Json) -> Turn | None:
    choices = as_list(answer.get("choices"))
    return _turn(as_json(choices[0].get("message"))) if choices else None


def _turn(message: Json) -> Turn | None:
    """Calls of the client's tools are left out: the model makes them again when it knows more."""
    ours = [call for call in as_list(message.get("tool_calls")) if _is_ours(call)]
    searches = tuple(Search(str(call.get("id")), query_of(as_json(call["function"]).get("arguments"))) for call in ours)
    return Turn(({**message, "tool_calls": ours},), searches) if searches else None


def results(turn: Turn, texts: Sequence[str]) -> list[Json]:
    found = zip(turn.searches, texts, strict=True)
    told: list[Json] = [{"role": "tool", "tool_call_id": search.id, "content": text} for search, text in found]
    return [*turn.items, *told]


class _Hider:
    def __init__(self) -> None:
        self.is_hiding = False
        self._ours: set[object] = set()
        self._others: dict[object, int] = {}

    def shown(self, event: Json) -> Json | None:
        choices = as_list(event.get("choices"))
        delta = _delta(event)
        calls = as_list(delta.get("tool_calls"))
        self._ours |= {call.get("index") for call in calls if _is_ours(call)}
        self.is_hiding = bool(self._ours)
        if not self._ours:
            self._number(calls)
            return event
        if calls:
            kept = self._number([call for call in calls if call.get("index") not in self._ours])
            if not kept:
                return None
            delta["tool_calls"] = kept
        if choices and choices[0].get("finish_reason") == "tool_calls" and not self._others:
            choices[0]["finish_reason"] = "stop"
        return event

    def _number(self, calls: list[Json]) -> list[Json]:
        for call in calls:
            call["index"] = self._others.setdefault(call.get("index"), len(self._others))
        return calls


def hider() -> _Hider:
    return _Hider()


def _delta(event: Json) -> Json:
    choices = as_list(event.get("choices"))
    return as_json(choices[0].get("delta")) if choices else {}


def _is_ours(call: Json) -> bool:
    return as_json(call.get("function")).get("name") == NAME
