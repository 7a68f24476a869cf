"""Responses of the Responses API: objects, stream events, errors and keep-alives."""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import ReadTokens, Thought, Tokens
from proxy.dialects.texts import has_any_content

# Every object has it near its beginning, next to `"error": null`.
ANSWER_KEY = b'"created_at"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
WAITING = b": waiting\n"
# OpenAI's own event, which helpers of its SDKs accept between others.
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'
TOO_LONG_FOR_IT = "Your input exceeds the context window of this model. Please adjust your input and try again."
TOO_LONG = f"{TOO_LONG_FOR_IT} It has {{tokens}} tokens; the limit is {{limit}}."
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued", "ping", "keepalive"})
# Events that announce too, if the announced part is empty.
_PART_EVENTS = {
    "response.output_item.added": "item",
    "response.content_part.added": "part",
    "response.reasoning_summary_part.added": "part",
}
# Events that always have content: the end of a response, finished parts, and a provider's own tools.
_CONTENT_EVENTS = re.compile(r"error|response\.(?:completed|failed|incomplete|[\w.]+\.done|\w+_call(?:_\w+)?\.\w+)")
_CONTENT_KEYS = ("content", "summary", "text", "refusal")
# Chat's finish reasons, which `policies` reads.
_REASONS = {"completed": "stop", "max_output_tokens": "length"}
_FAILED_ID = "resp_0"


class _ResponsesUsage(msgspec.Struct):
    """A usage. Input tokens include cached ones."""

    input_tokens: Tokens
    output_tokens: Tokens
    input_tokens_details: ReadTokens | None = None
    output_tokens_details: Thought | None = None


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class Response(msgspec.Struct):
    """A whole response."""

    output: list[dict[str, object]] | None = None
    status: str | None = None
    incomplete_details: _IncompleteDetails | None = None
    usage: _ResponsesUsage | None = None

    @property
    def reason(self) -> str | None:
        """Return the finish reason, in chat's words."""
        cause = self.incomplete_details.reason if self.incomplete_details else None
        reason = cause or self.status
        return _REASONS.get(reason, reason) if reason else None


class _Event(msgspec.Struct):
    """An event, with the fields that show whether it has content."""

    type: str | None = None
    item: dict[str, object] | None = None
    part: dict[str, object] | None = None


class _FinalEvent(Response):
    """A response, or the event that ends one with it."""

    response: Response | None = None


class _Metered(msgspec.Struct):
    usage: _ResponsesUsage | None = None


class _ReportedEvent(_Metered):
    """A response or an event, with the fields of its usage."""

    response: _Metered | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_final = msgspec.json.Decoder(_FinalEvent).decode
_decode_usage = msgspec.json.Decoder(_ReportedEvent).decode
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def response(data: bytes) -> Response | None:
    """Return a response, or that in the last event of a stream; None if there is none."""
    try:
        ended = _decode_final(data)
    except _UNREADABLE:
        return None
    answer = ended.response or ended
    return answer if answer.output is not None else None


def has_content(data: bytes) -> bool:
    """Return True if an event has content. An unreadable event may have any."""
    if not data:
        return False
    try:
        event = _decode_event(data)
    except _UNREADABLE:
        return has_any_content(data)
    if event.type in _PART_EVENTS:
        announced = event.item if _PART_EVENTS[event.type] == "item" else event.part
        return announced is None or _is_content(announced)
    if event.type in _ANNOUNCEMENTS:
        return False
    return (event.type is not None and _CONTENT_EVENTS.fullmatch(event.type) is not None) or has_any_content(data)


def _is_content(announced: Mapping[str, object]) -> bool:
    """Return True if an announced item has content. A call has, even without arguments yet."""
    kind = announced.get("type")
    is_call = isinstance(kind, str) and kind.endswith("_call")
    return is_call or any(announced.get(key) for key in _CONTENT_KEYS)


def ending(data: bytes) -> Ending | None:
    """Return the end of a response; None for a response in progress."""
    answer = response(data)
    if answer is None or answer.status in (None, "in_progress", "queued"):
        return None
    return Ending(
        answer.reason,
        answer.usage.input_tokens if answer.usage else None,
        answer.usage.output_tokens if answer.usage else None,
        is_empty=not any(map(_is_visible, answer.output or ())),
    )


def is_last(data: bytes) -> bool:
    """Return True for `response.completed`, `.incomplete` and `.failed`, which hold the final response."""
    answer = response(data)
    return answer is not None and answer.status not in (None, "in_progress", "queued")


def _is_visible(item: Mapping[str, object]) -> bool:
    """Return True if an item is neither an empty message nor reasoning."""
    kind = item.get("type")
    return bool(text_of([item])) if kind == "message" else kind != "reasoning"


def text_of(output: Sequence[Mapping[str, object]]) -> str:
    """Return the text of the messages in a response."""
    contents = (item.get("content") for item in output if item.get("type") == "message")
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    texts = (part.get("text", part.get("refusal")) for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """Return the usage of the event that ends a stream. All earlier ones have null."""
    for data in newest_first:
        try:
            reported = _decode_usage(data)
        except _UNREADABLE:
            return None
        billed = reported.usage or (reported.response and reported.response.usage)
        if billed:
            details = billed.input_tokens_details or ReadTokens()
            thought = billed.output_tokens_details or Thought()
            return Usage(
                billed.input_tokens,
                billed.output_tokens,
                details.cached_tokens,
                details.cache_write_tokens,
                reasoning=thought.reasoning_tokens,
            )
    return None


def is_usage_alone(_data: bytes) -> bool:
    """Return False: usage comes with the response."""
    return False


def error_body(error: object, _status: int) -> bytes:
    """Return an error as OpenAI writes it (platform.openai.com/docs/guides/error-codes)."""
    return msgspec.json.encode({"error": error})


def error_event(error: object, _status: int, *, ends: bool) -> bytes:
    """Return an error in a stream, in both forms.

    The documented event has the fields next to its type, but SDKs raise only if they are in `error`. Some clients wait
    for an event that ends a response. There is no `[DONE]`.
    """
    error_fields = error if isinstance(error, Mapping) else {"message": str(error)}
    code = error_fields.get("code") or error_fields.get("type")
    fields = {"code": None if code is None else str(code), "message": error_fields.get("message") or "", "param": None}
    event = event_of("error", {**fields, "param": error_fields.get("param"), "sequence_number": 0, "error": error})
    return event + _failed_response(fields) if ends else event


def _failed_response(fields: Mapping[str, object]) -> bytes:
    error = {"code": fields["code"] or "server_error", "message": fields["message"]}
    answer = {"id": _FAILED_ID, "object": "response", "created_at": 0, "status": "failed", "error": error}
    return event_of("response.failed", {"sequence_number": 1, "response": {**answer, "output": [], "usage": None}})


def event_of(name: str, fields: Mapping[str, object]) -> bytes:
    """Return a stream event of this type."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))
