"""The proxy's own chat requests: a prompt to a summarizer, and a client's conversation with an added question."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.cache_marks import has_room_for_mark, marks_in, with_cache_mark
from proxy.dialects.chat.answers import completion, usage
from proxy.dialects.json_array import members_of, scalar, split_items, text_at, with_fields
from proxy.dialects.riding import Json, disallowed_fields, has_tools, is_harmless

OUTPUT_KEY = "max_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ()
# Fields of a client's request that are sent with the proxy's question: the prompt, thinking, sampling, and cache
# routing. No other field is sent, since one may let the provider search or store data.
ALLOWED = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "prompt_cache_key"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "reasoning", "reasoning_effort", "verbosity", "thinking", "enable_thinking"),
        *("chat_template_kwargs", "cache_control"),
    }
)


def room(tokens: int) -> int:
    """Return the tokens unchanged: the limit counts only the text."""
    return tokens


def ask(model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None) -> bytes:
    """Return a request with instructions and one user message."""
    output_key, tokens = limit
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    body: dict[str, object] = {"model": model, "messages": messages, output_key: tokens}
    if temperature is not None:
        body["temperature"] = temperature
    return msgspec.json.encode(body)


def continuation(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    """Return the client's request with the added question; None if it cannot be one.

    The tools stay, since they are part of the prompt. The model may not call them, and the client runs them.
    `prompt_cache_key` stays too: it leads to the cache, and only the question is new. A schema comes before the
    instructions, so a prompt that was cached with one is not found without it.
    """
    if not is_harmless(body, _is_clients):
        return None
    has_schema = text_at(fields["response_format"], ("type",)) not in (None, "text")
    if has_schema or fields["functions"]:
        return None
    output_key, tokens = limit
    changed: dict[str, object] = {output_key: tokens}
    if temperature is not None:
        changed["temperature"] = temperature
    if marks_in(body):  # Claude's messages, which are read anew if the tool choice changes.
        if scalar(fields["tool_choice"]) not in (None, "auto", "none"):
            return None
        changed["messages"] = msgspec.Raw(_with_question_marked(body))
    elif has_tools(body):
        changed["tool_choice"] = "none"
    return with_fields(body, changed, without=disallowed_fields(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    return tool.get("type") in ("function", "custom") and isinstance(tool.get(str(tool["type"])), dict)


def _with_question_marked(body: bytes) -> bytes:
    """Return the messages with a cache mark on the last one, the question. The cache is looked up from there."""
    *messages, question = split_items(members_of(body)["messages"].partition(b":")[2].strip()[1:-1])
    return b"[" + b",".join([*messages, with_cache_mark(question) if has_room_for_mark(body) else question]) + b"]"


def read(body: bytes) -> SummaryAnswer | None:
    """Return the summary in the first choice; None if the response has none."""
    answer = completion(body)
    choice = answer.choices[0] if answer and answer.choices else None
    if choice is None or choice.message is None:
        return None
    content = choice.message.get("content")
    text = content if isinstance(content, str) else ""
    billed = usage([body])
    tokens = billed.tokens if billed else None
    return SummaryAnswer(text, choice.finish_reason, bool(choice.message.get("tool_calls")), tokens)
