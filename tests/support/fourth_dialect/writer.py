"""How conversations look in it, and what its servers answer."""

import json

from proxy.dialects.base import Usage
from tests.support.dialects import Called, Entry, Json, Style
from tests.support.fourth_dialect.row import GEMINI

MODEL = "m"


class GeminiWriter:
    """Of requests to one model."""

    dialect = GEMINI.with_path(MODEL, stream=False)

    def items(self, entry: Entry, style: Style) -> list[Json]:
        if entry.results:
            return [{"role": "user", "parts": [_result(call, text) for call, text in entry.results]}]
        is_thought = style.thinking and entry.role == "assistant"
        thoughts: list[Json] = [{"text": "because", "thought": True}] if is_thought else []
        texts: list[Json] = [{"text": entry.text}] if entry.text else []
        role = "model" if entry.role == "assistant" else "user"
        return [{"role": role, "parts": [*thoughts, *texts, *map(_call, entry.calls)]}]

    def fields(self) -> Json:
        return {
            "systemInstruction": {"parts": [{"text": "You code."}]},
            "tools": [{"functionDeclarations": [{"name": "bash"}]}],
            "generationConfig": {"topK": 40, "maxOutputTokens": 99},
        }

    def answer(self, text: str, usage: Usage) -> bytes:
        return json.dumps({**_element(text, "STOP"), "usageMetadata": _billed(usage)}).encode()

    def events(self, text: str, usage: Usage) -> list[bytes]:
        elements = [_element(""), _element(text), {**_element("", "STOP"), "usageMetadata": _billed(usage)}]
        return [json.dumps(element).encode() for element in elements]


def stream(events: list[bytes]) -> bytes:
    """As it comes: one array, an element at a time."""
    return b"[" + b"\n,\r\n".join(events) + b"\n]\n"


def _call(call: Called) -> Json:
    return {"functionCall": {"id": call.id, "name": call.tool, "args": {"path": call.path}}}


def _result(call: str, text: str) -> Json:
    return {"functionResponse": {"id": call, "name": "tool", "response": {"output": text}}}


def _element(text: str, reason: str | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": reason} if reason else {})], "modelVersion": MODEL}


def _billed(usage: Usage) -> Json:
    total = usage.prompt_tokens + usage.completion_tokens
    counts = {"promptTokenCount": usage.prompt_tokens, "candidatesTokenCount": usage.completion_tokens}
    return {**counts, "totalTokenCount": total}
