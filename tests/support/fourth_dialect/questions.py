"""Requests of ours."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.json_array import text_at, with_fields
from proxy.dialects.riding import Json, disallowed_fields, has_tools, is_harmless
from tests.support.fourth_dialect.answers import elements, usage
from tests.support.fourth_dialect.requests import LIMIT, with_output

# Why an answer ended, in the words that the policies know.
_REASONS = {"STOP": "stop", "MAX_TOKENS": "length"}
OUTPUT_KEY = LIMIT
HEADERS: Sequence[tuple[bytes, bytes]] = ()
_ALLOWED = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"})


def room(tokens: int) -> int:
    return tokens


def ask(_: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None) -> bytes:
    """The model is named by the path."""
    key, tokens = limit
    generation = {key: tokens} | ({} if temperature is None else {"temperature": temperature})
    return msgspec.json.encode(
        {
            "systemInstruction": {"parts": [{"text": prompt.system}]},
            "contents": [{"role": "user", "parts": [{"text": prompt.user}]}],
            "generationConfig": generation,
        }
    )


def continuation(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    is_text = text_at(fields["generationConfig"] or msgspec.Raw(b"{}"), ("responseMimeType",)) in (None, "text/plain")
    if not (is_text and is_harmless(body, _is_clients)):
        return None
    changed = {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}} if has_tools(body) else {}
    asked = with_output(with_fields(body, changed, without=disallowed_fields(body, _ALLOWED)), *limit)
    return asked if temperature is None else with_output(asked, "temperature", temperature)  # type: ignore[arg-type]


def _is_clients(tool: Json) -> bool:
    return tool.keys() == {"functionDeclarations"}


def read(body: bytes) -> SummaryAnswer | None:
    told = next(iter(elements(body)), None)
    if told is None or not told.candidates:
        return None
    text = "".join(str(part["text"]) for part in told.parts if "text" in part and not part.get("thought"))
    billed = usage([body])
    has_calls = any("functionCall" in part for part in told.parts)
    return SummaryAnswer(
        text, _REASONS.get(told.reason or "", told.reason), has_calls, billed.tokens if billed else None
    )
