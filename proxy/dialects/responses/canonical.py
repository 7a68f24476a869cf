"""What an item's digest covers: its canonical form, equal for what means the same."""

from collections.abc import Callable, Mapping

from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from proxy.dialects.canonical import form_of_arguments, without_fields
from proxy.dialects.responses.kinds import COMPACTIONS

Json = Mapping[str, object]
_Text = Callable[[str], str]

_SEED = b"responses"
TEXTS = frozenset({"input_text", "output_text", "text"})
# Ids, and where an item stands in its making; of a reference the id is all there is.
_VOLATILE = frozenset({"type", "id", "call_id", "approval_request_id", "status"})
MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


def item_digest(item: Json, kind: str) -> bytes:
    """Of one item's canonical form; `kind` is its type.

    Kept: kind, role, phase, text, other parts, names, arguments, and every field not known here. Dropped: ids, status,
    nulls, a cache's marks, all of a reasoning item, the difference between a string and one text part, formatting and
    key order of arguments, and dates and clock times in results. Links between calls and results are added by
    `policies.conversation.prefix_digests.prefix_digests`.
    """
    return _digest(item, kind, without_stamps if kind.endswith("_output") else str)


def _digest(item: Json, kind: str, text: _Text) -> bytes:
    if kind == "reasoning":
        return digest_of(_SEED, [kind])
    if kind in COMPACTIONS:  # by what it holds alone: clients add who has made it, and when
        return digest_of(_SEED, ["compaction", item.get("encrypted_content")])
    dropped = _VOLATILE - {"id"} if kind == "item_reference" else _VOLATILE
    kept = {
        key: _value(key, value, text)
        for key, value in item.items()
        if value is not None and key not in dropped and key not in MARKS
    }
    return digest_of(_SEED, [kind, kept])


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
    kept = {key: without_fields(value, MARKS) for key, value in part.items() if value is not None and key not in MARKS}
    kind, said = kept.get("type"), kept.get("text")
    if not isinstance(kind, str) or kind not in TEXTS or not isinstance(said, str):
        return {"part": kept}
    # What a server adds to a text of the model's, empty where there is nothing to add.
    beside = {key: value for key, value in kept.items() if key not in ("type", "text") and value != []}
    return {"text": text(said), **beside} if beside else text(said) or None
