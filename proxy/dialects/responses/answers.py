"""Answers of the Responses API: objects and the events of their streams, and how errors and waiting look there."""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import ReadTokens, Thought, Tokens
from proxy.dialects.texts import speaks

# Every object has it near its beginning, beside `"error": null`.
ANSWER_KEY = b'"created_at"'
USAGE_KEY = b'"usage"'
STREAM: StreamForm = "events"
WAITING = b": waiting\n"
# As OpenAI's own, which helpers of its SDKs take between events.
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive","sequence_number":0}\n\n'
TOO_LONG_FOR_IT = "Your input exceeds the context window of this model. Please adjust your input and try again."
TOO_LONG = f"{TOO_LONG_FOR_IT} It has {{tokens}} tokens; the limit is {{limit}}."
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued", "ping", "keepalive"})
# These too, where what they announce is empty.
_BEGINNINGS = {
    "response.output_item.added": "item",
    "response.content_part.added": "part",
    "response.reasoning_summary_part.added": "part",
}
# Whatever else stands in them: an answer's end, parts of it that are finished, and a provider's own tools at work.
_SPOKEN = re.compile(r"error|response\.(?:completed|failed|incomplete|[\w.]+\.done|\w+_call(?:_\w+)?\.\w+)")
_EMPTY = frozenset({"message", "reasoning"})
_SAYS = ("content", "summary", "text", "refusal")
# In chat's words, which are those that the reader of a full window knows.
_REASONS = {"completed": "stop", "max_output_tokens": "length"}
_FAILED_ID = "resp_0"


class _ResponsesUsage(msgspec.Struct):
    """Input tokens count those that were cached."""

    input_tokens: Tokens
    output_tokens: Tokens
    input_tokens_details: ReadTokens | None = None
    output_tokens_details: Thought | None = None


class _Why(msgspec.Struct):
    reason: str | None = None


class Response(msgspec.Struct):
    """A whole answer."""

    output: list[dict[str, object]] | None = None
    status: str | None = None
    incomplete_details: _Why | None = None
    usage: _ResponsesUsage | None = None

    @property
    def reason(self) -> str | None:
        """Why it ended."""
        why = self.incomplete_details.reason if self.incomplete_details else None
        reason = why or self.status
        return _REASONS.get(reason, reason) if reason else None


class _Event(msgspec.Struct):
    """An event, as far as it is read for what it says."""

    type: str | None = None
    item: dict[str, object] | None = None
    part: dict[str, object] | None = None


class _Ended(Response):
    """An answer, or the event that ends one with it."""

    response: Response | None = None


class _Metered(msgspec.Struct):
    usage: _ResponsesUsage | None = None


class _ReportedEvent(_Metered):
    """An answer or an event, as far as it is read for its usage."""

    response: _Metered | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_ended = msgspec.json.Decoder(_Ended).decode
_decode_usage = msgspec.json.Decoder(_ReportedEvent).decode
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def response(data: bytes) -> Response | None:
    """An answer, or what the last event of a stream holds; None for what is none."""
    try:
        ended = _decode_ended(data)
    except _UNREADABLE:
        return None
    found = ended.response or ended
    return found if found.output is not None else None


def says_something(data: bytes) -> bool:
    """What cannot be read may be anything."""
    if not data:
        return False
    try:
        event = _decode_event(data)
    except _UNREADABLE:
        return speaks(data)
    if event.type in _BEGINNINGS:
        begun = event.item if _BEGINNINGS[event.type] == "item" else event.part
        return begun is None or _says(begun)
    if event.type in _ANNOUNCEMENTS:
        return False
    return (event.type is not None and _SPOKEN.fullmatch(event.type) is not None) or speaks(data)


def _says(begun: Mapping[str, object]) -> bool:
    """A call is something without any argument yet."""
    kind = begun.get("type")
    is_call = isinstance(kind, str) and kind.endswith("_call")
    return is_call or any(begun.get(key) for key in _SAYS)


def ending(data: bytes) -> Ending | None:
    answer = response(data)
    if answer is None or answer.status in (None, "in_progress", "queued"):
        return None
    return Ending(
        answer.reason,
        answer.usage.input_tokens if answer.usage else None,
        answer.usage.output_tokens if answer.usage else None,
        said_nothing=not any(map(_is_said, answer.output or ())),
    )


def is_last(data: bytes) -> bool:
    """`response.completed`, `.incomplete`, `.failed`: each holds the response in its last state."""
    answer = response(data)
    return answer is not None and answer.status not in (None, "in_progress", "queued")


def _is_said(item: Mapping[str, object]) -> bool:
    """Whether an item is more than an empty message, or a thought."""
    kind = item.get("type")
    return bool(text_of([item])) if kind == "message" else kind != "reasoning"


def text_of(output: Sequence[Mapping[str, object]]) -> str:
    """What the messages of an answer say."""
    contents = (item.get("content") for item in output if item.get("type") == "message")
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    texts = (part.get("text", part.get("refusal")) for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    """Of the event that ends a stream; those before it have null for it."""
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
    """Usage comes with the answer."""
    return False


def error_body(error: object, _status: int) -> bytes:
    """As OpenAI writes it (platform.openai.com/docs/guides/error-codes)."""
    return msgspec.json.encode({"error": error})


def error_event(error: object, _status: int, *, ends: bool) -> bytes:
    """Twice the same: the documented event has the fields beside its type, and SDKs raise where they stand in `error`.

    Some clients wait for one of the events that end an answer. There is no `[DONE]`.
    """
    said = error if isinstance(error, Mapping) else {"message": str(error)}
    code = said.get("code") or said.get("type")
    fields = {"code": None if code is None else str(code), "message": said.get("message") or "", "param": None}
    event = event_of("error", {**fields, "param": said.get("param"), "sequence_number": 0, "error": error})
    return event + _failed_response(fields) if ends else event


def _failed_response(fields: Mapping[str, object]) -> bytes:
    error = {"code": fields["code"] or "server_error", "message": fields["message"]}
    answer = {"id": _FAILED_ID, "object": "response", "created_at": 0, "status": "failed", "error": error}
    return event_of("response.failed", {"sequence_number": 1, "response": {**answer, "output": [], "usage": None}})


def event_of(name: str, fields: Mapping[str, object]) -> bytes:
    """One of a stream, by its type."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))
