"""Compaction in OpenAI's Responses API: an item of the array, a trigger item, and a threshold.

Sources: developers.openai.com/api/docs/guides/compaction, and the types of openai-python 3.57.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.dialects.compaction import (
    CompactionAnswer,
    CompactionCost,
    CompactionRequest,
    CompactionRequestError,
    HeldCompaction,
    How,
)
from proxy.dialects.responses.answers import event_of
from proxy.dialects.responses.canonical import Json
from proxy.dialects.responses.kinds import COMPACTIONS, TRIGGER, call_id, is_call, is_result, kind_of

FIELDS: Sequence[str] = ("context_management",)
BETAS: Sequence[str] = ()
DROPS_BEFORE = False

_LEAST_THRESHOLD = 1_000
_ANNOUNCEMENTS = frozenset({"response.created", "response.in_progress", "response.queued"})
# Events that the proxy inserts into the stream of a model.
_INSERTED = 2
_UNVERIFIED = "The encrypted content could not be verified. Reason: {reason}."
_reads_entries = msgspec.json.Decoder(list[dict[str, object]]).decode


def parse_request(fields: Mapping[str, msgspec.Raw], items: Mapping[int, object], length: int) -> CompactionRequest:
    """Return the compaction that a request asks for. Raises CompactionRequestError."""
    triggers = [at for at, item in items.items() if is_question(item)]
    for at in triggers:
        if at != length - 1 or len(triggers) > 1:
            raise CompactionRequestError(
                "A compaction trigger must be the final input item.", param=f"input[{triggers[0]}]"
            )
        if length == 1:
            raise CompactionRequestError("There is nothing before the compaction trigger.", param=f"input[{at}]")
    threshold = _threshold(fields["context_management"])
    if triggers:
        return CompactionRequest("trigger")
    return CompactionRequest() if threshold is None else CompactionRequest("threshold", threshold or None)


def _threshold(raw: msgspec.Raw) -> int | None:
    """Return the requested threshold; 0 if the proxy decides, None if no compaction is requested."""
    if not raw or bytes(raw) == b"null":
        return None
    try:
        entries = _reads_entries(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CompactionRequestError("It must be a list of objects.", param="context_management") from None
    threshold: int | None = None
    for at, entry in enumerate(entries):
        path = f"context_management[{at}]"
        if entry.get("type") != "compaction":
            raise CompactionRequestError("Supported values are: 'compaction'.", param=f"{path}.type")
        value = entry.get("compact_threshold")
        if value is None:
            threshold = threshold or 0
        elif not isinstance(value, int) or isinstance(value, bool) or value < _LEAST_THRESHOLD:
            raise CompactionRequestError(
                f"It must be an integer of at least {_LEAST_THRESHOLD}.", param=f"{path}.compact_threshold"
            )
        else:
            threshold = min(threshold or value, value)
    return threshold


def find_compaction(item: object, _raw: bytes) -> HeldCompaction | None:
    """Return the compaction in an item; None for any other item."""
    if not isinstance(item, dict) or kind_of(item) not in COMPACTIONS:
        return None
    return HeldCompaction(item.get("encrypted_content"))


def is_question(item: object) -> bool:
    """Return True if an item is a compaction trigger."""
    return isinstance(item, dict) and kind_of(item) == TRIGGER


def unreadable(position: int, reason: str, _how: How | None) -> CompactionRequestError:
    """Return the error for an item that cannot be opened."""
    return CompactionRequestError(
        _UNVERIFIED.format(reason=reason),
        param=f"input[{position}].encrypted_content",
        code="invalid_encrypted_content",
    )


def malformed_item_error(position: int) -> CompactionRequestError:
    """Return the error for an item without sealed content."""
    return CompactionRequestError(
        "It must be a string that is not empty.", param=f"input[{position}].encrypted_content"
    )


def unfinished_calls_error(items: Sequence[object]) -> CompactionRequestError | None:
    """Return the error for a call without output; None if all calls have one."""
    calls: dict[str, None] = {}
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = kind_of(item)
        if is_call(item, kind):
            calls[call_id(item, kind)] = None
        if is_result(item, kind):
            calls.pop(call_id(item, kind), None)
    for name in calls:
        return CompactionRequestError(f"No tool output found for function call {name}.", param="input")
    return None


def item_of(sealed: str, _text: str, name: str, _how: How | None) -> Json:
    """Return a compaction item of the proxy."""
    return {"id": f"cmp_{name}", "type": "compaction", "encrypted_content": sealed}


def usage_of(spent: CompactionCost) -> Json:
    """Return the usage of a compaction."""
    return {
        "input_tokens": spent.prompt,
        "input_tokens_details": {"cached_tokens": spent.cached},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.prompt + spent.output,
    }


def full_response(answer: CompactionAnswer) -> bytes:
    """Return the response to a trigger."""
    return msgspec.json.encode(_response(answer, "completed", [answer.item]))


def opening(answer: CompactionAnswer) -> Iterator[bytes]:
    """Yield the events that begin the stream, before there is an item."""
    for number, (kind, status) in enumerate((("created", "in_progress"), ("in_progress", "in_progress"))):
        yield _event(f"response.{kind}", number, response=_response(answer, status, []))


def progress(answer: CompactionAnswer) -> bytes:
    """Return the event sent while a model is called."""
    return _event("response.compaction.compacting", 2, item_id=answer.item_id, output_index=0)


def closing(answer: CompactionAnswer, *, has_progress: bool) -> Iterator[bytes]:
    """Yield the events that end the stream. has_progress: True if `progress` was sent before."""
    number = 3 if has_progress else 2
    yield _event("response.output_item.added", number, output_index=0, item=answer.item)
    yield _event("response.output_item.done", number + 1, output_index=0, item=answer.item)
    yield _event("response.completed", number + 2, response=_response(answer, "completed", [answer.item]))


def failing(answer: CompactionAnswer, message: str, *, has_progress: bool) -> bytes:
    """Return the event that ends the stream if no item could be made."""
    error = {"code": "server_error", "message": message}
    return _event(
        "response.failed", 3 if has_progress else 2, response=_response(answer, "failed", []) | {"error": error}
    )


class inserter:  # noqa: N801 - callers use it as a function
    """Inserts the item after the announcements and renumbers later events."""

    def __init__(self, answer: CompactionAnswer) -> None:
        """Create an inserter for this response."""
        self._answer = answer
        self._is_inserted = False
        self._last_number = -1

    def events(self, event: dict[str, object]) -> list[dict[str, object]]:
        """Return the events that replace one event of the model's stream."""
        kind, number = event.get("type"), event.get("sequence_number")
        if not self._is_inserted and kind in _ANNOUNCEMENTS:
            self._last_number = number if isinstance(number, int) else self._last_number + 1
            return [event]
        inserted = [] if self._is_inserted else self._output_items()
        self._is_inserted = True
        return [*inserted, self._renumber(event)]

    def full_response(self, answer: dict[str, object]) -> dict[str, object]:
        """Return the model's response with the item first."""
        output = answer.get("output")
        return {**answer, "output": [self._answer.item, *output]} if isinstance(output, list) else answer

    def _output_items(self) -> list[dict[str, object]]:
        item, start = self._answer.item, self._last_number + 1
        kinds = ("response.output_item.added", "response.output_item.done")
        return [
            {"type": kind, "sequence_number": start + at, "output_index": 0, "item": item}
            for at, kind in enumerate(kinds)
        ]

    def _renumber(self, event: dict[str, object]) -> dict[str, object]:
        changed = dict(event)
        for key, more in (("sequence_number", _INSERTED), ("output_index", 1)):
            if isinstance(number := event.get(key), int):
                changed[key] = number + more
        response = event.get("response")
        return {**changed, "response": self.full_response(response)} if isinstance(response, dict) else changed


def _response(answer: CompactionAnswer, status: str, output: Sequence[Json]) -> dict[str, object]:
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": answer.at,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage_of(answer.spent) if status == "completed" else None,
    }


def _event(kind: str, number: int, **fields: object) -> bytes:
    return event_of(kind, {"sequence_number": number, **fields})
