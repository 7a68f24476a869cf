"""Answers: whole, and the elements of the array that a stream is."""

from collections.abc import Iterable

import msgspec

from proxy.dialects.base import Ending, StreamForm, Usage
from proxy.dialects.counted import Tokens

ANSWER_KEY = b'"candidates"'
USAGE_KEY = b'"usageMetadata"'
STREAM: StreamForm = "array"
WAITING = b""
KEEPALIVE = b""
TOO_LONG = "The input token count ({tokens}) exceeds the maximum number of tokens allowed ({limit})."
TOO_LONG_FOR_IT = "The input token count exceeds the maximum number of tokens allowed."
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class _Content(msgspec.Struct):
    parts: list[dict[str, object]] = []


class _Candidate(msgspec.Struct):
    content: _Content | None = None
    reason: str | None = msgspec.field(name="finishReason", default=None)

    @property
    def parts(self) -> list[dict[str, object]]:
        return self.content.parts if self.content else []


class _Billed(msgspec.Struct):
    prompt: Tokens = msgspec.field(name="promptTokenCount")
    completion: Tokens = msgspec.field(name="candidatesTokenCount", default=0)
    cached: Tokens | None = msgspec.field(name="cachedContentTokenCount", default=None)
    thoughts: Tokens | None = msgspec.field(name="thoughtsTokenCount", default=None)


class Element(msgspec.Struct):
    """A whole answer, or one element of a stream."""

    candidates: list[_Candidate] = []
    billed: _Billed | None = msgspec.field(name="usageMetadata", default=None)
    error: object = None

    @property
    def parts(self) -> list[dict[str, object]]:
        return self.candidates[0].parts if self.candidates else []

    @property
    def reason(self) -> str | None:
        return self.candidates[0].reason if self.candidates else None


_decode = msgspec.json.Decoder(list[Element] | Element).decode


def elements(data: bytes) -> list[Element]:
    """Of a whole answer, an element, or an array of them, oldest first; empty for anything else."""
    try:
        read = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []
    return read if isinstance(read, list) else [read]


def has_content(data: bytes) -> bool:
    return any(
        each.error or each.reason or any(value for part in each.parts for value in part.values())
        for each in elements(data)
    )


def ending(data: bytes) -> Ending | None:
    read = elements(data)
    if not read:
        return None
    billed = next((each.billed for each in reversed(read) if each.billed), None)
    return Ending(
        read[-1].reason,
        billed.prompt if billed else None,
        billed.completion if billed else None,
        is_empty=not any(value for each in read for part in each.parts for value in part.values()),
    )


def is_last(data: bytes) -> bool:
    read = elements(data)
    return bool(read) and read[-1].reason is not None


def usage(newest_first: Iterable[bytes]) -> Usage | None:
    for data in newest_first:
        for each in reversed(elements(data)):
            if (told := each.billed) is not None:
                return Usage(told.prompt, told.completion, told.cached, reasoning=told.thoughts)
    return None


def is_usage_alone(_: bytes) -> bool:
    """It is told without being asked for."""
    return False


def error_body(error: object, status: int) -> bytes:
    fields = error if isinstance(error, dict) else {"message": str(error)}
    told = {"code": status, "message": fields.get("message", ""), "status": _STATUSES.get(status, "INTERNAL")}
    return msgspec.json.encode({"error": told})


def error_event(_: object, _status: int, *, ends: bool) -> bytes:
    """No array is begun by us, and none goes on with what is ours."""
    return b""
