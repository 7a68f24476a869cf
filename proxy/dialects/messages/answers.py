"""Responses of the Messages API: whole, as stream events, as errors, and keep-alives."""

from collections.abc import Iterable, Mapping

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import CacheWrites, Tokens
from proxy.dialects.messages.kinds import Json
from proxy.dialects.texts import has_any_content

# The role of every response. No error has one.
ANSWER_KEY = b'"assistant"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
WAITING = b'event: ping\ndata: {"type": "ping"}\n\n'
KEEPALIVE = b""
TOO_LONG = "prompt is too long: {tokens} tokens > {limit} maximum"
TOO_LONG_FOR_IT = "prompt is too long"

# By status. All other client errors are invalid requests (platform.claude.com/docs/en/api/errors).
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_INVALID_REQUEST, _API_ERROR = "invalid_request_error", "api_error"
_TYPE_NAMES = frozenset({_INVALID_REQUEST, _API_ERROR, *_TYPES.values()})
_CLIENT_ERRORS, _SERVER_ERRORS = 400, 500


class _PromptCounts(msgspec.Struct):
    """Token counts. Prompt tokens that no cache read or wrote are a separate count."""

    input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_creation: CacheWrites | None = None
    output_tokens: Tokens | None = None


class _Iteration(_PromptCounts):
    type: str | None = None


class _MessagesUsage(_PromptCounts):
    """A usage. iterations: one for each call of the model, if the provider made several."""

    iterations: list[_Iteration] | None = None


class Answered(msgspec.Struct):
    """A whole response, or one of its events. An event has its content under a key of its own."""

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
    """Return the parsed response or event; None if it is not one."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def has_content(data: bytes) -> bool:
    """Return True if an event has content. An unreadable event may have any."""
    if not data:
        return False
    event = parse_answer(data)
    if event is None:
        return has_any_content(data)
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
            return has_any_content(data)


def _holds_something(block: Json) -> bool:
    return any(value for key, value in block.items() if key != "type")


def ending(data: bytes) -> Ending | None:
    """Return the end of a response. The reason is in the response, or in the event that ends it."""
    answer = parse_answer(data)
    counts = _counts(answer.usage) if answer else None
    if answer is None or counts is None:
        return None
    is_last = answer.type == "message_delta"
    delta = answer.delta or {}
    delta_reason = delta.get("stop_reason") if is_last else None
    parts = (*(answer.content or ()), answer.content_block or {}, {} if is_last else delta)
    return Ending(
        answer.stop_reason or (delta_reason if isinstance(delta_reason, str) else None),
        _prompt(counts),
        counts.output_tokens,
        is_empty=not any(map(_holds_something, parts)),
    )


def is_last(data: bytes) -> bool:
    """Return True for the event `message_stop`."""
    answer = parse_answer(data)
    return answer is not None and answer.type == "message_stop"


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """Return the usage of a response. Counts at the end of a stream override those at its beginning."""
    merged = _PromptCounts()
    for data in newest_first:
        event = parse_answer(data)
        counts = _counts(event.usage or (event.message and event.message.usage)) if event else None
        if counts is None:
            return None
        for field in _PromptCounts.__struct_fields__:
            if not getattr(merged, field) and (count := getattr(counts, field)) is not None:
                setattr(merged, field, count)
    prompt = _prompt(merged)
    cached, written = merged.cache_read_input_tokens, merged.cache_creation_input_tokens
    long = (merged.cache_creation or CacheWrites()).ephemeral_1h_input_tokens
    return None if prompt is None else Usage(prompt, merged.output_tokens or 0, cached, written, long)


def _counts(usage: object) -> _PromptCounts | None:
    """Return the counts of the model's last call; None if they are not numbers."""
    try:
        billed = msgspec.convert(usage or {}, _MessagesUsage)
    except msgspec.ValidationError:
        return None
    model_calls = [call for call in billed.iterations or () if call.type != "compaction"]
    return model_calls[-1] if model_calls else billed


def _prompt(counts: _PromptCounts) -> int | None:
    if counts.input_tokens is None:
        return None
    return counts.input_tokens + (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)


def is_usage_alone(_data: bytes) -> bool:
    """Return False: clients need not ask for usage, so no event has only that."""
    return False


def error_body(error: object, status: int) -> bytes:
    """Return an error as Anthropic writes it."""
    inner = error.get("error", error) if isinstance(error, dict) else error
    message = inner.get("message") if isinstance(inner, dict) else inner
    text = message if isinstance(message, str) else msgspec.json.encode(inner).decode()
    described: dict[str, object] = {"type": _type(inner, status), "message": text}
    if isinstance(inner, dict) and isinstance(details := inner.get("details"), dict) and "error_code" in details:
        described["details"] = details
    return msgspec.json.encode({"type": "error", "error": described, "request_id": None})


def _type(error: object, status: int) -> str:
    """Return the type of an error. Within a stream only the error itself shows it."""
    if status >= _CLIENT_ERRORS:
        return _TYPES.get(status, _INVALID_REQUEST if status < _SERVER_ERRORS else _API_ERROR)
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind in _TYPE_NAMES else _API_ERROR


def error_event(error: object, status: int, *, ends: bool) -> bytes:  # noqa: ARG001 - an error ends every stream
    """Return an error in a stream."""
    return b"event: error\ndata: " + error_body(error, status) + b"\n\n"
