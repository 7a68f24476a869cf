"""Canonical form of a chat message, which its digest covers. Messages with the same meaning have the same form."""

from collections.abc import Callable, Mapping

from policies.conversation.prefix_digests import digest_of
from policies.conversation.timestamps import without_stamps
from proxy.dialects.canonical import form_of_arguments, without_fields

Json = Mapping[str, object]
_Text = Callable[[str], str]

# Chat was the only dialect when the first digests were stored.
_SEED = b""
# Parts and keys that clients move or drop between requests without changing the meaning.
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_RESULTS = ("tool", "function")
_VOLATILE_KEYS = frozenset({"cache_control", "id", "index", "signature", "thought_signature", "reasoning_details"})


def message_digest(message: Json) -> bytes:
    """Return the digest of one message's canonical form.

    Kept: role, name, text, other parts, tool names and arguments. Dropped: cache_control, reasoning and signatures,
          ids, nulls, the difference between a string and one text part, and formatting and key order of arguments.
          Dates and clock times in tool results are dropped too, since some harnesses write them anew with every
          request. Other text is never normalized. `policies.conversation.prefix_digests.prefix_digests` adds the links
          between calls and results.
    """
    return digest_of(_SEED, _canonical(message, without_stamps if message.get("role") in _RESULTS else str))


def text_digest(role: str, text: str) -> bytes:
    """Return the same digest for a message with only a role and a text. Most messages are of this kind."""
    return digest_of(_SEED, [role, None, [text] if text else [], [], None])


def _canonical(message: Json, text: _Text) -> list[object]:
    return [
        message.get("role"),
        message.get("name"),
        _content(message.get("content"), text),
        _calls(message),
        message.get("refusal"),
    ]


def _content(content: object, text: _Text) -> list[object]:
    if content is None or content == "":
        return []
    if not isinstance(content, list):
        return [text(content) if isinstance(content, str) else content]
    return [canonical for part in content if (canonical := _part(part, text)) is not None]


def _part(part: object, text: _Text) -> object:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if isinstance(kind, str) and kind in _REASONING_PARTS:
        return None
    if kind == "text":
        value = part.get("text")
        return (text(value) if isinstance(value, str) else value) or None
    return {"part": without_fields(part, _VOLATILE_KEYS)}


def _calls(message: Json) -> list[object]:
    calls = message.get("tool_calls")
    canonical = [_call(call) for call in calls] if isinstance(calls, list) else []
    legacy = message.get("function_call")
    return canonical if legacy is None else [*canonical, _call({"function": legacy})]


def _call(call: object) -> object:
    if not isinstance(call, dict):
        return call
    function = call.get("function") or call.get("custom")
    if not isinstance(function, dict):
        return without_fields(call, _VOLATILE_KEYS)
    return [function.get("name"), _arguments(function.get("arguments", function.get("input")))]


def _arguments(arguments: object) -> object:
    return form_of_arguments(arguments) if isinstance(arguments, str) else [without_fields(arguments, _VOLATILE_KEYS)]
