"""Chat completions of ours: a prompt to a summarizer, and a client's own conversation with a question at its end."""

from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import SummaryAnswer
from proxy.dialects.base import Fields
from proxy.dialects.cache_marks import marks_in, takes_another, with_cache_mark
from proxy.dialects.chat.answers import completion, usage
from proxy.dialects.json_array import members_of, scalar, split_items, text_at, with_fields
from proxy.dialects.riding import Json, has_tools, is_harmless, left_behind

OUTPUT_KEY = "max_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ()
# What of a client's request goes with a question of ours: the prompt, how it is thought about and sampled, and the way
# to its cache. Nothing else does: a field may have the provider search, or keep what it reads.
ALLOWED = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "prompt_cache_key"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "reasoning", "reasoning_effort", "verbosity", "thinking", "enable_thinking"),
        *("chat_template_kwargs", "cache_control"),
    }
)


def room(tokens: int) -> int:
    """What the limit of an answer counts is the answer."""
    return tokens


def ask(model: str, prompt: Prompt, limit: tuple[str, int], temperature: float | None) -> bytes:
    """A conversation of one message and its instructions."""
    output_key, tokens = limit
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    body: dict[str, object] = {"model": model, "messages": messages, output_key: tokens}
    if temperature is not None:
        body["temperature"] = temperature
    return msgspec.json.encode(body)


def continuation(body: bytes, fields: Fields, limit: tuple[str, int], temperature: float | None = None) -> bytes | None:
    """The tools stay, since they are part of the prompt; they are not to be called, and the client runs them.

    So does `prompt_cache_key`, which leads to where the cache is: only the question is news there. A schema stands
    before the instructions, so that what was asked for with one is not in the cache without.
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
    if marks_in(body):  # of Claude, which reads all messages anew for another choice
        if scalar(fields["tool_choice"]) not in (None, "auto", "none"):
            return None
        changed["messages"] = msgspec.Raw(_with_question_marked(body))
    elif has_tools(body):
        changed["tool_choice"] = "none"
    return with_fields(body, changed, without=left_behind(body, ALLOWED))


def _is_clients(tool: Json) -> bool:
    return tool.get("type") in ("function", "custom") and isinstance(tool.get(str(tool["type"])), dict)


def _with_question_marked(body: bytes) -> bytes:
    """The messages, of which the last is the question, from which the cache is looked for."""
    *messages, question = split_items(members_of(body)["messages"].partition(b":")[2].strip()[1:-1])
    return b"[" + b",".join([*messages, with_cache_mark(question) if takes_another(body) else question]) + b"]"


def read(body: bytes) -> SummaryAnswer | None:
    """The first choice, whole."""
    answer = completion(body)
    choice = answer.choices[0] if answer and answer.choices else None
    if choice is None or choice.message is None:
        return None
    content = choice.message.get("content")
    text = content if isinstance(content, str) else ""
    billed = usage([body])
    tokens = billed.tokens if billed else None
    return SummaryAnswer(text, choice.finish_reason, bool(choice.message.get("tool_calls")), tokens)
