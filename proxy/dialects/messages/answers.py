"""Answers to messages: whole, and the events of their streams, and how errors and waiting look to their clients."""

from collections.abc import Iterable, Mapping

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import CacheWrites, Tokens
from proxy.dialects.messages.kinds import Json
from proxy.dialects.texts import speaks

# The role of every answer; no error has one.
ANSWER_KEY = b'"assistant"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
WAITING = b'event: ping\ndata: {"type": "ping"}\n\n'
KEEPALIVE = b""
TOO_LONG = "prompt is too long: {tokens} tokens > {limit} maximum"
TOO_LONG_FOR_IT = "prompt is too long"

# By status; other faults of the client are invalid requests too (platform.claude.com/docs/en/api/errors).
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_INVALID, _OTHER = "invalid_request_error", "api_error"
_KNOWN = frozenset({_INVALID, _OTHER, *_TYPES.values()})
_CLIENTS, _SERVERS = 400, 500


class _PromptCounts(msgspec.Struct):
    """Of the prompt, the part that no cache has read or written is counted apart."""

    input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: CacheWrites | None = None
    output_tokens: Tokens | None = None


class _Iteration(_PromptCounts):
    type: str | None = None


class _MessagesUsage(_PromptCounts):
    """What an answer cost; `iterations`: where the provider asked the model several times, each of them."""

    iterations: list[_Iteration] | None = None


class Answered(msgspec.Struct):
    """A whole answer, or one of its events; what an event announces is under a key of its own."""

    type: str | None = None
    content: list[dict[str, object]] | None = None
    stop_reason: str | None = None
    usage: object = None
    error: object = None
    message: "Answered | None" = None
    delta: dict[str, object] | None = None
    content_block: dict[str, object] | None = None


_decode = msgspec.json.Decoder(Answered).decode


def parse_answer(data: bytes) -> Answered | None:
    """None for what is none."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def says_something(data: bytes) -> bool:
    """What cannot be read may be anything."""
    if not data:
        return False
    event = parse_answer(data)
    if event is None:
        return speaks(data)
    if event.error is not None:
        return True
    match event.type:
        case "ping" | "content_block_stop":
            return False
        case "message_start":
            return bool(event.message and event.message.content)
        case "content_block_start":
            return _holds_something(event.content_block or {})
        case "content_block_delta" | "message_delta":
            return _holds_something(event.delta or {})
        case "message_stop" | "error":
            return True
        case _:
            return speaks(data)


def _holds_something(block: Json) -> bool:
    return any(value for key, value in block.items() if key != "type")


def ending(data: bytes) -> Ending | None:
    """Why an answer stopped stands in it, or in the event that ends it."""
    answer = parse_answer(data)
    counts = _counts(answer.usage) if answer else None
    if answer is None or counts is None:
        return None
    is_last = answer.type == "message_delta"
    delta = answer.delta or {}
    beside = delta.get("stop_reason") if is_last else None
    parts = (*(answer.content or ()), answer.content_block or {}, {} if is_last else delta)
    return Ending(
        answer.stop_reason or (beside if isinstance(beside, str) else None),
        _prompt(counts),
        counts.output_tokens,
        said_nothing=not any(map(_holds_something, parts)),
    )


def is_last(data: bytes) -> bool:
    answer = parse_answer(data)
    return answer is not None and answer.type == "message_stop"


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """What the beginning of a stream tells holds as far as its end does not tell it anew."""
    found = _PromptCounts()
    for data in newest_first:
        event = parse_answer(data)
        counts = _counts(event.usage or (event.message and event.message.usage)) if event else None
        if counts is None:
            return None
        for field in _PromptCounts.__struct_fields__:
            if not getattr(found, field) and (told := getattr(counts, field)) is not None:
                setattr(found, field, told)
    prompt = _prompt(found)
    cached, written = found.cache_read_input_tokens, found.cache_creation_input_tokens
    long = (found.cache_creation or CacheWrites()).ephemeral_1h_input_tokens
    return None if prompt is None else Usage(prompt, found.output_tokens or 0, cached, written, long)


def _counts(told: object) -> _PromptCounts | None:
    """Of the model's last turn; None where they are no numbers."""
    try:
        billed = msgspec.convert(told or {}, _MessagesUsage)
    except msgspec.ValidationError:
        return None
    answered = [each for each in billed.iterations or () if each.type != "compaction"]
    return answered[-1] if answered else billed


def _prompt(counts: _PromptCounts) -> int | None:
    if counts.input_tokens is None:
        return None
    return counts.input_tokens + (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)


def is_usage_alone(_data: bytes) -> bool:
    """Nobody has to ask for usage, so no event is for it alone."""
    return False


def error_body(error: object, status: int) -> bytes:
    """As Anthropic writes it."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    message = inner.get("message") if isinstance(inner, dict) else inner
    text = message if isinstance(message, str) else msgspec.json.encode(inner).decode()
    described: dict[str, object] = {"type": _type(inner, status), "message": text}
    if isinstance(inner, dict) and isinstance(details := inner.get("details"), dict) and "error_code" in details:
        described["details"] = details
    return msgspec.json.encode({"type": "error", "error": described, "request_id": None})


def _type(error: object, status: int) -> str:
    """A stream that has begun says by its error alone what kind it is of."""
    if status >= _CLIENTS:
        return _TYPES.get(status, _INVALID if status < _SERVERS else _OTHER)
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind in _KNOWN else _OTHER


def error_event(error: object, status: int, *, ends: bool) -> bytes:  # noqa: ARG001 - an error ends every stream
    return b"event: error\ndata: " + error_body(error, status) + b"\n\n"
