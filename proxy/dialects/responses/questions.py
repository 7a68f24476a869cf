"""Requests of ours: a prompt to a summarizer, and a client's own conversation with a question at its end."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.json_array import members_of, text_at, with_fields
from proxy.dialects.responses.answers import response, text_of, usage
from proxy.dialects.responses.kinds import kind_of
from proxy.dialects.riding import Json, has_tools, is_harmless, left_behind
from proxy.dialects.surrogates import readable

OUTPUT_KEY = "max_output_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ()
_LEAST = 16
# Thought counts as output.
_THOUGHT = 4
# What of a client's request goes with a question of ours: the prompt, how it is thought about and sampled, and the way
# to its cache.
ALLOWED = frozenset(
    {
        *("model", "instructions", "input", "tools", "tool_choice", "max_output_tokens", "store", "prompt_cache_key"),
        *("temperature", "top_p", "reasoning", "text"),
    }
)
_CLIENT_TOOLS = frozenset({"function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer"})
# Items by which a provider goes on with something: what it was allowed to do, what it keeps, and tools of its own.
_ACTS = frozenset(
    {
        "mcp_approval_request",
        "mcp_approval_response",
        "item_reference",
        "compaction_trigger",
        "additional_tools",
        "program",
    }
)


def room(tokens: int) -> int:
    return max(_LEAST, _THOUGHT * tokens)


def ask(model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None) -> bytes:
    """One user's item and its instructions; nothing of it is kept."""
    output_key, tokens = limit
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt.user}]}
    body: dict[str, object] = {"model": model, "instructions": prompt.system, "input": [said], output_key: tokens}
    body["store"] = False
    if temperature is not None:
        body["temperature"] = temperature
    return msgspec.json.encode(body)


def continuation(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    """The tools stay, since they are part of the prompt; they are not to be called. So does `prompt_cache_key`, which
    leads to where the cache is: only the question is news there. A schema stands before the instructions, so that what
    was asked for with one is not in the cache without."""
    if not is_harmless(body, _is_clients) or _goes_on(body):
        return None
    if text_at(fields["text"], ("format", "type")) not in (None, "text"):
        return None
    output_key, tokens = limit
    changed: dict[str, object] = {output_key: tokens, "store": False}
    if has_tools(body):
        changed["tool_choice"] = "none"
    if temperature is not None:
        changed["temperature"] = temperature
    return with_fields(body, changed, without=left_behind(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    match tool.get("type"):
        case "namespace":
            inner = tool.get("tools")
            return isinstance(inner, list) and all(isinstance(one, dict) and _is_clients(one) for one in inner)
        case "shell":
            place = tool.get("environment")
            return isinstance(place, dict) and place.get("type") == "local"
        case str(kind):
            return kind in _CLIENT_TOOLS
        case _:
            return False


def _goes_on(body: bytes) -> bool:
    """Whether an item has the provider go on with something of its own."""
    items = members_of(body)["input"].partition(b":")[2].strip()
    decoded = msgspec.json.decode(readable(items))
    return isinstance(decoded, list) and any(kind_of(item) in _ACTS for item in decoded if isinstance(item, dict))


def read(body: bytes) -> SummaryAnswer | None:
    answer = response(body)
    if answer is None or answer.output is None:
        return None
    calls = any(str(item.get("type")).endswith("_call") for item in answer.output)
    billed = usage([body])
    tokens = billed.tokens if billed else None
    return SummaryAnswer(text_of(answer.output), answer.reason, calls, tokens)
