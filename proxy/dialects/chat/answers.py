"""Chat responses: completions, stream events, errors and keep-alives."""

from collections.abc import Iterable, Mapping

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import CacheWrites, ReadTokens, Thought, Tokens
from proxy.dialects.texts import has_any_content

ANSWER_KEY = b'"choices"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
# One newline: after an empty line some SDKs parse the text before it as an event (openai-python#2722).
WAITING = b": waiting\n"
KEEPALIVE = b""
TOO_LONG = (
    "This model's maximum context length is {limit} tokens."
    " However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
)
TOO_LONG_FOR_IT = "Your messages exceed this model's maximum context length. Please reduce the length of the messages."
# Events that only announce a response, from servers that send another dialect's events.
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued", "message_start", "ping"})


class _Choice(msgspec.Struct):
    message: dict[str, object] | None = None
    delta: dict[str, object] | None = None
    text: str | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """A response or one of its events. The fields from `type` on are from servers with their own formats."""

    choices: list[_Choice] | None = None
    usage: object = None
    error: object = None
    type: str | None = None
    content: object = None
    tool_calls: object = None
    reasoning_content: object = None
    text: object = None
    stop_reason: str | None = None
    delta: dict[str, object] | None = None


class _ChatUsage(msgspec.Struct):
    """A usage in OpenAI's form. Some gateways exclude the cached part of a prompt, as Anthropic does."""

    prompt_tokens: Tokens
    completion_tokens: Tokens
    prompt_tokens_details: ReadTokens | None = None
    completion_tokens_details: Thought | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: CacheWrites | None = None

    @property
    def usage(self) -> Usage:
        details, writes, answer = self.prompt_tokens_details, self.cache_creation, self.completion_tokens_details
        read = _larger(details.cached_tokens if details else None, self.cache_read_input_tokens)
        written = _larger(details.cache_write_tokens if details else None, self.cache_creation_input_tokens)
        long = writes.ephemeral_1h_input_tokens if writes else None
        thought = answer.reasoning_tokens if answer else None
        cached = (read or 0) + (written or 0)
        left_out = cached if cached > self.prompt_tokens else 0
        return Usage(self.prompt_tokens + left_out, self.completion_tokens, read, written, long, thought)


class _ReportedUsage(msgspec.Struct):
    usage: _ChatUsage | None = None


class _OptionalCounts(msgspec.Struct):
    """Counts under the names of all dialects. Any of them may be missing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def _larger(count: int | None, other_count: int | None) -> int | None:
    """Return the larger of two counts of the same tokens; None if both are missing."""
    if count is None or other_count is None:
        return other_count if count is None else count
    return max(count, other_count)


_decode = msgspec.json.Decoder(Completion).decode
_decode_usage = msgspec.json.Decoder(_ReportedUsage).decode


def completion(data: bytes) -> Completion | None:
    """Return the parsed completion or event; None if it is not one."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def has_content(data: bytes) -> bool:
    """Return True if an event has content. An unreadable event may have any."""
    if not data:
        return False
    event = completion(data)
    if event is None:
        return has_any_content(data)
    if event.error is not None:
        return True
    if event.choices is None:
        return event.type not in _ANNOUNCEMENTS and has_any_content(data)
    return any(map(_has_content, event.choices))


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta or {}
    return bool(choice.text or choice.finish_reason or any(value for key, value in delta.items() if key != "role"))


def ending(data: bytes) -> Ending | None:
    """Return the end of a response, in the format of chat or Messages. Some servers use their own on every path."""
    answer = completion(data)
    if answer is None:
        return None
    try:
        counts = msgspec.convert(answer.usage or {}, _OptionalCounts)
    except msgspec.ValidationError:
        return None
    choice = answer.choices[0] if answer.choices else _Choice()
    delta_reason = answer.delta.get("stop_reason") if answer.delta else None
    return Ending(
        choice.finish_reason or answer.stop_reason or (delta_reason if isinstance(delta_reason, str) else None),
        counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens,
        counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens,
        is_empty=not (
            (choice.message and _has_text(choice.message))
            or (choice.delta and _has_text(choice.delta))
            or (answer.content or answer.tool_calls or answer.reasoning_content or answer.text)
        ),
    )


def _has_text(message: Mapping[str, object]) -> bool:
    return bool(
        message.get("content") or message.get("tool_calls") or message.get("reasoning_content") or message.get("text")
    )


def is_last(data: bytes) -> bool:
    """Return True for `[DONE]` and for an event with a finish reason. Only usage may follow it."""
    answer = completion(data)
    return data == b"[DONE]" or (answer is not None and bool(answer.choices and answer.choices[0].finish_reason))


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """Return the newest reported usage. Some upstreams send `"usage": null` with all other events."""
    for data in newest_first:
        try:
            reported = _decode_usage(data).usage
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if reported is not None:
            return reported.usage
    return None


def is_usage_alone(data: bytes) -> bool:
    """Return True if an event has usage and no choices."""
    event = completion(data)
    return event is not None and event.choices == [] and event.usage is not None


def error_body(error: object, _status: int) -> bytes:
    """Return an error as OpenAI writes it (platform.openai.com/docs/guides/error-codes)."""
    return msgspec.json.encode({"error": error})


def error_event(error: object, status: int, *, ends: bool) -> bytes:
    """Return an error in a stream, in the form that clients recognize."""
    return b"data: " + error_body(error, status) + b"\n\n" + (b"data: [DONE]\n\n" if ends else b"")
