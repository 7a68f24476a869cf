"""Chat's answers: completions and the events of their streams, and how errors and waiting look to chat's clients."""

from collections.abc import Iterable, Mapping

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import CacheWrites, ReadTokens, Thought, Tokens
from proxy.dialects.texts import speaks

ANSWER_KEY = b'"choices"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
# One newline: after an empty line some SDKs take what stood before it for an event (openai-python#2722).
WAITING = b": waiting\n"
KEEPALIVE = b""
TOO_LONG = (
    "This model's maximum context length is {limit} tokens."
    " However, your messages resulted in {tokens} tokens. Please reduce the length of the messages."
)
TOO_LONG_FOR_IT = "Your messages exceed this model's maximum context length. Please reduce the length of the messages."
# Events that only announce an answer, where a server speaks another dialect's events.
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued", "message_start", "ping"})


class _Choice(msgspec.Struct):
    message: dict[str, object] | None = None
    delta: dict[str, object] | None = None
    text: str | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """An answer or one of its events; the fields from `type` on are of servers that answer in a form of their own."""

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
    """A usage in OpenAI's form; some gateways leave the cached part of a prompt out, as Anthropic does."""

    prompt_tokens: Tokens
    completion_tokens: Tokens
    prompt_tokens_details: ReadTokens | None = None
    completion_tokens_details: Thought | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: CacheWrites | None = None

    @property
    def usage(self) -> Usage:
        details, taken, answer = self.prompt_tokens_details, self.cache_creation, self.completion_tokens_details
        read = _more(details.cached_tokens if details else None, self.cache_read_input_tokens)
        written = _more(details.cache_write_tokens if details else None, self.cache_creation_input_tokens)
        long = taken.ephemeral_1h_input_tokens if taken else None
        thought = answer.reasoning_tokens if answer else None
        cached = (read or 0) + (written or 0)
        left_out = cached if cached > self.prompt_tokens else 0
        return Usage(self.prompt_tokens + left_out, self.completion_tokens, read, written, long, thought)


class _ReportedUsage(msgspec.Struct):
    usage: _ChatUsage | None = None


class _OptionalCounts(msgspec.Struct):
    """The same where any of it may be missing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def _more(told: int | None, or_told: int | None) -> int | None:
    """What two fields say of the same; None where neither does."""
    if told is None or or_told is None:
        return or_told if told is None else told
    return max(told, or_told)


_decode = msgspec.json.Decoder(Completion).decode
_decode_usage = msgspec.json.Decoder(_ReportedUsage).decode


def completion(data: bytes) -> Completion | None:
    """None for what is none."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def says_something(data: bytes) -> bool:
    """What cannot be read may be anything."""
    if not data:
        return False
    event = completion(data)
    if event is None:
        return speaks(data)
    if event.error is not None:
        return True
    if event.choices is None:
        return event.type not in _ANNOUNCEMENTS and speaks(data)
    return any(map(_has_content, event.choices))


def _has_content(choice: _Choice) -> bool:
    said = choice.delta or {}
    return bool(choice.text or choice.finish_reason or any(value for key, value in said.items() if key != "role"))


def ending(data: bytes) -> Ending | None:
    """As chat and Messages write it: some servers answer in a form of their own on every path."""
    answer = completion(data)
    if answer is None:
        return None
    try:
        counts = msgspec.convert(answer.usage or {}, _OptionalCounts)
    except msgspec.ValidationError:
        return None
    choice = answer.choices[0] if answer.choices else _Choice()
    beside = answer.delta.get("stop_reason") if answer.delta else None
    return Ending(
        choice.finish_reason or answer.stop_reason or (beside if isinstance(beside, str) else None),
        counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens,
        counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens,
        said_nothing=not (
            (choice.message and _says(choice.message))
            or (choice.delta and _says(choice.delta))
            or (answer.content or answer.tool_calls or answer.reasoning_content or answer.text)
        ),
    )


def _says(said: Mapping[str, object]) -> bool:
    return bool(said.get("content") or said.get("tool_calls") or said.get("reasoning_content") or said.get("text"))


def is_last(data: bytes) -> bool:
    """[DONE], or what says why the answer ended: behind it comes usage at most."""
    answer = completion(data)
    return data == b"[DONE]" or (answer is not None and bool(answer.choices and answer.choices[0].finish_reason))


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """The newest that is told; some upstreams send `"usage": null` with all other events."""
    for data in newest_first:
        try:
            reported = _decode_usage(data).usage
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        if reported is not None:
            return reported.usage
    return None


def is_usage_alone(data: bytes) -> bool:
    """It has no choices."""
    event = completion(data)
    return event is not None and event.choices == [] and event.usage is not None


def error_body(error: object, _status: int) -> bytes:
    """As OpenAI writes it (platform.openai.com/docs/guides/error-codes)."""
    return msgspec.json.encode({"error": error})


def error_event(error: object, status: int, *, ends: bool) -> bytes:
    """Clients know an error in a stream by an event like this."""
    return b"data: " + error_body(error, status) + b"\n\n" + (b"data: [DONE]\n\n" if ends else b"")
