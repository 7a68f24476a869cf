"""Canonical form of a message, which its digest covers. Messages with the same meaning have the same form."""

import re
from collections.abc import Callable

from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from proxy.dialects.canonical import without_fields
from proxy.dialects.messages.kinds import THINKING, Json, is_result, kind_of

_Text = Callable[[str], str | None]

_SEED = b"messages"
_MARKS = frozenset({"cache_control"})
# Keys that clients move or drop between requests without changing the meaning.
_VOLATILE = frozenset({"cache_control", "id", "tool_use_id", "signature", "caller"})
_PLAIN = {"type", "text"}
_BARE = frozenset({"role", "content"})
_NOT_OTHER = _VOLATILE | _BARE
_mask_digits = re.compile(r"\d").sub


def message_digest(message: Json) -> bytes:
    """Return the digest of one message's canonical form.

    Kept: role, text, names, input, media, errors, and every unknown field. Dropped: ids, cache marks, thinking and
          signatures, callers, nulls, and the difference between a string and one text block. Dates and clock times in
          results are dropped too. `policies.conversation.prefix_digests` adds the links between calls and results.
    """
    return _digest(message, str)


def instruction_digest(message: Json) -> bytes:
    """Return the digest with all digits masked. Of instructions that differ only in counts, the newest applies."""
    return _digest(message, lambda text: _mask_digits("0", text))


def _digest(message: Json, text: _Text) -> bytes:
    content = _content(message.get("content"), text)
    fields = () if message.keys() == _BARE else message.items()
    other_fields = {
        key: without_fields(value, _MARKS) for key, value in fields if value is not None and key not in _NOT_OTHER
    }
    return digest_of(_SEED, [message.get("role"), content, other_fields])


def _content(content: object, text: _Text) -> list[object]:
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        return [] if content is None else [{"": without_fields(content, _MARKS)}]
    return [form for block in content if (form := _block(block, text)) is not None]


def _block(block: object, text: _Text) -> object:
    if isinstance(block, str):
        return text(block)
    if not isinstance(block, dict):
        return {"": block}
    if (kind := kind_of(block)) in THINKING:
        return None
    fields = {key: value for key, value in block.items() if value is not None and key not in _VOLATILE}
    if kind == "text" and fields.keys() == _PLAIN and isinstance(fields["text"], str):
        return text(fields["text"])
    for key, value in fields.items():
        if key == "content":
            fields[key] = _content(value, without_stamps if is_result(block) else text)
        elif key != "input":  # arguments are compared unchanged: a null or an id may be one of them
            fields[key] = without_fields(value, _MARKS)
    return fields
