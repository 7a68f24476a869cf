"""Compaction as OpenAI's Responses API has it: an item of the array, a question for one, and a threshold.

developers.openai.com/api/docs/guides/compaction, and the types of openai-python 3.57.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from proxy.dialects.compaction import (
    CompactionAnswer,
    CompactionCost,
    CompactionRequest,
    CompactionRequestError,
    Held,
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
# Events of ours in a stream of others.
_INSERTED = 2
_UNVERIFIED = "The encrypted content could not be verified. Reason: {reason}."
_reads_entries = msgspec.json.Decoder(list[dict[str, object]]).decode


def parse_request(fields: Mapping[str, msgspec.Raw], items: Mapping[int, object], length: int) -> CompactionRequest:
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
    """0 where it is left to us; None where no compaction is asked for."""
    if not raw or bytes(raw) == b"null":
        return None
    try:
        entries = _reads_entries(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise CompactionRequestError("It must be a list of objects.", param="context_management") from None
    found: int | None = None
    for at, entry in enumerate(entries):
        place = f"context_management[{at}]"
        if entry.get("type") != "compaction":
            raise CompactionRequestError("Supported values are: 'compaction'.", param=f"{place}.type")
        value = entry.get("compact_threshold")
        if value is None:
            found = found or 0
        elif not isinstance(value, int) or isinstance(value, bool) or value < _LEAST_THRESHOLD:
            raise CompactionRequestError(
                f"It must be an integer of at least {_LEAST_THRESHOLD}.", param=f"{place}.compact_threshold"
            )
        else:
            found = min(found or value, value)
    return found


def find_compaction(item: object, _raw: bytes) -> Held | None:
    if not isinstance(item, dict) or kind_of(item) not in COMPACTIONS:
        return None
    return Held(item.get("encrypted_content"))


def is_question(item: object) -> bool:
    return isinstance(item, dict) and kind_of(item) == TRIGGER


def unreadable(position: int, reason: str, _how: How | None) -> CompactionRequestError:
    return CompactionRequestError(
        _UNVERIFIED.format(reason=reason),
        param=f"input[{position}].encrypted_content",
        code="invalid_encrypted_content",
    )


def malformed_item_error(position: int) -> CompactionRequestError:
    return CompactionRequestError(
        "It must be a string that is not empty.", param=f"input[{position}].encrypted_content"
    )


def unfinished_calls_error(items: Sequence[object]) -> CompactionRequestError | None:
    """A call among these that has no output."""
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
    return {"id": f"cmp_{name}", "type": "compaction", "encrypted_content": sealed}


def usage_of(spent: CompactionCost) -> Json:
    return {
        "input_tokens": spent.prompt,
        "input_tokens_details": {"cached_tokens": spent.cached},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.prompt + spent.output,
    }


def whole(answer: CompactionAnswer) -> bytes:
    """The answer to a trigger."""
    return msgspec.json.encode(_response(answer, "completed", [answer.item]))


def opening(answer: CompactionAnswer) -> Iterator[bytes]:
    """How the stream of one begins, before there is an item."""
    for number, (kind, status) in enumerate((("created", "in_progress"), ("in_progress", "in_progress"))):
        yield _event(f"response.{kind}", number, response=_response(answer, status, []))


def at_work(answer: CompactionAnswer) -> bytes:
    """A model is asked for a summary."""
    return _event("response.compaction.compacting", 2, item_id=answer.item_id, output_index=0)


def closing(answer: CompactionAnswer, *, is_told: bool) -> Iterator[bytes]:
    """How it ends; `is_told`: whether `at_work` stood before it."""
    number = 3 if is_told else 2
    yield _event("response.output_item.added", number, output_index=0, item=answer.item)
    yield _event("response.output_item.done", number + 1, output_index=0, item=answer.item)
    yield _event("response.completed", number + 2, response=_response(answer, "completed", [answer.item]))


def failing(answer: CompactionAnswer, message: str, *, is_told: bool) -> bytes:
    """How it ends where no item could be made."""
    error = {"code": "server_error", "message": message}
    return _event("response.failed", 3 if is_told else 2, response=_response(answer, "failed", []) | {"error": error})


class inserter:  # noqa: N801 - a function to those who use it
    """The item stands first, behind the announcements; what follows is counted on."""

    def __init__(self, answer: CompactionAnswer) -> None:
        self._answer = answer
        self._is_told = False
        self._last = -1

    def events(self, event: dict[str, object]) -> list[dict[str, object]]:
        kind, number = event.get("type"), event.get("sequence_number")
        if not self._is_told and kind in _ANNOUNCEMENTS:
            self._last = number if isinstance(number, int) else self._last + 1
            return [event]
        told = [] if self._is_told else self._output_items()
        self._is_told = True
        return [*told, self._counted_on(event)]

    def whole(self, answer: dict[str, object]) -> dict[str, object]:
        output = answer.get("output")
        return {**answer, "output": [self._answer.item, *output]} if isinstance(output, list) else answer

    def _output_items(self) -> list[dict[str, object]]:
        item, first = self._answer.item, self._last + 1
        kinds = ("response.output_item.added", "response.output_item.done")
        return [
            {"type": kind, "sequence_number": first + at, "output_index": 0, "item": item}
            for at, kind in enumerate(kinds)
        ]

    def _counted_on(self, event: dict[str, object]) -> dict[str, object]:
        changed = dict(event)
        for key, more in (("sequence_number", _INSERTED), ("output_index", 1)):
            if isinstance(number := event.get(key), int):
                changed[key] = number + more
        response = event.get("response")
        return {**changed, "response": self.whole(response)} if isinstance(response, dict) else changed


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
