"""Compaction as Anthropic's Messages API has it: a block of a message, an edit of the prompt, and one on demand.

platform.claude.com/docs/en/build-with-claude/compaction and /context-editing, and the types of anthropic-python 2.13.
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
    Held,
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
    found, left = CompactionRequest(), []
    for at, edit in enumerate(edits):
        place = f"context_management.edits.{at}"
        kind = edit.get("type") if isinstance(edit, dict) else None
        if kind == _COMPACT:
            found = replace(found, **_compact(edit, place))
        elif kind == CLEAR:
            found = replace(found, clearing=_clearing(edit, place))
        elif isinstance(kind, str) and kind.startswith(_THINKING):
            left.append(edit)
        else:
            raise _refusal(f"{place}.type: Input should be '{CLEAR}', 'clear_thinking_20251015' or '{_COMPACT}'")
    return replace(found, leaves={"context_management": {"edits": left}} if left else {})


def _compact(edit: Mapping[str, object], place: str) -> dict[str, Any]:
    trigger = edit.get("trigger")
    threshold = _DEFAULT_TRIGGER if trigger is None else _amount(trigger, f"{place}.trigger", ("input_tokens",))
    if threshold < _LEAST_TRIGGER:
        raise _refusal(f"{place}.trigger.value: Input should be greater than or equal to {_LEAST_TRIGGER}")
    pauses = edit.get("pause_after_compaction") or False
    if not isinstance(pauses, bool):
        raise _refusal(f"{place}.pause_after_compaction: Input should be a valid boolean")
    return {"how": "edit", "threshold": threshold, "instructions": _text(edit, place), "pauses": pauses}


def _clearing(edit: Mapping[str, object], place: str) -> Clearing:
    trigger, keep, least = edit.get("trigger"), edit.get("keep"), edit.get("clear_at_least")
    counts: Literal["input_tokens", "tool_uses"] = "input_tokens"
    if isinstance(trigger, dict) and trigger.get("type") == "tool_uses":
        counts = "tool_uses"
    at = _CLEAR_FROM if trigger is None else _amount(trigger, f"{place}.trigger", ("input_tokens", "tool_uses"))
    inputs = edit.get("clear_tool_inputs") or False
    if not isinstance(inputs, bool):
        inputs = frozenset(_names(inputs, f"{place}.clear_tool_inputs"))
    return Clearing(
        at,
        counts,
        _KEEP if keep is None else _amount(keep, f"{place}.keep", ("tool_uses",)),
        None if least is None else _amount(least, f"{place}.clear_at_least", ("input_tokens",)),
        frozenset(_names(edit.get("exclude_tools") or [], f"{place}.exclude_tools")),
        inputs,
    )


def _amount(said: object, place: str, kinds: Sequence[str]) -> int:
    if not isinstance(said, dict) or said.get("type") not in kinds:
        raise _refusal(f"{place}.type: Input should be {' or '.join(repr(kind) for kind in kinds)}")
    value = said.get("value")
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refusal(f"{place}.value: Input should be a valid integer")
    if value < 0:
        raise _refusal(f"{place}.value: Input should be greater than or equal to 0")
    return value


def _text(said: Mapping[str, object], place: str) -> str:
    text = said.get("instructions")
    if text is not None and not isinstance(text, str):
        raise _refusal(f"{place}.instructions: Input should be a valid string")
    return text or ""


def _names(said: object, place: str) -> list[str]:
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise _refusal(f"{place}: Input should be a valid list of strings")
    return said


def find_compaction(item: object, raw: bytes) -> Held | None:
    """Of several blocks in a message the newest holds."""
    blocks = parts_of(item.get("content")) if isinstance(item, dict) else []
    at = max((at for at, block in enumerate(blocks) if kind_of(block) == "compaction"), default=None)
    if at is None:
        return None
    block = blocks[at]
    members, written = open_item(raw)
    behind = close_item(members, written[at + 1 :]) if written[at + 1 :] else None
    text, encrypted, signature = (block.get(key) for key in ("content", "encrypted_content", "signature"))
    if text == "" or not isinstance(text, str | None):
        raise _refusal("messages: the content of a compaction block should be a string that is not empty, or null")
    how: How = "demand" if signature is not None and encrypted is None else "edit"
    sealed = signature if how == "demand" else encrypted
    # Without a content the provider could not make one, and takes no notice of it.
    return Held(sealed if text else None, text or None, how, is_required=False, behind=behind, mark=block.get(_MARK))


def is_question(_item: object) -> bool:
    """It is asked by a field of the body."""
    return False


def malformed_item_error(position: int) -> CompactionRequestError:
    return _refusal(f"messages.{position}.content: a compaction block is not as it was returned")


def unreadable(position: int, reason: str, _how: How | None) -> CompactionRequestError:
    what, code = _REASONS.get(reason, ("the signature of the compaction block is invalid", _INVALID))
    return _refusal(f"messages.{position}.content: {what}", code)


def unfinished_calls_error(items: Sequence[object]) -> CompactionRequestError | None:
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
    """The top level tells nothing of the compaction."""
    return {**_usage(CompactionCost()), "iterations": [{"type": "compaction", **_usage(answer.spent)}]}


def whole(answer: CompactionAnswer) -> bytes:
    told = _message(answer, [answer.item], "compaction", _usage_alone(answer))
    return msgspec.json.encode(told)


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
    yield _event({"type": "message_start", "message": _message(answer, [], None, _usage(CompactionCost()))})


def at_work(_answer: CompactionAnswer) -> bytes:
    return b""


def closing(answer: CompactionAnswer, *, is_told: bool) -> Iterator[bytes]:  # noqa: ARG001 - nothing is told before
    yield from map(_event, _block_events(answer.item))
    delta = {"stop_reason": "compaction", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": _usage_alone(answer)})
    yield _event({"type": "message_stop"})


def failing(_answer: CompactionAnswer, message: str, *, is_told: bool) -> bytes:  # noqa: ARG001 - as above
    return _event({"type": "error", "error": {"type": "api_error", "message": message}})


def _block_events(item: Json) -> list[dict[str, object]]:
    """The whole text comes in one piece: with the beginning of a block that was made on demand, else as one delta."""
    begun = {"type": "content_block_start", "index": 0, "content_block": item}
    end: dict[str, object] = {"type": "content_block_stop", "index": 0}
    if "signature" in item:
        return [begun, end]
    delta = {**item, "type": "compaction_delta"}
    empty = {"type": item["type"], "content": None}
    return [
        {**begun, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        end,
    ]


def _event(fields: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(fields["type"]).encode(), msgspec.json.encode(fields))


class inserter:  # noqa: N801 - a function to those who use it
    """The block stands at index 0, and those of the model behind it; what was edited is told with the end."""

    def __init__(self, answer: CompactionAnswer) -> None:
        self._answer = answer
        self._begun: Mapping[str, object] = {}

    def events(self, event: dict[str, object]) -> list[dict[str, object]]:
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

    def whole(self, answer: dict[str, object]) -> dict[str, object]:
        content, usage = answer.get("content"), _mapping(answer.get("usage"))
        if not isinstance(content, list):
            return answer
        if self._answer.item:
            answer = {**answer, "content": [self._answer.item, *content], "usage": self._usage_iterations(usage, usage)}
        return self._applied_edits(answer)

    def _usage_iterations(self, told: Mapping[str, object], whole: Mapping[str, object]) -> Mapping[str, object]:
        """What is told of the usage, with the compaction beside it: the sum is without that."""
        if not self._answer.item:
            return told
        others = told.get("iterations")
        counted = {key: whole.get(key) or 0 for key in _COUNTED}
        messages = others if isinstance(others, list) else [{"type": "message", **counted}]
        return {**told, "iterations": [{"type": "compaction", **_usage(self._answer.spent)}, *messages]}

    def _applied_edits(self, told: dict[str, object]) -> dict[str, object]:
        if not self._answer.edits:
            return told
        managed = _mapping(told.get("context_management"))
        edits = managed.get("applied_edits")
        applied = [*self._answer.edits, *(edits if isinstance(edits, list) else [])]
        return {**told, "context_management": {**managed, "applied_edits": applied}}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _usage_counts(usage: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in usage.items() if value is not None}
