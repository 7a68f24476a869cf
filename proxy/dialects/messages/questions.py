"""Messages of ours: a prompt to a summarizer, and a client's own conversation with a question at its end."""

import re
from collections.abc import Sequence

import msgspec

from policies.record.prompting import Prompt
from policies.record.validation import Answer
from proxy.dialects.base import Fields
from proxy.dialects.json_array import members_of, scalar, split, text_at, with_fields
from proxy.dialects.messages.answers import answered, usage
from proxy.dialects.messages.kinds import is_call, text_of
from proxy.dialects.messages.requests import thinking_of
from proxy.dialects.surrogates import readable

OUTPUT_KEY = "max_tokens"
HEADERS: Sequence[tuple[bytes, bytes]] = ((b"anthropic-version", b"2023-06-01"),)
# What a model may think before it answers counts as its answer.
_LEAST_ROOM, _ROOM = 4_096, 4
# What of a client's request does not go with a question of ours.
_NOT_OURS = ("stream", "stop_sequences", "metadata", "output_format", "diagnostics")
# Nor of how its answer is to look, beside what it costs.
_OF_THE_ANSWER = ("format", "task_budget")
_MARK = {"cache_control": {"type": "ephemeral"}}
_marks = re.compile(rb'"cache_control"\s*:\s*\{').findall
_MOST_MARKS = 4
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


def room(tokens: int) -> int:
    return max(_LEAST_ROOM, _ROOM * tokens)


def ask(model: str, prompt: Prompt, limit: tuple[str, int], _temperature: float | None) -> bytes:
    """No sampling and no thinking is asked for: some models refuse either."""
    output_key, tokens = limit
    messages = [{"role": "user", "content": prompt.user}]
    return msgspec.json.encode({"model": model, "system": prompt.system, "messages": messages, output_key: tokens})


def continued(body: bytes, fields: Fields, limit: tuple[str, int]) -> bytes:
    """The tools stay, since they are part of the prompt; they are not to be called."""
    output_key, tokens = limit
    changed = {output_key: _limit(fields, tokens), "messages": msgspec.Raw(_questioned(body, fields))}
    if fields["tools"]:
        changed["tool_choice"] = {"type": "none"}
    if (config := bytes(fields["output_config"])).startswith(b"{"):
        kept = [member for key, member in members_of(config).items() if key not in _OF_THE_ANSWER]
        changed["output_config"] = msgspec.Raw(b"{" + b",".join(kept) + b"}")
    return with_fields(body, changed, without=_NOT_OURS)


def _limit(fields: Fields, tokens: int) -> int:
    """Room for a thought and an answer, as far as the client's own limit shows that the model takes it."""
    most = scalar(fields[OUTPUT_KEY])
    if not (budget := thinking_of(fields).budget):
        return tokens
    return max(tokens, budget + 1, min(budget + tokens, most if isinstance(most, int) else 0))


def _questioned(body: bytes, fields: Fields) -> bytes:
    """The messages, of which the last is the question: before instructions, which only an answer may follow."""
    *messages, question = split(members_of(body)["messages"].partition(b":")[2].strip()[1:-1])
    end = len(messages)
    while end and text_at(msgspec.Raw(readable(messages[end - 1])), ("role",)) == "system":
        end -= 1
    behind = messages[end:]
    may_mark = not fields["cache_control"] and not any(map(_marks, behind))
    if may_mark and 0 < len(_marks(body)) < _MOST_MARKS:
        message = msgspec.json.decode(question)
        message["content"][-1] |= _MARK
        question = msgspec.json.encode(message)
    return b"[" + b",".join([*messages[:end], question, *behind]) + b"]"


def read(body: bytes) -> Answer | None:
    """Its texts, whatever was thought before them."""
    answer = answered(body)
    if answer is None or answer.content is None:
        return None
    text = "".join(text_of(block) or "" for block in answer.content)
    billed = usage([body])
    tokens = (billed.prompt_tokens, billed.completion_tokens) if billed else None
    reason = answer.stop_reason and _REASONS.get(answer.stop_reason, answer.stop_reason)
    return Answer(text, reason, any(map(is_call, answer.content)) or reason == "tool_use", tokens)
