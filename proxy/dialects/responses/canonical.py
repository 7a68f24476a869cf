"""Canonical form of an item, which its digest covers. Items with the same meaning have the same form."""

from collections.abc import Callable, Mapping

from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from proxy.dialects.canonical import form_of_arguments, without_fields
from proxy.dialects.responses.kinds import COMPACTIONS

Json = Mapping[str, object]
_Text = Callable[[str], str]

_SEED = b"responses"
TEXTS = frozenset({"input_text", "output_text", "text"})
# Ids and progress. A reference consists of its id alone.
_VOLATILE = frozenset({"type", "id", "call_id", "approval_request_id", "status"})
MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


def item_digest(item: Json, kind: str) -> bytes:
    """Return the digest of one item's canonical form. kind: its type.

    Kept: kind, role, phase, text, other parts, names, arguments, and every unknown field. Dropped: ids, status, nulls,
          cache marks, all of a reasoning item, the difference between a string and one text part, and formatting and
          key order of arguments. Dates and clock times in results are dropped too.
          `policies.conversation.prefix_digests.prefix_digests` adds the links between calls and results.
    """
    return _digest(item, kind, without_stamps if kind.endswith("_output") else str)


def _digest(item: Json, kind: str, text: _Text) -> bytes:
    if kind == "reasoning":
        return digest_of(_SEED, [kind])
    if kind in COMPACTIONS:  # by its content only: clients add its maker and time
        return digest_of(_SEED, ["compaction", item.get("encrypted_content")])
    dropped = _VOLATILE - {"id"} if kind == "item_reference" else _VOLATILE
    fields = {
        key: _value(key, value, text)
        for key, value in item.items()
        if value is not None and key not in dropped and key not in MARKS
    }
    return digest_of(_SEED, [kind, fields])


def _value(key: str, value: object, text: _Text) -> object:
    if key == "arguments":
        return form_of_arguments(value) if isinstance(value, str) else [value]
    if key in ("content", "output"):
        return _content(value, text)
    return without_fields(value, MARKS)


def _content(content: object, text: _Text) -> list[object]:
    if isinstance(content, str):
        return [text(content)] if content else []
    if not isinstance(content, list):
        return [{"is": without_fields(content, MARKS)}]
    return [canonical for part in content if (canonical := _part(part, text)) is not None]


def _part(part: object, text: _Text) -> object:
    if not isinstance(part, dict):
        return part
    fields = {
        key: without_fields(value, MARKS) for key, value in part.items() if value is not None and key not in MARKS
    }
    kind, text_value = fields.get("type"), fields.get("text")
    if not isinstance(kind, str) or kind not in TEXTS or not isinstance(text_value, str):
        return {"part": fields}
    # Fields that a server adds to a model's text. They are empty if it has nothing to add.
    other_fields = {key: value for key, value in fields.items() if key not in ("type", "text") and value != []}
    return {"text": text(text_value), **other_fields} if other_fields else text(text_value) or None
