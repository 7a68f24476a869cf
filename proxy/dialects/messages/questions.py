"""Messages of ours: a prompt to a summarizer, and a client's own conversation with a question at its end."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.cache_marks import marks_in, takes_another, with_cache_mark
from proxy.dialects.json_array import members_of, scalar, split_items, text_at, with_fields
from proxy.dialects.messages.answers import parse_answer, usage
from proxy.dialects.messages.kinds import is_call, text_of
from proxy.dialects.messages.requests import thinking_of
from proxy.dialects.riding import Json, has_tools, is_harmless, left_behind
from proxy.dialects.surrogates import readable

OUTPUT_KEY = "max_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ((b"anthropic-version", b"2023-06-01"),)
# What a model may think before it answers counts as its answer.
_LEAST_ROOM, _ROOM = 4_096, 4
# What of a client's request goes with a question of ours: the prompt, how it is thought about, and its cache.
ALLOWED = frozenset(
    {
        *("model", "system", "messages", "tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k"),
        *("thinking", "output_config", "cache_control", "prompt_cache_key"),
    }
)
# Tools that Anthropic defines and the client runs; the versions are told in full, since the next may run elsewhere.
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
    return max(_LEAST_ROOM, _ROOM * tokens)


def ask(model: str, prompt: Prompt, limit: tuple[str, int], _temperature: float | None) -> bytes:
    """No sampling and no thinking is asked for: some models refuse either."""
    output_key, tokens = limit
    messages = [{"role": "user", "content": prompt.user}]
    return msgspec.json.encode({"model": model, "system": prompt.system, "messages": messages, output_key: tokens})


def continuation(
    body: bytes, fields: Fields, limit: tuple[str, int], _temperature: float | None = None
) -> bytes | None:
    """The tools stay, all of which the client runs: a call of them ends with us. Where the client sets marks its choice
    of them stays too: Claude's provider reads all messages anew for another, as for another form of the answer. A plain
    question is asked where no text may be answered."""
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
    return with_fields(body, changed, without=left_behind(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    kind = tool.get("type")
    return (kind is None or isinstance(kind, str)) and kind in _CLIENT_TOOLS and isinstance(tool.get("name"), str)


def _limit(fields: Fields, tokens: int) -> int:
    """Room for a thought and an answer, as far as the client's own limit shows that the model takes it."""
    most = scalar(fields[OUTPUT_KEY])
    if not (budget := thinking_of(fields).budget):
        return tokens
    return max(tokens, budget + 1, min(budget + tokens, most if isinstance(most, int) else 0))


def _with_question_marked(body: bytes, fields: Fields) -> bytes:
    """The messages, of which the last is the question. Instructions that end what is before it, behind which only an
    answer may stand, are told in it: the last word is ours.

    The cache is found from a mark on it, where the client's own stand on what is left out. What is written up to there
    is read by nobody, and is no more than what came between the client's last mark before the cut and the cut.
    """
    *messages, question = split_items(members_of(body)["messages"].partition(b":")[2].strip()[1:-1])
    end = len(messages)
    while end and text_at(msgspec.Raw(readable(messages[end - 1])), ("role",)) == "system":
        end -= 1
    behind = messages[end:]
    if behind:
        question = _behind([text for message in behind for text in _texts_of(message)], question)
    if not fields["cache_control"] and takes_another(body):
        question = with_cache_mark(question)
    return b"[" + b",".join([*messages[:end], question]) + b"]"


def _texts_of(message: bytes) -> list[str]:
    content = msgspec.json.decode(readable(message)).get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    found = [text_of(block) for block in blocks if isinstance(block, dict)]
    return [text for text in found if isinstance(text, str) and text.strip()]


def _behind(texts: Sequence[str], question: bytes) -> bytes:
    """The question, a message of ours, with other texts in front of its own."""
    decoded = msgspec.json.decode(question)
    content = decoded["content"]
    own = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return msgspec.json.encode({**decoded, "content": [*({"type": "text", "text": text} for text in texts), *own]})


def read(body: bytes) -> SummaryAnswer | None:
    """Its texts, whatever was thought before them."""
    answer = parse_answer(body)
    if answer is None or answer.content is None:
        return None
    text = "".join(text_of(block) or "" for block in answer.content)
    billed = usage([body])
    tokens = billed.tokens if billed else None
    reason = answer.stop_reason and _REASONS.get(answer.stop_reason, answer.stop_reason)
    return SummaryAnswer(text, reason, any(map(is_call, answer.content)) or reason == "tool_use", tokens)
