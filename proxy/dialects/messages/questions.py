"""The proxy's own Messages requests: a prompt to a summarizer, and a client's conversation with an added question."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.cache_marks import has_room_for_mark, marks_in, with_cache_mark
from proxy.dialects.json_array import members_of, scalar, split_items, text_at, with_fields
from proxy.dialects.messages.answers import parse_answer, usage
from proxy.dialects.messages.kinds import is_call, text_of
from proxy.dialects.messages.requests import thinking_of
from proxy.dialects.riding import Json, disallowed_fields, has_tools, is_harmless
from proxy.dialects.surrogates import readable

OUTPUT_KEY = "max_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ((b"anthropic-version", b"2023-06-01"),)
# Thinking counts as output tokens.
_LEAST_ROOM, _ROOM = 4_096, 4
# Fields of a client's request that are sent with the proxy's question: the prompt, thinking, and cache routing.
ALLOWED = frozenset(
    {
        *("model", "system", "messages", "tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k"),
        *("thinking", "output_config", "cache_control", "prompt_cache_key"),
    }
)
# Tools that Anthropic defines and the client runs. Versions are listed in full, since the next may run elsewhere.
_CLIENT_TOOLS = frozenset(
    {
        *(None, "custom", "bash_20241022", "bash_20250124", "memory_20250818"),
        *("text_editor_20241022", "text_editor_20250124", "text_editor_20250429", "text_editor_20250728"),
        *("computer_20241022", "computer_20250124", "computer_20251124"),
    }
)
_FORCED = ("any", "tool")
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


def room(tokens: int) -> int:
    """Return the tokens of the text and of the thinking before it."""
    return max(_LEAST_ROOM, _ROOM * tokens)


def ask(model: str, prompt: Prompt, limit: tuple[str, int], _temperature: float | None) -> bytes:
    """Return a request with instructions and one user message. Some models reject fields for sampling or thinking."""
    output_key, tokens = limit
    messages = [{"role": "user", "content": prompt.user}]
    return msgspec.json.encode({"model": model, "system": prompt.system, "messages": messages, output_key: tokens})


def continuation(
    body: bytes, fields: Fields, limit: tuple[str, int], _temperature: float | None = None
) -> bytes | None:
    """Return the client's request with the added question; None if it cannot be one.

    The client runs all tools, which stay. A call of one ends with the proxy. If the client sets cache marks, its tool
    choice stays too: for another choice or response format Claude reads all messages anew. None if the response may not
    be text: a plain request is sent then.
    """
    if not is_harmless(body, _is_clients):
        return None
    config = members_of(bytes(fields["output_config"])) if bytes(fields["output_config"]).startswith(b"{") else {}
    if fields["output_format"] or "format" in config or text_at(fields["tool_choice"], ("type",)) in _FORCED:
        return None
    output_key, tokens = limit
    changed: dict[str, object] = {output_key: _limit(fields, tokens)}
    changed["messages"] = msgspec.Raw(_with_question_marked(body, fields))
    if has_tools(body) and not marks_in(body):
        changed["tool_choice"] = {"type": "none"}
    if config.pop("task_budget", None) is not None:
        changed["output_config"] = msgspec.Raw(b"{" + b",".join(config.values()) + b"}")
    return with_fields(body, changed, without=disallowed_fields(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    kind = tool.get("type")
    return (kind is None or isinstance(kind, str)) and kind in _CLIENT_TOOLS and isinstance(tool.get("name"), str)


def _limit(fields: Fields, tokens: int) -> int:
    """Return the limit for thinking and a text, within the client's own limit if the model may reject more."""
    most = scalar(fields[OUTPUT_KEY])
    if not (budget := thinking_of(fields).budget):
        return tokens
    return max(tokens, budget + 1, min(budget + tokens, most if isinstance(most, int) else 0))


def _with_question_marked(body: bytes, fields: Fields) -> bytes:
    """Return the messages with a cache mark on the last one, the question.

    Instructions right before it may only precede a response, so they are moved into it, before its text. The cache is
    looked up from the mark, since the client's own marks may be on items that were left out. The tokens written up to
    there are never read. They are at most those between the client's last mark before the cut and the cut.
    """
    *messages, question = split_items(members_of(body)["messages"].partition(b":")[2].strip()[1:-1])
    end = len(messages)
    while end and text_at(msgspec.Raw(readable(messages[end - 1])), ("role",)) == "system":
        end -= 1
    trailing = messages[end:]
    if trailing:
        question = _prepend_texts([text for message in trailing for text in _texts_of(message)], question)
    if not fields["cache_control"] and has_room_for_mark(body):
        question = with_cache_mark(question)
    return b"[" + b",".join([*messages[:end], question]) + b"]"


def _texts_of(message: bytes) -> list[str]:
    content = msgspec.json.decode(readable(message)).get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [text_of(block) for block in blocks if isinstance(block, dict)]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _prepend_texts(texts: Sequence[str], question: bytes) -> bytes:
    """Return the question with other texts before its own."""
    decoded = msgspec.json.decode(question)
    content = decoded["content"]
    question_blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return msgspec.json.encode(
        {**decoded, "content": [*({"type": "text", "text": text} for text in texts), *question_blocks]}
    )


def read(body: bytes) -> SummaryAnswer | None:
    """Return the summary in the texts of the response; None if it has no content."""
    answer = parse_answer(body)
    if answer is None or answer.content is None:
        return None
    text = "".join(text_of(block) or "" for block in answer.content)
    billed = usage([body])
    tokens = billed.tokens if billed else None
    reason = answer.stop_reason and _REASONS.get(answer.stop_reason, answer.stop_reason)
    return SummaryAnswer(text, reason, any(map(is_call, answer.content)) or reason == "tool_use", tokens)
