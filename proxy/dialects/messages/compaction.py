"""Compaction in Anthropic's Messages API: a block of a message, an edit of the prompt, and one on demand.

Sources: platform.claude.com/docs/en/build-with-claude/compaction and /context-editing, and the types of
         anthropic-python 2.13.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from proxy.dialects.block_lists import close_item, open_item, parts_of
from proxy.dialects.compaction import (
    Clearing,
    CompactionAnswer,
    CompactionCost,
    CompactionRequest,
    CompactionRequestError,
    HeldCompaction,
    How,
)
from proxy.dialects.messages.kinds import Json, is_call, is_result, kind_of

FIELDS: Sequence[str] = ("context_management", "compaction")
BETAS: Sequence[str] = ("compact-", "context-management-")
DROPS_BEFORE = True

_COMPACT, CLEAR, _THINKING = "compact_20260112", "clear_tool_uses_20250919", "clear_thinking_"
_DEFAULT_TRIGGER, _LEAST_TRIGGER = 150_000, 50_000
_CLEAR_FROM, _KEEP = 100_000, 3
_decode = msgspec.json.Decoder().decode
_MARK = "cache_control"
_INVALID = "compaction_signature_invalid"
_REASONS = {
    "content mismatch": (
        "the content of the compaction block is not what its signature is for",
        "compaction_content_mismatch",
    ),
    "misplaced": ("a compaction block has to stand first", "compaction_block_misplaced"),
    "ambiguous": ("there is more than one compaction block", "compaction_block_ambiguous"),
}
_COUNTED = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def _refusal(message: str, code: str | None = None) -> CompactionRequestError:
    return CompactionRequestError(message, details={"error_code": code} if code else None)


def parse_request(fields: Mapping[str, msgspec.Raw], _items: Mapping[int, object], length: int) -> CompactionRequest:
    """Return the compaction that a request asks for. Raises CompactionRequestError."""
    on_demand, managed = _object(fields, "compaction"), _object(fields, "context_management")
    if on_demand is not None:
        if managed is not None:
            raise _refusal("compaction: may not be combined with context_management")
        if on_demand.get("type") != "summarize":
            raise _refusal("compaction.type: Input should be 'summarize'")
        if length == 0:
            raise _refusal("messages: there is nothing to summarize", "compaction_nothing_to_summarize")
        return CompactionRequest("demand", instructions=_text(on_demand, "compaction"))
    return CompactionRequest() if managed is None else _edits(managed)


def _object(fields: Mapping[str, msgspec.Raw], name: str) -> dict[str, object] | None:
    if not (raw := fields.get(name)):
        return None
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        value = ()
    if value is not None and not isinstance(value, dict):
        raise _refusal(f"{name}: Input should be a valid dictionary")
    return value


def _edits(managed: Mapping[str, object]) -> CompactionRequest:
    edits = managed.get("edits") or []
    if not isinstance(edits, list):
        raise _refusal("context_management.edits: Input should be a valid list")
    request, other_edits = CompactionRequest(), []
    for at, edit in enumerate(edits):
        path = f"context_management.edits.{at}"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind == _COMPACT:
            request = replace(request, **_compact(edit, path))
        elif kind == CLEAR:
            request = replace(request, clearing=_clearing(edit, path))
        elif isinstance(kind, str) and kind.startswith(_THINKING):
            other_edits.append(edit)
        else:
            raise _refusal(f"{path}.type: Input should be '{CLEAR}', 'clear_thinking_20251015' or '{_COMPACT}'")
    return replace(request, kept_fields={"context_management": {"edits": other_edits}} if other_edits else {})


def _compact(edit: Mapping[str, object], path: str) -> dict[str, Any]:
    trigger = edit.get("trigger")
    threshold = _DEFAULT_TRIGGER if trigger is None else _amount(trigger, f"{path}.trigger", ("input_tokens",))
    if threshold < _LEAST_TRIGGER:
        raise _refusal(f"{path}.trigger.value: Input should be greater than or equal to {_LEAST_TRIGGER}")
    pauses = edit.get("pause_after_compaction") or False
    if not isinstance(pauses, bool):
        raise _refusal(f"{path}.pause_after_compaction: Input should be a valid boolean")
    return {"how": "edit", "threshold": threshold, "instructions": _text(edit, path), "pauses": pauses}


def _clearing(edit: Mapping[str, object], path: str) -> Clearing:
    trigger, keep, least = edit.get("trigger"), edit.get("keep"), edit.get("clear_at_least")
    counts: Literal["input_tokens", "tool_uses"] = "input_tokens"
    if isinstance(trigger, dict) and trigger.get("type") == "tool_uses":
        counts = "tool_uses"
    at = _CLEAR_FROM if trigger is None else _amount(trigger, f"{path}.trigger", ("input_tokens", "tool_uses"))
    inputs = edit.get("clear_tool_inputs") or False
    if not isinstance(inputs, bool):
        inputs = frozenset(_names(inputs, f"{path}.clear_tool_inputs"))
    return Clearing(
        at,
        counts,
        _KEEP if keep is None else _amount(keep, f"{path}.keep", ("tool_uses",)),
        None if least is None else _amount(least, f"{path}.clear_at_least", ("input_tokens",)),
        frozenset(_names(edit.get("exclude_tools") or [], f"{path}.exclude_tools")),
        inputs,
    )


def _amount(amount: object, path: str, kinds: Sequence[str]) -> int:
    if not isinstance(amount, dict) or amount.get("type") not in kinds:
        raise _refusal(f"{path}.type: Input should be {' or '.join(repr(kind) for kind in kinds)}")
    value = amount.get("value")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refusal(f"{path}.value: Input should be a valid integer")
    if value < 0:
        raise _refusal(f"{path}.value: Input should be greater than or equal to 0")
    return value


def _text(fields: Mapping[str, object], path: str) -> str:
    text = fields.get("instructions")
    if text is not None and not isinstance(text, str):
        raise _refusal(f"{path}.instructions: Input should be a valid string")
    return text or ""


def _names(names: object, path: str) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _refusal(f"{path}: Input should be a valid list of strings")
    return names


def find_compaction(item: object, raw: bytes) -> HeldCompaction | None:
    """Return the newest compaction block of a message; None without one."""
    blocks = parts_of(item.get("content")) if isinstance(item, dict) else []
    position = max((position for position, block in enumerate(blocks) if kind_of(block) == "compaction"), default=None)
    if position is None:
        return None
    block = blocks[position]
    members, written = open_item(raw)
    remainder = close_item(members, written[position + 1 :]) if written[position + 1 :] else None
    text, encrypted, signature = (block.get(key) for key in ("content", "encrypted_content", "signature"))
    if text == "" or not isinstance(text, str | None):
        raise _refusal("messages: the content of a compaction block should be a string that is not empty, or null")
    how: How = "demand" if signature is not None and encrypted is None else "edit"
    sealed = signature if how == "demand" else encrypted
    # Without a content the provider could not make a summary, and ignores the block.
    return HeldCompaction(
        sealed if text else None, text or None, how, is_required=False, remainder=remainder, mark=block.get(_MARK)
    )


def is_question(_item: object) -> bool:
    """Return False: a field of the body asks, not an item."""
    return False


def malformed_item_error(position: int) -> CompactionRequestError:
    """Return the error for a block without sealed content."""
    return _refusal(f"messages.{position}.content: a compaction block is not as it was returned")


def unreadable(position: int, reason: str, _how: How | None) -> CompactionRequestError:
    """Return the error for a block that cannot be opened."""
    problem, code = _REASONS.get(reason, ("the signature of the compaction block is invalid", _INVALID))
    return _refusal(f"messages.{position}.content: {problem}", code)


def unfinished_calls_error(items: Sequence[object]) -> CompactionRequestError | None:
    """Return the error for an empty conversation or for calls without results; None if there is neither."""
    messages = [item for item in items if isinstance(item, dict)]
    if not any(message.get("role") != "system" for message in messages):
        return _refusal("messages: there is nothing to summarize", "compaction_nothing_to_summarize")
    calls: set[object] = set()
    for message in messages:
        blocks = parts_of(message.get("content"))
        calls |= {block.get("id") for block in blocks if is_call(block)}
        calls -= {block.get("tool_use_id") for block in blocks if is_result(block)}
    if calls:
        return _refusal("messages: a tool_use has no tool_result yet", "compaction_incomplete_turn")
    return None


def item_of(sealed: str, text: str, _name: str, how: How | None) -> Json:
    """Return a compaction block of the proxy."""
    key = "signature" if how == "demand" else "encrypted_content"
    return {"type": "compaction", "content": text, key: sealed}


def _usage(spent: CompactionCost) -> dict[str, object]:
    return {
        "input_tokens": spent.prompt,
        "output_tokens": spent.output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": spent.cached,
    }


def _usage_alone(answer: CompactionAnswer) -> dict[str, object]:
    """Return the usage of a compaction. The top level does not count it."""
    return {**_usage(CompactionCost()), "iterations": [{"type": "compaction", **_usage(answer.spent)}]}


def full_response(answer: CompactionAnswer) -> bytes:
    """Return a response with only a compaction."""
    message = _message(answer, [answer.item], "compaction", _usage_alone(answer))
    return msgspec.json.encode(message)


def _message(answer: CompactionAnswer, content: Sequence[Json], reason: str | None, usage: Json) -> dict[str, object]:
    return {
        "id": f"msg_{answer.name}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }


def opening(answer: CompactionAnswer) -> Iterator[bytes]:
    """Yield the event that begins the stream."""
    yield _event({"type": "message_start", "message": _message(answer, [], None, _usage(CompactionCost()))})


def progress(_answer: CompactionAnswer) -> bytes:
    """Return no event: the API has none for progress."""
    return b""


def closing(answer: CompactionAnswer, *, has_progress: bool) -> Iterator[bytes]:  # noqa: ARG001 - no progress is sent
    """Yield the events that end the stream."""
    yield from map(_event, _block_events(answer.item))
    delta = {"stop_reason": "compaction", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": _usage_alone(answer)})
    yield _event({"type": "message_stop"})


def failing(_answer: CompactionAnswer, message: str, *, has_progress: bool) -> bytes:  # noqa: ARG001 - no progress is sent
    """Return the error event that ends the stream."""
    return _event({"type": "error", "error": {"type": "api_error", "message": message}})


def _block_events(item: Json) -> list[dict[str, object]]:
    """Return the events of a compaction block.

    The text comes in one piece: in the start of a block made on demand, else as a single delta.
    """
    start = {"type": "content_block_start", "index": 0, "content_block": item}
    end: dict[str, object] = {"type": "content_block_stop", "index": 0}
    if "signature" in item:
        return [start, end]
    delta = {**item, "type": "compaction_delta"}
    empty = {"type": item["type"], "content": None}
    return [
        {**start, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        end,
    ]


def _event(fields: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(fields["type"]).encode(), msgspec.json.encode(fields))


class inserter:  # noqa: N801 - callers use it as a function
    """Inserts the block at index 0 and shifts the model's blocks. The end reports other edits."""

    def __init__(self, answer: CompactionAnswer) -> None:
        """Create an inserter for this response."""
        self._answer = answer
        self._begun: Mapping[str, object] = {}

    def events(self, event: dict[str, object]) -> list[dict[str, object]]:
        """Return the events that replace one event of the model's stream."""
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                self._begun = _mapping(message.get("usage")) if isinstance(message, dict) else {}
                return [event, *(_block_events(self._answer.item) if self._answer.item else [])]
            case "message_delta":
                usage = {**self._begun, **_usage_counts(_mapping(event.get("usage")))}
                return [
                    self._applied_edits({**event, "usage": self._usage_iterations(_mapping(event.get("usage")), usage)})
                ]
            case _ if isinstance(index := event.get("index"), int) and self._answer.item:
                return [{**event, "index": index + 1}]
            case _:
                return [event]

    def full_response(self, answer: dict[str, object]) -> dict[str, object]:
        """Return the model's response with the block inserted."""
        content, usage = answer.get("content"), _mapping(answer.get("usage"))
        if not isinstance(content, list):
            return answer
        if self._answer.item:
            answer = {**answer, "content": [self._answer.item, *content], "usage": self._usage_iterations(usage, usage)}
        return self._applied_edits(answer)

    def _usage_iterations(self, usage: Mapping[str, object], counts: Mapping[str, object]) -> Mapping[str, object]:
        """Return the usage with the compaction as an iteration. The sum does not count it."""
        if not self._answer.item:
            return usage
        iterations = usage.get("iterations")
        counted = {key: counts.get(key) or 0 for key in _COUNTED}
        messages = iterations if isinstance(iterations, list) else [{"type": "message", **counted}]
        return {**usage, "iterations": [{"type": "compaction", **_usage(self._answer.spent)}, *messages]}

    def _applied_edits(self, fields: dict[str, object]) -> dict[str, object]:
        if not self._answer.edits:
            return fields
        managed = _mapping(fields.get("context_management"))
        edits = managed.get("applied_edits")
        applied = [*self._answer.edits, *(edits if isinstance(edits, list) else [])]
        return {**fields, "context_management": {**managed, "applied_edits": applied}}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _usage_counts(usage: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in usage.items() if value is not None}
