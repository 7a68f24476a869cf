"""What a message's digest covers: its canonical form, equal for what means the same."""

import re
from collections.abc import Callable

from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from proxy.dialects.canonical import without_fields
from proxy.dialects.messages.kinds import THINKING, Json, is_result, kind_of

_Text = Callable[[str], str | None]

_SEED = b"messages"
_MARKS = frozenset({"cache_control"})
# What clients move about or drop between requests without changing what was said.
_VOLATILE = frozenset({"cache_control", "id", "tool_use_id", "signature", "caller"})
_PLAIN = {"type", "text"}
_BARE = frozenset({"role", "content"})
_APART = _VOLATILE | _BARE
_mask_digits = re.compile(r"\d").sub


def message_digest(message: Json) -> bytes:
    """Of one message's canonical form.

    Kept: role, text, names, input, media, errors, and every field not known here. Dropped: ids, a cache's marks,
    thinking and signatures, callers, nulls, the difference between a string and one block of text, and dates and clock
    times in results. Links between calls and results are added by `policies.conversation.prefix_digests`.
    """
    return _digest(message, str)


def instruction_digest(message: Json) -> bytes:
    """The same with every digit alike: of instructions that count something, the newest holds."""
    return _digest(message, lambda text: _mask_digits("0", text))


def _digest(message: Json, text: _Text) -> bytes:
    content = _content(message.get("content"), text)
    said = () if message.keys() == _BARE else message.items()
    beside = {key: without_fields(value, _MARKS) for key, value in said if value is not None and key not in _APART}
    return digest_of(_SEED, [message.get("role"), content, beside])


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
    said = {key: value for key, value in block.items() if value is not None and key not in _VOLATILE}
    if kind == "text" and said.keys() == _PLAIN and isinstance(said["text"], str):
        return text(said["text"])
    for key, value in said.items():
        if key == "content":
            said[key] = _content(value, without_stamps if is_result(block) else text)
        elif key != "input":  # arguments are compared as they are: a null may be one, and so may be an id
            said[key] = without_fields(value, _MARKS)
    return said
