"""Requests of ours: a prompt to a summarizer, and a client's own conversation with a question at its end."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import Answer
from proxy.dialects.base import Fields
from proxy.dialects.json_array import text_at, with_fields
from proxy.dialects.responses.answers import response, text_of

OUTPUT_KEY = "max_output_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ()
_LEAST = 16
# Thought counts as output.
_THOUGHT = 4
# What of a client's request does not go with a question of ours: how the answer comes, and what is kept of it.
_NOT_OURS = (
    *("stream", "stream_options", "background", "previous_response_id", "conversation", "include"),
    *("context_management", "truncation", "max_tool_calls", "top_logprobs"),
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


def continued(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    """The tools stay, since they are part of the prompt; they are not to be called. So does `prompt_cache_key`, which
    leads to where the cache is: only the question is news there. A schema stands before the instructions, so that what
    was asked for with one is not in the cache without."""
    if text_at(fields["text"], ("format", "type")) not in (None, "text"):
        return None
    output_key, tokens = limit
    changed: dict[str, object] = {output_key: tokens, "store": False}
    if fields["tools"]:
        changed["tool_choice"] = "none"
    if temperature is not None:
        changed["temperature"] = temperature
    return with_fields(body, changed, without=_NOT_OURS)


def read(body: bytes) -> Answer | None:
    answer = response(body)
    if answer is None or answer.output is None:
        return None
    calls = any(str(item.get("type")).endswith("_call") for item in answer.output)
    tokens = (answer.usage.input_tokens, answer.usage.output_tokens) if answer.usage else None
    return Answer(text_of(answer.output), answer.reason, calls, tokens)
