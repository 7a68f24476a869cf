"""The proxy's own Responses requests: a prompt to a summarizer, and a client's conversation with an added question."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.json_array import members_of, text_at, with_fields
from proxy.dialects.responses.answers import response, text_of, usage
from proxy.dialects.responses.kinds import kind_of
from proxy.dialects.riding import Json, disallowed_fields, has_tools, is_harmless
from proxy.dialects.surrogates import readable

OUTPUT_KEY = "max_output_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ()
_LEAST = 16
# Reasoning counts as output tokens.
_THOUGHT = 4
# Fields of a client's request that are sent with the proxy's question: the prompt, reasoning, sampling, and cache
# routing.
ALLOWED = frozenset(
    {
        *("model", "instructions", "input", "tools", "tool_choice", "max_output_tokens", "store", "prompt_cache_key"),
        *("temperature", "top_p", "reasoning", "text"),
    }
)
_CLIENT_TOOLS = frozenset({"function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer"})
# Items that let a provider continue an action: approvals, stored items, and its own tools.
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
    """Return the tokens of the text and of the reasoning before it."""
    return max(_LEAST, _THOUGHT * tokens)


def ask(model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None) -> bytes:
    """Return a request with instructions and one user message. The provider stores nothing."""
    output_key, tokens = limit
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt.user}]}
    body: dict[str, object] = {"model": model, "instructions": prompt.system, "input": [message], output_key: tokens}
    body["store"] = False
    if temperature is not None:
        body["temperature"] = temperature
    return msgspec.json.encode(body)


def continuation(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    """Return the client's request with the added question; None if it cannot be one.

    The tools stay, since they are part of the prompt, but may not be called. `prompt_cache_key` stays too: it leads to
    the cache, and only the question is new. A schema comes before the instructions, so a prompt that was cached with
    one is not found without it.
    """
    if not is_harmless(body, _is_clients) or _continues_action(body):
        return None
    if text_at(fields["text"], ("format", "type")) not in (None, "text"):
        return None
    output_key, tokens = limit
    changed: dict[str, object] = {output_key: tokens, "store": False}
    if has_tools(body):
        changed["tool_choice"] = "none"
    if temperature is not None:
        changed["temperature"] = temperature
    return with_fields(body, changed, without=disallowed_fields(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    match tool.get("type"):
        case "namespace":
            inner = tool.get("tools")
            return isinstance(inner, list) and all(
                isinstance(inner_tool, dict) and _is_clients(inner_tool) for inner_tool in inner
            )
        case "shell":
            environment = tool.get("environment")
            return isinstance(environment, dict) and environment.get("type") == "local"
        case str(kind):
            return kind in _CLIENT_TOOLS
        case _:
            return False


def _continues_action(body: bytes) -> bool:
    """Return True if an item lets the provider continue an action."""
    items = members_of(body)["input"].partition(b":")[2].strip()
    decoded = msgspec.json.decode(readable(items))
    return isinstance(decoded, list) and any(kind_of(item) in _ACTS for item in decoded if isinstance(item, dict))


def read(body: bytes) -> SummaryAnswer | None:
    """Return the summary in the response; None if it has no output."""
    answer = response(body)
    if answer is None or answer.output is None:
        return None
    calls = any(str(item.get("type")).endswith("_call") for item in answer.output)
    billed = usage([body])
    tokens = billed.tokens if billed else None
    return SummaryAnswer(text_of(answer.output), answer.reason, calls, tokens)
